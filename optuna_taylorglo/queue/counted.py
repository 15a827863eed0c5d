"""Which trials of a study count: all, unless the study began anew under another recipe."""

from __future__ import annotations

from collections.abc import Container

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import FIRST_TRIAL


def counted_trials(study: Study, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
    """The trials that count, in order of their numbers; for looking at only.

    Args:
        study: The study.
        states: States to restrict them to.
    """
    first = first_counted(study)
    trials = study.get_trials(deepcopy=False, states=states)
    return [trial for trial in trials if trial.number >= first] if first else trials


def first_counted(study: Study) -> int:
    """Number of the first trial that counts."""
    return study.user_attrs.get(FIRST_TRIAL) or 0


def has_results(study: Study) -> bool:
    """Whether any evaluation has come to its end, be it an abort; a crash is none."""
    return bool(counted_trials(study, (TrialState.COMPLETE, TrialState.PRUNED)))
