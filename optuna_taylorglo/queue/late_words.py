"""What a trial says on its way, also after it was given up as lost.

Optuna lets nothing be added to a finished trial, and one that was given up is finished. Its worker
goes on, since its result may still be wanted; what it reports meanwhile is kept here, so that the
result, and who is stopped, do not depend on when the trial was given up.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.trial import FrozenTrial, Trial

_logger = get_logger(__name__)

_reports: WeakKeyDictionary[Trial, dict[int, float]] = WeakKeyDictionary()
_attributes: WeakKeyDictionary[Trial, dict[str, Any]] = WeakKeyDictionary()


def report(trial: Trial, value: float, step: int) -> None:
    """Report an intermediate value; a trial given up in the meantime is no reason to stop."""
    try:
        trial.report(value, step)
    except UpdateFinishedTrialError:
        _reports.setdefault(trial, {})[step] = value
        _log_given_up(trial)


def annotate(trial: Trial, key: str, value: Any) -> None:
    """Set a user attribute; a trial given up in the meantime is no reason to stop."""
    try:
        trial.set_user_attr(key, value)
    except UpdateFinishedTrialError:
        _attributes.setdefault(trial, {})[key] = value
        _log_given_up(trial)


def should_prune(trial: Trial) -> bool:
    """Ask the study's pruner about a trial and all that it has reported."""
    if trial not in _reports:
        return trial.should_prune()
    stored = trial.study.get_trials(deepcopy=False)[trial.number]
    return trial.study.pruner.prune(trial.study, with_late_words(trial, stored))


def with_late_words(trial: Trial, stored: FrozenTrial) -> FrozenTrial:
    """A trial as it would be stored if it had not been given up."""
    whole = copy.copy(stored)
    whole.intermediate_values = stored.intermediate_values | _reports.get(trial, {})
    whole.user_attrs = stored.user_attrs | _attributes.get(trial, {})
    return whole


def _log_given_up(trial: Trial) -> None:
    _logger.warning(f"Trial {trial.number} was given up as lost while it was running.")
