from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_runtime.state import tree

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20)
keys = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.tuples(st.integers(), st.text(max_size=3))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(keys, children, max_size=4)
        | st.dictionaries(keys, children, max_size=4).map(OrderedDict)
    )


values = st.recursive(scalars, containers, max_leaves=20)


def typed(value: Any) -> Any:
    """The value with the type of every part beside it: 1, 1.0 and True are equal, and must not be confused."""
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    return type(value), value.hex() if isinstance(value, float) else value


@given(values)
def test_what_is_encoded_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    text = json.dumps(tree.encode(value), allow_nan=False)
    assert typed(tree.decode(json.loads(text))) == typed(value)


def nested_tensors() -> st.SearchStrategy[Any]:
    leaf = scalars | st.integers(0, 5).map(lambda size: torch.arange(size, dtype=torch.float64))
    return st.recursive(leaf, containers, max_leaves=12)


@given(nested_tensors())
def test_a_state_dict_is_put_together_again_from_its_tensors_and_its_encoded_skeleton(value: Any) -> None:
    tensors, skeleton = tree.flatten(value, "x")
    skeleton = tree.decode(json.loads(json.dumps(tree.encode(skeleton))))
    assert sorted(reference.name for reference in tree.references(skeleton)) == sorted(tensors)
    rebuilt, rebuilt_skeleton = tree.flatten(tree.unflatten(skeleton, tensors), "x")
    assert typed(rebuilt_skeleton) == typed(skeleton)
    assert all(torch.equal(rebuilt[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -0.0, 5e-324, 2**80, "\ud800", np.float32(0.1), np.int64(3), Counter({5: 2})]
)
def test_odd_values_survive(value: Any) -> None:
    back = tree.decode(json.loads(json.dumps(tree.encode(value), allow_nan=False)))
    assert type(back) is type(value)
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, "state/a/[1]/b"),
        ({("k", 1): {1, 2}}, "state/[('k', 1)]"),
        ([torch.float32], "state/[0]"),
        ({"f": lambda: None}, "state/f"),
        ({"e": pytest.ExitCode.OK}, "state/e"),
    ],
    ids=["object", "set under a tuple key", "dtype", "function", "enum"],
)
def test_a_type_that_is_not_known_is_refused_with_its_key_path(value: Any, path: str) -> None:
    with pytest.raises(tree.TreeError, match="cannot be saved") as refusal:
        tree.encode(value, "state")
    assert str(refusal.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "data",
    [{"float": 1}, {"unknown": 1}, {"a": 1, "b": 2}, {}, 1.5, {"bytes": "%"}, {"numpy": ["O", "00"]}, {"dict": [1]}, {"tensor": [1]}],
    ids=str,
)
def test_what_is_not_typed_json_is_refused_when_it_is_read(data: Any) -> None:
    with pytest.raises(tree.TreeError):
        tree.decode({"dict": [["key", data]]})


def test_a_settled_value_is_encoded_once() -> None:
    value = {"a": (1, 2.5), "b": [tree.TensorRef("x", "float32", (2,))]}
    settled = tree.Settled(value)
    first = tree.encode({"in": settled})
    assert first == tree.encode({"in": value})
    assert tree.encode(settled) is tree.encode(settled)


def test_a_settled_value_of_a_type_that_is_not_known_is_refused_like_any_other() -> None:
    with pytest.raises(tree.TreeError, match=r"^state/a: a builtins\.object"):
        tree.encode(tree.Settled({"a": object()}), "state")


def test_keys_that_look_alike_name_different_tensors() -> None:
    state = {0: torch.zeros(1), "0": torch.ones(1), "[0]": torch.full((1,), 2.0), "a/b": torch.ones(1), "a": {"b": torch.ones(1)}}
    tensors, _skeleton = tree.flatten(state, "x")
    assert len(tensors) == 5


def test_a_numpy_array_becomes_a_tensor_and_an_array_again() -> None:
    tensors, skeleton = tree.flatten({"a": np.arange(3)}, "x")
    assert tensors["x/a"].tolist() == [0, 1, 2]
    back = tree.unflatten(skeleton, tensors)["a"]
    assert isinstance(back, np.ndarray) and back.dtype == np.arange(3).dtype


def test_an_empty_tensor_is_made_to_the_references_shape_and_dtype() -> None:
    _tensors, skeleton = tree.flatten(torch.zeros((2, 3), dtype=torch.bfloat16), "x", torch.device("cpu"))
    made = tree.allocate(skeleton, torch.device("cpu"))
    assert (made.shape, made.dtype) == ((2, 3), torch.bfloat16)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_tensor_of_rows_of_many_lengths_is_refused_by_name(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(tree.TreeError, match=r"^x/a: .*nested"):
        tree.flatten({"a": nested}, "x")


def test_a_missing_tensor_is_named() -> None:
    _tensors, skeleton = tree.flatten({"a": torch.zeros(1)}, "x")
    with pytest.raises(tree.TreeError, match="x/a"):
        tree.unflatten(skeleton, {})
