"""What is exported is what `transformers` loads, from the directory alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import trainer_runtime as tr
from trainer_runtime.cli.checkpoints.main import main


def test_from_pretrained_gives_the_trained_model_with_its_tied_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tokens = torch.arange(8).reshape(1, 8)
    (tmp_path / "store").mkdir()
    with tr.attach(model=model, optimizer=optimizer, config=model.config, store=tmp_path / "store") as run:
        for _ in run.steps(max_steps=2):
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
    assert main(["export", "--store", str(tmp_path / "store"), "newest", str(tmp_path / "out")]) == 0
    assert "lm_head.weight is transformer.wte.weight by another name" in capsys.readouterr().out

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert isinstance(loaded, GPT2LMHeadModel)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), loaded.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, loaded(tokens).logits), "from_pretrained gives a model in eval mode"
