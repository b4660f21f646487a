"""`attach`: from a script's objects and its keywords to a `Run` that stands where training goes on. It holds no loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from trainer_runtime.contract.allow import Allow
from trainer_runtime.loop.ending import exit_on_problem
from trainer_runtime.loop.parts import assemble
from trainer_runtime.loop.reporter import Reporter
from trainer_runtime.run import Run
from trainer_runtime.settings import resolve
from trainer_runtime.state.data import open_source
from trainer_runtime.state.gather import TrainingState
from trainer_runtime.state.model import World
from trainer_runtime.state.strict import check_allow


def attach(
    *,
    model: nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    data: Any = None,
    config: Any = None,
    tokenizer: str | Path | None = None,
    run: str | None = None,
    store: str | Path | None = None,
    save_every_steps: int | None = None,
    save_every_seconds: float | None = None,
    keep_last: int | None = None,
    keep_every_steps: int | None = None,
    keep_best: str | None = None,
    keep_daily: int | None = None,
    keep_weekly: int | None = None,
    local: str | Path | None = None,
    archive: str | Path | None = None,
    archive_every_steps: int | None = None,
    allow: Iterable[str] = (),
    start_fresh: bool = False,
    resume_from: str | Path | None = None,
    mode: str | None = None,
    **more: Any,
) -> Run:
    """Restore the assigned checkpoint into the objects, or start fresh, and return the run. Every rank calls it, after wrapping the model.

    - ``optimizer``, ``scheduler``, any other keyword (``ema=``, ``scaler=``): a module, an optimizer, a ``torch.Generator``, or what has
      ``state_dict`` and ``load_state_dict``.
    - ``data``: a DataLoader over a `ResumableSampler`, or a stateful iterable; None: the loop gets step numbers.
    - ``config`` (mapping, dataclass, Namespace, or what has ``to_dict``), ``tokenizer`` (file or directory): compared at a resume and kept
      beside the checkpoints, not restored.
    - ``run``: names the lineage (RTJ_RUN, else ``default``). ``store``: URL or directory (RTJ_STORE, else ``./checkpoints``).
    - ``save_every_steps``, ``save_every_seconds``: whichever comes first; default every 600 s.
    - ``keep_last`` (5), ``keep_every_steps``, ``keep_best`` (``"eval_loss"`` or ``"accuracy:max"``, see `Run.report`), ``keep_daily``,
      ``keep_weekly``: what retention leaves.
    - ``local``: a directory on each machine's own disk that saves go to first. ``archive``: a second store for tagged checkpoints and
      every ``archive_every_steps``-th.
    - ``allow``: words of `contract.allow`, for differences that a resume may have.
    - ``start_fresh``: begin at step 0 beside what the run's directory holds.
    - ``resume_from``: address of a checkpoint, of this or another run, to begin from while this run has none of its own; ``mode``:
      ``Strict`` (everything, the default) or ``WarmStart`` (weights alone, at step 0).

    Ends the process with the contract's code, and its reason on standard error, for a setting that cannot be used (78), a resume that is
    not the same run (77), a damaged checkpoint (80), a store that cannot be used (81), or a newer attempt (79).
    """
    with exit_on_problem(None, rank=0):
        settings = resolve(
            store=store,
            run=run,
            save_every_steps=save_every_steps,
            save_every_seconds=save_every_seconds,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            keep_best=keep_best,
            keep_daily=keep_daily,
            keep_weekly=keep_weekly,
            local=local,
            archive=archive,
            archive_every_steps=archive_every_steps,
            allow=allow,
            start_fresh=start_fresh,
            resume_from=resume_from,
            mode=mode,
        )
        reporter = Reporter(settings)
    with exit_on_problem(reporter, settings.rank):
        allowed = check_allow(settings.allow)
        world = World(settings.rank, settings.world_size)
        objects = {"optimizer": optimizer, "scheduler": scheduler, **more}
        state = TrainingState(
            model=model,
            data=open_source(data, world, Allow.DATA in allowed),
            world=world,
            more={keyword: value for keyword, value in objects.items() if value is not None},
            config=config,
            tokenizer=tokenizer,
        )
        return Run(assemble(settings, reporter, state, allowed))
