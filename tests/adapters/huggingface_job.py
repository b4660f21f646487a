"""The script of test_huggingface: tiny real Trainers, whole and killed twice, one after the other in one set of processes.

``huggingface_job.py <output folder> <kind>…``: each rank writes ``<rank>.json`` with the digests of every leaf and every loss of both ways.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from trainer_runtime.adapters.huggingface import RtjCallback, find_refusal

STEPS, SAMPLES, BATCH = 23, 48, 2


@dataclass(frozen=True)
class Kind:
    """Arguments of one kind of training, the steps that are saved, and those at which it is killed."""

    saves: tuple[int, int] = (4, 13)
    kills: tuple[int, int] = (6, 15)
    steps: int = STEPS
    arguments: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "plain": Kind(),
    "epoch ends": Kind(saves=(8, 16), kills=(9, 18), arguments={"gradient_accumulation_steps": 3, "eval_strategy": "epoch"}),
    "workers": Kind(arguments={"dataloader_num_workers": 2, "eval_strategy": "steps", "eval_steps": 4}),
    "ddp": Kind(
        saves=(3, 8), kills=(5, 10), steps=12, arguments={"ddp_find_unused_parameters": False, "ddp_backend": "gloo", "max_steps": 12}
    ),
}


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self._tokens = torch.randint(0, 32, (SAMPLES, 6), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


class Noisy(Tokens):
    """Draws a random number for each sample, in the process that trains."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        torch.rand(1)
        return super().__getitem__(index)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Tokens())


class Killed(Exception):
    """The end of a launch that is killed."""


class Recording(Trainer):
    """Notes the loss of every micro-batch."""

    losses: list[tuple[int, str]]

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*arguments, **keywords)
        self.losses.append((self.state.global_step + 1, float(loss).hex()))
        return loss


class SavesAndKills(TrainerCallback):
    def __init__(self, callback: RtjCallback, save_at: int | None, kill_at: int | None) -> None:
        self._callback, self._save_at, self._kill_at = callback, save_at, kill_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._save_at:
            assert self._callback.run is not None
            self._callback.run.save(block=True)
        if state.global_step == self._kill_at:
            raise Killed


def build(folder: Path, dataset: Any = None, **arguments: Any) -> Recording:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0)
    given = {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 5,
        "disable_tqdm": True,
        "use_cpu": True,
        **arguments,
    }
    trainer = Recording(
        model=GPT2LMHeadModel(config), args=TrainingArguments(**given), train_dataset=dataset or Tokens(), eval_dataset=Tokens()
    )
    trainer.losses = []
    return trainer


def launch(folder: Path, run: str, kind: Kind, save_at: int | None, kill_at: int | None) -> dict[str, Any]:
    trainer = build(folder, **kind.arguments)
    (folder / "store").mkdir(exist_ok=True)
    callback = RtjCallback(store=folder / "store", run=run, save_every_steps=10**6)
    trainer.add_callback(SavesAndKills(callback, save_at, kill_at))
    random.seed()
    np.random.seed()
    try:
        callback.train(trainer)
    except Killed:
        assert callback.run is not None
        callback.run.close()
    assert callback.run is not None
    resumed = callback.run.resumed_from
    return {"losses": trainer.losses, "leaves": digests(trainer), "from": resumed.step if resumed else None}


def digests(trainer: Trainer) -> dict[str, str]:
    assert trainer.model is not None
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    leaves = {name: tensor.numpy().tobytes() for name, tensor in trainer.model.state_dict().items()}
    for name, parameter in trainer.model.named_parameters():
        for slot, value in trainer.optimizer.state[parameter].items():
            leaves[f"{name}/{slot}"] = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
    leaves["scheduler"] = repr(sorted(trainer.lr_scheduler.state_dict().items())).encode()
    leaves["rng torch"] = torch.get_rng_state().numpy().tobytes()
    leaves["step and epoch"] = repr((trainer.state.global_step, trainer.state.epoch)).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in leaves.items()}


def refusals(folder: Path) -> dict[str, str | None]:
    found = {name: find_refusal(build(folder, **{name: True}), {}) for name in ("auto_find_batch_size", "ignore_data_skip")}
    found["best"] = find_refusal(
        build(folder, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps", eval_steps=5, save_steps=5), {}
    )
    found["worldSize"] = find_refusal(build(folder), {"allow": ["worldSize"]})
    found["data"] = find_refusal(build(folder), {"data": 1})
    found["iterable"] = find_refusal(build(folder, dataset=Stream()), {})
    found["nothing"] = find_refusal(build(folder), {})
    return found


def exit_of(act: Any) -> list[Any]:
    try:
        act()
    except SystemExit as problem:
        return [problem.code, str(problem.__cause__)]
    return [None, ""]


def main(folder: Path, kinds: list[str]) -> None:
    result: dict[str, Any] = {}
    for name in kinds:
        kind, run = KINDS[name], name.replace(" ", "-")
        whole = launch(folder, f"{run}-whole", kind, None, None)
        killed = [launch(folder, run, kind, *cut) for cut in (*zip(kind.saves, kind.kills, strict=True), (None, None))]
        result[name] = {"whole": whole, "killed": killed}
    if "plain" in kinds:
        result["refusals"] = refusals(folder)
        result["noisy"] = exit_of(lambda: RtjCallback(store=folder / "store", run="noisy").train(build(folder, dataset=Noisy())))
        result["other rate"] = exit_of(lambda: RtjCallback(store=folder / "store", run="plain").train(build(folder, learning_rate=0.02)))
        by_hand = build(folder)
        by_hand.add_callback(RtjCallback())
        result["by hand"] = exit_of(by_hand.train)
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
