"""CMA-ES whose candidates depend on results only, never on workers, order or crashes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import GENERATION
from optuna_taylorglo.search.cma import CMAReplay, CMASettings, SearchState
from optuna_taylorglo.search.generations import (
    LARGEST,
    GenerationLog,
    RetryPolicy,
    Slot,
    is_usable,
    stored_params,
)
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, storage_of, study_id_of, trial_id_of

T = TypeVar("T")

Proposal = tuple[dict[str, float], dict[str, BaseDistribution], dict[str, Any]]
"""Parameters, their distributions and user attributes of a new trial."""


class GenerationSampler(ABC):
    """A sampler whose candidates depend on the seed and on results of finished generations only.

    It stores nothing: each process replays the finished generations for itself.

    Attributes:
        policy: How trials fill the slots of generations.
    """

    policy: RetryPolicy
    _replay: Any

    def _start(self, study: Study | None = None) -> None:
        self._study = study
        self._lock = threading.RLock()
        maximize = study is None or study.direction == StudyDirection.MAXIMIZE
        self._replay = self._new_replay(maximize=maximize)
        self._log = GenerationLog(self.policy, self._replay)

    @abstractmethod
    def _new_replay(self, *, maximize: bool) -> Any:
        """The replay of a search that has not begun."""

    @abstractmethod
    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""

    @abstractmethod
    def validate(self, enqueued: FrozenTrial) -> str | None:
        """Why the search cannot use a candidate that a user enqueued; None if it can."""

    @abstractmethod
    def suggest(self, trial: Trial) -> Any:
        """The candidate of a trial, as `search.candidates.candidate_loss` takes it."""

    def __getstate__(self) -> dict[str, Any]:
        # cmaes rounds its matrix when pickled; a copy must replay to agree to the last bit.
        own = ("_study", "_log", "_replay", "_lock")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, study: Study, trials: Sequence[FrozenTrial] | None = None) -> GenerationLog:
        """Bring the search up to date with a study, whose trials need not be given.

        Returns:
            The slots, for reading only; valid until the next call.
        """
        if len(study.directions) > 1:
            raise ValueError(
                f"study must have one objective, {study.study_name!r} has {len(study.directions)}."
            )
        with self._lock:
            if self._study is None or _identity(study) != _identity(self._study):
                self._start(study)
            self._log.read(study.get_trials(deepcopy=False) if trials is None else trials)
            return self._log

    def search_state(self, study: Study) -> list[SearchState]:
        """Distribution of CMA-ES in each finished generation and in the current one."""
        with self._lock:
            self.read(study)
            return list(self._replay.states)

    def candidate(self, slot: Slot) -> Any:
        """Candidate of a slot, given the generations that were finished when last read."""
        with self._lock:
            return self._replay.draw(slot.generation, slot.index)

    def _slot_of(self, study: Study, trial: FrozenTrial) -> Slot:
        slot = self.read(study).slot_of(trial)
        if slot is None:
            raise RuntimeError(f"Trial {trial.number} is not in study {study.study_name!r}.")
        return slot


def _identity(study: Study) -> tuple[object, int]:
    return storage_of(study), study_id_of(study)


THETA_NAMES = tuple(f"theta_{i}" for i in range(8))


class TaylorGLOSampler(GenerationSampler, CmaEsSampler):
    """CMA-ES in raw parameter units for any number of workers.

    The k-th trial of a study belongs to slot k, and (generation, index) = divmod(k, popsize).
    Candidate (generation, index) is a pure function of the seed and of the results of the
    generations before it: mean 0 and σ from the very first trial, exactly ``popsize`` evaluations
    per update, none of them ignored. The first ``overlap`` candidates of a generation do not
    depend on the generation right before it, so that they can be evaluated at the same time as its
    last ones. Only three small numbers per trial are stored; each process replays the finished
    generations for itself.

    With :class:`~optuna_taylorglo.search.scheduler.GenerationScheduler`, a generation starts when
    the one before it is finished, and any number of workers, crashes and restarts gives exactly
    the candidates of a serial run. In a plain ``study.optimize(..., n_jobs=4)`` nothing waits: a
    trial whose previous generation is unfinished is drawn from the newest finished distribution,
    and its result still counts in its own generation. A trial that stays RUNNING forever (a killed
    process, without Optuna's heartbeat) then keeps its generation from finishing.

    CMA-ES is told ranks: complete trials by value, below them pruned ones by their best last
    report, below them failed ones. Enqueued trials take the next slots and count as they are.

    Limits: one objective. Parameters other than ``names`` are drawn independently at random. A
    ``theta`` suggested in a range narrower than ±``bound`` is clipped to it.

    Args:
        names: Names of the parameters to search, in order.
        popsize: Candidates per generation (λ).
        sigma: Initial standard deviation of every parameter.
        seed: Seed of the search.
        attempts: Evaluations an aborted (pruned) candidate gets; more than 1 needs the scheduler.
        max_failures: Failed evaluations of a candidate that are repeated; more than 0 needs the
            scheduler.
        overlap: First candidates of each generation that are drawn from the distribution one
            generation older.
        accept: Tells whether a candidate is worth evaluating; others are drawn again.
        bound: Parameters lie in [−bound, bound]; the default is practically unbounded.
        units: Of some parameters, what counts as 1 for CMA-ES: they start with the standard
            deviation ``sigma`` times their unit.
        limits: Of some parameters, a range in place of ±``bound``; draws beyond it are repeated.
        x0: Of some parameters, where the search starts in place of 0.
        lr_adapt: Whether CMA-ES lowers its learning rates where evaluations are noisy or the
            problem has many basins (LRA-CMA-ES).
        source_trials: At least ten complete trials of another study over the same parameters, to
            whose best tenth the first distribution is fitted (WS-CMA-ES); takes the place of
            ``x0`` and ``sigma``.

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

    _replay: CMAReplay

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
        self.policy = RetryPolicy(popsize, attempts, max_failures, overlap)
        self.settings = CMASettings(
            sigma=float(sigma),
            seed=seed,
            policy=self.policy,
            x0=_by_name("x0", x0, self.names, 0.0),
            units=_by_name("units", units, self.names, 1.0),
            limits=_by_name("limits", limits, self.names, (-float(bound), float(bound))),
            accept=accept,
            lr_adapt=lr_adapt,
            source=None if source_trials is None else _solutions(source_trials, self.names),
        )
        if not all(0 < unit < float("inf") for unit in self.settings.units):
            raise ValueError(f"units must be positive numbers, got {units!r}.")
        ranges = zip(self.names, self.settings.x0, self.settings.limits, strict=True)
        for name, start, (low, high) in ranges:
            if not float("-inf") < low < high < float("inf"):
                raise ValueError(f"limits has {name} ({low!r}, {high!r}); the first must be less.")
            if not low <= start <= high:
                raise ValueError(f"x0 has {name} {start:g}, which is not in [{low:g}, {high:g}].")
        self._start()

    def _new_replay(self, *, maximize: bool) -> CMAReplay:
        return CMAReplay(
            self.settings, lambda trial: stored_params(trial, self.names), maximize=maximize
        )

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The search space: every parameter within its limits."""
        ranges = zip(self.names, self.settings.limits, strict=True)
        return {name: FloatDistribution(low, high) for name, (low, high) in ranges}

    def suggest(self, trial: Trial) -> list[float]:
        """The candidate of a trial, parameter by parameter."""
        ranges = zip(self.names, self.settings.limits, strict=True)
        return [trial.suggest_float(name, low, high) for name, (low, high) in ranges]

    def proposal(self, slot: Slot) -> Proposal:
        params = dict(zip(self.names, self.candidate(slot), strict=True))
        return params, self.distributions, {}

    def validate(self, enqueued: FrozenTrial) -> str | None:
        params = enqueued.params | enqueued.system_attrs.get(FIXED_PARAMS, {})
        bad = (name for name in self.names if name in params and not is_usable(params[name]))
        return next((f"{n} {params[n]!r}, no number of at most {LARGEST:g}" for n in bad), None)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # Other parameters get what Optuna would give them outside a relative space. The parent's
        # answer would unpickle attributes from the database.
        others = {
            name: self.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
            if name not in self.names
        }
        if len(others) == len(search_space) or all(name in trial.params for name in self.names):
            return others
        with self._lock:
            slot = self._slot_of(study, trial)
            theta = self.candidate(slot)
        if GENERATION not in trial.user_attrs:
            # A sampler has no public way to annotate the trial it samples for; Optuna's own
            # samplers write to the storage in the same way.
            for key, value in slot.attrs().items():
                storage_of(study).set_trial_user_attr(trial_id_of(trial), key, value)
        own = dict(zip(self.names, theta, strict=True))
        return others | {name: own[name] for name in search_space if name in own}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # Optuna asks here for one of our names when the candidate lies outside the range that was
        # asked for. A uniform draw in its place would be a different candidate.
        if param_name in self.names and isinstance(param_distribution, FloatDistribution):
            with self._lock:
                theta = self.candidate(self._slot_of(study, trial))
            value = theta[self.names.index(param_name)]
            return min(max(value, param_distribution.low), param_distribution.high)
        return super().sample_independent(study, trial, param_name, param_distribution)


def _by_name(
    argument: str, given: Mapping[str, T] | None, names: Sequence[str], default: T
) -> tuple[T, ...]:
    """A value for each name."""
    if unknown := [name for name in given or {} if name not in names]:
        raise ValueError(f"{argument} has {unknown[0]!r}; the parameters are {', '.join(names)}.")
    return tuple((given or {}).get(name, default) for name in names)


def _solutions(
    trials: Sequence[FrozenTrial], names: Sequence[str]
) -> list[tuple[list[float], float]]:
    """Parameters and value of each complete trial that has all of ours."""
    solutions = [
        ([float(trial.params[name]) for name in names], float(trial.values[0]))
        for trial in trials
        if trial.state == TrialState.COMPLETE and all(name in trial.params for name in names)
    ]
    if len(solutions) < 10:
        raise ValueError(
            f"source_trials must have at least 10 complete trials over {', '.join(names)}, got "
            f"{len(solutions)}."
        )
    return solutions
