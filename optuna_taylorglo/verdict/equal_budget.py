"""The best standard loss tuned with the same budget: what one would do instead of a loss search.

Optuna's TPE searches over kind of loss, its parameter and the learning rate, with as many trainings
as the loss search; the best of what it tried are then chosen among by full trainings, as evolved
candidates are. All of it depends on the recipe's seed and on results only, never on workers: an
evaluation that was interrupted proposes the same losses again, whose trainings are there already.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial, TrialState

from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage, candidate_seed
from optuna_taylorglo.verdict.compared_losses import ComparedLoss, standard_loss
from optuna_taylorglo.verdict.families import FAMILIES
from optuna_taylorglo.verdict.halving import halve
from optuna_taylorglo.verdict.learning_rates import LearningRates
from optuna_taylorglo.verdict.tasks import Do
from optuna_taylorglo.verdict.validation import score, validation_task

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
    chosen = finalists[halve(finalists, recipe, do, Stage.STANDARD_CHOICE)[0].index]
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
    n_trainings = search.n_candidates * search.repeats
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
