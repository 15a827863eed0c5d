"""CMA-ES whose candidates depend on results only, never on workers, order or crashes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.search.cma import CMAReplay, SearchState, stored_params
from optuna_taylorglo.search.generations import GenerationLog, RetryPolicy, Slot, slot_attrs
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, storage_of, trial_id_of
from optuna_taylorglo.study.queue import counted_trials

LARGEST = 1e6
"""Largest parameter that may be enqueued; far greater ones make CMA-ES's numbers overflow."""


@dataclass(frozen=True)
class Proposal:
    """What a new trial is made with.

    Attributes:
        params: Its parameters.
        distributions: Their ranges.
        attributes: What it holds besides.
    """

    params: dict[str, float]
    distributions: dict[str, BaseDistribution]
    attributes: dict[str, Any] = field(default_factory=dict)


class GenerationSampler(ABC):
    """A sampler whose candidates depend on the seed and on results of finished generations only.

    It stores nothing: each process replays the finished generations for itself.

    Attributes:
        rules: How trials fill the slots of generations.
    """

    rules: RetryPolicy
    _ledger: GenerationLog
    _lock: threading.RLock

    def _start(self) -> None:
        self._begin()
        self._lock = threading.RLock()

    @abstractmethod
    def _begin(self) -> None:
        """Make a log and what is replayed, before the first generation."""

    @abstractmethod
    def _take_in(self, trials: Sequence[FrozenTrial], *, maximize: bool) -> None:
        """Bring both up to date with all trials of a study."""

    @abstractmethod
    def _states(self) -> list[SearchState]:
        """Distributions of CMA-ES so far."""

    @abstractmethod
    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""

    @abstractmethod
    def fault(self, enqueued: FrozenTrial) -> str | None:
        """What the search could not digest in a candidate that somebody enqueued."""

    @abstractmethod
    def suggest(self, trial: Trial) -> Any:
        """The candidate of a trial, as `search.candidates.candidate_loss` takes it."""

    def __getstate__(self) -> dict[str, Any]:
        # cmaes rounds its matrix when pickled; a copy must replay to agree to the last bit.
        return {k: v for k, v in self.__dict__.items() if k not in ("_ledger", "_replay", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, study: Study) -> GenerationLog:
        """Read a study's trials and bring the search up to date with them.

        Returns:
            The slots, for reading only; valid until the next call.
        """
        return self.follow(study, counted_trials(study))

    def follow(self, study: Study, trials: Sequence[FrozenTrial]) -> GenerationLog:
        """Bring the search up to date with a study's trials, as `read` does."""
        if len(study.directions) > 1:
            raise ValueError(
                f"study must have one objective, {study.study_name!r} has {len(study.directions)}."
            )
        with self._lock:
            self._take_in(trials, maximize=study.direction == StudyDirection.MAXIMIZE)
            return self._ledger

    def search_state(self, study: Study) -> list[SearchState]:
        """Distribution of CMA-ES in each finished generation and in the current one."""
        with self._lock:
            self.read(study)
            return self._states()

    def _slot_of(self, study: Study, trial: FrozenTrial) -> Slot:
        slot = self.read(study).slot_of(trial)
        if slot is None:
            raise RuntimeError(f"Trial {trial.number} is not in study {study.study_name!r}.")
        return slot


def fault_in_number(name: str, value: object) -> str | None:
    """Why a parameter that somebody enqueued cannot be taken; None if it can."""
    if isinstance(value, int | float) and abs(value) <= LARGEST:
        return None
    return f"{name} {value!r}, which is no number of at most {LARGEST:g}"


THETA_NAMES = tuple(f"theta_{i}" for i in range(8))


class TaylorGLOSampler(GenerationSampler, CmaEsSampler):
    """CMA-ES in raw parameter units for any number of workers.

    The k-th trial of a study belongs to slot k, and (generation, index) = divmod(k, popsize).
    Candidate (generation, index) is a pure function of the seed and of the results of the
    generations before it: mean 0 and σ from the very first trial, exactly ``popsize`` evaluations
    to an update, none of them ignored. The first ``overlap`` candidates of a generation do not
    depend on the generation right before it, and can be evaluated beside its last ones. Nothing is
    stored but three small numbers a trial; each process replays the finished generations for
    itself.

    Used with :class:`~optuna_taylorglo.search.scheduler.GenerationScheduler`, a generation
    starts when the one before it is finished, and any number of workers, crashes and restarts
    gives exactly the candidates of a serial run. In a plain ``study.optimize(..., n_jobs=4)``
    nothing waits: a trial whose previous generation is unfinished is drawn from the newest finished
    distribution, and its result still counts in its own generation. A trial that stays RUNNING for
    ever (a killed process, without Optuna's heartbeat) then keeps its generation from finishing.

    CMA-ES is told ranks: complete trials by value, below them pruned ones by their best last
    report, below them failed ones. Enqueued trials take the next slots and count as they are.

    Limits: one objective. Parameters other than ``names`` are drawn independently at random. A
    ``theta`` asked for in a range narrower than ±``bound`` is clipped into it.

    Args:
        names: Names of the parameters to search, in order.
        popsize: Candidates a generation (λ).
        sigma: Initial standard deviation of every parameter.
        seed: Seed of the search.
        attempts: Evaluations an aborted (pruned) candidate gets; more than 1 needs the gate.
        max_failures: Failed evaluations of a candidate that are repeated; more than 0 needs the
            gate.
        overlap: First candidates of each generation that are drawn from the distribution one
            generation older.
        accept: Tells whether a candidate is worth evaluating; others are drawn again.
        bound: Parameters lie in [−bound, bound]; the default is as good as unbounded.
        units: Of some parameters, what counts as 1 for CMA-ES: they start with the standard
            deviation ``sigma`` times their unit.
        limits: Of some parameters, a range in place of ±``bound``; draws beyond it are repeated.
        x0: Of some parameters, where the search starts in place of 0.
        lr_adapt: Whether CMA-ES lowers its learning rates where evaluations are noisy or the
            problem has many basins (LRA-CMA-ES).
        source_trials: Complete trials of another study over the same parameters, whose best tenth
            the first distribution is fitted to (WS-CMA-ES); takes the place of ``x0`` and
            ``sigma``.

    Examples:
        >>> import optuna
        >>> from optuna_taylorglo import TaylorGLOSampler
        >>> sampler = TaylorGLOSampler(popsize=8, sigma=1.2, seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> study.optimize(lambda trial: -sum(x * x for x in sampler.suggest(trial)), n_trials=80)
        >>> first = max(trial.value for trial in study.trials[:8])
        >>> study.best_value > first
        True
    """

    def __init__(
        self,
        *,
        names: Sequence[str] = THETA_NAMES,
        popsize: int = 28,
        sigma: float = 1.2,
        seed: int = 0,
        attempts: int = 1,
        max_failures: int = 0,
        overlap: int = 0,
        accept: Callable[[Sequence[float]], bool] | None = None,
        bound: float = 1000.0,
        units: Mapping[str, float] | None = None,
        limits: Mapping[str, tuple[float, float]] | None = None,
        x0: Mapping[str, float] | None = None,
        lr_adapt: bool = False,
        source_trials: Sequence[FrozenTrial] | None = None,
    ) -> None:
        if isinstance(names, str) or not names or len(set(names)) != len(names):
            raise ValueError(f"names must be one or more different names, got {names!r}.")
        if not 0 < sigma < float("inf"):
            raise ValueError(f"sigma must be a positive number, got {sigma!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
        if not sigma < bound < float("inf"):
            raise ValueError(f"bound must be finite and larger than sigma {sigma}, got {bound!r}.")
        super().__init__(
            n_startup_trials=0, warn_independent_sampling=False, seed=seed % 2**32, popsize=popsize
        )
        self.names = tuple(names)
        self.sigma = float(sigma)
        self.seed = seed
        self.accept = accept
        self.bound = float(bound)
        self.lr_adapt = lr_adapt
        self.units = _numbers("units", units, self.names, 1.0)
        if not all(0 < unit < float("inf") for unit in self.units):
            raise ValueError(f"units must be positive numbers, got {units!r}.")
        self.limits = _ranges(limits, self.names, self.bound)
        self.x0 = _numbers("x0", x0, self.names, 0.0)
        for name, start, (low, high) in zip(self.names, self.x0, self.limits, strict=True):
            if not low <= start <= high:
                raise ValueError(f"x0 has {name} {start:g}, which is not in [{low:g}, {high:g}].")
        self.source = None if source_trials is None else self._solutions(source_trials)
        self.rules = RetryPolicy(popsize, attempts, max_failures, overlap)
        self._start()

    def _begin(self) -> None:
        self._ledger = GenerationLog(self.rules)
        self._replay = CMAReplay(self)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The search space: every parameter within its limits."""
        ranges = zip(self.names, self.limits, strict=True)
        return {name: FloatDistribution(low, high) for name, (low, high) in ranges}

    def suggest(self, trial: Trial) -> list[float]:
        """The candidate of a trial, parameter by parameter."""
        ranges = zip(self.names, self.limits, strict=True)
        return [trial.suggest_float(name, low, high) for name, (low, high) in ranges]

    def _solutions(self, trials: Sequence[FrozenTrial]) -> list[tuple[dict[str, float], float]]:
        """Parameters and value of each complete trial that has all of ours."""
        solutions = [
            ({name: float(trial.params[name]) for name in self.names}, float(trial.values[0]))
            for trial in trials
            if trial.state == TrialState.COMPLETE and all(n in trial.params for n in self.names)
        ]
        if not solutions:
            raise ValueError(
                f"source_trials has no complete trial over {', '.join(self.names)} among its "
                f"{len(trials)}."
            )
        return solutions

    def _take_in(self, trials: Sequence[FrozenTrial], *, maximize: bool) -> None:
        self._ledger.read(trials)
        self._replay.follow(self._ledger.finished, maximize=maximize)

    def candidate(self, slot: Slot) -> list[float]:
        """Candidate of a slot, given the generations that were finished when last read."""
        with self._lock:
            return self._replay.draw(slot.generation, slot.index)

    def stored_in(self, trial: FrozenTrial) -> list[float] | None:
        """The candidate that a trial holds; None if it holds none."""
        return stored_params(trial, self.names)

    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""
        params = dict(zip(self.names, self.candidate(slot), strict=True))
        return Proposal(params, self.distributions)

    def fault(self, enqueued: FrozenTrial) -> str | None:
        """What CMA-ES could not digest in a candidate that somebody enqueued."""
        params = enqueued.params | enqueued.system_attrs.get(FIXED_PARAMS, {})
        for name in self.names:
            if (fault := fault_in_number(name, params.get(name, 0.0))) is not None:
                return fault
        return None

    def _states(self) -> list[SearchState]:
        return list(self._replay.states)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # Anything but our parameters gets what Optuna would give it outside a relative space. The
        # parent's answer would unpickle what the database holds.
        foreign = {
            name: self.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
            if name not in self.names
        }
        if len(foreign) == len(search_space) or all(name in trial.params for name in self.names):
            return foreign
        with self._lock:
            slot = self._slot_of(study, trial)
            theta = self.candidate(slot)
        if GENERATION not in trial.user_attrs:
            # A sampler has no public way to annotate the trial it samples for; Optuna's own
            # samplers write to the storage in the same manner.
            for key, value in slot_attrs(slot, attempt=0).items():
                storage_of(study).set_trial_user_attr(trial_id_of(trial), key, value)
        own = dict(zip(self.names, theta, strict=True))
        return foreign | {name: own[name] for name in search_space if name in own}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # Optuna comes here with one of our names when the candidate lies outside the range that
        # was asked for. A uniform draw in its place would be a candidate nobody proposed.
        if param_name in self.names and isinstance(param_distribution, FloatDistribution):
            with self._lock:
                theta = self.candidate(self._slot_of(study, trial))
            value = theta[self.names.index(param_name)]
            return min(max(value, param_distribution.low), param_distribution.high)
        return super().sample_independent(study, trial, param_name, param_distribution)


def _numbers(
    argument: str, given: Mapping[str, float] | None, names: Sequence[str], default: float
) -> tuple[float, ...]:
    """A number for each name."""
    given = given or {}
    _refuse_unknown(argument, given, names)
    return tuple(float(given.get(name, default)) for name in names)


def _ranges(
    given: Mapping[str, tuple[float, float]] | None, names: Sequence[str], bound: float
) -> tuple[tuple[float, float], ...]:
    """A range for each name."""
    given = given or {}
    _refuse_unknown("limits", given, names)
    for name, (low, high) in given.items():
        if not float("-inf") < low < high < float("inf"):
            raise ValueError(f"limits has {name} ({low!r}, {high!r}); the first must be smaller.")
    return tuple(given.get(name, (-bound, bound)) for name in names)


def _refuse_unknown(argument: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"{argument} has {unknown[0]!r}; the parameters are {', '.join(names)}.")
