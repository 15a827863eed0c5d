"""Learning curves of the trainings that a verdict rests on, as far as they were recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optuna.study import Study
from optuna.trial import TrialState

from optuna_taylorglo.attributes import CURVE, KEY
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.verdict.statistics import Role, Sample, Verdict


@dataclass(frozen=True)
class RecordedCurves:
    """Learning curves of one loss.

    Attributes:
        sample: The loss and its trainings.
        curves: Steps and values, a curve for each training of which there is one.
    """

    sample: Sample
    curves: tuple[tuple[tuple[int, float], ...], ...]


def recorded_curves(companion: Study, verdict: Verdict) -> list[RecordedCurves]:
    """Curves of a verdict's losses, those without any left out.

    Args:
        companion: The study that holds the verdict's trainings.
        verdict: The verdict.
    """
    by_key = {
        trial.user_attrs[KEY]: tuple((int(step), float(value)) for step, value in curve)
        for trial in counted_trials(companion, (TrialState.COMPLETE,))
        if KEY in trial.user_attrs and (curve := trial.user_attrs.get(CURVE))
    }
    found = [
        RecordedCurves(sample, tuple(by_key[key] for key in sample.keys if key in by_key))
        for sample in verdict.samples
    ]
    return [recorded for recorded in found if recorded.curves]


def shown_curves(recorded: list[RecordedCurves], mode: str) -> list[RecordedCurves]:
    """The evolved loss, cross-entropy, and the best of what else one would take instead.

    Args:
        recorded: Curves of all losses.
        mode: "max" or "min", whether greater or smaller values are better.
    """
    sign = 1 if mode == "max" else -1

    def quality(one: RecordedCurves) -> float:
        mean = one.sample.mean
        return -math.inf if math.isnan(mean) else sign * mean

    chosen = [one for one in recorded if one.sample.role in (Role.EVOLVED, Role.REFERENCE)]
    baselines = [one for one in recorded if one.sample.role == Role.BASELINE]
    return [*chosen, *([max(baselines, key=quality)] if baselines else [])]
