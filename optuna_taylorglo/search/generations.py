"""From a study's trials to the slots of its generations.

A *slot* is one place in one generation: one candidate, evaluated once or, after an abort or a
failure, several times. A trial names its slot and its attempt in user attributes. A trial that does
not, because a user enqueued it or ``study.optimize`` created it, takes the first slot that no trial
with a lower number has. So slots follow from the trials alone, and all workers agree on them.

A trial is retried for three reasons and stopped for one. An *abort* (PRUNED: below the threshold,
or diverged) says something about the candidate: the next attempt starts from fresh weights, and
attempts are limited as in the paper. After a *failure* (FAIL: the training raised an exception) and
for a *stale* trial (FAIL: its worker died or wrote no heartbeat), the same attempt is made again
with the same training seed, so the result is that of an undisturbed run. Failures are limited;
stale trials only so far that a candidate which crashes its workers comes to an end. A *stop*
(PRUNED and marked so: it fell behind the generation before) closes the slot; its report is its
result.

Generations have the same size, unless a subclass of the log says otherwise (`search.glo`). They may
*overlap*: the first candidates of a generation are then drawn without the results of the one before
it, so that idle workers can start them early.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

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

MAX_STALE = 20
"""Workers that may be lost over one evaluation; with one more it counts as what crashes them."""


@dataclass(frozen=True)
class RetryPolicy:
    """How slots are counted and when they close.

    Args:
        popsize: Slots a generation (λ).
        attempts: Evaluations a candidate gets before it counts as aborted; 3 is the paper's "tried
            again up to two more times".
        max_failures: Failures that a slot is made up for; one more closes it as the worst.
        overlap: First slots of each generation that do not wait for the results of the generation
            before it; fewer than ``popsize``.
    """

    popsize: int = 28
    attempts: int = 1
    max_failures: int = 0
    overlap: int = 0

    def __post_init__(self) -> None:
        leasts = {"popsize": 2, "attempts": 1, "max_failures": 0, "overlap": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
        if self.overlap >= self.popsize:
            raise ValueError(
                f"overlap must be smaller than popsize {self.popsize}, got {self.overlap!r}."
            )

    def generations_behind(self, generation: int, index: int) -> int:
        """How many generations' results candidate (generation, index) is drawn from."""
        return max(0, generation - (index < self.overlap))


@dataclass(frozen=True)
class Slot:
    """One place in a generation, with the trials made for it in order of their numbers.

    Attributes:
        number: Its number in the study.
        rules: How it is counted and when it closes.
        trials: The trials.
        place: Generation and index, where generations differ in size.
    """

    number: int
    rules: RetryPolicy
    trials: tuple[FrozenTrial, ...] = ()
    place: tuple[int, int] | None = None

    @property
    def generation(self) -> int:
        return self.number // self.rules.popsize if self.place is None else self.place[0]

    @property
    def index(self) -> int:
        return self.number % self.rules.popsize if self.place is None else self.place[1]

    def _in_state(self, state: TrialState) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state == state]

    @property
    def result(self) -> FrozenTrial | None:
        """The trial whose value is the slot's: its first complete one."""
        complete = self._in_state(TrialState.COMPLETE)
        return complete[0] if complete else None

    @property
    def made_for_it(self) -> list[FrozenTrial]:
        """Trials that were not withdrawn."""
        return [trial for trial in self.trials if WITHDRAWN not in trial.user_attrs]

    @property
    def active(self) -> FrozenTrial | None:
        """The trial that is evaluated, or the waiting one that counts."""
        running = [t for t in self._in_state(TrialState.RUNNING) if not is_being_withdrawn(t)]
        waiting = (t for t in self._in_state(TrialState.WAITING) if self._is_next(t))
        return next(iter([*running, *waiting]), None)

    @property
    def superfluous(self) -> list[FrozenTrial]:
        """Waiting trials that must not be evaluated."""
        waiting, active = self._in_state(TrialState.WAITING), self.active
        return [trial for trial in waiting if self.closed or trial is not active]

    def _is_next(self, trial: FrozenTrial) -> bool:
        return bool(trial.user_attrs.get(ATTEMPT, 0) == self.next_attempt)

    @property
    def stop(self) -> FrozenTrial | None:
        """The trial that was stopped because it fell behind."""
        stopped = [t for t in self._in_state(TrialState.PRUNED) if t.user_attrs.get(STOPPED)]
        return stopped[0] if stopped else None

    @property
    def next_attempt(self) -> int:
        """Number of the attempt to make next: failures repeat an attempt, aborts use it up."""
        return len(self._in_state(TrialState.PRUNED))

    @property
    def failures(self) -> int:
        """Trainings that raised an exception."""
        marks = (RELEASED, STALE, WITHDRAWN)
        failed = self._in_state(TrialState.FAIL)
        return sum(not any(mark in trial.user_attrs for mark in marks) for trial in failed)

    @property
    def stale(self) -> int:
        """Workers that were lost over this candidate."""
        return sum(STALE in trial.user_attrs for trial in self._in_state(TrialState.FAIL))

    @property
    def crashes_workers(self) -> bool:
        """Whether the slot was closed because one worker after the other was lost over it."""
        return self.stale > MAX_STALE and not self._has_outcome

    @property
    def _has_outcome(self) -> bool:
        return (
            self.result is not None
            or self.stop is not None
            or self.next_attempt >= self.rules.attempts
        )

    @property
    def closed(self) -> bool:
        """Whether the slot has its final result."""
        return (
            self._has_outcome or self.failures > self.rules.max_failures or self.stale > MAX_STALE
        )

    @property
    def best_aborted(self) -> list[float]:
        """The last reports of the aborted attempts, finite ones only."""
        reports = []
        for trial in self._in_state(TrialState.PRUNED):
            if trial.last_step is not None:
                report = trial.intermediate_values[trial.last_step]
                if math.isfinite(report):
                    reports.append(report)
        return reports


def rank(slots: Sequence[Slot], *, maximize: bool) -> list[int]:
    """Order closed slots from best to worst.

    Completed slots come first by value, then stopped ones and after them aborted ones, both by the
    best of their last reports, then those without any finite number. Ties go by index, so the order
    is total and everybody's.

    Args:
        slots: The closed slots of one generation.
        maximize: Whether larger values are better.

    Returns:
        Positions in ``slots``, best first.
    """
    standings = [(*standing(slot, maximize=maximize), slot.index) for slot in slots]
    return sorted(range(len(slots)), key=standings.__getitem__)


def standing(slot: Slot, *, maximize: bool) -> tuple[int, float]:
    """How good a closed slot's result is, smaller being better; see `rank`."""
    sign = -1.0 if maximize else 1.0
    value = slot.result.value if slot.result is not None else None
    if value is not None and not math.isnan(value):
        return 0, sign * value
    if slot.best_aborted:
        place = 1 if slot.stop is not None else 2
        return place, min(sign * report for report in slot.best_aborted)
    return 3, 0.0


class GenerationLog:
    """The slots of a growing list of trials, brought up to date at the cost of what is new.

    Trials of finished generations never change, so the leading ones are settled once; what remains
    to be read is one generation or, where they overlap, two, however long the study.

    Attributes:
        finished: The slots of each finished generation.
        leftovers: Waiting trials of finished generations: duplicates.
    """

    def __init__(self, rules: RetryPolicy) -> None:
        self.rules = rules
        self._forget()

    def _forget(self) -> None:
        self.finished: list[tuple[Slot, ...]] = []
        self.leftovers: list[FrozenTrial] = []
        # Trials that are not settled: with a place of their own, and without.
        self._placed: dict[tuple[int, int], list[FrozenTrial]] = {}
        self._unplaced: list[FrozenTrial] = []
        self._unplaced_in_finished: set[int] = set()
        self._n_settled = 0
        self._last_settled: object = None
        self._first = 0
        self._size = self._next_size()

    def _next_size(self) -> int | None:
        """Slots of the generation after the finished ones; None if there is none any more."""
        return self.rules.popsize

    @property
    def generation(self) -> int:
        """The first generation with a slot that is not closed."""
        return len(self.finished)

    @property
    def n_settled_slots(self) -> int:
        """Slots of the finished generations."""
        return self._first

    @property
    def n_reused(self) -> int:
        """Candidates that need no slot, because their result was there already."""
        return 0

    def read(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in all trials of a study, in order of their numbers."""
        if not self._continues(trials):
            self._forget()
        self._placed, self._unplaced = {}, []
        unsettled = trials[self._n_settled :]
        for trial in unsettled:
            place = _place_of(trial)
            if place is not None:
                self._placed.setdefault(place, []).append(trial)
            elif trial.number not in self._unplaced_in_finished:
                self._unplaced.append(trial)
        while self._size is not None and all(slot.closed for slot in self.current_slots()):
            slots = self.current_slots()
            self.finished.append(slots)
            taken = {t.number for slot in slots for t in slot.trials if _place_of(t) is None}
            self._unplaced_in_finished |= taken
            self._unplaced = [t for t in self._unplaced if t.number not in taken]
            self._first += len(slots)
            self._size = self._next_size()
        in_finished = [self._is_in_finished(trial) for trial in unsettled]
        self.leftovers = [
            trial
            for trial, is_in_finished in zip(unsettled, in_finished, strict=True)
            if trial.state == TrialState.WAITING and is_in_finished
        ]
        for trial, is_in_finished in zip(unsettled, in_finished, strict=True):
            if not is_in_finished or not trial.state.is_finished():
                break
            self._n_settled += 1
            self._last_settled = _fingerprint(trial)

    def _continues(self, trials: Sequence[FrozenTrial]) -> bool:
        return self._n_settled == 0 or (
            len(trials) >= self._n_settled
            and _fingerprint(trials[self._n_settled - 1]) == self._last_settled
        )

    def _is_in_finished(self, trial: FrozenTrial) -> bool:
        place = _place_of(trial)
        if place is None:
            return trial.number in self._unplaced_in_finished
        return place[0] < self.generation

    def current_slots(self) -> tuple[Slot, ...]:
        """All slots of the current generation, those without a trial included."""
        return self._slots(self._size or 0)

    def open_slots(self, n_generations: int | None = None) -> tuple[Slot, ...]:
        """Slots whose candidates can be drawn and evaluated now, closed ones among them included.

        Args:
            n_generations: Generations of the search, beyond which nothing is open; None for no end.

        Returns:
            The current generation's, then those of the next one that overlap with it: the order in
            which they are to be started.
        """
        last = n_generations is not None and self.generation >= n_generations - 1
        return self._slots((self._size or 0) + (0 if last else self.rules.overlap))

    def slot_of(self, trial: FrozenTrial) -> Slot | None:
        """The slot of a trial that was read; None if its generation is finished."""
        # Each further slot takes at least one of the trials that come before it.
        slots = self._slots((self._size or 0) + len(self._placed) + len(self._unplaced))
        return next((s for s in slots if any(t.number == trial.number for t in s.trials)), None)

    def _slots(self, count: int) -> tuple[Slot, ...]:
        slots, unplaced = [], deque(self._unplaced)
        for number in range(self._first, self._first + count):
            slot = self._empty_slot(number)
            trials = self._placed.get((slot.generation, slot.index), [])
            if unplaced and (not trials or unplaced[0].number < trials[0].number):
                trials = [unplaced.popleft(), *trials]
            slots.append(replace(slot, trials=tuple(trials)))
        return tuple(slots)

    def _empty_slot(self, number: int) -> Slot:
        return Slot(number, self.rules)


def _fingerprint(trial: FrozenTrial) -> object:
    """Enough of a settled trial to notice that another study is being read."""
    return trial.number, trial.datetime_start, trial.params


def _place_of(trial: FrozenTrial) -> tuple[int, int] | None:
    """Generation and index that a trial names; None if it names none."""
    place = trial.user_attrs.get(GENERATION), trial.user_attrs.get(INDEX)
    generation, index = place
    if type(generation) is int and type(index) is int and min(generation, index) >= 0:
        return generation, index
    return None


def slot_attrs(slot: Slot, attempt: int) -> dict[str, int]:
    """User attributes that tell people, plots and other workers what a trial is for."""
    return {GENERATION: slot.generation, INDEX: slot.index, ATTEMPT: attempt}
