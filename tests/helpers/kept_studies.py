"""A searched study with a verdict and sweeps, kept where the pages and docstrings look for it."""

from __future__ import annotations

from pathlib import Path

import optuna
from drawn_studies import save_sweeps, searched_study, verdict_with_curves

from optuna_taylorglo.study.open import evaluation_study_name


def keep_complete_study(folder: Path, *names: str) -> None:
    """Write studies to taylorglo.db in a folder, where commands look without a URL."""
    url = f"sqlite:///{folder / 'taylorglo.db'}"
    for name in names:
        study = searched_study(name=name)
        verdict_with_curves(study)
        save_sweeps(study)
        for kept in (name, evaluation_study_name(name)):
            optuna.copy_study(from_study_name=kept, from_storage=study._storage, to_storage=url)
