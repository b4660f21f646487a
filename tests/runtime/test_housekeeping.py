"""The broom works in a thread of its own: whatever goes wrong there is said, and training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.world import writer
from trainer_runtime.contract.assignment import Keep
from trainer_runtime.errors import StoreUnavailable
from trainer_runtime.housekeeping import Housekeeper
from trainer_runtime.reporter import Reporter
from trainer_runtime.settings import resolve
from trainer_runtime.store.posix import PosixStore


class Broken(PosixStore):
    """A store in which every look fails."""

    def __init__(self, root: Path, error: Exception) -> None:
        super().__init__(root)
        self._error = error

    def list(self, path: str) -> tuple[str, ...]:
        raise self._error


@pytest.mark.parametrize("error", [StoreUnavailable("the volume is away"), KeyError("a mistake of ours")], ids=["foreseen", "unforeseen"])
def test_what_goes_wrong_while_cleaning_is_said_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    store = Broken(tmp_path, error)
    broom = Housekeeper(store, "run", writer(attempt=1), Keep(), None, Reporter(resolve({}, store=tmp_path)))
    broom.tidy()
    broom.close()
    assert "deleting old checkpoints" in caplog.text
    assert str(error) in caplog.text
