"""What a user would take instead of an evolved loss, each tuned on validation."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from optuna_taylorglo.search.objective import check_steps
from optuna_taylorglo.seeds import Stage, candidate_seed, training_seed
from optuna_taylorglo.training.training import Training
from optuna_taylorglo.verdict.families import FAMILIES, LearningRates
from optuna_taylorglo.verdict.selection import halve
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import (
    ComparedLoss,
    Do,
    compared_evolved_loss,
    cross_entropy,
    score,
    stage_task,
    standard_loss,
    train_each,
    validation_task,
)

BATCH = 8
"""Trainings that are proposed together; fixed, so that proposals do not depend on workers."""

RATE_FACTORS = (0.01, 10.0)
"""Least and greatest learning rate, in terms of the recipe's or the module's own."""

FINALISTS = 10


def best_standard_loss(
    name: str, recipe: Recipe, do: Do, rates: LearningRates | None = None
) -> ComparedLoss:
    """Search among the standard losses with the budget that the loss search had.

    Args:
        name: Short name of the result.
        recipe: The study's recipe.
        do: Does tasks.
        rates: What learning rates there are; None: multiples of the recipe's.
    """
    tried = _tune(name, recipe, do, rates or LearningRates.of(recipe))
    # Sorting is stable: of equal ones the first.
    best = sorted(tried, key=lambda one: -score([one[1]], recipe.fitness.sign))[:FINALISTS]
    finalists = [loss for loss, _ in best]
    chosen = finalists[halve(finalists, recipe, do, Stage.STANDARD_SELECTION)[0].index]
    return replace(chosen, label=f"best standard loss, same budget: {chosen.label}")


def _tune(
    name: str, recipe: Recipe, do: Do, rates: LearningRates
) -> list[tuple[ComparedLoss, float | None]]:
    """What TPE tried, in order, and the fitness; None where the training diverged."""
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
    study = optuna.create_study(
        direction="maximize" if recipe.fitness.sign > 0 else "minimize", sampler=sampler
    )
    # Cross-entropy as the recipe has it is where everybody begins.
    first = {"loss": "label-smoothing", "label-smoothing": recipe.loss.label_smoothing}
    if rates.obstacle is None:
        first[_rate("label-smoothing")] = rates.start
    study.enqueue_trial(first)
    tried: list[tuple[ComparedLoss, float | None]] = []
    n_trainings = search.total_candidates * search.repeats
    while len(tried) < n_trainings:
        trials, losses = [], []
        for _ in range(min(BATCH, n_trainings - len(tried))):
            trials.append(study.ask())
            losses.append(_suggest(trials[-1], name, rates))
        tasks = [
            validation_task(recipe, loss, Stage.STANDARD, trial.number)
            for trial, loss in zip(trials, losses, strict=True)
        ]
        values = do(tasks)
        for trial, value in zip(trials, values, strict=True):
            # TPE ranks what was pruned below all that was not.
            study.tell(trial, value, TrialState.PRUNED if value is None else None)
        tried += zip(losses, values, strict=True)
    return tried


def _suggest(trial: Trial, name: str, rates: LearningRates) -> ComparedLoss:
    chosen = trial.suggest_categorical("loss", list(FAMILIES))
    family = FAMILIES[chosen]
    low, high = family.low, family.high
    if isinstance(low, int):
        value: float = trial.suggest_int(chosen, low, int(high), log=family.log)
    else:
        value = trial.suggest_float(chosen, low, high, log=family.log)
    rate = rates.start
    if rates.obstacle is None:
        # A learning rate for each kind: which is best depends on it, and on the parameter.
        low, high = rates.times(RATE_FACTORS)
        rate = trial.suggest_float(_rate(chosen), low, high, log=True)
    return standard_loss(name, family, value, rates, rate)


def _rate(family: str) -> str:
    return f"learning rate of {family}"


LEARNING_RATE_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Learning rates of cross-entropy, in terms of the recipe's or the module's own."""

GRID_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates in a grid with a loss's parameter; robust losses want smaller ones."""

TUNING_SEEDS = 2


TUNED_RATE = "ce-tuned"
"""The baseline of which nothing but the learning rate is tuned."""


def baselines(
    names: Sequence[str], recipe: Recipe, do: Do, rates: LearningRates
) -> list[ComparedLoss]:
    """The losses to compare with, less one that is only a tuned rate where none can be tuned."""
    if rates.obstacle is not None:
        names = [name for name in names if name != TUNED_RATE]
    return [baseline(name, recipe, do, rates) for name in names]


def baseline(name: str, recipe: Recipe, do: Do, rates: LearningRates | None = None) -> ComparedLoss:
    """A loss to compare with, tuned if its name says so.

    Args:
        name: Out of `families.BASELINES`, or path of a loss file.
        recipe: The study's recipe.
        do: Does tasks.
        rates: What learning rates there are; None: multiples of the recipe's.
    """
    rates = rates or LearningRates.of(recipe)
    if name == "ce":
        return cross_entropy(role=Role.REFERENCE)
    if name in ("baikal", "baikal-cma"):
        return ComparedLoss(name, {"baikal": "Baikal", "baikal-cma": "BaikalCMA"}[name], name)
    if name == TUNED_RATE:
        return _tuned_cross_entropy(name, recipe, do, rates)
    if name == "ce-smoothed":
        return _smoothed_cross_entropy(name, recipe, do)
    if name == "best-standard":
        return best_standard_loss(name, recipe, do, rates)
    if name in FAMILIES:
        return _tuned_in_grid(name, recipe, do, rates)
    return compared_evolved_loss(Path(name).stem, name, Role.BASELINE, load_loss(name))


def _tuned_cross_entropy(name: str, recipe: Recipe, do: Do, rates: LearningRates) -> ComparedLoss:
    tried = [
        cross_entropy(name, f"cross-entropy, {rates.words(rate)} (tuned)", **rates.settings(rate))
        for rate in rates.times(LEARNING_RATE_FACTORS)
    ]
    return _best_on_validation(tried, TUNING_SEEDS, recipe, do)


def _smoothed_cross_entropy(name: str, recipe: Recipe, do: Do) -> ComparedLoss:
    """Label smoothing at the recipe's own learning rate, as older verdicts have it."""
    tried = [
        cross_entropy(
            name,
            f"cross-entropy, label smoothing {smoothing:g} (tuned)",
            settings={"label_smoothing": smoothing},
        )
        for smoothing in FAMILIES["label-smoothing"].grid
    ]
    return _best_on_validation(tried, TUNING_SEEDS, recipe, do)


def _tuned_in_grid(name: str, recipe: Recipe, do: Do, rates: LearningRates) -> ComparedLoss:
    family = FAMILIES[name]
    tried = [
        standard_loss(name, family, value, rates, rate)
        for value in family.grid
        for rate in rates.times(GRID_FACTORS)
    ]
    best = _best_on_validation(tried, 1, recipe, do)
    return replace(best, label=f"{best.label} (best of {len(tried)})")


def _best_on_validation(
    tried: Sequence[ComparedLoss], n_seeds: int, recipe: Recipe, do: Do
) -> ComparedLoss:
    """The loss that is best at the candidates' budget; the first of equal ones."""
    results = train_each(tried, range(n_seeds), recipe, Stage.TUNE, do)
    scores = [score(values, recipe.fitness.sign) for values in results]
    return tried[scores.index(max(scores))]


@dataclass(frozen=True)
class Row:
    """One loss of a verdict, by all its names.

    Attributes:
        loss: The loss; its label says what else it is.
        also: Names of the others that it is.
    """

    loss: ComparedLoss
    also: tuple[str, ...] = ()


def deduplicate(losses: Sequence[ComparedLoss], recipe: Recipe) -> list[Row]:
    """The losses in order, those that are trained alike put together.

    Args:
        losses: The losses.
        recipe: The recipe by which they are trained.
    """
    groups: dict[str, list[ComparedLoss]] = {}
    for loss in losses:
        # The seed and the length are the same for all.
        key = stage_task(recipe, _without_defaults(loss, recipe), Stage.TEST, 0).key
        groups.setdefault(key, []).append(loss)
    return [_row(group, recipe) for group in groups.values()]


def _without_defaults(loss: ComparedLoss, recipe: Recipe) -> ComparedLoss:
    """The same training in fewer words, for comparison only: tasks are known by theirs."""
    if loss.learning_rate == LearningRates.of(recipe).base:
        loss = replace(loss, learning_rate=None)
    if loss.kind == "cross-entropy" and loss.settings.get("label_smoothing") == 0:
        settings = {k: v for k, v in loss.settings.items() if k != "label_smoothing"}
        loss = replace(loss, settings=settings)
    return loss


def _row(group: Sequence[ComparedLoss], recipe: Recipe) -> Row:
    roles = list(Role)
    first, *others = sorted(group, key=lambda loss: roles.index(loss.role))
    label = first.label
    if first.role == Role.REFERENCE and any(other.name == "ce-tuned" for other in others):
        rates = LearningRates.of(recipe)
        label = f"cross-entropy ({rates.words(rates.start)}; tuning kept it)"
        others = [other for other in others if other.name != "ce-tuned"]
    for other in dict.fromkeys(other.label for other in others if other.label != first.label):
        label += f", the same as {other}"
    also = tuple(dict.fromkeys(loss.name for loss in group if loss.name != first.name))
    return Row(replace(first, label=label), also)


logger = logging.getLogger(__name__)


def evaluate_cross_entropy(
    study: Study, training: Training, n_seeds: int, stop: threading.Event | None = None
) -> list[float | None]:
    """Train with cross-entropy as candidates are trained, and keep the results in the study.

    The seeds are those of the first candidates, so both start from the same weights.
    Seeds that the study already has a result for are not trained again.

    Args:
        study: The study.
        training: Trains as its recipe says.
        n_seeds: Number of trainings.
        stop: Ends the training in hand when set.

    Returns:
        The fitness for each seed; None where the training diverged, which the log tells and the
        study does not keep.
    """
    recipe = training.recipe
    known: dict[str, float] = dict(study.user_attrs.get(CROSS_ENTROPY, {}))
    policy = recipe.search.seed_policy
    # With common seeds a generation has a single one; the generations after it lend theirs.
    places = [(n, 0) if policy == "common" else (0, n) for n in range(n_seeds)]
    seeds = [training_seed(recipe.search.seed, *place, 0, policy=policy) for place in places]
    for seed in seeds:
        if str(seed) not in known:
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
