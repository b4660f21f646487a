"""A checkpoint that retention deletes while a command reads it is no damaged one, at whatever moment it goes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.checkpoint.world import RUN, attempt_on, directory_of, flip, state, store_root, writer
from trainer_runtime.checkpoint.keeping.cleaning import delete_checkpoints
from trainer_runtime.cli.checkpoints import diff, export, show, verify
from trainer_runtime.cli.checkpoints.choice import DeletedMeanwhile, Place
from trainer_runtime.contract.exit_report import ExitCode
from trainer_runtime.contract.layout import StepName
from trainer_runtime.errors import CheckpointDamaged, ConfigurationError
from trainer_runtime.store.posix import PosixStore

MOST_MOMENTS = 200


class Tidied(PosixStore):
    """A store in which retention deletes step 1 right before one of the calls that read."""

    def __init__(self, root: Path, is_time: Callable[[int, str], bool]) -> None:
        """``is_time`` is given the number of calls before this one, and its path."""
        super().__init__(root)
        self._is_time, self._calls = is_time, itertools.count()
        self.was_tidied = False

    def read(self, path: str) -> bytes:
        self._look(path)
        return super().read(path)

    def size(self, path: str) -> int:
        self._look(path)
        return super().size(path)

    def list(self, path: str) -> tuple[str, ...]:
        self._look(path)
        return super().list(path)

    def read_range(self, path: str, offset: int, into: memoryview) -> int:
        self._look(path)
        return super().read_range(path, offset, into)

    def read_back(self, path: str, block_bytes: int) -> Iterator[memoryview]:
        self._look(path)
        return super().read_back(path, block_bytes)

    def _look(self, path: str) -> None:
        if self._is_time(next(self._calls), path) and not self.was_tidied:
            self.was_tidied = True
            delete_checkpoints(PosixStore(self._root), RUN, writer(attempt=1), [StepName(1, 1)])


def at_call(moment: int, calls: int, _path: str) -> bool:
    return calls == moment


def at_data(_calls: int, path: str) -> bool:
    return "/data/" in path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    with attempt_on(PosixStore(root)) as attempt:
        for step in (1, 2):
            attempt.saved(step, [state(float(step))])
    return root


Command = Callable[[Place, Path], int]
COMMANDS: dict[str, Command] = {
    "show": lambda place, _: show.run(place, "1", False, 0.0),
    "verify": lambda place, _: verify.run(place, ["1"], False),
    "verify --all": lambda place, _: verify.run(place, [], True),
    "diff": lambda place, _: diff.run(place, "1", "2"),
    "export": lambda place, out: export.run(place, "1", out),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_deleted_while_a_command_reads_it_is_not_called_damaged(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    said = []
    for moment in range(MOST_MOMENTS):
        root = tmp_path / f"store-{moment}"
        shutil.copytree(template, root, copy_function=shutil.copyfile)
        store = Tidied(root, partial(at_call, moment))
        try:
            code = COMMANDS[command](Place(store, RUN, {}), tmp_path / f"out-{moment}")
        except ConfigurationError as error:
            code = int(ExitCode.BAD_CONFIGURATION)
            said += [str(error)] if isinstance(error, DeletedMeanwhile) else []
        assert code in ((0,) if command == "verify --all" else (0, 1, ExitCode.BAD_CONFIGURATION)), f"at call {moment}"
        if not store.was_tidied:
            break
    else:
        pytest.fail("the command never ended")
    out = capsys.readouterr().out
    assert "DAMAGED" not in out
    if command == "verify --all":
        assert "step 1-1: was deleted while it was read\nstep 2-1: good" in out
    else:
        assert set(said) == {"STEP: 1-1 was deleted while it was read"}


def test_what_is_there_and_damaged_is_called_so_beside_what_was_deleted(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    with attempt_on(store) as attempt:
        records = [attempt.saved(step, [state(float(step))]) for step in (1, 2)]
    flip(directory_of(store, records[1]) / "data" / "00000-model-0.safetensors", 5000)
    place = Place(store, RUN, {})
    with pytest.raises(CheckpointDamaged, match="chunk 0"):
        export.run(place, "2", store_root(store).parent / "out")
    tidied = Tidied(store_root(store), at_data)
    assert verify.run(Place(tidied, RUN, {}), ["1", "2"], False) == ExitCode.DAMAGED
    assert tidied.was_tidied
    assert capsys.readouterr().out == "step 1-1: was deleted while it was read\nstep 2-1: DAMAGED\n"
