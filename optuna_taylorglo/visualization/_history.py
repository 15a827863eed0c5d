"""A study's candidates by generation, as plain data for the figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optuna.study import Study

from optuna_taylorglo.attributes import N_CLASSES
from optuna_taylorglo.recipes.in_study import frozen_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.search.generations import GenerationLog, Slot
from optuna_taylorglo.search.study import slot_rules

NO_SEARCH = "the study has no recipe, no worker has begun on it."
NO_GENERATION = "no generation is finished yet."


@dataclass(frozen=True)
class Candidate:
    """One candidate and what came of it.

    Attributes:
        trial: Number of its trial.
        generation: Its generation, from 0.
        parameters: What the search proposed, in the order of the recipe's parameter names.
        fitness: None if it ended early or was lost.
    """

    trial: int
    generation: int
    parameters: tuple[float, ...]
    fitness: float | None


@dataclass(frozen=True)
class History:
    """What a search has evaluated.

    Attributes:
        recipe: The study's recipe.
        n_classes: Number of classes of its data.
        names: Names of the parameters.
        generations: Candidates of each finished generation.
        current: Those of the generation in hand that have their result.
    """

    recipe: Recipe
    n_classes: int
    names: tuple[str, ...]
    generations: tuple[tuple[Candidate, ...], ...]
    current: tuple[Candidate, ...]

    @property
    def candidates(self) -> list[Candidate]:
        """All of them, in order."""
        return [c for generation in self.generations for c in generation] + list(self.current)

    def best_of_each(self) -> list[Candidate]:
        """The best candidate of each finished generation; none where all ended early."""
        bests = []
        for generation in self.generations:
            complete = [c for c in generation if c.fitness is not None]
            if complete:
                bests.append(max(complete, key=lambda c: (c.fitness or 0.0, -c.trial)))
        return bests


def read_history(study: Study) -> History | None:
    """Read a study; None if no worker has begun on it."""
    from optuna_taylorglo.search.candidates import parameter_names

    recipe = frozen_recipe(study)
    n_classes = study.user_attrs.get(N_CLASSES)
    if recipe is None or n_classes is None:
        return None
    names = parameter_names(recipe)
    ledger = GenerationLog(slot_rules(recipe))
    ledger.read(study.get_trials(deepcopy=False))
    in_hand = [slot for slot in ledger.current_slots() if slot.closed]
    return History(
        recipe,
        n_classes,
        names,
        tuple(tuple(_candidates(slots, names)) for slots in ledger.finished),
        tuple(_candidates(in_hand, names)),
    )


def _candidates(slots: Iterable[Slot], names: tuple[str, ...]) -> Iterable[Candidate]:
    for slot in slots:
        trials = [slot.result] if slot.result is not None else slot.made_for_it
        for trial in trials:
            if all(name in trial.params for name in names):
                parameters = tuple(float(trial.params[name]) for name in names)
                fitness = trial.value if slot.result is not None else None
                yield Candidate(trial.number, slot.generation, parameters, fitness)
                break
