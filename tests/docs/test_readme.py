"""The README: its test command and its three lines."""

import re

import pytest
import torch
from searches import ROOT
from torch import nn

from optuna_taylorglo import TaylorLoss

pytestmark = pytest.mark.pages

README = (ROOT / "README.md").read_text()


def test_ci_runs_the_very_test_command() -> None:
    (command,) = re.findall(r"^.*/pytest$", README, flags=re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_three_lines_put_the_loss_in_the_place_of_cross_entropy(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum").save("best_loss.json")
    torch.manual_seed(0)
    images, labels = torch.randn(200, 8), torch.randint(0, 3, (200,))
    images[:, :3] += 3 * nn.functional.one_hot(labels, 3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    (code,) = re.findall(r"```python\n(from optuna_taylorglo import load_loss.*?)```", README, re.S)
    set_up, _, step = code.partition("\ncriterion(model")
    names = {"model": model, "images": images, "labels": labels}
    exec(set_up, names)
    for _ in range(100):
        optimizer.zero_grad()
        exec("criterion(model" + step, names)
        optimizer.step()
    accuracy = (model(images).argmax(dim=1) == labels).float().mean()
    assert accuracy > 0.95
