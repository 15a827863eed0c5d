"""GLO as a function of finished generations: both of its stages, replayed, never stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import NamedTuple

from optuna.trial import FrozenTrial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.losses.tree import Tree, tree_from_prefix
from optuna_taylorglo.recipes.settings import GLOSettings
from optuna_taylorglo.search.cma import CMAReplay, SearchState
from optuna_taylorglo.search.generations import GenerationLog, RetryPolicy, Slot, standing
from optuna_taylorglo.search.glo.trees import (
    FunctionKey,
    child,
    depends_on_outputs,
    first_tree,
    function_key,
)
from optuna_taylorglo.seeds import tree_seed
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS


class TreePoint(NamedTuple):
    """A tree, and in the second stage what its nodes are multiplied by.

    Attributes:
        prefix: The tree in prefix form.
        coefficients: One for each node; none in the first stage.
    """

    prefix: tuple[str, ...]
    coefficients: tuple[float, ...] = ()

    @property
    def tree(self) -> Tree:
        return known_tree(self.prefix)


@lru_cache(maxsize=2**16)
def known_tree(prefix: tuple[str, ...]) -> Tree:
    """The tree of a prefix form.

    Raises:
        ValueError: If it is none.
    """
    return tree_from_prefix(prefix)


def coefficient_names(n: int) -> tuple[str, ...]:
    """Parameters that hold the coefficients of a tree of n nodes."""
    return tuple(f"c_{i}" for i in range(n))


def stored_point(trial: FrozenTrial) -> TreePoint | None:
    """The candidate that a trial holds; None if it holds none, or something that is none."""
    prefix = trial.user_attrs.get(TREE)
    if not isinstance(prefix, list) or not all(isinstance(entry, str) for entry in prefix):
        return None
    try:
        tree = known_tree(tuple(prefix))
    except ValueError:
        return None
    params = trial.system_attrs.get(FIXED_PARAMS, {}) | trial.params
    values = [params.get(name) for name in coefficient_names(tree.size)]
    if all(value is None for value in values):
        return TreePoint(tuple(prefix))
    numbers = [float(value) for value in values if _is_number(value)]
    return TreePoint(tuple(prefix), tuple(numbers)) if len(numbers) == len(values) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


BOUND = 1000.0
"""Coefficients lie in [−BOUND, BOUND], which is as good as unbounded."""


@dataclass(frozen=True)
class CoefficientSearch:
    """What CMA-ES starts with in the second stage (`cma_replay.CMASettings`): all coefficients 1.

    Attributes:
        tree: The tree whose coefficients are searched.
        sigma: First step size.
        seed: Seed of the search.
        rules: Candidates a generation.
    """

    tree: Tree
    sigma: float
    seed: int
    rules: RetryPolicy
    accept: None = None
    source: None = None
    lr_adapt: bool = False

    @property
    def x0(self) -> tuple[float, ...]:
        return (1.0,) * self.tree.size

    @property
    def units(self) -> tuple[float, ...]:
        return (1.0,) * self.tree.size

    @property
    def limits(self) -> tuple[tuple[float, float], ...]:
        return ((-BOUND, BOUND),) * self.tree.size

    def stored_in(self, trial: FrozenTrial) -> list[float] | None:
        """The coefficients that a trial has for this very tree."""
        point = stored_point(trial)
        if point is None or point.tree != self.tree:
            return None
        return list(point.coefficients or self.x0)


@dataclass(frozen=True)
class _Known:
    """A function that was evaluated: the tree, and how good it is, smaller being better."""

    tree: Tree
    standing: tuple[int, float]


class GLOReplay:
    """Both stages, brought to the newest finished generation.

    Args:
        settings: Sizes of the stages, and how trees are bred.
        rules: How slots close.
        seed: Seed of the search.
        maximize: Whether larger values are better.

    Attributes:
        maximize: The same.
        n_reused: Trees so far that had the result of an equal function, and no slot.
    """

    def __init__(
        self, settings: GLOSettings, rules: RetryPolicy, seed: int, *, maximize: bool
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._seed = seed
        self.maximize = maximize
        self._start()

    def _start(self) -> None:
        self._told: list[tuple[Slot, ...]] = []
        self._known: dict[FunctionKey, _Known] = {}
        self._population: list[Tree] = []
        self._new: list[Tree] = []
        self._best: Tree | None = None
        self._cma: CMAReplay | None = None
        self.n_reused = 0
        self._prepare()

    def follow(self, finished: list[tuple[Slot, ...]]) -> None:
        """Take in the finished generations that are new."""
        if len(finished) < len(self._told) or (
            # The log keeps its slots, so another object means another study.
            self._told and finished[len(self._told) - 1] is not self._told[-1]
        ):
            self._start()
        for slots in finished[len(self._told) :]:
            if self._cma is None:
                self._learn(slots)
            else:
                stage = [*self._told[self._settings.n_generations :], slots]
                self._cma.follow(stage, maximize=self.maximize)
            self._told.append(slots)
            self._prepare()

    @property
    def size(self) -> int | None:
        """Slots of the generation after the finished ones; None if the search is over."""
        stages = (self._settings, self._settings.coefficients)
        if len(self._told) < self._settings.n_generations:
            return len(self._new)
        if len(self._told) < sum(stage.n_generations for stage in stages):
            return self._settings.coefficients.popsize
        return None

    @property
    def best_tree(self) -> Tree | None:
        """The tree whose coefficients are searched; None in the first stage."""
        return self._best

    @property
    def states(self) -> list[SearchState]:
        """Distributions of the second stage, with the generations of the whole search."""
        first = self._settings.n_generations
        states = [] if self._cma is None else self._cma.states
        return [replace(state, generation=first + state.generation) for state in states]

    def candidate(self, generation: int, index: int) -> TreePoint:
        """The candidate of a slot of the generation after the finished ones.

        Raises:
            RuntimeError: If it is of another generation, which nobody can know yet.
        """
        if generation != len(self._told) or not 0 <= index < (self.size or 0):
            raise RuntimeError(
                f"Candidate {index} of generation {generation} is not known before generation "
                f"{len(self._told)} is finished: let a GenerationScheduler hand out trials."
            )
        if self._cma is None or self._best is None:
            return TreePoint(tuple(self._new[index].to_prefix()))
        coefficients = self._cma.draw(generation, index)
        return TreePoint(tuple(self._best.to_prefix()), tuple(coefficients))

    def _learn(self, slots: Sequence[Slot]) -> None:
        """Keep what the slots of a generation of trees came to."""
        for slot, proposed in zip(slots, self._new, strict=True):
            evaluated = _evaluated(slot) or proposed
            if evaluated != proposed:
                # What is stored counts: somebody enqueued it, or another version bred it.
                key = function_key(proposed)
                self._population = [
                    evaluated if function_key(tree) == key else tree for tree in self._population
                ]
            result = _Known(evaluated, standing(slot, maximize=self.maximize))
            self._known.setdefault(function_key(evaluated), result)

    def _prepare(self) -> None:
        """Breed the next generation, or begin the second stage."""
        generation, settings = len(self._told), self._settings
        if generation < settings.n_generations:
            self._population = self._bred(generation)
            new: dict[FunctionKey, Tree] = {}
            for tree in self._population:
                if (key := function_key(tree)) not in self._known:
                    new.setdefault(key, tree)
            self._new = list(new.values())
            self.n_reused += len(self._population) - len(self._new)
        elif self._cma is None and settings.coefficients.n_generations:
            # Of equal ones the earliest.
            self._best = min(self._known.values(), key=lambda known: known.standing).tree
            stage = settings.coefficients
            rules = replace(self._rules, popsize=stage.popsize)
            search = CoefficientSearch(self._best, stage.sigma, self._seed, rules)
            self._cma = CMAReplay(search)

    def _bred(self, generation: int) -> list[Tree]:
        settings, parents = self._settings, self._population

        def dice(index: int) -> Random:
            return Random(tree_seed(self._seed, generation, index))

        if generation == 0:
            return [
                first_tree(dice(index), settings.max_depth, depends_on_outputs)
                for index in range(settings.popsize)
            ]
        standings = [self._known[function_key(tree)].standing for tree in parents]
        best_first = sorted(range(len(parents)), key=lambda i: (standings[i], i))
        elite: dict[FunctionKey, Tree] = {}
        for i in best_first:
            if len(elite) < settings.elite:
                elite.setdefault(function_key(parents[i]), parents[i])

        def tournament(numbers: Random) -> Callable[[], Tree]:
            def parent() -> Tree:
                drawn = [int(numbers.random() * len(parents)) for _ in range(settings.tournament)]
                return parents[min(drawn, key=lambda i: (standings[i], i))]

            return parent

        children = []
        for index in range(len(elite), settings.popsize):
            numbers = dice(index)
            children.append(
                child(
                    numbers,
                    tournament(numbers),
                    crossover=settings.crossover,
                    max_depth=settings.max_depth,
                    is_wanted=depends_on_outputs,
                )
            )
        return [*elite.values(), *children]


def _evaluated(slot: Slot) -> Tree | None:
    """The tree that a slot's trials hold, if they do."""
    for trial in [slot.result] if slot.result is not None else slot.made_for_it:
        if (point := stored_point(trial)) is not None:
            return point.tree
    return None


class TreeLog(GenerationLog):
    """Slots of a GLO search: a generation has as many as it has trees that are new.

    Args:
        rules: How slots close.
        replay: The search.
    """

    def __init__(self, rules: RetryPolicy, replay: GLOReplay) -> None:
        self.replay = replay
        super().__init__(rules)

    def _next_size(self) -> int | None:
        self.replay.follow(self.finished)
        return self.replay.size

    @property
    def n_reused(self) -> int:
        return self.replay.n_reused

    def _empty_slot(self, number: int) -> Slot:
        return Slot(number, self.rules, place=(self.generation, number - self._first))
