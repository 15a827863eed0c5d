"""What the README tells people to type."""

import re
import subprocess
import sys

import pytest
import torch
from searches import ROOT
from torch import nn

from optuna_taylorglo import TaylorLoss

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_the_very_test_command():
    (command,) = [
        line for block in blocks("bash") for line in block.splitlines() if "pytest" in line
    ]
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_three_lines_put_the_loss_in_the_place_of_cross_entropy(tmp_path, monkeypatch):
    """The README's own lines, in an ordinary training loop, train a network."""
    monkeypatch.chdir(tmp_path)
    TaylorLoss((0, 0, 0, -2, 0, 2, 0, 0), class_reduction="sum").save("best_loss.json")
    torch.manual_seed(0)
    images, labels = torch.randn(200, 8), torch.randint(0, 3, (200,))
    images[:, :3] += 3 * nn.functional.one_hot(labels, 3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    set_up, _, step = blocks("python")[0].partition("\ncriterion(model")
    names = {"model": model, "images": images, "labels": labels}
    exec(set_up, names)
    for _ in range(100):
        optimizer.zero_grad()
        exec("criterion(model" + step, names)
        optimizer.step()
    accuracy = (model(images).argmax(dim=1) == labels).float().mean()
    assert accuracy > 0.95


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("optuna_taylorglo.cli", ("torch", "pytorch_lightning", "plotly", "scipy.stats")),
        ("optuna_taylorglo.worker", ("torch", "pytorch_lightning", "plotly", "scipy.stats")),
    ],
)
def test_help_comes_before_anything_heavy_is_loaded(command, heavy):
    """And so does the answer to wrong usage."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module({command!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: taylorglo")
    assert done.stdout.endswith("loaded: []\n")
