"""Importing the package is cheap: what only some commands need is loaded by them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "optuna_taylorglo"
MATHEMATICS = [
    "losses.expansion",
    "losses.canonical",
    "losses.files",
    "losses.tree",
]
HEAVY = ("torchvision", "plotly", "pytorch_lightning", "lightning")


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import optuna_taylorglo",
        "from optuna_taylorglo import *",
        "import optuna_taylorglo.losses.taylor",
        "from optuna_taylorglo.losses.files import load_loss",
        "from optuna_taylorglo import TreeLoss",
    ],
)
def test_import_leaves_the_heavy_packages_alone(statement: str) -> None:
    loaded = modules_after(statement)
    assert "optuna_taylorglo" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_version_is_known_before_anything_else_is() -> None:
    loaded = modules_after("from optuna_taylorglo import __version__")
    assert loaded.isdisjoint((*HEAVY, "numpy", "optuna", "torch"))


@pytest.mark.parametrize("module", MATHEMATICS)
def test_the_mathematics_needs_none_of_them_either(module: str) -> None:
    loaded = modules_after(f"import optuna_taylorglo.{module}")
    assert f"optuna_taylorglo.{module}" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("module", MATHEMATICS)
def test_the_mathematics_works_where_torch_is_missing(module: str) -> None:
    # The package may offer torch's names; its place is taken, so that the module stands alone.
    code = f"""
import sys, types
sys.modules["torch"] = None
package = types.ModuleType("optuna_taylorglo")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["optuna_taylorglo"] = package
import optuna_taylorglo.{module}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
