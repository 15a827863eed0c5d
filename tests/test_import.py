"""Imports are cheap: what only some commands need is loaded by them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from searches import ROOT

HEAVY = {"torchvision", "plotly", "pytorch_lightning", "lightning"}
HELP = """
import runpy, sys
for module in ("optuna_taylorglo.cli", "optuna_taylorglo.worker"):
    sys.argv = ["taylorglo", "--help"]
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        assert not end.code
"""
# The package may offer torch's names; a stand-in takes its place, so that the modules stand alone.
WITHOUT_TORCH = f"""
import sys, types
sys.modules["torch"] = None
package = types.ModuleType("optuna_taylorglo")
package.__path__ = [{str(ROOT / "optuna_taylorglo")!r}]
sys.modules["optuna_taylorglo"] = package
import optuna_taylorglo.losses.expansion, optuna_taylorglo.losses.canonical
import optuna_taylorglo.losses.files, optuna_taylorglo.losses.tree
"""


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("from optuna_taylorglo import *", HEAVY),
        ("from optuna_taylorglo import __version__", HEAVY | {"numpy", "optuna", "torch"}),
        (HELP, HEAVY | {"torch", "scipy.stats"}),
        (WITHOUT_TORCH, HEAVY),
    ],
    ids=["names", "version", "help", "mathematics"],
)
def test_what_is_not_needed_is_not_loaded(code: str, unneeded: set[str]) -> None:
    code += "\nimport sys; print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "optuna_taylorglo" in loaded
    assert loaded.isdisjoint(unneeded)
