"""GLO as an Optuna sampler: genetic programming over trees, then CMA-ES over coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from functools import lru_cache
from itertools import product
from random import Random
from typing import NamedTuple, TypeVar

from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, Trial

from optuna_taylorglo.attributes import TREE
from optuna_taylorglo.evolution.cma import CMAReplay, CMASettings
from optuna_taylorglo.evolution.scheduler import (
    GenerationSampler,
    Proposal,
    Replay,
    RetryPolicy,
    SearchSpace,
    SearchState,
    Slot,
    params_of,
    stored_params,
)
from optuna_taylorglo.losses.tree import MAX_SIZE, OPERATORS, Tree, tree_from_prefix
from optuna_taylorglo.recipes.settings import GLOSettings
from optuna_taylorglo.seeds import tree_seed
from optuna_taylorglo.study.optuna_private import storage_of, trial_id_of

T = TypeVar("T")

BOUND = 1000.0  # coefficients lie in [−BOUND, BOUND], which is practically unbounded

LEAVES = tuple(name for name, arity in OPERATORS.items() if arity == 0)
FUNCTIONS = tuple(name for name, arity in OPERATORS.items() if arity > 0)

FIRST_DEPTH = 3  # greatest depth of the first generation's trees; Baikal's is 2
NEW_PART_DEPTH = 2  # greatest depth of the part that a mutation puts into a tree
LEAF_SHARE = 1 / 3  # probability that a tree that need not be full ends before its depth
TRIES = 50  # children that may be too deep, or without y, until a parent takes their place


def one_of(dice: Random, items: Sequence[T]) -> T:
    """One of several, each equally likely."""
    return items[int(dice.random() * len(items))]


def random_tree(dice: Random, depth: int, *, full: bool) -> Tree:
    """A random tree, with every leaf at a depth (Koza's "full") or some before ("grow")."""
    if depth == 0 or (not full and dice.random() < LEAF_SHARE):
        return Tree(one_of(dice, LEAVES))
    operator = one_of(dice, FUNCTIONS)
    children = (random_tree(dice, depth - 1, full=full) for _ in range(OPERATORS[operator]))
    return Tree(operator, tuple(children))


def first_tree(dice: Random, max_depth: int) -> Tree:
    """A tree of the first generation: ramped half-and-half, drawn until it depends on y."""
    while True:
        depth = 1 + int(dice.random() * min(FIRST_DEPTH, max_depth))
        tree = random_tree(dice, depth, full=dice.random() < 0.5)
        if depends_on_outputs(tree):
            return tree


def child(dice: Random, parent: Callable[[], Tree], *, crossover: float, max_depth: int) -> Tree:
    """A tree with a part of a second parent, or with a new one; the first that depends on y.

    After too many tries it is the first parent. `crossover` is the probability of a second one.
    """
    crosses = dice.random() < crossover
    first = parent()
    for _ in range(TRIES):
        if crosses:
            part = one_of(dice, list(parent().nodes()))
        else:
            part = random_tree(dice, int(dice.random() * (NEW_PART_DEPTH + 1)), full=False)
        position = int(dice.random() * first.size)
        if first.size - list(first.nodes())[position].size + part.size > MAX_SIZE:
            continue
        made = _with_part(first, position, part, max_depth)
        if made is not None and depends_on_outputs(made):
            return made
    return first


def _with_part(tree: Tree, position: int, part: Tree, max_depth: int) -> Tree | None:
    """The tree with another part at a node, counted in prefix order; None if it gets too deep."""
    if position == 0:
        return part if part.depth <= max_depth else None
    children = list(tree.children)
    i, position = 0, position - 1
    while position >= children[i].size:
        position -= children[i].size
        i += 1
    made = _with_part(children[i], position, part, max_depth - 1)
    if made is None:
        return None
    children[i] = made
    return Tree(tree.operator, tuple(children))


# Functions are compared at these targets and outputs, in decimal arithmetic, which rounds the same
# on every machine: workers must agree on which trees are new.
_TARGETS = list(map(Decimal, ("0", "1", "0.3718281828459")))
_OUTPUTS = [
    *map(Decimal, ("0.0031830988618379", "0.1170710678118655", "0.3660254037844386")),
    *map(Decimal, ("0.6180339887498949", "0.8660254037844387", "0.9917293060986577")),
]
_GRID = tuple(product(_TARGETS, _OUTPUTS))

_EXACT = Context(prec=34, traps=[])
_COMPARED = Context(prec=12, traps=[])
_LEAST = Decimal("1e-20")  # smaller values are rounding errors of 0

_OPERATIONS: dict[str, Callable[..., Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "log": _EXACT.ln,
    "square": lambda a: _EXACT.multiply(a, a),
    "sqrt": _EXACT.sqrt,
}

# None where the function is not finite: no operation makes that finite again.
FunctionKey = tuple[Decimal | None, ...]


@lru_cache(maxsize=2**16)
def function_key(tree: Tree) -> FunctionKey:
    """Values on the grid to twelve digits: equal keys mean equal functions."""
    return tuple(
        value if value is None else _COMPARED.plus(value) if abs(value) >= _LEAST else Decimal(0)
        for value in _values(tree)
    )


def depends_on_outputs(tree: Tree) -> bool:
    """Whether the function changes with y where it is finite; a loss that does not has no slope."""
    key, n = function_key(tree), len(_OUTPUTS)
    rows = (set(key[i : i + n]) - {None} for i in range(0, len(key), n))
    return "y" in tree.to_prefix() and any(len(row) > 1 for row in rows)


@lru_cache(maxsize=2**17)
def _values(tree: Tree) -> FunctionKey:
    """The tree on the grid, as `losses.tree_values` has it; cached, as children share parts."""
    if tree.operator in ("x", "y"):
        return tuple(point["xy".index(tree.operator)] for point in _GRID)
    if not tree.children:
        return (Decimal(tree.operator),) * len(_GRID)
    operation = _OPERATIONS[tree.operator]
    points = zip(*map(_values, tree.children), strict=True)
    results = (None if None in operands else operation(*operands) for operands in points)
    return tuple(value if value is not None and value.is_finite() else None for value in results)


class TreePoint(NamedTuple):
    """A tree in prefix form, and in the second stage a coefficient for each of its nodes."""

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
    point = TreePoint(tuple(prefix))
    try:
        names = [f"c_{i}" for i in range(point.tree.size)]
    except ValueError:
        return None
    if not params_of(trial).keys() & {*names}:
        return point
    coefficients = stored_params(trial, names)
    return None if coefficients is None else point._replace(coefficients=coefficients)


class GLOReplay(Replay):
    """Both stages, told one finished generation after the other."""

    stored = staticmethod(stored_point)

    def __init__(
        self, settings: GLOSettings, policy: RetryPolicy, seed: int, *, maximize: bool
    ) -> None:
        super().__init__(policy)
        self._settings, self._seed = settings, seed
        self._maximize = maximize
        self._generation = 0
        # Functions that were evaluated: a tree, and how good it is, smaller being better.
        self._known: dict[FunctionKey, tuple[Tree, tuple[int, float]]] = {}
        self._population: list[Tree] = []
        self._new: list[Tree] = []
        self._cma: CMAReplay | None = None
        self.best_tree: Tree | None = None  # whose coefficients are searched, in the second stage
        self._prepare()

    @property
    def states(self) -> list[SearchState]:  # type: ignore[override]
        """Distributions of the second stage, with the generations of the whole search."""
        first = self._settings.n_generations
        states = [] if self._cma is None else self._cma.states
        return [replace(state, generation=first + state.generation) for state in states]

    def draw(self, generation: int, index: int) -> TreePoint:
        if generation != self._generation or not 0 <= index < (self.size or 0):
            due = f"is not known before generation {self._generation} is finished"
            advice = "let a GenerationScheduler hand out trials."
            raise RuntimeError(f"Candidate {index} of generation {generation} {due}: {advice}")
        if self._cma is None or self.best_tree is None:
            return TreePoint(tuple(self._new[index].to_prefix()))
        coefficients = self._cma.draw(generation, index)
        return TreePoint(tuple(self.best_tree.to_prefix()), tuple(coefficients))

    def tell(self, slots: tuple[Slot, ...]) -> None:
        if self._cma is not None:
            self._cma.tell(slots)
        else:
            for slot, proposed in zip(slots, self._new, strict=True):
                tree, key = self.candidate(slot).tree, function_key(proposed)
                if tree != proposed:  # a user enqueued it
                    old = self._population
                    self._population = [tree if function_key(o) == key else o for o in old]
                result = (tree, slot.sort_key(maximize=self._maximize))
                self._known.setdefault(function_key(tree), result)
        self._generation += 1
        self._prepare()

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
            ones = (1.0,) * self.best_tree.size
            start = CMASettings(
                sigma=stage.sigma,
                seed=self._seed,
                policy=replace(self._policy, popsize=stage.popsize, overlap=0),
                x0=ones,
                units=ones,
                limits=((-BOUND, BOUND),) * len(ones),
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


class GLOSampler(GenerationSampler):
    """Genetic programming over trees, then CMA-ES over the coefficients of the best one.

    As with `TaylorGLOSampler`, any number of workers, crashes and restarts gives the candidates of
    a serial run. A trial holds its tree as the attribute ``taylorglo:tree`` and, in the second
    stage, the coefficients as parameters ``c_0``, ``c_1`` …, one for each node in prefix order.
    Trees that are the same function are evaluated once. A tree enqueued with
    ``enqueue_trial({}, user_attrs={TREE: [...]})`` takes the next slot and counts as what it is.

    Limits: one objective. Without a `GenerationScheduler` one trial at a time, as in
    ``study.optimize`` with one job: the trees depend on the generation before.

    Args:
        settings: Sizes of the stages, and how trees are bred; None for the paper's sizes.
        seed: Seed of the search.
        attempts: As of `TaylorGLOSampler`.
        max_failures: As of `TaylorGLOSampler`.

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
        self.settings = settings or GLOSettings()
        super().__init__(seed, RetryPolicy(self.settings.popsize, attempts, max_failures))

    def _new_replay(self, *, maximize: bool) -> GLOReplay:
        return GLOReplay(self.settings, self.policy, self.seed, maximize=maximize)

    @property
    def best_tree(self) -> Tree | None:
        """The tree whose coefficients are searched, when last read; None in the first stage."""
        return self._replay.best_tree

    def as_trial(self, candidate: TreePoint) -> Proposal:
        within = FloatDistribution(-BOUND, BOUND)
        distributions: SearchSpace = dict.fromkeys(candidate.params, within)
        return candidate.params, distributions, {TREE: list(candidate.prefix)}

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
            point, slot = self._candidate_of(trial.study, frozen)
            for key, value in (slot.attrs() | {TREE: list(point.prefix)}).items():
                trial.set_user_attr(key, value)
        coefficients = tuple(trial.suggest_float(name, -BOUND, BOUND) for name in point.params)
        return point._replace(coefficients=coefficients)
