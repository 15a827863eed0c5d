"""Importing the package is cheap: what only some commands need is loaded by them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import optuna_taylorglo

LIGHTNING = {"pytorch_lightning", "lightning", "torchvision", "plotly"}


@pytest.mark.parametrize(
    ("statements", "heavy"),
    [
        ("from optuna_taylorglo import __version__", {"numpy", "optuna", "torch"}),
        ("from optuna_taylorglo.recipes import load", {"optuna", "torch"}),
        ("import optuna_taylorglo.cli.run, optuna_taylorglo.verdict.compare", {"torch"}),
        ("import optuna_taylorglo.report.build", {"torch"}),
        ("import optuna_taylorglo; dir(optuna_taylorglo)", {"optuna", "torch"}),
        ("from optuna_taylorglo import *; from optuna_taylorglo.losses.files import load_loss", {}),
    ],
)
def test_import_leaves_the_heavy_packages_alone(statements: str, heavy: set[str]) -> None:
    code = f"import sys; {statements}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "optuna_taylorglo" in loaded
    assert loaded.isdisjoint(LIGHTNING.union(heavy))


def test_figures_and_the_version_are_found_in_the_package() -> None:
    assert {"visualization", "__version__", "TaylorLoss"} <= set(dir(optuna_taylorglo))
    assert "visualization" not in optuna_taylorglo.__all__, "`import *` would import plotly"
    code = "import optuna_taylorglo; print(optuna_taylorglo.visualization.plot_evolution.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "plot_evolution\n"


def test_no_function_has_the_name_of_a_module() -> None:
    # Else `from optuna_taylorglo import NAME` depends on what was imported before.
    modules = {module.name for module in pkgutil.iter_modules(optuna_taylorglo.__path__)}
    assert modules & set(optuna_taylorglo.__all__) == set()
