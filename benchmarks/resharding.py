"""States cut over ranks, for the benchmark of restoring: checkpoints of several ranks, and loading them in real processes side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as ShardPlacement

from benchmarks import measuring, saving
from trainer_runtime.checkpoint.commit import About, Writer, commit
from trainer_runtime.checkpoint.exchange import LocalExchange
from trainer_runtime.checkpoint.image import page_multiple
from trainer_runtime.checkpoint.job import StagedFile
from trainer_runtime.checkpoint.opening import open_run
from trainer_runtime.checkpoint.reading.restore import open_checkpoint
from trainer_runtime.checkpoint.staging.pieces import FilePlan
from trainer_runtime.checkpoint.staging.plan import build_plan
from trainer_runtime.checkpoint.writer import write_files
from trainer_runtime.contract.assignment import ResumePoint
from trainer_runtime.contract.codec import dumps
from trainer_runtime.contract.layout import StepName, rank_index_path, staging_path
from trainer_runtime.contract.manifest import JobIdentity, RankIndex
from trainer_runtime.state import sharding
from trainer_runtime.state.leaves import Kind, Leaf, Shard
from trainer_runtime.store.base import Store
from trainer_runtime.store.posix import PosixStore

RANKS = 4


def cut(state: dict[str, torch.Tensor], axis: int, rank: int, ranks: int) -> list[Leaf]:
    """Return a rank's blocks of a state that is cut along one axis, as leaves. The blocks are copies."""
    leaves = []
    for name, tensor in state.items():
        size = -(-tensor.shape[axis] // ranks)
        first = min(rank * size, tensor.shape[axis])
        block = tensor.narrow(axis, first, min(size, tensor.shape[axis] - first)).clone()
        offset = tuple(first if dimension == axis else 0 for dimension in range(tensor.dim()))
        leaves.append(Leaf(name, block, Kind.MODEL, False, shard=Shard(tuple(tensor.shape), offset, (rank,))))
    return leaves


def write_rows(store: Store, state: dict[str, torch.Tensor], ranks: int) -> ResumePoint:
    """Commit a checkpoint as so many ranks would write it, each its rows, and return its resume point."""
    writer = open_run(store, saving.RUN, Writer(JobIdentity(), "", "benchmark", 0, 1, 0), LocalExchange(), None, False, None).writer
    staging = f"{saving.RUN}/{staging_path(StepName(1, writer.attempt))}"
    texts = []
    for rank in range(ranks):
        leaves = cut(state, 0, rank, ranks)
        plan = build_plan(leaves, rank, ranks)
        images = {file.path: memoryview(_image(file, leaves)) for file in plan.files}
        staged = [StagedFile(file.path, file.size, 0) for file in plan.files]
        files = write_files(store, saving.RUN, staging, staged, _lookup(images))
        texts.append(dumps(RankIndex(rank, files, plan.tensors, ())).encode())
        store.create(f"{staging}/{rank_index_path(rank)}", texts[-1])
    committer = Writer(writer.job, writer.pod_uid, writer.name, 0, ranks, writer.attempt)
    return commit(store, saving.RUN, staging, committer, About(1, 0, 0), tuple(texts)).resume_point()


def rows_to_columns(directory: Path, gigabytes: float, repeats: int) -> dict[str, list[float]]:
    """Save rows and load columns in RANKS processes, ours and DCP's in turn; return the slowest process's seconds of each load."""
    state = {name: tensor[: len(tensor) // RANKS * RANKS] for name, tensor in saving.make_state(gigabytes).items()}
    (directory / "ours").mkdir()
    point = write_rows(PosixStore(directory / "ours"), state, RANKS)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    del state
    torch.multiprocessing.spawn(_contest, (directory, shapes, point, repeats), nprocs=RANKS)
    results: dict[str, list[float]] = json.loads((directory / "results.json").read_text())
    return results


def _lookup(images: dict[str, memoryview]) -> Callable[[StagedFile], memoryview]:
    return lambda file: images[file.path]


def _image(file: FilePlan, leaves: list[Leaf]) -> bytearray:
    image = bytearray(page_multiple(file.size))
    image[: len(file.header)] = file.header
    for piece in file.pieces:
        begin = len(file.header) + piece.begin
        rows = leaves[piece.leaf].tensor.narrow(0, piece.first_row, piece.rows)
        image[begin : begin + piece.nbytes] = rows.reshape(-1).view(torch.uint8).numpy().data
    return image


def _contest(rank: int, directory: Path, shapes: dict[str, tuple[int, ...]], point: ResumePoint, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(directory / "rendezvous"), RANKS), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = {name: _shard(shape, 0, mesh) for name, shape in shapes.items()}
    dcp.save(rows, checkpoint_id=directory / "dcp")
    del rows
    columns = {name: _shard(shape, 1, mesh) for name, shape in shapes.items()}
    leaves = [
        Leaf(name, sharding.local_part(tensor), Kind.MODEL, False, shard=sharding.find_shard(tensor, name, RANKS))
        for name, tensor in columns.items()
    ]
    store = PosixStore(directory / "ours")
    contestants: dict[str, Callable[[], Any]] = {
        "ours_s": lambda: open_checkpoint(store, point).fill(leaves, rank),
        "dcp_load_s": lambda: dcp.load(dict(columns), checkpoint_id=directory / "dcp"),
    }
    for load in contestants.values():
        load()
    results = measuring.take_turns({name: partial(_slowest, load) for name, load in contestants.items()}, repeats)
    if rank == 0:
        (directory / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _shard(shape: tuple[int, ...], axis: int, mesh: DeviceMesh) -> DTensor:
    local = torch.ones(tuple(extent // RANKS if dimension == axis else extent for dimension, extent in enumerate(shape)))
    return DTensor.from_local(local, mesh, [ShardPlacement(axis)], run_check=False)


def _slowest(load: Callable[[], Any]) -> float:
    dist.barrier()
    began = time.perf_counter()
    load()
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)
