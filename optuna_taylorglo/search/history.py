"""What a search has come to so far: its winner, its progress, and cross-entropy beside it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import CROSS_ENTROPY, N_CLASSES
from optuna_taylorglo.recipes.in_study import frozen_recipe
from optuna_taylorglo.search.generations import GenerationLog
from optuna_taylorglo.search.study import slot_rules

if TYPE_CHECKING:
    from optuna_taylorglo.losses.taylor_loss import TaylorLoss
    from optuna_taylorglo.recipes.schema import Recipe


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        generation: Generations that are complete.
        generations: Generations of the whole search.
        filled: Slots of all generations that have their result.
        slots: Slots of all generations.
        counts: Trials by state.
        best: The trial with the highest fitness, if any is complete.
        generation_best: Best fitness of each complete generation, None where all ended early.
        generation_mean: Mean fitness of each complete generation's completed candidates.
        cross_entropy: Cross-entropy's fitness at the same budget, one value a seed.
    """

    generation: int
    generations: int
    filled: int
    slots: int
    counts: dict[TrialState, int]
    best: FrozenTrial | None
    generation_best: list[float | None]
    generation_mean: list[float | None]
    cross_entropy: list[float]

    @property
    def counts_of_complete(self) -> int:
        """Number of candidates with a fitness."""
        return self.counts[TrialState.COMPLETE]


def progress(study: Study, recipe: Recipe) -> Progress:
    """Read a study's progress.

    Args:
        study: The study.
        recipe: Its recipe.
    """
    trials = study.get_trials(deepcopy=False)
    ledger = GenerationLog(slot_rules(recipe))
    ledger.read(trials)
    values = [
        [slot.result.value for slot in slots if slot.result is not None]
        for slots in ledger.finished
    ]
    fitness = [[value for value in generation if value is not None] for generation in values]
    generations = recipe.search.generations
    open_slots = ledger.current_slots() if ledger.generation < generations else ()
    return Progress(
        generation=min(ledger.generation, generations),
        generations=generations,
        filled=min(ledger.generation, generations) * recipe.search.population
        + sum(slot.closed for slot in open_slots),
        slots=generations * recipe.search.population,
        counts={state: sum(t.state == state for t in trials) for state in TrialState},
        best=winner(study),
        generation_best=[max(v) if v else None for v in fitness],
        generation_mean=[statistics.fmean(v) if v else None for v in fitness],
        cross_entropy=list(study.user_attrs.get(CROSS_ENTROPY, {}).values()),
    )


def winner(study: Study) -> FrozenTrial | None:
    """The single trial with the highest fitness, as in the paper; the earliest of equal ones."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(complete, key=lambda trial: (trial.values[0], -trial.number), default=None)


def trial_loss(study: Study, trial: FrozenTrial) -> TaylorLoss:
    """The loss that a trial of a study evaluated, with its origin.

    Args:
        study: A study with a frozen recipe.
        trial: One of its trials.

    Raises:
        ValueError: If the study has no recipe or the trial no complete candidate.
    """
    from optuna_taylorglo.losses.files import Origin
    from optuna_taylorglo.search.candidates import candidate_loss, parameter_names

    recipe = frozen_recipe(study)
    n_classes = study.user_attrs.get(N_CLASSES)
    if recipe is None or n_classes is None:
        raise ValueError(f"study {study.study_name!r} has no recipe: no worker has begun on it.")
    names = parameter_names(recipe)
    missing = [name for name in names if name not in trial.params]
    if missing:
        raise ValueError(f"trial {trial.number} has no {missing[0]}: it is no candidate.")
    loss = candidate_loss(recipe, [trial.params[name] for name in names], n_classes)
    loss.origin = Origin(
        study=study.study_name,
        trial=trial.number,
        recipe=recipe.to_dict(),
        validation_accuracy=trial.values[0] if trial.values else None,
    )
    return loss
