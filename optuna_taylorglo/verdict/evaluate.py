"""The verdict: full trainings of the winner, of baselines and of controls, and what they say.

Everything that trains is a task of the companion study (`verdict.task_queue`), so any worker can do
it and nothing is done twice. The stages, each waiting for the one before it:

1. Choose: the winner, if the recipe has it chosen by full trainings and no worker has done that.
2. Tune: the opponents, on validation, each with a stated budget; one with the search's own.
3. Test: every loss at the recipe's full budget, judged by the test set; all with the same seeds, so
   that differences are tested in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.study import Study

from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.seeds import Stage
from optuna_taylorglo.training.run import test_metric
from optuna_taylorglo.verdict.choice import evaluation_advice, kept_choice
from optuna_taylorglo.verdict.choosing import choose
from optuna_taylorglo.verdict.compared_losses import (
    ComparedLoss,
    compared_evolved_loss,
    scale_controls,
)
from optuna_taylorglo.verdict.divergence import value_of_divergence
from optuna_taylorglo.verdict.families import BASELINES, DEFAULT_BASELINES
from optuna_taylorglo.verdict.learning_rates import LearningRates
from optuna_taylorglo.verdict.opponents import opponents
from optuna_taylorglo.verdict.same_trainings import Row, one_row_each
from optuna_taylorglo.verdict.statistics import Role, Sample, Verdict, contrasts
from optuna_taylorglo.verdict.tasks import Do, Task, stage_task
from optuna_taylorglo.verdict.wording import verdict_in_words


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
    losses += opponents(plan.against, recipe, do, rates)
    losses += scale_controls(loss, n_classes)
    compared = one_row_each(losses, recipe)
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
    if (choice := kept_choice(study)) is not None:
        words.append(evaluation_advice(choice, recipe))
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
        keep_network=loss.role == Role.EVOLVED and seed == 0,
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
