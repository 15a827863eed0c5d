"""The paper's early abort, and the early stop of candidates that fall behind."""

from __future__ import annotations

import math

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import GENERATION, INDEX
from optuna_taylorglo.evolution.scheduler import check_integer, n_known
from optuna_taylorglo.study.optuna_private import study_id_of


class EarlyAbortPruner(BasePruner):
    """Abort a training that has not begun to learn, or that has diverged.

    A trial is pruned when the first value reported at ``step`` or later is below ``threshold``
    (TaylorGLO: validation accuracy below 0.15 at the tenth epoch), or as soon as a report is not
    finite. Later reports are not compared with the threshold, and no trial is compared with
    another.

    Args:
        threshold: Worst acceptable value at ``step``.
        step: Step, in the unit of the reports, at which the value is checked.
        sign: 1 if greater reports are better, as for accuracies; -1 if smaller ones are, and a
            report above the threshold aborts.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo import EarlyAbortPruner
        >>> study = optuna.create_study(pruner=EarlyAbortPruner(threshold=0.15, step=10))
        >>> trial = study.ask()
        >>> trial.report(0.11, step=9)
        >>> trial.should_prune()
        False
        >>> trial.report(0.12, step=10)
        >>> trial.should_prune()
        True
    """

    def __init__(self, threshold: float = 0.15, step: int = 10, *, sign: int = 1) -> None:
        if isinstance(threshold, bool) or not math.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, got {threshold!r}.")
        check_integer("step", step, 0)
        self.threshold, self.step, self.sign = float(threshold), step, sign

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        reports = trial.intermediate_values
        if not all(math.isfinite(value) for value in reports.values()):
            return True
        # Only the first report from the step on decides, however often this is asked.
        due = [step for step in reports if step >= self.step]
        return bool(due) and self.sign * reports[min(due)] < self.sign * self.threshold


class FallingBehindPruner(BasePruner):
    """Stop a candidate whose learning curve falls behind that of the generation before.

    At ``step`` a candidate must reach what the best ``keep`` of the last generation that it waits
    for had reached by then; one without a report at the step counts as slower than all others.
    Without a `popsize`, generations differ in size, and the share is of those evaluated before.
    """

    def __init__(
        self, *, popsize: int | None, keep: float, step: int, sign: int = 1, overlap: int = 0
    ) -> None:
        if not 0 < keep < 1:
            raise ValueError(f"keep must lie between 0 and 1, got {keep!r}.")
        self.popsize, self.keep, self.step = popsize, keep, step
        self.sign, self.overlap = sign, overlap
        self._thresholds: dict[tuple[int, int], float] = {}

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        generation = trial.user_attrs.get(GENERATION)
        value = trial.intermediate_values.get(self.step)
        if generation is None or value is None:
            return False
        before = n_known(generation, trial.user_attrs[INDEX], self.overlap) - 1
        # A finished generation does not change.
        key = (study_id_of(study), before)
        if key not in self._thresholds:
            self._thresholds[key] = self._threshold(study, before)
        return self.sign * value < self._thresholds[key]

    def _threshold(self, study: Study, generation: int) -> float:
        """Value that a candidate must reach, times `sign`, by the reports of a generation."""
        reached: dict[int, float] = {}
        # The reports of a failed trial come again with its retry.
        for other in study.get_trials(False, (TrialState.COMPLETE, TrialState.PRUNED)):
            if other.user_attrs.get(GENERATION) == generation:
                index = other.user_attrs[INDEX]
                report = other.intermediate_values.get(self.step, -self.sign * math.inf)
                reached[index] = max(self.sign * report, reached.get(index, -math.inf))
        place = math.ceil(self.keep * (self.popsize or len(reached)))
        best = sorted(reached.values(), reverse=True)[:place]
        return best[-1] if best and len(best) == place else -math.inf


class EarlyEndPruner(BasePruner):
    """Ends trainings that failed (`abort`) or that are not worth going on with (`stop`)."""

    def __init__(self, abort: BasePruner | None, stop: BasePruner | None) -> None:
        self.abort, self.stop = abort, stop
        self.reason: str | None = None  # of the two, for the trial that was asked about last

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        pruners = {"abort": self.abort, "stop": self.stop}
        asked = (name for name, each in pruners.items() if each and each.prune(study, trial))
        self.reason = next(asked, None)
        return self.reason is not None
