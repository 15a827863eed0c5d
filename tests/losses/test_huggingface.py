"""Losses in the Trainer of Hugging Face transformers: means over the whole accumulated batch."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from searches import ROOT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from optuna_taylorglo import FocalLoss, TaylorLoss, load_loss, trainer_loss

ANCHORED = TaylorLoss([0.0] * 8, base="cross_entropy")  # cross-entropy itself
QUIET: dict[str, Any] = {
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
}
EACH_LOSS = pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), ANCHORED], ids=["ce", "taylor"])


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Logits (B, T, V) and labels (B, T), three of which do not count."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (2, 5), generator=generator)
    labels[0, 3:] = labels[1, 0] = -100
    return torch.randn(2, 5, 7, generator=generator), labels


@EACH_LOSS
def test_it_is_the_mean_over_labels_that_count_here_or_in_the_accumulated_batch(
    batch: tuple[Tensor, Tensor], loss: Any
) -> None:
    logits, labels = batch
    flat, shifted = logits.flatten(0, 1), logits[:, :-1].flatten(0, 1)
    compute = pickle.loads(pickle.dumps(trainer_loss(loss)))
    for outputs in ({"logits": logits, "past": None}, (logits, None), logits):
        torch.testing.assert_close(compute(outputs, labels), cross_entropy(flat, labels.flatten()))
    expected = cross_entropy(flat, labels.flatten(), reduction="sum") / 20
    for number in (20, torch.tensor(20)):
        torch.testing.assert_close(compute((logits,), labels, num_items_in_batch=number), expected)
    torch.testing.assert_close(
        trainer_loss(loss, shift=True)((logits,), labels),
        cross_entropy(shifted, labels[:, 1:].flatten()),
    )
    assert loss.reduction == "mean"


def test_a_loss_whose_ignored_label_trainer_would_count_is_refused(tmp_path: Path) -> None:
    TaylorLoss.from_cross_entropy(ignore_index=255).save(tmp_path / "loss.json")
    with pytest.raises(ValueError, match=r"ignore_index is 255.*load_loss\(path, ignore_index=-10"):
        trainer_loss(load_loss(tmp_path / "loss.json"))
    trainer_loss(load_loss(tmp_path / "loss.json", ignore_index=-100))


def tiny_model(name: str) -> Any:
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        set_seed,
    )

    set_seed(0)
    if name == "bert":
        size = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 12, "num_labels": 3}
        layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForSequenceClassification(BertConfig(**size, **layers, **no_dropout))
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=12, n_positions=8, **no_dropout)
    )


def tokens(name: str) -> list[dict[str, Tensor]]:
    """Texts of 8 tokens: the class is the first one, or each token follows from the one before."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(3, (32,), generator=generator)
    texts = (starts[:, None] + 3 * torch.arange(8)) % 12
    if name == "bert":
        return [{"input_ids": t, "labels": s.squeeze()} for t, s in zip(texts, starts, strict=True)]
    labels = texts.clone()
    for row, length in zip(labels, torch.randint(2, 9, (32,), generator=generator), strict=True):
        row[length:] = -100  # so that halves of a batch hold different numbers of labels
    return [{"input_ids": t, "labels": each} for t, each in zip(texts, labels, strict=True)]


def trained(name: str, folder: Path, compute: Any, **arguments: Any) -> Any:
    """The Trainer after 8 batches of 8, unless arguments say otherwise."""
    from transformers import Trainer, TrainingArguments

    settings = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 0.5}
    trainer = Trainer(
        tiny_model(name),
        TrainingArguments(str(folder), **settings | {"optim": "sgd"} | QUIET | arguments),
        train_dataset=tokens(name),
        eval_dataset=tokens(name),
        compute_loss_func=compute,
    )
    trainer.train()
    return trainer


@pytest.mark.pages
@EACH_LOSS
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_accumulated_gradients_give_the_weights_of_one_batch_with_the_model_s_own_loss(
    name: str, loss: Any, tmp_path: Path
) -> None:
    own = trained(name, tmp_path, None).model.state_dict()
    start = tiny_model(name).state_dict()
    assert any(not torch.allclose(own[key], start[key], atol=1e-2) for key in own)
    compute = trainer_loss(loss, shift=name == "gpt2")
    half = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    for arguments in ({}, half):
        weights = trained(name, tmp_path, compute, **arguments).model.state_dict()
        torch.testing.assert_close(weights, own, rtol=1e-4, atol=1e-5)


@pytest.mark.pages
def test_the_page_s_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainingArguments

    monkeypatch.chdir(tmp_path)
    TaylorLoss.from_cross_entropy().save("best_loss.json", n_classes=3)
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    (code,) = re.findall(r"<!-- run by tests/losses/\S+ -->\n```python\n(.*?)```", page, re.DOTALL)
    names = {"model": tiny_model("bert"), "data_set": tokens("bert")}
    names["args"] = TrainingArguments("out", max_steps=2, **QUIET)
    exec(code, names)
    assert names["trainer"].state.global_step == 2


@pytest.mark.pages
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_model_learns(name: str, tmp_path: Path) -> None:
    compute = trainer_loss(FocalLoss(gamma=1.0), shift=name == "gpt2")
    adam = {"optim": "adamw_torch", "learning_rate": 0.02, "num_train_epochs": 10}
    trainer = trained(name, tmp_path, compute, logging_steps=4, **adam)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.1 * losses[0]
    assert trainer.evaluate()["eval_loss"] < 0.1 * losses[0]
