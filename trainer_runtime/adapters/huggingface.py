"""transformers' Trainer under this runtime: `RtjCallback` saves after optimizer steps, and resumes so that training goes on bit for bit.

The promise. Same image, same number of processes, same dataset: after any number of kills the model, the optimizer, the scheduler, the
scaler, every rank's random numbers, the order of the data and the loss of every step are those of a run with this callback that was never
interrupted. Evaluations in between change nothing: the random numbers they draw are put back. It holds for one process and for DDP, with
gradient accumulation, for map-style datasets and any number of loader workers.

Not promised: what the Trainer *prints* (the logged loss is an average since the last line, which begins anew in each launch; so do the
totals of FLOPs), and random numbers that loader workers draw, which no sampler can put back. Refused by name, because it could not be
promised: see `find_refusal`; and, when it happens, a dataset, collator or callback that draws random numbers in the training process
between two steps, because the Trainer fetches a batch ahead of the step that uses it.

How. The Trainer works its data position out from ``trainer_state.json`` before any callback is asked, so the callback starts the
training itself (`RtjCallback.train`), with that file from the checkpoint, and keeps the Trainer from loading weights from there: that is
`Trainer._load_from_checkpoint`, the one private name used here. Everything else is restored by `attach` in ``on_train_begin``.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from trainer_runtime.attaching import attach
from trainer_runtime.errors import ConfigurationError
from trainer_runtime.loop.ending import exit_on_problem
from trainer_runtime.loop.parts import exchange_before_attach
from trainer_runtime.loop.resume import look_ahead
from trainer_runtime.run import Run
from trainer_runtime.settings import Settings, resolve
from trainer_runtime.state import rng
from trainer_runtime.state.model import World
from trainer_runtime.store.open import open_store

STATE: Final = "trainer_state"
"""Keyword under which the Trainer's own state is saved."""
STATE_FILE: Final = "trainer_state.json"
OWN_KEYWORDS: Final = ("model", "optimizer", "scheduler", "scaler", "data", STATE)
"""Keywords of `attach` that the callback gives itself."""
COMPARED_ARGUMENTS: Final = (
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bf16",
    "data_seed",
    "dataloader_drop_last",
    "fp16",
    "full_determinism",
    "gradient_accumulation_steps",
    "label_smoothing_factor",
    "learning_rate",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "max_grad_norm",
    "max_steps",
    "neftune_noise_alpha",
    "num_train_epochs",
    "optim",
    "per_device_train_batch_size",
    "seed",
    "train_sampling_strategy",
    "warmup_ratio",
    "warmup_steps",
    "weight_decay",
)
"""The training arguments that decide what is computed; a resume with others is refused (allow: config)."""

log = logging.getLogger("trainer_runtime")


class RtjCallback(TrainerCallback):
    """Add nothing to the Trainer by hand: ``RtjCallback(save_every_steps=100).train(trainer)`` adds itself and trains to the end.

    Takes the keywords of `trainer_runtime.attach` but those that the Trainer decides (OWN_KEYWORDS). ``config``: by default the model's
    configuration and the training arguments that matter, so that a resume under others is refused.
    """

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords
        self._trainer: Trainer | None = None
        self._run: Run | None = None
        self._turn = ExitStack()
        self._before: dict[str, Any] | None = None
        """All random numbers at the end of the last step, when something may draw some before the next."""
        self._drawn = _Draws()

    @property
    def run(self) -> Run | None:
        """The run, once training has begun."""
        return self._run

    def train(self, trainer: Trainer) -> TrainOutput:
        """Train from the newest verified checkpoint, or from the beginning, to the end, and see the last step verified.

        Use it instead of ``trainer.train()``, on every rank. Ends the process as `attach` does; raises SaveFailed and what training raises.
        """
        with exit_on_problem(None, rank=trainer.args.process_index):
            refusal = find_refusal(trainer, self._keywords)
            if refusal is not None:
                raise ConfigurationError(f"RtjCallback: {refusal}")
            settings = resolve(**{name: self._keywords[name] for name in _SETTINGS if name in self._keywords})
            saved_state = _find_saved_state(settings)
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        with tempfile.TemporaryDirectory(prefix="rtj-trainer-") as folder:
            if saved_state is None:
                output = trainer.train()
            else:
                (Path(folder) / STATE_FILE).write_text(saved_state)
                with _weights_left_alone(trainer):
                    output = trainer.train(resume_from_checkpoint=folder)
        assert self._run is not None  # the Trainer has called on_train_begin
        self._run.finish()
        self._run.close()
        return output

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore everything into the objects that the Trainer has made by now."""
        trainer = self._trainer
        with exit_on_problem(None, rank=args.process_index):
            if trainer is None:
                raise ConfigurationError("RtjCallback: start the training by RtjCallback(…).train(trainer), not by trainer.train()")
        assert trainer is not None
        scaler = getattr(trainer.accelerator, "scaler", None)
        keywords = {"config": describe(trainer), **self._keywords, STATE: _OwnState(trainer)}
        self._run = attach(
            model=trainer.model_wrapped,
            optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            scheduler=getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler),
            data=_Batches(trainer),
            **(keywords if scaler is None else {**keywords, "scaler": scaler}),
        )
        with exit_on_problem(None, rank=args.process_index):
            if self._run.global_step != state.global_step:
                raise ConfigurationError(
                    f"RtjCallback: the checkpoint to resume from changed while the training was started (step {state.global_step}, now "
                    f"{self._run.global_step}); start it again"
                )

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Before the iterator is made, which draws random numbers."""
        if float(state.epoch).is_integer():
            self._attached.restore_random_numbers()
        self._put_back()
        self._drawn.forget()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the step's batches were fetched."""
        with exit_on_problem(None, rank=args.process_index):
            self._drawn.check(state.global_step)
        self._put_back()
        self._turn.enter_context(self._attached.step())
        self._attached.next_batch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The step boundary: everything of the step is done, and nothing of the next one."""
        if control.should_evaluate or float(state.epoch).is_integer():
            self._before = rng.gather()
            self._drawn.forget()
        else:
            self._drawn.note()
        self._turn.close()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Tell the outside how training goes."""
        self._report(kwargs.get("logs") or {}, only=("loss",))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Metrics of an evaluation, for the next checkpoint."""
        self._report(kwargs.get("metrics") or {})

    @property
    def _attached(self) -> Run:
        assert self._run is not None  # on_train_begin comes first
        return self._run

    def _put_back(self) -> None:
        """An evaluation may have drawn random numbers, and a launch that resumes does not repeat it: in no launch may they count."""
        if self._before is not None:
            rng.restore(self._before)
            self._before = None

    def _report(self, values: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        chosen = {name: value for name, value in values.items() if only is None or name in only}
        numbers = {name: float(value) for name, value in chosen.items() if isinstance(value, (int, float)) and name.isidentifier()}
        if numbers and self._run is not None:
            self._run.report(**numbers)


def find_refusal(trainer: Trainer, keywords: dict[str, Any]) -> str | None:
    """Return why the promise could not be kept for this Trainer, naming the argument, or None."""
    args = trainer.args
    own = sorted(set(keywords) & set(OWN_KEYWORDS))
    if own:
        return f"{', '.join(own)}: the Trainer has its own; leave it out"
    if "worldSize" in keywords.get("allow", ()):
        return "allow: worldSize: the Trainer's data position depends on the number of processes"
    forbidden = {
        "deepspeed": bool(args.deepspeed),
        "fsdp": bool(trainer.is_fsdp_enabled),
        "auto_find_batch_size": args.auto_find_batch_size,
        "ignore_data_skip": args.ignore_data_skip,
        "load_best_model_at_end": args.load_best_model_at_end,
    }
    named = [name for name, is_set in forbidden.items() if is_set]
    if named:
        return f"{', '.join(named)}: cannot be resumed exactly; switch it off (for FSDP write the loop with trainer_runtime.attach)"
    if args.n_gpu > 1:
        return "one process drives several GPUs (DataParallel); start one process per GPU with torchrun"
    if not hasattr(trainer.train_dataset, "__getitem__") or not hasattr(trainer.train_dataset, "__len__"):
        return f"train_dataset: a {type(trainer.train_dataset).__qualname__} has no length and index, so its position cannot be kept"
    if not callable(getattr(trainer, "_load_from_checkpoint", None)):
        return "this version of transformers has no Trainer._load_from_checkpoint; 5.24 is known to work"
    return None


def describe(trainer: Trainer) -> dict[str, Any]:
    """Return the model's configuration and, under ``training_arguments``, those of COMPARED_ARGUMENTS that this version has."""
    config = getattr(trainer.model, "config", None)
    arguments = trainer.args.to_dict()
    return {
        **(config.to_dict() if config is not None else {}),
        "training_arguments": {name: arguments[name] for name in COMPARED_ARGUMENTS if name in arguments},
    }


_SETTINGS: Final = tuple(name for name in inspect.signature(resolve).parameters if name != "environ")


def _find_saved_state(settings: Settings) -> str | None:
    """Return the Trainer's state at the step that will be resumed from; None for a run that begins."""
    store = open_store(settings.store, settings.s3, create=settings.create_store)
    checkpoint = look_ahead(settings, store, exchange_before_attach(settings))
    if checkpoint is None:
        return None
    saved = checkpoint.objects(settings.rank).get(World(settings.rank, settings.world_size).own(STATE))
    if saved is None:
        raise ConfigurationError(
            f"RtjCallback: the checkpoint of step {checkpoint.manifest.step} was not written by this callback, or for fewer processes; "
            "use another run=, or begin from its weights with resume_from=…, mode='WarmStart'"
        )
    return str(saved["json"])


@contextmanager
def _weights_left_alone(trainer: Any) -> Iterator[None]:
    """Keep the Trainer from looking for weights beside its state; `attach` restores them."""
    trainer._load_from_checkpoint = lambda *_arguments, **_keywords: None
    try:
        yield
    finally:
        del trainer._load_from_checkpoint


class _OwnState:
    """`TrainerState` as something that can be saved: step, epoch, history, best metric."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="rtj-trainer-") as folder:
            path = Path(folder) / STATE_FILE
            self._trainer.state.save_to_json(str(path))
            return {"json": json.dumps(json.loads(path.read_text()), sort_keys=True)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """The Trainer has read it from its file before it asked any callback."""


class _Batches:
    """The Trainer's data for `attach`: it says what the data is and counts; the Trainer itself fetches."""

    def __init__(self, trainer: Trainer) -> None:
        self.dataset = trainer.train_dataset
        self.batch_size = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The position follows from the Trainer's step."""


class _Draws:
    """Whether anybody drew random numbers between the end of a step and the beginning of the next one."""

    def __init__(self) -> None:
        self._noted: tuple[Any, ...] | None = None

    def note(self) -> None:
        """A step has ended, and nothing is due that may draw."""
        self._noted = rng.of_host()

    def forget(self) -> None:
        """Something is due that may draw, and is put right otherwise."""
        self._noted = None

    def check(self, step: int) -> None:
        """Raise ConfigurationError when somebody drew since `note`."""
        noted, self._noted = self._noted, None
        if noted is not None and noted != rng.of_host():
            raise ConfigurationError(
                f"RtjCallback: random numbers were drawn in the training process between step {step} and the next one, by the dataset, "
                "the data collator or another callback. The Trainer fetches a batch ahead, so a resume would draw others; draw them from a "
                "generator seeded by the sample's index, or in loader workers in the same way"
            )
