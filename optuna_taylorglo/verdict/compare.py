"""The verdict: full trainings of the winner, of baselines and of controls, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.study import Study
from optuna.trial import TrialState

from optuna_taylorglo.attributes import CURVE, KEY, N_CLASSES
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.training.training import test_metric
from optuna_taylorglo.verdict.baselines import Row, baselines, deduplicate
from optuna_taylorglo.verdict.families import BASELINES, DEFAULT_BASELINES, LearningRates
from optuna_taylorglo.verdict.output import verdict_in_words
from optuna_taylorglo.verdict.selection import choose
from optuna_taylorglo.verdict.statistics import (
    Role,
    Sample,
    Verdict,
    contrasts,
    value_of_divergence,
)
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Do,
    Task,
    compared_evolved_loss,
    scale_controls,
    stage_task,
)
from optuna_taylorglo.verdict.winner import evaluation_advice, load_selection


@dataclass(frozen=True)
class RecordedCurves:
    """Learning curves of one loss.

    Attributes:
        sample: The loss and its trainings.
        curves: Steps and values, a curve for each training of which there is one.
    """

    sample: Sample
    curves: tuple[tuple[tuple[int, float], ...], ...]


def recorded_curves(evaluation_study: Study, verdict: Verdict) -> list[RecordedCurves]:
    """Curves of a verdict's losses, those without any left out.

    Args:
        evaluation_study: The study that holds the verdict's trainings.
        verdict: The verdict.
    """
    by_key = {
        trial.user_attrs[KEY]: tuple((int(step), float(value)) for step, value in curve)
        for trial in counted_trials(evaluation_study, (TrialState.COMPLETE,))
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


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        seeds: Full trainings of each loss.
        against: Names out of `BASELINES`, or paths of loss files.
    """

    seeds: int = 10
    against: tuple[str, ...] = DEFAULT_BASELINES

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UsageError(f"seeds must be at least 2, not {self.seeds}: one has no spread.")
        for name in self.against:
            if name not in BASELINES and not Path(name).is_file():
                raise UsageError(
                    f"against has {name!r}; allowed are {', '.join(BASELINES)} and loss files."
                )


def evaluate(
    study: Study, recipe: Recipe, plan: Plan, do: Do, rates: LearningRates | None = None
) -> Verdict:
    """Compare a study's winner with baselines and controls.

    Args:
        study: A study with complete trials.
        recipe: Its recipe.
        plan: What to compare.
        do: Does tasks.
        rates: What learning rates there are; None: multiples of the recipe's.

    Returns:
        The verdict.

    Raises:
        UsageError: If the study has no winner to evaluate.
        OperationError: If no training came to an end.
    """
    chosen = choose(study, recipe, do)
    loss = chosen.loss
    n_classes = study.user_attrs[N_CLASSES]
    losses = [compared_evolved_loss("winner", "evolved loss", Role.EVOLVED, loss)]
    rates = rates or LearningRates.of(recipe)
    losses += baselines(plan.against, recipe, do, rates)
    losses += scale_controls(loss, n_classes)
    compared = deduplicate(losses, recipe)
    tasks = [_task(recipe, row.loss, seed) for row in compared for seed in range(plan.seeds)]
    values = do(tasks)
    divergence = value_of_divergence(values, recipe, n_classes) if None in values else None
    samples = tuple(
        _sample(row, tasks[own], values[own], divergence)
        for i, row in enumerate(compared)
        for own in [slice(i * plan.seeds, (i + 1) * plan.seeds)]
    )
    verdict = Verdict(
        samples,
        contrasts(samples[0], samples[1:], paired=True, sign=recipe.fitness.sign),
        text="",
        test_metric=test_metric(recipe),
        trial=None if chosen.trial is None else chosen.trial.number,
        test="paired",
        mode=recipe.fitness.mode,
        divergence=divergence,
        loss=loss.settings(),
    )
    words = [verdict_in_words(verdict, n_classes)]
    if (selection := load_selection(study)) is not None:
        words.append(evaluation_advice(selection, recipe))
    words.append(rates.in_words())
    return replace(verdict, text="\n".join(filter(None, words)))


def _task(recipe: Recipe, loss: ComparedLoss, seed: int) -> Task:
    # The same seeds for all losses: they start from the same weights.
    return stage_task(
        recipe,
        loss,
        Stage.TEST,
        seed,
        on_test_set=True,
        save_network=loss.role == Role.EVOLVED and seed == 0,
    )


def _sample(
    row: Row, tasks: Sequence[Task], values: Sequence[float | None], divergence: float | None
) -> Sample:
    counted = [divergence if value is None else value for value in values]
    return Sample(
        row.loss.name,
        row.loss.label,
        row.loss.role,
        tuple(value for value in counted if value is not None),
        diverged=tuple(place for place, value in enumerate(values) if value is None),
        also=row.also,
        keys=tuple(task.key for task in tasks),
    )
