"""The paper's early abort, and nothing else that could prune."""

from __future__ import annotations

import math

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial


class EarlyAbortPruner(BasePruner):
    """Abort a training that has not got off the ground, or that has diverged.

    A trial is pruned when the first value reported at ``step`` or later is below ``threshold``
    (TaylorGLO: validation accuracy below 0.15 at the tenth epoch), or as soon as a report is not
    finite. Later reports are never held against the threshold, and no trial is compared with
    another. The rule reads reports as accuracies: larger is better.

    Args:
        threshold: Least acceptable value at ``step``.
        step: Step, in the unit of the reports, at which the value is looked at.
    """

    def __init__(self, threshold: float = 0.15, step: int = 10) -> None:
        if isinstance(threshold, bool) or not math.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, got {threshold!r}.")
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step must be an integer of at least 0, got {step!r}.")
        self.threshold = float(threshold)
        self.step = step

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        reports = trial.intermediate_values
        if not all(math.isfinite(value) for value in reports.values()):
            return True
        # Only the first report at or after the step decides; asked again later, the answer to an
        # early failure stays the same, and a later dip changes nothing.
        due = [step for step in reports if step >= self.step]
        return bool(due) and reports[min(due)] < self.threshold
