"""A frozen tensor may come back under its name in another form: then what was known of it is known of no tensor."""

from __future__ import annotations

import pytest
import torch

from tests.checkpoint.little import WINDOW
from trainer_runtime.checkpoint.staging.plan import Planner
from trainer_runtime.state.leaves import Kind, Leaf

FORMS = [
    pytest.param(torch.zeros(300, 1024), 0, id="more rows"),
    pytest.param(torch.zeros(100, 1024), 0, id="fewer rows"),
    pytest.param(torch.zeros(2, 8), 0, id="too small to be looked at"),
    pytest.param(torch.zeros(100, 1024), None, id="trained and smaller"),
    pytest.param(torch.zeros(200, 1024, dtype=torch.float64), None, id="trained and of another type"),
    pytest.param(torch.tensor(1.0), None, id="a number"),
]


@pytest.mark.parametrize(("tensor", "version"), FORMS)
def test_a_frozen_tensor_of_another_form_is_planned_as_it_is_now(tensor: torch.Tensor, version: int | None) -> None:
    planner = Planner(0, 1, room_for=lambda wanted, least: min(wanted, WINDOW))  # so little that the tensor is cut
    for known in (torch.ones(200, 1024), tensor, tensor):
        plan = planner.plan([Leaf("model/base", known, Kind.MODEL, True, frozen_version=version if known is tensor else 0)])
        pieces = [piece for file in plan.files for piece in file.pieces]
        assert {piece.block for piece in pieces} == {tuple(known.shape)}
        assert sum(piece.nbytes for piece in pieces) == known.nbytes
