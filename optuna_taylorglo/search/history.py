"""The results of a search: candidates by generation, the best ones, and cross-entropy's."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import CROSS_ENTROPY, N_CLASSES
from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.candidates import (
    Point,
    candidate_loss,
    new_log,
    parameter_names,
    stored_candidate,
)
from optuna_taylorglo.search.generations import GenerationLog, Slot

if TYPE_CHECKING:
    from optuna_taylorglo.losses.taylor import TaylorLoss
    from optuna_taylorglo.losses.tree_loss import TreeLoss


@dataclass(frozen=True)
class Candidate:
    """One candidate and its result.

    Attributes:
        trial: Number of its trial.
        generation: Its generation, from 0.
        parameters: What the search proposed, in the order of the recipe's parameter names; in a
            GLO search a tree.
        fitness: None if it ended early or failed.
    """

    trial: int
    generation: int
    parameters: Point
    fitness: float | None


@dataclass(frozen=True)
class Generation:
    """The candidates of one generation that have their result.

    Attributes:
        candidates: The candidates.
        sign: 1 if greater fitness is better, -1 if smaller is.
    """

    candidates: tuple[Candidate, ...]
    sign: int = 1

    @cached_property
    def values(self) -> list[float]:
        """Fitness of the candidates that trained to the end."""
        return [c.fitness for c in self.candidates if c.fitness is not None]

    @cached_property
    def best(self) -> Candidate | None:
        """The candidate with the best fitness, the earliest of equal ones."""
        trained = [c for c in self.candidates if c.fitness is not None]
        return max(trained, key=lambda c: (self.sign * (c.fitness or 0.0), -c.trial), default=None)

    @property
    def mean(self) -> float | None:
        """Mean fitness of the candidates that trained to the end."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def ended_early(self) -> int:
        """Number of candidates without a fitness."""
        return len(self.candidates) - len(self.values)


@dataclass(frozen=True)
class CrossEntropy:
    """Fitness of cross-entropy at the candidates' budget, with each training seed."""

    by_seed: Mapping[str, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed.values())

    @property
    def low(self) -> float:
        return min(self.by_seed.values())

    @property
    def high(self) -> float:
        return max(self.by_seed.values())

    def __str__(self) -> str:
        seeds = "1 seed" if len(self.by_seed) == 1 else f"{len(self.by_seed)} seeds"
        return f"{self.mean:.4f}, mean of {seeds} ({self.low:.4f} to {self.high:.4f})"


class SearchHistory:
    """A snapshot of a study; views of it are computed when they are asked for.

    Args:
        study: The study; no worker needs to have begun on it.
        recipe: Its recipe.
        log: The log of an earlier snapshot, for one that costs only what is new.
    """

    def __init__(self, study: Study, recipe: Recipe, log: GenerationLog | None = None) -> None:
        self.recipe = recipe
        self.trials = study.get_trials(deepcopy=False)
        self._attributes = study.user_attrs
        self._log = new_log(recipe) if log is None else log
        self._log.read(self.trials)
        n_generations = recipe.search.total_generations
        self.n_finished = min(self._log.generation, n_generations)
        self.finished = self.n_finished == n_generations
        """Whether all generations are complete."""
        self.n_reused = self._log.replay.n_reused
        """Candidates so far that had the result of an equal function."""
        self.n_slots = recipe.search.total_candidates - self.n_reused
        """Candidates of the whole search, as far as known without those that are reused."""
        self._closed = [s for s in self._log.open_slots(n_generations) if s.closed]
        n_closed = sum(map(len, self._log.finished)) + len(self._closed)
        self.n_filled = self.n_slots if self.finished else n_closed
        """Candidates of the search that have their result."""

    @property
    def begun(self) -> bool:
        """Whether a worker has begun on the study."""
        return self._attributes.get(N_CLASSES) is not None

    @property
    def n_classes(self) -> int:
        """Number of classes of the data; only of a search that has begun."""
        return int(self._attributes[N_CLASSES])

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state."""
        found = Counter(trial.state for trial in self.trials)
        return {state: found[state] for state in TrialState}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that are searched."""
        return parameter_names(self.recipe)

    @cached_property
    def generations(self) -> list[Generation]:
        """The finished generations."""
        return [self._generation(slots) for slots in self._log.finished]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All candidates that have their result, those of unfinished generations last."""
        in_hand = self._generation(self._closed)
        return [c for g in [*self.generations, in_hand] for c in g.candidates]

    @property
    def best_of_each(self) -> list[Candidate]:
        """The best candidate of each finished generation; none where all ended early."""
        return [g.best for g in self.generations if g.best is not None]

    @property
    def last_mean(self) -> float | None:
        """Mean fitness of the last finished generation in which a candidate trained to the end."""
        # Asked for every second while a search runs, so without a look at all generations.
        means = (self._generation(slots).mean for slots in reversed(self._log.finished))
        return next((mean for mean in means if mean is not None), None)

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """Complete candidates from the best to the worst, the earlier of equal ones first."""
        return _ranked(self.trials, self.recipe)

    @property
    def best(self) -> FrozenTrial | None:
        """The trial with the best fitness."""
        return next(iter(self.ranked), None)

    @property
    def new_bests(self) -> list[FrozenTrial]:
        """Complete trials that surpass all with lower numbers."""
        sign = self.recipe.fitness.sign
        bests: list[FrozenTrial] = []
        for trial in sorted(self.ranked, key=lambda trial: trial.number):
            if not bests or sign * trial.values[0] > sign * bests[-1].values[0]:
                bests.append(trial)
        return bests

    @property
    def cross_entropy(self) -> CrossEntropy | None:
        """Cross-entropy at the same budget, if it was trained."""
        by_seed = self._attributes.get(CROSS_ENTROPY)
        return CrossEntropy(by_seed) if by_seed else None

    def _generation(self, slots: Iterable[Slot]) -> Generation:
        found = filter(None, map(self._candidate, slots))
        return Generation(tuple(found), self.recipe.fitness.sign)

    def _candidate(self, slot: Slot) -> Candidate | None:
        for trial in slot.holders:
            if (parameters := stored_candidate(self.recipe, trial)) is not None:
                fitness = trial.values[0] if _has_fitness(trial) else None
                return Candidate(trial.number, slot.generation, parameters, fitness)
        return None


def read_history(study: Study) -> SearchHistory | None:
    """The history of a study; None if no worker has begun on it."""
    recipe = settled_recipe(study)
    history = None if recipe is None else SearchHistory(study, recipe)
    return history if history is not None and history.begun else None


def ranked_trials(study: Study) -> list[FrozenTrial]:
    """Complete candidates from the best to the worst, the earlier of equal ones first.

    None for a study without a recipe, which says what a candidate is.
    """
    recipe = settled_recipe(study)
    return [] if recipe is None else _ranked(study.get_trials(deepcopy=False), recipe)


def winner(study: Study) -> FrozenTrial | None:
    """The single trial with the best fitness, as in the paper; the earliest of equal ones."""
    return next(iter(ranked_trials(study)), None)


def recipe_and_classes(study: Study) -> tuple[Recipe, int]:
    """The recipe of a study and the number of classes of its data.

    Raises:
        StudyError: If no worker has begun on it.
    """
    recipe, n_classes = settled_recipe(study), study.user_attrs.get(N_CLASSES)
    if recipe is None or n_classes is None:
        raise StudyError(f"study {study.study_name!r} has no recipe: no worker has begun on it.")
    return recipe, int(n_classes)


def trial_loss(study: Study, trial: FrozenTrial) -> TaylorLoss | TreeLoss:
    """The loss that a trial of a study evaluated, with its origin.

    Raises:
        StudyError: If the study has no recipe or the trial no complete candidate.
    """
    from optuna_taylorglo.losses.files import Origin

    recipe, n_classes = recipe_and_classes(study)
    parameters = stored_candidate(recipe, trial)
    if parameters is None:
        needed = ", ".join(parameter_names(recipe)) or "a tree with its coefficients"
        raise StudyError(f"trial {trial.number} is no candidate: it does not hold {needed}.")
    loss = candidate_loss(recipe, parameters, n_classes)
    loss.origin = Origin(
        study=study.study_name,
        trial=trial.number,
        recipe=recipe.to_dict(),
        validation_accuracy=trial.values[0] if trial.values else None,
    )
    return loss


def _ranked(trials: Iterable[FrozenTrial], recipe: Recipe) -> list[FrozenTrial]:
    sign = recipe.fitness.sign
    # A user may add trials to a study that are no candidates.
    complete = (t for t in trials if _has_fitness(t) and stored_candidate(recipe, t) is not None)
    return sorted(complete, key=lambda trial: (-sign * trial.values[0], trial.number))


def _has_fitness(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0])
