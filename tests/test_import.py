"""Importing the package is cheap: what only some commands need is loaded by them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "optuna_taylorglo"
MATHEMATICS = ["expansion", "canonical", "files", "tree"]
LIGHTNING = {"pytorch_lightning", "lightning", "torchvision", "plotly"}


@pytest.mark.parametrize(
    ("statements", "heavy"),
    [
        ("from optuna_taylorglo import __version__", {"numpy", "optuna", "torch"}),
        ("from optuna_taylorglo.recipes import load", {"optuna", "torch"}),
        ("import optuna_taylorglo.cli.run, optuna_taylorglo.verdict.compare", {"torch"}),
        ("import optuna_taylorglo.report.build", {"torch"}),
        ("from optuna_taylorglo import *; from optuna_taylorglo.losses.files import load_loss", {}),
    ],
)
def test_import_leaves_the_heavy_packages_alone(statements: str, heavy: set[str]) -> None:
    code = f"import sys; {statements}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "optuna_taylorglo" in loaded
    assert loaded.isdisjoint(LIGHTNING.union(heavy))


def test_the_mathematics_works_where_torch_is_missing() -> None:
    # The package may offer torch's names; its place is taken, so that the modules stand alone.
    code = f"""
import importlib, sys, types
sys.modules["torch"] = sys.modules["pytorch_lightning"] = sys.modules["plotly"] = None
package = types.ModuleType("optuna_taylorglo")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["optuna_taylorglo"] = package
for module in {MATHEMATICS}:
    importlib.import_module(f"optuna_taylorglo.losses.{{module}}")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
