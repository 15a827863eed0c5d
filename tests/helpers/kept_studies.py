"""A searched study with a verdict and sweeps, kept where the pages and docstrings look for it."""

from __future__ import annotations

from pathlib import Path

import optuna
from drawn_studies import GENERATIONS, POPULATION, searched_study, verdict_with_curves

from optuna_taylorglo.study.open import evaluation_study_name, find_evaluation_study
from optuna_taylorglo.verdict.output import DataSweep, RankAgreement, SavedSweep, save_sweep


def complete_study(name: str = "drawn", *, generations: int = GENERATIONS) -> optuna.Study:
    """A study in memory that has everything a figure may show."""
    search = {"n_generations": generations}
    study = searched_study(POPULATION * generations, name=name, search=search)
    verdict_with_curves(study)
    evaluation_study = find_evaluation_study(study)
    assert evaluation_study is not None
    data = DataSweep({"evolved loss": {0.5: [0.9], 1.0: [0.95]}}, {}, None)
    for over in ("fraction", "label_noise"):
        save_sweep(evaluation_study, SavedSweep(over, "test_accuracy", data))
    agreements = (RankAgreement(100, 1000, 0.5, 0.1, 8),)
    save_sweep(evaluation_study, SavedSweep("length", "steps", agreements=agreements))
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
