"""The slots of a search's generations, derived from its trials, and which one is evaluated next.

A *slot* is one place in one generation: one candidate, with all trials made for it. A trial names
its slot and its attempt in user attributes. A trial without them (a user enqueued it, or
``study.optimize`` created it) takes the first slot that no trial with a lower number has. Slots
follow from the trials alone, so all workers agree on them.

After an *abort* (PRUNED: below the threshold, or diverged) the next attempt starts from fresh
weights. After a *failure* (FAIL: the training raised an exception) and for a *stale* trial (FAIL:
the worker died or wrote no heartbeat) the same attempt is repeated with the same training seed. A
*stop* (PRUNED and marked: behind the generation before) closes the slot with its last report.

Generations may *overlap*: the first candidates of a generation are drawn without the results of
the generation before it, so that idle workers can start them early. The others start when every
slot of the generation before is closed. Slots whose evaluation failed go first.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.logging import get_logger
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo import attributes as attrs
from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX, STALE
from optuna_taylorglo.study.heartbeat import is_being_withdrawn
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS, storage_of, study_id_of, trial_id_of
from optuna_taylorglo.study.queue import Plan, TrialQueue

_logger = get_logger(__name__)

MAX_STALE = 20  # stale trials of a candidate; with one more it counts as crashing its workers
LARGEST = 1e6  # parameter of a candidate; far greater ones make CMA-ES's numbers overflow


def params_of(trial: FrozenTrial) -> dict[str, Any]:
    """A trial's parameters, suggested or enqueued."""
    return {**trial.system_attrs.get(FIXED_PARAMS, {}), **trial.params}


def stored_params(trial: FrozenTrial, names: Sequence[str]) -> tuple[float, ...] | None:
    """Parameters of a trial; None if one is missing or no usable number."""
    params = params_of(trial)
    values: list[Any] = [params.get(name) for name in names]
    return tuple(map(float, values)) if all(map(is_usable, values)) else None


def is_usable(value: Any) -> bool:
    """Whether a value can be a candidate's parameter."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= LARGEST


@dataclass(frozen=True)
class RetryPolicy:
    """How slots are counted and when they close; `TaylorGLOSampler` says what each number means."""

    popsize: int = 28
    attempts: int = 1
    max_failures: int = 0
    overlap: int = 0
    rounds: tuple[int, ...] = ()  # sizes of the first generations, where they are not of popsize

    def __post_init__(self) -> None:
        for name, least in {"popsize": 2, "attempts": 1, "max_failures": 0, "overlap": 0}.items():
            check_integer(name, getattr(self, name), least)
        if self.overlap >= self.popsize:
            problem = f"must be smaller than popsize {self.popsize}, got {self.overlap!r}."
            raise ValueError(f"overlap {problem}")
        if self.overlap and self.rounds:
            raise ValueError(f"overlap must be 0 with rounds of tuning, got {self.overlap!r}.")

    def size_of(self, generation: int) -> int:
        """Number of slots of a generation."""
        return [*self.rounds, self.popsize][min(generation, len(self.rounds))]


def check_integer(name: str, value: object, least: int) -> None:
    """Raise a ValueError unless an argument is an integer of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def n_known(generation: int, index: int, overlap: int) -> int:
    """Number of generations whose results candidate (generation, index) depends on."""
    return max(0, generation - (index < overlap))


@dataclass(frozen=True)
class Slot:
    """One place in a generation, with all its trials in order of their numbers."""

    generation: int
    index: int
    policy: RetryPolicy
    trials: tuple[FrozenTrial, ...] = ()

    def attrs(self, attempt: int = 0) -> dict[str, Any]:
        """User attributes of a trial for this slot."""
        return {GENERATION: self.generation, INDEX: self.index, ATTEMPT: attempt}

    def _in_state(self, state: TrialState) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state == state]

    @property
    def result(self) -> FrozenTrial | None:
        """The trial whose value counts: the first complete one."""
        return next(iter(self._in_state(TrialState.COMPLETE)), None)

    @property
    def stopped(self) -> bool:
        """Whether a trial was stopped because it fell behind."""
        return any(t.user_attrs.get(attrs.STOPPED) for t in self._in_state(TrialState.PRUNED))

    @property
    def holders(self) -> list[FrozenTrial]:
        """Trials that may hold the slot's candidate, the one to be believed first."""
        if self.result is not None:
            return [self.result]
        return [trial for trial in self.trials if attrs.WITHDRAWN not in trial.user_attrs]

    @property
    def active(self) -> FrozenTrial | None:
        """The trial that is being evaluated, or the waiting one that is next."""
        running = [t for t in self._in_state(TrialState.RUNNING) if not is_being_withdrawn(t)]
        waiting = self._in_state(TrialState.WAITING)
        due = [t for t in waiting if t.user_attrs.get(ATTEMPT, 0) == self.next_attempt]
        return next(iter([*running, *due]), None)

    @property
    def superfluous(self) -> list[FrozenTrial]:
        """Waiting trials that must not be evaluated."""
        waiting, active = self._in_state(TrialState.WAITING), self.active
        return [trial for trial in waiting if self.closed or trial is not active]

    @property
    def next_attempt(self) -> int:
        """Number of the attempt to make next: failures repeat an attempt, aborts use it up."""
        return len(self._in_state(TrialState.PRUNED))

    @property
    def failures(self) -> int:
        """Trainings that raised an exception."""
        marks = {attrs.RELEASED, STALE, attrs.WITHDRAWN}
        return sum(not marks & t.user_attrs.keys() for t in self._in_state(TrialState.FAIL))

    @property
    def stale(self) -> int:
        """Trials whose worker died or wrote no heartbeat."""
        return sum(STALE in trial.user_attrs for trial in self._in_state(TrialState.FAIL))

    @property
    def closed(self) -> bool:
        """Whether the slot has its final result."""
        return (
            self.result is not None
            or self.stopped
            or self.next_attempt >= self.policy.attempts
            or self.failures > self.policy.max_failures
            or self.stale > MAX_STALE
        )

    def sort_key(self, *, maximize: bool) -> tuple[int, float]:
        """Orders closed slots: complete, stopped, aborted, without a finite number; best first.

        Stopped and aborted ones count by the best of their trials' last reports.
        """
        sign = -1.0 if maximize else 1.0
        value = None if self.result is None else self.result.value
        if value is not None and not math.isnan(value):
            return 0, sign * value
        reports = [
            sign * trial.intermediate_values[trial.last_step]
            for trial in self._in_state(TrialState.PRUNED)
            if trial.last_step is not None
        ]
        if finite := list(filter(math.isfinite, reports)):
            return 1 if self.stopped else 2, min(finite)
        return 3, 0.0


@dataclass(frozen=True)
class SearchState:
    """The distribution N(mean, σ²C) after the results of all generations before one."""

    generation: int
    sigma: float
    mean: tuple[float, ...]
    eigenvalues: tuple[float, ...]  # of C, in ascending order
    stds: tuple[float, ...]  # of the parameters, in their own units

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue of C."""
        return self.eigenvalues[-1] / self.eigenvalues[0]


class Replay:
    """What a search derives from its finished generations; this one derives nothing."""

    n_reused = 0  # candidates so far that needed no slot, because their result was known
    states: list[SearchState]  # before each generation
    stored: Callable[[FrozenTrial], Any]  # reads the candidate that a trial holds, if any

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy, self._n_told = policy, 0
        # Slots of the next generation; None if the search is over.
        self.size: int | None = policy.size_of(0)

    def tell(self, slots: tuple[Slot, ...]) -> None:
        """Take in the next finished generation."""
        self._n_told += 1
        self.size = self._policy.size_of(self._n_told)

    def draw(self, generation: int, index: int) -> Any:
        """The candidate of a slot that is not in a finished generation."""
        raise NotImplementedError

    def candidate(self, slot: Slot) -> Any:
        """The candidate of a slot: the stored one, as another processor may draw another one."""
        stored = (self.stored(trial) for trial in slot.holders)
        found = next((candidate for candidate in stored if candidate is not None), None)
        return self.draw(slot.generation, slot.index) if found is None else found


class GenerationLog:
    """The slots of one study, whose list of trials grows."""

    def __init__(self, policy: RetryPolicy, replay: Replay | None = None) -> None:
        self.policy = policy
        self.replay = replay or Replay(policy)
        self.finished: list[tuple[Slot, ...]] = []  # of each finished generation
        self.leftovers: list[FrozenTrial] = []  # waiting trials of those: duplicates
        self._settled: set[int] = set()  # numbers of the trials of finished generations
        self._placed: dict[tuple[int, int], list[FrozenTrial]] = {}
        self._unplaced: list[FrozenTrial] = []

    @property
    def generation(self) -> int:
        """The first generation with a slot that is not closed."""
        return len(self.finished)

    def read(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in all trials of the study, in order of their numbers."""
        self._placed, self._unplaced = {}, []
        for trial in trials:
            if not self._is_past(trial):
                place = _place_of(trial)
                others = self._unplaced if place is None else self._placed.setdefault(place, [])
                others.append(trial)
        while self.replay.size is not None and all(s.closed for s in self.current_slots()):
            slots = self.current_slots()
            self._settled |= {trial.number for slot in slots for trial in slot.trials}
            self._unplaced = [t for t in self._unplaced if t.number not in self._settled]
            self.finished.append(slots)
            self.replay.tell(slots)
        waiting = (trial for trial in trials if trial.state == TrialState.WAITING)
        self.leftovers = list(filter(self._is_past, waiting))

    def _is_past(self, trial: FrozenTrial) -> bool:
        """Whether a trial belongs to a finished generation."""
        place = _place_of(trial)
        return trial.number in self._settled or (place is not None and place[0] < self.generation)

    def current_slots(self) -> tuple[Slot, ...]:
        """All slots of the current generation, those without a trial included."""
        return self._slots(self.replay.size or 0)

    def open_slots(self, n_generations: int | None = None) -> tuple[Slot, ...]:
        """The current generation's slots and those of the next one that overlap, in order."""
        is_last = n_generations is not None and self.generation >= n_generations - 1
        return self._slots((self.replay.size or 0) + (0 if is_last else self.policy.overlap))

    def slot_of(self, trial: FrozenTrial) -> Slot | None:
        """The slot of a trial that was read; None if its generation is finished."""
        # Each further slot takes at least one of the trials that come before it.
        slots = self._slots((self.replay.size or 0) + len(self._placed) + len(self._unplaced))
        return next((s for s in slots if any(t.number == trial.number for t in s.trials)), None)

    def _slots(self, count: int) -> tuple[Slot, ...]:
        slots, unplaced = [], deque(self._unplaced)
        generation, first, size = self.generation, 0, self.replay.size or self.policy.popsize
        for number in range(count):
            if number == first + size:
                generation, first = generation + 1, number
                size = self.policy.size_of(generation)
            place = (generation, number - first)
            trials = self._placed.get(place, [])
            if unplaced and (not trials or unplaced[0].number < trials[0].number):
                trials = [unplaced.popleft(), *trials]
            slots.append(Slot(*place, self.policy, tuple(trials)))
        return tuple(slots)


def _place_of(trial: FrozenTrial) -> tuple[int, int] | None:
    """Generation and index that a trial names; None if it names none."""
    generation, index = trial.user_attrs.get(GENERATION), trial.user_attrs.get(INDEX)
    if type(generation) is int and type(index) is int and min(generation, index) >= 0:
        return generation, index
    return None


SearchSpace = dict[str, BaseDistribution]
Proposal = tuple[dict[str, float], SearchSpace, dict[str, Any]]
"""Parameters, their distributions and user attributes of a trial."""


class GenerationSampler(BaseSampler):
    """A sampler that stores nothing: each process replays the finished generations."""

    _replay: Replay

    def __init__(self, seed: int, policy: RetryPolicy) -> None:
        check_integer("seed", seed, 0)
        self.seed, self.policy = seed, policy
        self._others = RandomSampler(seed=seed % 2**32)
        self._start()

    def _start(self, study: Study | None = None) -> None:
        self._study = None if study is None else (storage_of(study), study_id_of(study))
        self._lock = threading.RLock()
        maximize = study is None or study.direction == StudyDirection.MAXIMIZE
        self._replay = self._new_replay(maximize=maximize)
        self._log = GenerationLog(self.policy, self._replay)

    @abstractmethod
    def _new_replay(self, *, maximize: bool) -> Replay:
        """The replay of a search that has not begun."""

    @abstractmethod
    def as_trial(self, candidate: Any) -> Proposal:
        """What a trial with a candidate is made with."""

    @abstractmethod
    def validate(self, enqueued: FrozenTrial) -> str | None:
        """Why the search cannot use a candidate that a user enqueued; None if it can."""

    @abstractmethod
    def suggest(self, trial: Trial) -> Any:
        """The candidate of a trial, as `evolution.candidates.candidate_loss` takes it."""

    def __getstate__(self) -> dict[str, Any]:
        # cmaes rounds its matrix when pickled; a copy must replay to agree to the last bit.
        own = ("_study", "_log", "_replay", "_lock")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def read(self, study: Study, trials: Sequence[FrozenTrial] | None = None) -> GenerationLog:
        """Bring the search up to date with a study; the slots, which the next call changes."""
        if len(study.directions) > 1:
            problem = f"{study.study_name!r} has {len(study.directions)}."
            raise ValueError(f"study must have one objective, {problem}")
        with self._lock:
            if self._study != (storage_of(study), study_id_of(study)):
                self._start(study)
            self._log.read(study.get_trials(deepcopy=False) if trials is None else trials)
            return self._log

    def search_state(self, study: Study) -> list[SearchState]:
        """Distribution of CMA-ES in each finished generation and in the current one."""
        with self._lock:
            self.read(study)
            return list(self._replay.states)

    def proposal(self, slot: Slot) -> Proposal:
        """What a new trial of a slot is made with."""
        with self._lock:
            return self.as_trial(self._replay.candidate(slot))

    def _candidate_of(self, study: Study, trial: FrozenTrial) -> tuple[Any, Slot]:
        """The candidate of a trial's slot, and the slot."""
        with self._lock:
            slot = self.read(study).slot_of(trial)
            if slot is None:
                raise RuntimeError(f"Trial {trial.number} is not in study {study.study_name!r}.")
            return self._replay.draw(slot.generation, slot.index), slot

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> SearchSpace:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: SearchSpace
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # Optuna also asks here for a parameter of the candidate that lies outside the range that
        # was asked for. A uniform draw in its place would be a different candidate.
        params, _, _ = self.as_trial(self._candidate_of(study, trial)[0])
        if param_name in params and isinstance(param_distribution, FloatDistribution):
            value = max(params[param_name], param_distribution.low)
            return min(value, param_distribution.high)
        return self._others.sample_independent(study, trial, param_name, param_distribution)


class GenerationScheduler(TrialQueue):
    """Hands out the candidates of a search, generation by generation, without end unless given."""

    def __init__(
        self, study: Study, *, n_generations: int | None = None, **heartbeat: float
    ) -> None:
        if not isinstance(study.sampler, GenerationSampler):
            got = type(study.sampler).__name__
            raise ValueError(f"study must have a TaylorGLOSampler or a GLOSampler, got {got}.")
        super().__init__(study, **heartbeat)
        self.sampler: GenerationSampler = study.sampler
        self.n_generations = n_generations
        self._reported: set[tuple[int, int]] = set()

    def plan(self, trials: Sequence[FrozenTrial]) -> Plan:
        log = self.sampler.read(self.study, trials)
        superfluous = list(log.leftovers)
        if self.n_generations is not None and log.generation >= self.n_generations:
            return Plan(superfluous=superfluous, over=True)
        claimable: list[tuple[tuple[int, bool], FrozenTrial]] = []
        due: list[Slot] = []
        attributes: dict[int, dict[str, Any]] = {}
        for slot in log.open_slots(self.n_generations):
            superfluous += slot.superfluous
            if slot.closed:
                self._report_crashes(slot)
            elif (active := slot.active) is None:
                due.append(slot)
            elif active.state == TrialState.WAITING:
                if GENERATION not in active.user_attrs:
                    if (problem := self.sampler.validate(active)) is not None:
                        enqueued = f"Trial {active.number} was enqueued with {problem}"
                        _logger.warning(f"{enqueued}; it is left out.")
                        superfluous.append(active)
                        continue
                    attributes[trial_id_of(active)] = slot.attrs()
                is_first = len(slot.trials) == 1
                claimable.append(((slot.generation, is_first), active))
        most_urgent = min((urgency for urgency, _ in claimable), default=None)
        # Failed evaluations first; the others stay in order.
        due.sort(key=lambda slot: not slot.trials)
        return Plan(
            claimable=[trial for urgency, trial in claimable if urgency == most_urgent],
            due=[partial(self._new_trial, slot) for slot in due],
            superfluous=superfluous,
            attributes=attributes,
        )

    def _report_crashes(self, slot: Slot) -> None:
        place = (slot.generation, slot.index)
        if slot.stale > MAX_STALE and slot.result is None and place not in self._reported:
            self._reported.add(place)
            crashed = (
                f"{slot.generation + 1} crashed {slot.stale} workers, perhaps for lack of memory"
            )
            meaning = "It counts as the worst of its generation."
            _logger.error(f"Candidate {slot.index + 1} of generation {crashed}. {meaning}")

    def _new_trial(self, slot: Slot) -> FrozenTrial:
        """A trial with the slot's candidate, or with what was evaluated there before."""
        params, distributions, attributes = self.sampler.proposal(slot)
        fixed: dict[str, Any] = {}
        for trial in slot.holders:
            params |= trial.params
            distributions |= trial.distributions
            fixed |= trial.system_attrs.get(FIXED_PARAMS, {})
        if fixed:
            # Optuna takes enqueued parameters as they are, even out of range, but only this way.
            params, distributions, fixed = {}, {}, params | fixed
        return create_trial(
            state=TrialState.WAITING,
            params=params,
            distributions=distributions,
            user_attrs=attributes | slot.attrs(slot.next_attempt) | {attrs.WORKER: None},
            system_attrs={FIXED_PARAMS: fixed} if fixed else {},
        )
