"""The slots of a search's generations, derived from its trials.

A *slot* is one place in one generation: one candidate, with all trials made for it. A trial names
its slot and its attempt in user attributes. A trial without them (a user enqueued it, or
``study.optimize`` created it) takes the first slot that no trial with a lower number has. Slots
follow from the trials alone, so all workers agree on them.

After an *abort* (PRUNED: below the threshold, or diverged) the next attempt starts from fresh
weights. After a *failure* (FAIL: the training raised an exception) and for a *stale* trial (FAIL:
the worker died or wrote no heartbeat) the same attempt is repeated with the same training seed. A
*stop* (PRUNED and marked: behind the generation before) closes the slot with its last report.

Generations may *overlap*: the first candidates of a generation are drawn without the results of
the generation before it, so that idle workers can start them early.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import (
    ATTEMPT,
    GENERATION,
    INDEX,
    RELEASED,
    STALE,
    STOPPED,
    WITHDRAWN,
)
from optuna_taylorglo.study.heartbeat import is_being_withdrawn
from optuna_taylorglo.study.optuna_private import FIXED_PARAMS

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

    def __post_init__(self) -> None:
        for name, least in {"popsize": 2, "attempts": 1, "max_failures": 0, "overlap": 0}.items():
            check_integer(name, getattr(self, name), least)
        if self.overlap >= self.popsize:
            problem = f"must be smaller than popsize {self.popsize}, got {self.overlap!r}."
            raise ValueError(f"overlap {problem}")


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
        return any(t.user_attrs.get(STOPPED) for t in self._in_state(TrialState.PRUNED))

    @property
    def holders(self) -> list[FrozenTrial]:
        """Trials that may hold the slot's candidate, the one to be believed first."""
        if self.result is not None:
            return [self.result]
        return [trial for trial in self.trials if WITHDRAWN not in trial.user_attrs]

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
        marks = {RELEASED, STALE, WITHDRAWN}
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

    def __init__(self, size: int | None) -> None:
        self.size = size  # slots of the next generation; None if the search is over

    def tell(self, slots: tuple[Slot, ...]) -> None:
        """Take in the next finished generation."""

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
        self.replay = replay or Replay(policy.popsize)
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
        size = self.replay.size or self.policy.popsize
        slots, unplaced = [], deque(self._unplaced)
        for number in range(count):
            place = (self.generation + number // size, number % size)
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
