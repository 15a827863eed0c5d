"""A search as its study has it: the recipe, the candidates by generation and the best ones."""

from __future__ import annotations

import math
import shlex
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import CROSS_ENTROPY, N_CLASSES, SELECTION, WITHDRAWN
from optuna_taylorglo.errors import RecipeError, RecipeMismatch, StudyError
from optuna_taylorglo.evolution.candidates import (
    Point,
    candidate_loss,
    new_log,
    parameter_names,
    resolve_start,
    stored_candidate,
)
from optuna_taylorglo.evolution.scheduler import GenerationLog, Slot
from optuna_taylorglo.recipes.load import (
    CHANGEABLE,
    frozen_recipe,
    merged,
    recipe_differences,
    replace_recipe,
    settled_recipe,
)
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe
from optuna_taylorglo.study.open import Direction, check_direction, find_evaluation_study
from optuna_taylorglo.study.optuna_private import storage_of

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss

_logger = get_logger(__name__)


@dataclass(frozen=True)
class Candidate:
    """One candidate, with the number of its trial; its fitness is None if it ended early."""

    trial: int
    generation: int
    parameters: Point
    fitness: float | None


@dataclass(frozen=True)
class Generation:
    """The candidates of one generation that have their result; sign is -1 if smaller is better."""

    candidates: tuple[Candidate, ...]
    sign: int = 1

    @property
    def values(self) -> list[float]:
        """Fitness of the candidates that trained to the end."""
        return [c.fitness for c in self.candidates if c.fitness is not None]

    @property
    def best(self) -> Candidate | None:
        """The candidate with the best fitness, the earliest of equal ones."""
        trained = [c for c in self.candidates if c.fitness is not None]
        return max(trained, key=lambda c: (self.sign * (c.fitness or 0.0), -c.trial), default=None)

    @property
    def ended_early(self) -> int:
        """Number of candidates without a fitness."""
        return len(self.candidates) - len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean fitness of the candidates that trained to the end."""
        return statistics.fmean(self.values) if self.values else None


class CrossEntropy:
    """Fitness of cross-entropy at the candidates' budget, with each training seed."""

    def __init__(self, by_seed: Mapping[str, float]) -> None:
        self.by_seed = by_seed
        self.mean = statistics.fmean(by_seed.values())
        self.low, self.high = min(by_seed.values()), max(by_seed.values())

    def __str__(self) -> str:
        seeds = "1 seed" if len(self.by_seed) == 1 else f"{len(self.by_seed)} seeds"
        return f"{self.mean:.4f}, mean of {seeds} ({self.low:.4f} to {self.high:.4f})"


class SearchHistory:
    """A snapshot of a study; the log of an earlier one makes it cost only what is new."""

    def __init__(self, study: Study, recipe: Recipe, log: GenerationLog | None = None) -> None:
        self.recipe = recipe
        self.trials = study.get_trials(deepcopy=False)
        self._attributes = study.user_attrs
        self._log = new_log(recipe) if log is None else log
        self._log.read(self.trials)
        n_generations = recipe.search.total_generations
        self.n_finished = min(self._log.generation, n_generations)  # complete generations
        self.finished = self.n_finished == n_generations
        self.n_reused = self._log.replay.n_reused
        # Candidates of the whole search, as far as known without those that had the result of an
        # equal function, and those that have their result.
        self.n_slots = recipe.search.total_candidates - self.n_reused
        self._closed = [s for s in self._log.open_slots(n_generations) if s.closed]
        n_closed = sum(map(len, self._log.finished)) + len(self._closed)
        self.n_filled = self.n_slots if self.finished else n_closed

    @property
    def n_classes(self) -> int:
        """Number of classes of the data; only of a search that has begun."""
        return int(self._attributes[N_CLASSES])

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state, without withdrawn duplicates."""
        found = Counter(t.state for t in self.trials if WITHDRAWN not in t.user_attrs)
        return {state: found[state] for state in TrialState}

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
        return next((g.mean for g in reversed(self.generations) if g.values), None)

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """Complete candidates from best to worst, the earlier of equal ones first."""
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
    if recipe is None or study.user_attrs.get(N_CLASSES) is None:
        return None
    return SearchHistory(study, recipe)


def ranked_trials(study: Study) -> list[FrozenTrial]:
    """Complete candidates from best to worst, the earlier of equal ones first."""
    recipe = settled_recipe(study)
    return [] if recipe is None else _ranked(study.get_trials(deepcopy=False), recipe)


def winner(study: Study) -> FrozenTrial | None:
    """The single trial with the best fitness, as in the paper; the earliest of equal ones."""
    return next(iter(ranked_trials(study)), None)


def recipe_and_classes(study: Study) -> tuple[Recipe, int]:
    """The recipe of a study on which a worker has begun, and the number of classes of its data."""
    recipe, n_classes = settled_recipe(study), study.user_attrs.get(N_CLASSES)
    if recipe is None or n_classes is None:
        raise StudyError(f"study {study.study_name!r} has no recipe: no worker has begun on it.")
    return recipe, int(n_classes)


def trial_loss(study: Study, trial: FrozenTrial) -> EvolvedLoss:
    """The loss that a trial of a study evaluated, with its origin."""
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


def attach_recipe(study: Study, recipe: Recipe | None = None) -> Recipe:
    """Save a recipe in a study, or take the one that is there; the recipe to work by.

    Until a worker has begun, another recipe takes the place of the saved one. Afterwards only
    `CHANGEABLE` fields may differ, on which no candidate and no training depends.
    """
    if recipe is not None:
        check_direction(study, direction_of(recipe))
        saved, attributes = frozen_recipe(study), study.user_attrs
        recipe = resolve_start(_as_started(recipe, saved), partial(_winner_of, study))
        has_begun = attributes.get(N_CLASSES) or attributes.get(CROSS_ENTROPY)
        if saved is not None and (has_begun or find_evaluation_study(study) is not None):
            recipe = _with_changes(study, saved, recipe)
        # Of two recipes brought at once the last one stays, which the other worker then notices.
        if saved is None or recipe_differences(saved, recipe):
            replace_recipe(study, recipe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([recipe.fitness.metric])
    if (settled := settled_recipe(study)) is None:
        raise StudyError(
            f"study {study.study_name!r} has no recipe yet: give the first worker one, such as\n"
            "  --recipe studies/digits_cnn.yaml\nor begin with optuna_taylorglo.search in Python."
        )
    return settled


def _as_started(recipe: Recipe, saved: Recipe | None) -> Recipe:
    """The recipe with the losses that the study keeps: a newer library, say, may have others."""
    start, kept = recipe.search.start, None if saved is None else saved.search.start
    if start is None or kept is None or not start.n_known:
        return recipe
    if (start.losses, start.study) != (kept.losses, kept.study):
        return recipe
    return recipe.changed(search=recipe.search.changed(start=kept))


def _winner_of(study: Study, name: str) -> EvolvedLoss:
    """The loss with which another study in a study's storage ends."""
    try:
        other = optuna.load_study(study_name=name, storage=storage_of(study))
        recipe, n_classes = recipe_and_classes(other)
    except (KeyError, StudyError) as error:
        raise RecipeError("search.start.study", f"{name!r} is no study of a search here") from error
    if (selection := other.user_attrs.get(SELECTION)) is not None:
        return candidate_loss(recipe, selection["finalists"][0]["parameters"], n_classes)
    if (best := winner(other)) is None:
        raise RecipeError("search.start.study", f"{name!r} has no complete candidate yet")
    return trial_loss(other, best)


def check_recipe(study: Study, recipe: Recipe) -> None:
    """Raise a RecipeMismatch if a worker's recipe is no longer the study's."""
    saved = settled_recipe(study)
    if saved is not None and merged(saved, recipe) is None:
        advice = "Another recipe took its place while this worker started. Start the worker again "
        differences = recipe_differences(saved, recipe)
        raise RecipeMismatch(study.study_name, differences, f"{advice}to work by that one.")


def direction_of(recipe: Recipe) -> Direction:
    """The direction of the recipe's studies."""
    return "maximize" if recipe.fitness.mode == "max" else "minimize"


def _with_changes(study: Study, saved: Recipe, recipe: Recipe) -> Recipe:
    """The recipe by which a study with results goes on."""
    changed, name = merged(saved, recipe), study.study_name
    if changed is None:
        raise RecipeMismatch(name, recipe_differences(saved, recipe), _advice(study))
    n, n_kept = recipe.search.n_generations, changed.search.n_generations
    if n < n_kept:
        more = f"{n_kept} generations, more than the {n} of the file."
        _logger.warning(f"Study {name!r} keeps its {more}")
    if lines := recipe_differences(saved, changed):
        if study.user_attrs.get(SELECTION) is not None:
            study.set_user_attr(SELECTION, None)  # the winner is to be selected again
        for line in lines:
            _logger.warning(f"Changed in study {name!r}: {line}.")
    return changed


def _advice(study: Study) -> str:
    url = getattr(storage_of(study), "url", None)
    storage = [] if url is None else ["--storage", url]
    commands = [
        shlex.join(["optuna", "delete-study", "--study-name", each.study_name, *storage])
        for each in (study, find_evaluation_study(study))
        if each is not None
    ]
    begun = f"A worker has begun on it, so only {CHANGEABLE} may change."
    if isinstance(frozen_recipe(study), FunctionRecipe):
        return f"{begun} Give the new search another study_name."
    return (
        f"{begun} Give the new recipe a study of its own with\n"
        f"  --study-name {shlex.quote(study.study_name + '-2')}\n"
        "or delete this one, with all its results, and start again:\n  " + "\n  ".join(commands)
    )
