"""The keys of attributes are the format of studies: unique, in one place, and never changed."""

from __future__ import annotations

import re
from pathlib import Path

from optuna_taylorglo import attributes

ROOT = Path(__file__).parents[1]
KEYS = {name: value for name, value in vars(attributes).items() if name.isupper()}


def test_keys_are_those_of_studies_made_before() -> None:
    """A new key may be added here; a changed one makes older studies unreadable."""
    assert {
        "RECIPE": "taylorglo:recipe",
        "N_CLASSES": "taylorglo:n_classes",
        "CROSS_ENTROPY": "taylorglo:cross_entropy",
        "EVALUATION_LENGTH": "taylorglo:evaluation_length",
        "CHOICE": "taylorglo:choice",
        "DRAWN": "taylorglo:drawn",
        "KEPT_LOSS": "taylorglo:kept_loss",
        "COMPANION_OF": "taylorglo:companion_of",
        "VERDICT": "taylorglo:verdict",
        "GENERATION": "taylorglo:generation",
        "INDEX": "taylorglo:index",
        "ATTEMPT": "taylorglo:attempt",
        "SLOT": "taylorglo:slot",
        "RETRY_OF": "taylorglo:retry_of",
        "STOPPED": "taylorglo:stopped",
        "DIVERGED": "taylorglo:diverged",
        "TASK": "taylorglo:task",
        "KEY": "taylorglo:key",
        "ASKED_ANEW": "taylorglo:asked_anew",
        "RELEASED": "taylorglo:handed_back",
        "TAKER": "taylorglo:taker",
        "BEAT": "taylorglo:beat",
        "SUSPECTED": "taylorglo:suspected",
        "WORKER": "taylorglo:worker",
        "ERROR": "taylorglo:error",
        "FIRST_TRIAL": "taylorglo:first_trial",
    }.items() <= KEYS.items()


def test_keys_are_unique_and_have_our_prefix() -> None:
    assert len(set(KEYS.values())) == len(KEYS)
    assert all(key.startswith("taylorglo:") for key in KEYS.values())


def test_no_other_module_spells_a_key() -> None:
    """Names of locks have the same prefix, and are no attributes."""
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
    assert spelling == {"optuna_taylorglo/attributes.py", "optuna_taylorglo/storage/locks.py"}
