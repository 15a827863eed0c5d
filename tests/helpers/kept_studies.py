"""A searched study with a verdict and sweeps, kept where the pages and docstrings look for it."""

from __future__ import annotations

from pathlib import Path

import optuna
from drawn_studies import (
    GENERATIONS,
    POPULATION,
    save_sweeps,
    searched_study,
    verdict_with_curves,
)

from optuna_taylorglo.study.open import evaluation_study_name


def complete_study(name: str = "drawn", *, generations: int = GENERATIONS) -> optuna.Study:
    """A study in memory that has everything a figure may show."""
    search = {"n_generations": generations}
    study = searched_study(POPULATION * generations, name=name, search=search)
    verdict_with_curves(study)
    save_sweeps(study)
    return study


def keep_complete_study(folder: Path, *names: str, generations: int = GENERATIONS) -> None:
    """Write such studies to taylorglo.db in a folder, where commands look without a URL."""
    for name in names:
        study = complete_study(name, generations=generations)
        for kept in (name, evaluation_study_name(name)):
            optuna.copy_study(
                from_study_name=kept,
                from_storage=study._storage,
                to_storage=f"sqlite:///{folder / 'taylorglo.db'}",
            )
