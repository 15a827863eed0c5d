"""The losses that one would take instead of an evolved loss, each tuned on validation."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study
from optuna.trial import Trial, TrialState
from torch import nn

from optuna_taylorglo.attributes import CROSS_ENTROPY
from optuna_taylorglo.errors import Diverged
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import loss_conventions
from optuna_taylorglo.search.history import direction_of
from optuna_taylorglo.search.objective import check_steps
from optuna_taylorglo.seeds import Stage, candidate_seed, training_seed
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.families import FAMILIES, LearningRates
from optuna_taylorglo.verdict.selection import halve
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Runner,
    compared_evolved_loss,
    cross_entropy,
    stage_task,
)

logger = logging.getLogger(__name__)

LEARNING_RATE_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Learning rates of cross-entropy, relative to the recipe's or the module's own."""

GRID_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates in a grid with a loss's parameter; robust losses want smaller ones."""

RATE_BOUNDS = (0.01, 10.0)
"""Bounds of the learning rate in the search among the standard losses."""

TUNING_SEEDS = 2
"""Trainings of each loss where a single setting is tuned."""

BATCH = 8
"""Trainings that TPE proposes together; fixed, so that proposals do not depend on workers."""

FINALISTS = 10
"""Standard losses that are trained fully."""


def baselines(
    names: Sequence[str], recipe: Recipe, run: Runner, rates: LearningRates
) -> list[ComparedLoss]:
    """The baselines of a verdict; `ce-tuned` is left out where no rate can be tuned."""
    possible = [name for name in names if name != "ce-tuned" or rates.obstacle is None]
    return [baseline(name, recipe, run, rates) for name in possible]


def baseline(
    name: str, recipe: Recipe, run: Runner, rates: LearningRates | None = None
) -> ComparedLoss:
    """A loss to compare with, tuned if its name says so.

    Args:
        name: One of `families.BASELINES`, or path of a loss file.
        recipe: The study's recipe.
        run: Gets tasks done.
        rates: How learning rates are varied; None for multiples of the recipe's.
    """
    rates = rates or LearningRates.of(recipe)
    if name == "ce":
        return cross_entropy(role=Role.REFERENCE)
    if name in ("baikal", "baikal-cma"):
        return ComparedLoss(name, {"baikal": "Baikal", "baikal-cma": "BaikalCMA"}[name], name)
    if name == "best-standard":
        return best_standard_loss(name, recipe, run, rates)
    if name == "ce-tuned":
        tried = [
            cross_entropy(name, f"cross-entropy, {rates.label(rate)} (tuned)", **settings)
            for rate in rates.times(LEARNING_RATE_FACTORS)
            for settings in [rates.settings(rate)]
        ]
        return _best_on_validation(tried, TUNING_SEEDS, recipe, run)
    if name == "ce-smoothed":
        tried = [
            cross_entropy(
                name,
                f"cross-entropy, label smoothing {smoothing:g} (tuned)",
                settings={"label_smoothing": smoothing},
            )
            for smoothing in FAMILIES["label-smoothing"].grid
        ]
        return _best_on_validation(tried, TUNING_SEEDS, recipe, run)
    if name in FAMILIES:
        tried = [
            standard_loss(name, name, value, rates, rate)
            for value in FAMILIES[name].grid
            for rate in rates.times(GRID_FACTORS)
        ]
        best = _best_on_validation(tried, 1, recipe, run)
        return replace(best, label=f"{best.label} (best of {len(tried)})")
    return compared_evolved_loss(Path(name).stem, name, Role.BASELINE, load_loss(name))


def standard_loss(
    name: str, family: str, value: float, rates: LearningRates, rate: float
) -> ComparedLoss:
    """A standard loss to compare.

    Args:
        name: Short name of the baseline.
        family: Key of `FAMILIES`.
        value: Value of the family's parameter.
        rates: How learning rates are varied.
        rate: One of them.
    """
    label, parameter = FAMILIES[family].label, FAMILIES[family].parameter
    if family == "label-smoothing":
        kind, label = "cross-entropy", f"{label} {value:.3g}"
    else:
        kind, label = family, f"{label} ({parameter} {value:.3g})"
    label += f" at {rates.label(rate)}"
    return ComparedLoss(name, label, kind, settings={parameter: value}, **rates.settings(rate))


def _best_on_validation(
    tried: Sequence[ComparedLoss], n_seeds: int, recipe: Recipe, run: Runner
) -> ComparedLoss:
    """The loss that is best at the length of an evaluation; the first of equal ones."""
    length = recipe.budget.evaluation
    tasks = [
        stage_task(recipe, loss, Stage.TUNE, seed, length=length)
        for loss in tried
        for seed in range(n_seeds)
    ]
    scores = [_score(value, recipe) for value in run(tasks)]
    means = [statistics.fmean(scores[i : i + n_seeds]) for i in range(0, len(scores), n_seeds)]
    return tried[means.index(max(means))]


def _score(value: float | None, recipe: Recipe) -> float:
    """A result so that greater is better; diverged trainings are the worst."""
    return -math.inf if value is None else recipe.fitness.sign * value


def best_standard_loss(
    name: str, recipe: Recipe, run: Runner, rates: LearningRates
) -> ComparedLoss:
    """Search among the standard losses with the budget that the loss search had.

    TPE proposes family, parameter and learning rate, and the best are trained fully, as the
    finalists of the loss search are.

    Args:
        name: Short name of the result.
        recipe: The study's recipe.
        run: Gets tasks done.
        rates: How learning rates are varied.
    """
    search = recipe.search
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=candidate_seed(search.seed, Stage.STANDARD, 0),
            n_startup_trials=2 * BATCH,
            multivariate=True,
            group=True,
            constant_liar=True,
        )
    study = optuna.create_study(direction=direction_of(recipe), sampler=sampler)
    # The first trial is cross-entropy as in the recipe.
    first = {"loss": "label-smoothing", "label-smoothing": recipe.loss.label_smoothing}
    if rates.obstacle is None:
        first[_rate_name("label-smoothing")] = rates.start
    study.enqueue_trial(first)
    tried: list[tuple[ComparedLoss, float | None]] = []
    n_trainings = search.total_candidates * search.repeats
    while len(tried) < n_trainings:
        trials, losses = [], []
        for _ in range(min(BATCH, n_trainings - len(tried))):
            trials.append(study.ask())
            losses.append(_suggest(trials[-1], name, rates))
        values = run(
            [
                stage_task(
                    recipe, loss, Stage.STANDARD, trial.number, length=recipe.budget.evaluation
                )
                for trial, loss in zip(trials, losses, strict=True)
            ]
        )
        for trial, value in zip(trials, values, strict=True):
            # TPE ranks pruned trials below all others.
            study.tell(trial, value, TrialState.PRUNED if value is None else None)
        tried += zip(losses, values, strict=True)
    tried.sort(key=lambda pair: -_score(pair[1], recipe))
    finalists = [loss for loss, _ in tried[:FINALISTS]]
    best = finalists[halve(finalists, recipe, run, Stage.STANDARD_SELECTION)[0].index]
    return replace(best, label=f"best standard loss, same budget: {best.label}")


def _suggest(trial: Trial, name: str, rates: LearningRates) -> ComparedLoss:
    chosen = trial.suggest_categorical("loss", list(FAMILIES))
    family = FAMILIES[chosen]
    if isinstance(family.low, int):
        value: float = trial.suggest_int(chosen, family.low, int(family.high), log=family.log)
    else:
        value = trial.suggest_float(chosen, family.low, family.high, log=family.log)
    rate = rates.start
    if rates.obstacle is None:
        # A learning rate for each family: which is best depends on it, and on the parameter.
        rate = trial.suggest_float(_rate_name(chosen), *rates.times(RATE_BOUNDS), log=True)
    return standard_loss(name, chosen, value, rates, rate)


def _rate_name(family: str) -> str:
    return f"learning rate of {family}"


def evaluate_cross_entropy(
    study: Study, training: Training, n_seeds: int, stop: threading.Event | None = None
) -> list[float | None]:
    """Train with cross-entropy as candidates are trained, and store the results in the study.

    The seeds are those of the first candidates, so both start from the same weights. Seeds with a
    stored result are not trained again.

    Args:
        study: The study.
        training: Trains as the study's recipe says.
        n_seeds: Number of trainings.
        stop: Ends the current training when set.

    Returns:
        The fitness for each seed; None where the training diverged, which is logged, not stored.
    """
    recipe = training.recipe
    known: dict[str, float] = dict(study.user_attrs.get(CROSS_ENTROPY, {}))
    policy = recipe.search.seed_policy
    # A generation with common seeds has one seed; those of the next generations follow.
    places = [(n, 0) if policy == "common" else (0, n) for n in range(n_seeds)]
    seeds = [training_seed(recipe.search.seed, *place, 0, policy=policy) for place in places]
    for seed in (seed for seed in seeds if str(seed) not in known):
        try:
            known[str(seed)] = training.run(
                nn.CrossEntropyLoss(**loss_conventions(recipe)),
                seed=seed,
                steps=training.in_steps(recipe.budget.evaluation, recipe.budget.unit),
                # With fitness.take best, each validation is a chance.
                check_at=check_steps(training),
                stop=stop,
            )
        except Diverged as error:
            logger.warning("cross-entropy diverged with seed %d: %s", seed, error)
            continue
        study.set_user_attr(CROSS_ENTROPY, known)
    return [known.get(str(seed)) for seed in seeds]
