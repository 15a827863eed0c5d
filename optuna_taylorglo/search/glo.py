"""GLO as an Optuna sampler: genetic programming over trees, then CMA-ES over coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.losses.tree import Tree, tree_from_prefix
from optuna_taylorglo.recipes.settings import GLOSettings
from optuna_taylorglo.search.cma import CMAReplay, CMASettings, SearchState
from optuna_taylorglo.search.generations import Replay, RetryPolicy, Slot, stored_params
from optuna_taylorglo.search.sampler import GenerationSampler, Proposal
from optuna_taylorglo.search.trees import FunctionKey, child, first_tree, function_key
from optuna_taylorglo.seeds import tree_seed
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, storage_of, trial_id_of

BOUND = 1000.0
"""Coefficients lie in [−BOUND, BOUND], which is practically unbounded."""


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
        return _tree(self.prefix)

    @property
    def params(self) -> dict[str, float]:
        """The coefficients by the names of the parameters that hold them."""
        return {f"c_{i}": value for i, value in enumerate(self.coefficients)}


_tree = lru_cache(maxsize=2**16)(tree_from_prefix)


def stored_point(trial: FrozenTrial) -> TreePoint | None:
    """The candidate that a trial holds; None if it holds none, or an invalid one."""
    prefix = trial.user_attrs.get(TREE)
    if not isinstance(prefix, list) or not all(isinstance(entry, str) for entry in prefix):
        return None
    try:
        tree = _tree(tuple(prefix))
    except ValueError:
        return None
    names = [f"c_{i}" for i in range(tree.size)]
    if not (trial.params | trial.system_attrs.get(FIXED_PARAMS, {})).keys() & {*names}:
        return TreePoint(tuple(prefix))
    coefficients = stored_params(trial, names)
    return None if coefficients is None else TreePoint(tuple(prefix), coefficients)


class GLOReplay(Replay):
    """Both stages, told one finished generation after the other.

    Args:
        settings: Sizes of the stages, and how trees are bred.
        policy: How slots close.
        seed: Seed of the search.
        maximize: Whether larger values are better.

    Attributes:
        best_tree: The tree whose coefficients are searched; None in the first stage.
    """

    def __init__(
        self, settings: GLOSettings, policy: RetryPolicy, seed: int, *, maximize: bool
    ) -> None:
        super().__init__(None)
        self._settings, self._policy, self._seed = settings, policy, seed
        self._maximize = maximize
        self._generation = 0
        # Functions that were evaluated: a tree, and how good it is, smaller being better.
        self._known: dict[FunctionKey, tuple[Tree, tuple[int, float]]] = {}
        self._population: list[Tree] = []
        self._new: list[Tree] = []
        self._cma: CMAReplay | None = None
        self.best_tree: Tree | None = None
        self._prepare()

    @property
    def states(self) -> list[SearchState]:
        """Distributions of the second stage, with the generations of the whole search."""
        first = self._settings.n_generations
        states = [] if self._cma is None else self._cma.states
        return [replace(state, generation=first + state.generation) for state in states]

    def draw(self, generation: int, index: int) -> TreePoint:
        """The candidate of a slot of the generation after the finished ones.

        Raises:
            RuntimeError: If it is of another generation, which cannot be known yet.
        """
        if generation != self._generation or not 0 <= index < (self.size or 0):
            raise RuntimeError(
                f"Candidate {index} of generation {generation} is not known before generation "
                f"{self._generation} is finished: let a GenerationScheduler hand out trials."
            )
        if self._cma is None or self.best_tree is None:
            return TreePoint(tuple(self._new[index].to_prefix()))
        coefficients = self._cma.draw(generation, index)
        return TreePoint(tuple(self.best_tree.to_prefix()), tuple(coefficients))

    def tell(self, slots: tuple[Slot, ...]) -> None:
        if self._cma is not None:
            self._cma.tell(slots)
        else:
            for slot, proposed in zip(slots, self._new, strict=True):
                self._learn(slot, proposed)
        self._generation += 1
        self._prepare()

    def _learn(self, slot: Slot, proposed: Tree) -> None:
        """Remember the result of a tree."""
        stored = (stored_point(trial) for trial in slot.holders)
        evaluated = next((point.tree for point in stored if point is not None), proposed)
        if evaluated != proposed:
            # The stored tree counts: a user enqueued it, or another version bred it.
            key = function_key(proposed)
            self._population = [
                evaluated if function_key(tree) == key else tree for tree in self._population
            ]
        result = (evaluated, slot.sort_key(maximize=self._maximize))
        self._known.setdefault(function_key(evaluated), result)

    def _prepare(self) -> None:
        """Breed the next generation, or begin the second stage."""
        settings, stage = self._settings, self._settings.coefficients
        if self._generation < settings.n_generations:
            self._population = self._breed()
            new: dict[FunctionKey, Tree] = {}
            for tree in self._population:
                if (key := function_key(tree)) not in self._known:
                    new.setdefault(key, tree)
            self._new = list(new.values())
            self.size = len(self._new)
            self.n_reused += len(self._population) - self.size
        elif self._generation == settings.n_generations + stage.n_generations:
            self.size = None
        elif self._cma is None:
            # Of equal ones the earliest.
            self.best_tree, _ = min(self._known.values(), key=lambda known: known[1])
            n = self.best_tree.size
            start = CMASettings(
                sigma=stage.sigma,
                seed=self._seed,
                policy=replace(self._policy, popsize=stage.popsize, overlap=0),
                x0=(1.0,) * n,
                units=(1.0,) * n,
                limits=((-BOUND, BOUND),) * n,
            )
            self._cma = CMAReplay(start, self._coefficients, maximize=self._maximize)
            self.size = stage.popsize

    def _coefficients(self, trial: FrozenTrial) -> Sequence[float] | None:
        """The coefficients that a trial has for the best tree."""
        point = stored_point(trial)
        if point is None or point.tree != self.best_tree:
            return None
        return point.coefficients or (1.0,) * point.tree.size

    def _breed(self) -> list[Tree]:
        settings, parents = self._settings, self._population

        def dice(index: int) -> Random:
            return Random(tree_seed(self._seed, self._generation, index))

        if self._generation == 0:
            return [first_tree(dice(i), settings.max_depth) for i in range(settings.popsize)]
        sort_keys = [(self._known[function_key(tree)][1], i) for i, tree in enumerate(parents)]
        elite: dict[FunctionKey, Tree] = {}
        for _, i in sorted(sort_keys):
            if len(elite) < settings.elite:
                elite.setdefault(function_key(parents[i]), parents[i])

        def bred(numbers: Random) -> Tree:
            def tournament() -> Tree:
                drawn = [int(numbers.random() * len(parents)) for _ in range(settings.tournament)]
                return parents[min(drawn, key=sort_keys.__getitem__)]

            return child(
                numbers, tournament, crossover=settings.crossover, max_depth=settings.max_depth
            )

        return [*elite.values(), *(bred(dice(i)) for i in range(len(elite), settings.popsize))]


class GLOSampler(GenerationSampler, BaseSampler):
    """Genetic programming over trees, then CMA-ES over the coefficients of the best one.

    A candidate is a pure function of the seed and of the results of the generations before it, as
    with `TaylorGLOSampler`: any number of workers, crashes and restarts gives the candidates of a
    serial run. A trial holds its tree as the attribute ``taylorglo:tree`` and, in the second stage,
    the coefficients as parameters ``c_0``, ``c_1`` …, one for each node in prefix order.

    Trees that are the same function are evaluated once; a generation has as many trials as it has
    new functions. A tree enqueued with ``enqueue_trial({}, user_attrs={TREE: [...]})`` takes the
    next slot and counts as what it is.

    Limits: one objective. Without a `GenerationScheduler` one trial at a time, as in
    ``study.optimize`` with one job: the trees depend on the generation before.

    Args:
        settings: Sizes of the stages, and how trees are bred; None for the paper's sizes.
        seed: Seed of the search.
        attempts: Evaluations an aborted (pruned) candidate gets; more than 1 needs the scheduler.
        max_failures: Failed evaluations of a candidate that are repeated; more than 0 needs the
            scheduler.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo import GLOSampler
        >>> from optuna_taylorglo.attributes import TREE
        >>> sampler = GLOSampler(seed=0)
        >>> study = optuna.create_study(direction="minimize", sampler=sampler)
        >>> def nodes(trial):  # the smallest tree wins
        ...     return len(sampler.suggest(trial).prefix)
        >>> study.optimize(nodes, n_trials=20)
        >>> study.best_trial.user_attrs[TREE]
        ['y']
    """

    _replay: GLOReplay

    def __init__(
        self,
        settings: GLOSettings | None = None,
        *,
        seed: int = 0,
        attempts: int = 1,
        max_failures: int = 0,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
        self.settings = GLOSettings() if settings is None else settings
        self.seed = seed
        self.policy = RetryPolicy(self.settings.popsize, attempts, max_failures)
        self._others = RandomSampler(seed=seed % 2**32)
        self._start()

    def _new_replay(self, *, maximize: bool) -> GLOReplay:
        return GLOReplay(self.settings, self.policy, self.seed, maximize=maximize)

    @property
    def best_tree(self) -> Tree | None:
        """The tree whose coefficients are searched, when last read; None in the first stage."""
        return self._replay.best_tree

    def proposal(self, slot: Slot) -> Proposal:
        stored = filter(None, map(stored_point, slot.holders))
        point: TreePoint = next(stored, None) or self.candidate(slot)
        distributions: dict[str, BaseDistribution] = {
            name: FloatDistribution(-BOUND, BOUND) for name in point.params
        }
        return point.params, distributions, {TREE: list(point.prefix)}

    def validate(self, enqueued: FrozenTrial) -> str | None:
        tree = enqueued.user_attrs.get(TREE)
        if tree is None or stored_point(enqueued) is not None:
            return None
        return f"{TREE} {tree!r:.60}, which with its parameters is no tree"

    def suggest(self, trial: Trial) -> TreePoint:
        """The candidate of a trial."""
        frozen = storage_of(trial.study).get_trial(trial_id_of(trial))
        point = stored_point(frozen)
        if point is None:
            with self._lock:
                slot = self._slot_of(trial.study, frozen)
                point = self.candidate(slot)
            for key, value in (slot.attrs() | {TREE: list(point.prefix)}).items():
                trial.set_user_attr(key, value)
        coefficients = tuple(trial.suggest_float(name, -BOUND, BOUND) for name in point.params)
        return point._replace(coefficients=coefficients)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        with self._lock:
            params = self.candidate(self._slot_of(study, trial)).params
        if param_name in params:
            return params[param_name]
        return self._others.sample_independent(study, trial, param_name, param_distribution)
