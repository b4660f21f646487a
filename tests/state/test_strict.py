from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer_runtime.contract.allow import Allow
from trainer_runtime.contract.manifest import TensorEntry
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.state import strict
from trainer_runtime.state.leaves import Kind, Leaf

WORDS = {torch.float32: "F32", torch.bfloat16: "BF16"}


def entry(name: str, dtype: str = "F32", shape: tuple[int, ...] = (2,), grad: bool = True, alias: str | None = None) -> TensorEntry:
    return TensorEntry(name, dtype, shape, (), grad, alias)


def leaf(name: str, tensor: torch.Tensor | None = None, grad: bool = True, alias: str | None = None) -> Leaf:
    return Leaf(name, torch.zeros(2) if tensor is None else tensor, Kind.MODEL, True, grad, alias)


BASE: dict[str, Any] = {"world_size": 3, "data": {"batch_size": 8, "seed": 0}, "config": {"lr": (0.1).hex()}, "tokenizer": None}


def test_equal_descriptions_have_no_difference() -> None:
    assert strict.compare(BASE, {**BASE}) == []


@pytest.mark.parametrize(
    ("change", "where", "word"),
    [
        ({"world_size": 4}, "world_size", Allow.WORLD_SIZE),
        ({"data": {"batch_size": 9, "seed": 0}}, "data.batch_size", Allow.DATA),
        ({"data": {"batch_size": 8}}, "data.seed", Allow.DATA),
        ({"config": {"lr": (0.1).hex(), "new": 1}}, "config.new", Allow.CONFIG),
        ({"tokenizer": {"vocab": "ab"}}, "tokenizer", Allow.TOKENIZER),
        ({"optimizer": {"optim": {"class": "SGD"}}}, "optimizer", Allow.OPTIMIZER),
        ({"hyperparameters": {"optim": [{"lr": 1}]}}, "hyperparameters", Allow.HYPER_PARAMETERS),
        ({"scheduler": {}}, "scheduler", Allow.SCHEDULER),
        ({"objects": {"ema": "X"}}, "objects", Allow.OBJECTS),
        ({"determinism": {"threads": 2}}, "determinism", Allow.DETERMINISM),
        ({"ddp": {"model": {}}}, "ddp", Allow.DETERMINISM),
        ({"world_size": True}, "world_size", Allow.WORLD_SIZE),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_difference_is_found_where_it_is_with_the_word_that_allows_it(change: dict[str, Any], where: str, word: Allow) -> None:
    (difference,) = strict.compare(BASE, {**BASE, **change})
    assert (difference.where, difference.allow) == (where, word)


def test_numbers_are_shown_as_people_write_them() -> None:
    (difference,) = strict.compare({"config": {"lr": (0.1).hex()}}, {"config": {"lr": (-2.5).hex()}})
    assert str(difference) == "config.lr: saved 0.1, now -2.5 [allow: config]"


def test_lists_are_compared_item_by_item() -> None:
    found = strict.compare({"optimizer": ["a", "b"]}, {"optimizer": ["a", "c"]})
    assert [difference.where for difference in found] == ["optimizer[1]"]


@pytest.mark.parametrize(
    ("saved", "live", "where", "word"),
    [
        (entry("gone"), leaf("gone"), None, None),
        (entry("a"), leaf("b"), "a", Allow.STRUCTURE),
        (entry("a", shape=(3,)), leaf("a"), "a", Allow.STRUCTURE),
        (entry("a", dtype="BF16"), leaf("a"), "a", None),
        (entry("a", alias="b"), leaf("a"), "a shares memory with", None),
        (entry("a", grad=False), leaf("a"), "a requires_grad", Allow.STRUCTURE),
    ],
    ids=["equal", "another name", "another shape", "another dtype", "not tied any more", "not frozen any more"],
)
def test_tensors_are_compared_both_ways(saved: TensorEntry, live: Leaf, where: str | None, word: Allow | None) -> None:
    found = strict.compare_leaves({saved.name: saved}, [live], WORDS)
    assert [(difference.where, difference.allow) for difference in found][:1] == ([(where, word)] if where else [])


def test_the_message_holds_every_difference_and_the_words_to_allow_them() -> None:
    found = strict.compare(BASE, {**BASE, "world_size": 4, "tokenizer": {}})
    found += strict.compare_leaves({"w": entry("w", dtype="BF16")}, [leaf("w")], WORDS)
    text = strict.message(found, "file:///s/run/steps/1")
    assert "file:///s/run/steps/1 is not this run (3 differences)" in text
    assert "world_size: saved 3, now 4 [allow: worldSize]" in text
    assert "w: saved BF16, now F32 [cannot be allowed]" in text
    assert text.endswith("No word allows all of these")


def test_the_advice_holds_the_words_that_were_given_already() -> None:
    found = strict.compare(BASE, {**BASE, "tokenizer": {}})
    assert strict.message(found, "x", {Allow.DATA}).endswith("To resume all the same: allow=['data', 'tokenizer']")


def test_a_warm_start_does_not_mind_what_is_trained() -> None:
    assert strict.compare_leaves({"a": entry("a", grad=False)}, [leaf("a")], WORDS, weights_only=True) == []


def test_a_long_list_of_differences_is_cut_and_says_so() -> None:
    found = strict.compare_leaves({}, [leaf(str(number)) for number in range(60)], WORDS)
    assert "… and 10 more" in strict.message(found, "x")


def test_words_are_checked() -> None:
    assert strict.check_allow(["worldSize"]) == {Allow.WORLD_SIZE}
    with pytest.raises(ConfigurationError, match="'world_size' is not one of worldSize, structure"):
        strict.check_allow(["world_size"])
