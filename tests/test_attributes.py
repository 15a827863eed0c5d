"""The keys of attributes are the format of studies: unique and in one place."""

from __future__ import annotations

import re
from pathlib import Path

from optuna_taylorglo import attributes

ROOT = Path(__file__).parents[1]
KEYS = {name: value for name, value in vars(attributes).items() if name.isupper()}


def test_keys_are_unique_and_have_our_prefix() -> None:
    assert len(set(KEYS.values())) == len(KEYS)
    assert all(key.startswith("taylorglo:") for key in KEYS.values())


def test_no_other_module_spells_a_key() -> None:
    modules = [
        path
        for package in ("optuna_taylorglo", "lightning_modules")
        for path in (ROOT / package).rglob("*.py")
    ]
    spelling = {
        path.relative_to(ROOT).as_posix()
        for path in modules
        if re.search(r"""["']taylorglo:""", path.read_text())
    }
    assert spelling == {"optuna_taylorglo/attributes.py"}
