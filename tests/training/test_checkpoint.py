"""Weights of a file that every training starts from."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainings import digits_training, trained

from optuna_taylorglo.errors import RecipeError

CE = nn.CrossEntropyLoss()
PLAIN, OWN = "two_lightnings.PlainNet", "own_optimizers.Scheduled"


def weights(module: Any) -> Tensor:
    return torch.cat([value.flatten() for value in module.net.parameters()]).detach()


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_every_training_starts_from_it(tmp_path: Path, model: str) -> None:
    first = trained(digits_training(tmp_path, model), 30)
    net_or_module = first.net if model == PLAIN else first
    torch.save(net_or_module.state_dict(), tmp_path / "weights.pt")
    # A relative path begins in the data directory.
    training = digits_training(tmp_path, model, checkpoint={"path": "weights.pt"})
    assert torch.equal(weights(training._build_module(CE)), weights(first))
    accuracies = [training.run(CE, seed=seed, steps=1) for seed in (0, 1)]
    fresh = digits_training(tmp_path, model).run(CE, seed=0, steps=1)
    assert min(accuracies) > fresh + 0.1


@pytest.mark.parametrize("model", [PLAIN, OWN])
def test_a_checkpoint_of_lightning_will_do(tmp_path: Path, model: str) -> None:
    module = trained(digits_training(tmp_path, model), 3)
    module.trainer.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = {"path": str(tmp_path / "last.ckpt")}
    training = digits_training(tmp_path, model, checkpoint=checkpoint)
    assert torch.equal(weights(training._build_module(CE)), weights(module))


def test_a_head_stays_fresh_only_if_the_recipe_says_so(tmp_path: Path) -> None:
    content = digits_training(tmp_path, OWN)._build_module(CE).state_dict()
    content["net.3.weight"], content["net.3.bias"] = torch.zeros(7, 8), torch.zeros(7)
    torch.save(content, tmp_path / "weights.pt")
    mismatch = r"mismatch for net\.3\.weight: .*\[7, 8\].*\[10, 8\].*checkpoint\.skip"
    with pytest.raises(RecipeError, match=mismatch) as caught:
        digits_training(tmp_path, OWN, checkpoint={"path": "weights.pt"})
    assert caught.value.field == "checkpoint"
    skipping = {"path": "weights.pt", "skip": ["net.3."]}
    built: Any = digits_training(tmp_path, OWN, checkpoint=skipping)._build_module(CE)
    assert torch.equal(built.net[1].weight, content["net.1.weight"])
    assert built.net[3].weight.abs().min() > 0


def test_names_that_do_not_fit_are_told(tmp_path: Path) -> None:
    content = digits_training(tmp_path, OWN)._build_module(CE).state_dict()
    content["trunk.weight"] = content.pop("net.1.weight")
    torch.save(content, tmp_path / "weights.pt")
    unfit = r'Missing key.*"net\.1\.weight".*Unexpected key.*"trunk\.weight"'
    with pytest.raises(RecipeError, match=unfit):
        digits_training(tmp_path, OWN, checkpoint={"path": "weights.pt"})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.pt", "No such file"),
        ("text.pt", "cannot be read as weights"),
        ("code.pt", "cannot be read as weights"),
        ("list.pt", "holds no state dict"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "text.pt").write_text("weights")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "code.pt").write_bytes(pickle.dumps(logging.getLogger))
    with pytest.raises(RecipeError, match=f"{name}.*{problem}") as caught:
        digits_training(tmp_path, PLAIN, checkpoint={"path": name})
    assert caught.value.field == "checkpoint.path"
