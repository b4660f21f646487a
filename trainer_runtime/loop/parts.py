"""What a `Run` is made of, put together in the order that a resume needs. It holds no loop and makes no decision."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import torch.distributed as dist

from trainer_runtime.boundary import Agreement, AloneAgreement, GroupAgreement
from trainer_runtime.checkpoint.engine import SAVE_DEADLINE_SECONDS, Engine
from trainer_runtime.checkpoint.exchange import Exchange, LocalExchange
from trainer_runtime.checkpoint.keeping.snapshots import name_snapshots, paths_in
from trainer_runtime.checkpoint.persister.joining import join
from trainer_runtime.checkpoint.persister.messages import Hello
from trainer_runtime.checkpoint.staging.plan import Planner
from trainer_runtime.checkpoint.tcp_store import connect
from trainer_runtime.contract.allow import Allow
from trainer_runtime.contract.beat import Phase
from trainer_runtime.contract.codec import ContractError, dumps
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.loop.archiving import Archivist
from trainer_runtime.loop.housekeeping import Housekeeper
from trainer_runtime.loop.reporter import Reporter
from trainer_runtime.loop.resume import Start, begin
from trainer_runtime.loop.saver import Saver
from trainer_runtime.settings import Settings
from trainer_runtime.state import strict, tree
from trainer_runtime.state.ddp import StaticGraphWatch
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.store.base import Store
from trainer_runtime.store.open import open_store

CONNECT_SECONDS: Final = 60.0
_attach_numbers = itertools.count()
"""Two attaches of one process must not read each other's messages."""


@dataclass(frozen=True)
class Parts:
    """Everything of one attached rank."""

    settings: Settings
    reporter: Reporter
    state: TrainingState
    start: Start
    saver: Saver
    agreement: Agreement
    static_graphs: StaticGraphWatch
    housekeeper: Housekeeper
    archivist: Archivist


def assemble(settings: Settings, reporter: Reporter, state: TrainingState, allowed: frozenset[Allow]) -> Parts:
    """Open the store, warm DDP up, bring the objects to the starting point and start the writer. Raises what `resume.begin` raises."""
    _check_process_group(settings)
    _check_can_be_saved(settings, state)
    reporter.progress(Phase.START, step=0, epoch=0, loss=None, news=True)
    store = open_store(settings.store, settings.s3, create=settings.create_store)
    number = next(_attach_numbers)

    def exchange_of(name: str) -> Exchange:
        return _connect(settings, f"{number}/{name}")

    static_graphs = state.warm_up()
    start = begin(settings, store, state, allowed, exchange_of, reporter)
    hello = Hello(
        start.opened.writer, settings.local_rank, settings.store, settings.run, SAVE_DEADLINE_SECONDS, settings.s3, settings.local
    )
    snapshots = name_snapshots(state.attachments)
    exchange, master = exchange_of("persister"), settings.master[0] if settings.master is not None else None
    engine = Engine(
        join=lambda on_record, on_ended: join(hello, exchange, master, on_record, on_ended),
        writer=start.opened.writer,
        on_record=reporter.recorded,
        parents=start.opened.parents,
        stored=start.stored,
        snapshots=snapshots,
        software=strict.describe_software(),
        ranks_here=settings.local_world_size,
    )
    archivist = _archivist(settings, store, start, reporter)
    housekeeper = Housekeeper(
        store=store,
        run=settings.run,
        writer=start.opened.writer,
        keep=settings.keep,
        resume=start.resumed_from,
        reporter=reporter,
        in_use=archivist.waiting,
        started_with=paths_in(snapshots),
    )

    def look_around() -> None:
        archivist.look()
        housekeeper.tidy()

    return Parts(
        settings=settings,
        reporter=reporter,
        state=state,
        start=start,
        saver=Saver(
            engine,
            state,
            start.opened.writer.attempt,
            start.allowances,
            start.verified_step,
            on_verified=look_around,
            on_abandoned=reporter.save_abandoned,
            verified_tags=start.verified_tags,
        ),
        agreement=GroupAgreement(settings.hang_seconds) if settings.world_size > 1 else AloneAgreement(),
        static_graphs=static_graphs,
        housekeeper=housekeeper,
        archivist=archivist,
    )


def exchange_before_attach(settings: Settings) -> Exchange:
    """Return an exchange of its own, for what the ranks must agree on before they attach. Every rank calls it as often as the others."""
    _check_process_group(settings)
    return _connect(settings, f"{next(_attach_numbers)}/before")


def _connect(settings: Settings, name: str) -> Exchange:
    if settings.master is None:
        return LocalExchange()
    host, port = settings.master
    return connect(host, port, f"rtj/{settings.launch_id}/{name}", CONNECT_SECONDS)


def _archivist(settings: Settings, store: Store, start: Start, reporter: Reporter) -> Archivist:
    archive = settings.archive
    return Archivist(
        store=store,
        run=settings.run,
        writer=start.opened.writer,
        open_archive=None if archive is None else lambda: open_store(archive.store, settings.s3),
        every_steps=archive.every_steps if archive is not None else None,
        on_record=reporter.recorded,
        on_look=reporter.archive_looked,
    )


def _check_can_be_saved(settings: Settings, state: TrainingState) -> None:
    """Refuse now, by name, what no save could hold; it would cost the training up to the first save."""
    snapshot = state.snapshot({})
    Planner(settings.rank, settings.world_size).plan(snapshot.leaves)
    for name, value in snapshot.objects.items():
        tree.encode(value, name)
    try:
        dumps(state.describe())
    except ContractError as error:
        raise ConfigurationError(f"what a strict resume compares cannot be written down: {error}") from error


def _check_process_group(settings: Settings) -> None:
    if settings.world_size == 1:
        return
    if not dist.is_initialized():
        raise ConfigurationError("attach() was called before torch.distributed.init_process_group(); call that first, then wrap the model")
    if (dist.get_rank(), dist.get_world_size()) != (settings.rank, settings.world_size):
        raise ConfigurationError(
            f"the process group says rank {dist.get_rank()} of {dist.get_world_size()}, RANK and WORLD_SIZE say "
            f"{settings.rank} of {settings.world_size}"
        )
