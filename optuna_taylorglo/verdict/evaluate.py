"""The verdict: full trainings of the winner, of baselines and of controls, and what they say.

Everything that trains is a task of the companion study (`verdict.task_queue`), so any worker can do
it and nothing is done twice. The stages, each waiting for the one before it:

1. Rerank: the best candidates once more, with fresh seeds, because the best of many noisy
   evaluations owes part of its rank to luck.
2. Tune: the opponents, on validation, each with a stated budget; one with the search's own.
3. Test: every loss at the recipe's full budget, judged by the test set.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.history import ranked_trials, trial_loss
from optuna_taylorglo.seeds import Stage, stage_seed
from optuna_taylorglo.training.run import test_metric
from optuna_taylorglo.verdict.compared_losses import (
    ComparedLoss,
    compared_taylor_loss,
    scale_controls,
)
from optuna_taylorglo.verdict.families import BASELINES, DEFAULT_BASELINES
from optuna_taylorglo.verdict.opponents import opponent
from optuna_taylorglo.verdict.statistics import Role, Sample, Verdict, contrasts
from optuna_taylorglo.verdict.tasks import Do, Task
from optuna_taylorglo.verdict.wording import verdict_in_words

RERANK_SEEDS = 5


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        seeds: Full trainings of each loss.
        against: Names out of `BASELINES`, or paths of loss files.
        rerank: How many of the best candidates are evaluated again before one is chosen; 0 for
            the paper's rule, the single best evaluation.
    """

    seeds: int = 10
    against: tuple[str, ...] = DEFAULT_BASELINES
    rerank: int = 5

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UsageError(f"seeds must be at least 2, not {self.seeds}: one has no spread.")
        if self.rerank < 0:
            raise UsageError(f"rerank must be at least 0, not {self.rerank}.")
        for name in self.against:
            if name not in BASELINES and not Path(name).is_file():
                raise UsageError(
                    f"against has {name!r}; allowed are {', '.join(BASELINES)} and loss files."
                )


def evaluate(study: Study, recipe: Recipe, plan: Plan, do: Do) -> Verdict:
    """Compare a study's winner with baselines and controls.

    Args:
        study: A study with complete trials.
        recipe: Its recipe.
        plan: What to compare.
        do: Does tasks.

    Returns:
        The verdict.

    Raises:
        UsageError: If the study has nothing to evaluate.
    """
    trial = choose_winner(study, recipe, plan.rerank, do)
    loss = trial_loss(study, trial)
    n_classes = study.user_attrs[N_CLASSES]
    losses = [compared_taylor_loss("winner", "evolved loss", Role.EVOLVED, loss)]
    losses += [opponent(name, recipe, do) for name in plan.against]
    losses += scale_controls(loss, n_classes)
    tasks = [
        _task(recipe, loss, Stage.TEST, seed, full=True)
        for loss in losses
        for seed in range(plan.seeds)
    ]
    values = do(tasks)
    samples = tuple(
        _sample(loss, values[i * plan.seeds : (i + 1) * plan.seeds])
        for i, loss in enumerate(losses)
    )
    verdict = Verdict(
        samples, contrasts(samples[0], samples[1:]), "", test_metric(recipe), trial.number
    )
    return replace(verdict, text=verdict_in_words(verdict, n_classes))


def choose_winner(study: Study, recipe: Recipe, rerank: int, do: Do) -> FrozenTrial:
    """The trial to put to the test: the single best, or the best of the best on fresh seeds."""
    ranked = ranked_trials(study)
    if not ranked:
        raise UsageError(f"study {study.study_name!r} has no complete trial to evaluate yet.")
    if rerank < 2:
        return ranked[0]
    best = ranked[:rerank]
    tasks = [
        _task(
            recipe,
            compared_taylor_loss(
                "candidate", f"trial {t.number}", Role.EVOLVED, trial_loss(study, t)
            ),
            Stage.RERANK,
            seed,
        )
        for t in best
        for seed in range(RERANK_SEEDS)
    ]
    means = _means(do(tasks), RERANK_SEEDS)
    return best[max(range(len(best)), key=lambda i: (means[i], -i))]


def _task(
    recipe: Recipe, loss: ComparedLoss, stage: Stage, seed: int, *, full: bool = False
) -> Task:
    return Task(
        loss=loss,
        # The same seeds for all losses of a stage: they start from the same weights.
        seed=stage_seed(recipe.search.seed, stage, seed),
        length=recipe.budget.full if full else recipe.budget.evaluation,
        unit=recipe.budget.unit,
        on_test_set=full,
        keep_network=full and loss.role == Role.EVOLVED and seed == 0,
    )


def _means(values: Sequence[float | None], size: int) -> list[float]:
    """Means of consecutive groups; a failed training counts as 0, below any that trained."""
    counted = [0.0 if value is None else value for value in values]
    return [statistics.fmean(counted[i : i + size]) for i in range(0, len(counted), size)]


def _sample(loss: ComparedLoss, values: Sequence[float | None]) -> Sample:
    done = tuple(value for value in values if value is not None)
    return Sample(loss.name, loss.label, loss.role, done, failed=len(values) - len(done))
