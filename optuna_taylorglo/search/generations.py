"""From a study's trials to the slots of its generations.

A *slot* is one place in one generation of CMA-ES: one candidate, evaluated once or, after an abort
or a failure, several times. Which trial fills which slot follows from the trials alone, so all
workers agree on it without talking to each other:

- A trial that is not marked as a retry is *fresh*; the k-th fresh trial, by trial number, owns
  slot k, and (generation, index) = divmod(k, popsize).
- A retry names its slot and the trial it repeats in its user attributes.

There are three kinds of "again", and one of "no further". An *abort* (PRUNED: below the threshold,
or diverged) says something about the candidate: the next attempt starts from fresh weights, and
attempts are limited as in the paper. A *failure* (FAIL: the training raised an exception) says
little about it, and a *loss* (FAIL and marked so: its worker was killed, or gave no sign of life)
nothing: the same attempt is made again, with the same training seed, so that the result is the one
an undisturbed run would have had. Failures are limited; losses only so far that a candidate which
kills its workers comes to an end. A *stop* (PRUNED and marked so: it fell behind the generation
before) closes the slot; what it reported is its result.

Generations have the same size, unless a subclass of the log says how large each is (`search.glo`).

Generations may *overlap*: the first candidates of one are then drawn without the results of the one
before it, so that workers without a slot there can go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import (
    ATTEMPT,
    GENERATION,
    INDEX,
    LOST,
    RELEASED,
    RETRY_OF,
    SLOT,
    STOPPED,
)
from optuna_taylorglo.queue.lost_workers import MAX_LOSSES


@dataclass(frozen=True)
class Rules:
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
    rules: Rules
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
        """Trials that were meant for this slot; one may have got it by mistake, and never ran."""
        place = (self.generation, self.index)
        return [
            trial
            for trial in self.trials
            if (trial.user_attrs.get(GENERATION), trial.user_attrs.get(INDEX))
            in (place, (None, None))
            and not (trial.state == TrialState.FAIL and trial.datetime_start is None)
        ]

    @property
    def waiting(self) -> list[FrozenTrial]:
        """Trials in the queue that nobody has started."""
        return self._in_state(TrialState.WAITING)

    @property
    def running(self) -> list[FrozenTrial]:
        return self._in_state(TrialState.RUNNING)

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
        """Failures so far; a trial released on purpose, or lost with its worker, is not one."""
        failed = self._in_state(TrialState.FAIL)
        return sum(not t.user_attrs.get(RELEASED) and LOST not in t.user_attrs for t in failed)

    @property
    def losses(self) -> int:
        """Workers that were lost over this candidate."""
        return sum(LOST in trial.user_attrs for trial in self._in_state(TrialState.FAIL))

    @property
    def kills_workers(self) -> bool:
        """Whether the slot was closed because one worker after the other was lost over it."""
        return self.losses > MAX_LOSSES and not self._has_outcome

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
            self._has_outcome or self.failures > self.rules.max_failures or self.losses > MAX_LOSSES
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
    to be looked at is one generation or, where they overlap, two, however long the study.

    Attributes:
        finished: The slots of each finished generation.
        leftovers: Trials that wait for a slot which has its result: added twice, in an outage.
        n_trials: Trials of the study, those included that do not count.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._forget()

    def _forget(self) -> None:
        self.finished: list[tuple[Slot, ...]] = []
        self._open: dict[int, Slot] = {}
        self._slot_of: dict[int, int] = {}
        self.leftovers: list[FrozenTrial] = []
        self.n_trials = 0
        self._settled = 0
        self._settled_fresh = 0
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
        if trials:
            self.n_trials = trials[-1].number + 1
        n_fresh = self._settled_fresh
        groups: dict[int, list[FrozenTrial]] = {}
        slot_of: dict[int, int] = {}
        for trial in trials[self._settled :]:
            slot = _retried_slot(trial, n_fresh)
            if slot is None:
                slot = n_fresh
                n_fresh += 1
            groups.setdefault(slot, []).append(trial)
            slot_of[trial.number] = slot
        # A retry of a finished generation can only be a leftover: it joins no slot any more.
        self._open = {
            number: Slot(number, self.rules, tuple(group))
            for number, group in groups.items()
            if number >= self._first
        }
        self._slot_of = slot_of
        self._close_generations()
        self.leftovers = [
            trial
            for trial in trials[self._settled :]
            if trial.state == TrialState.WAITING and self._is_closed(slot_of[trial.number])
        ]
        self._settle(trials)

    def _continues(self, trials: Sequence[FrozenTrial]) -> bool:
        if self._settled == 0:
            return True
        return (
            len(trials) >= self._settled
            and _fingerprint(trials[self._settled - 1]) == self._last_settled
        )

    def _close_generations(self) -> None:
        while self._size is not None:
            slots = self.current_slots()
            if not all(slot.closed for slot in slots):
                return
            self.finished.append(slots)
            for slot in slots:
                del self._open[slot.number]
            self._first += len(slots)
            self._size = self._next_size()

    def _is_closed(self, slot_number: int) -> bool:
        if slot_number < self._first:
            return True
        slot = self._open.get(slot_number)
        return slot is not None and slot.closed

    def _settle(self, trials: Sequence[FrozenTrial]) -> None:
        for trial in trials[self._settled :]:
            if self._slot_of[trial.number] >= self._first or trial.state == TrialState.WAITING:
                break
            self._settled += 1
            self._settled_fresh += _retried_slot(trial, self._settled_fresh) is None
            self._last_settled = _fingerprint(trial)

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

    def _slots(self, count: int) -> tuple[Slot, ...]:
        return tuple(self.slot(number) for number in range(self._first, self._first + count))

    def slot(self, number: int) -> Slot:
        """A slot of a generation that is not finished, with its trials so far."""
        return self._open.get(number, Slot(number, self.rules))

    def slot_number(self, trial_number: int) -> int | None:
        """Slot of a trial that was read, or None when it settled long ago or was never seen."""
        return self._slot_of.get(trial_number)


def _fingerprint(trial: FrozenTrial) -> object:
    """Enough of a settled trial to notice that another study is being read."""
    return trial.number, trial.datetime_start, trial.params


def _retried_slot(trial: FrozenTrial, n_fresh: int) -> int | None:
    """Slot that a retry names, or None for a fresh trial.

    A retry can only name a slot that a fresh trial before it owns; anything else in the database is
    not ours, and the trial counts as fresh.
    """
    if RETRY_OF not in trial.user_attrs:
        return None
    slot = trial.user_attrs.get(SLOT)
    if isinstance(slot, int) and not isinstance(slot, bool) and 0 <= slot < n_fresh:
        return slot
    return None


def slot_attrs(slot: Slot, *, attempt: int, retry_of: FrozenTrial | None = None) -> dict[str, int]:
    """User attributes that tell people, plots and other workers what a trial is for."""
    attrs = {GENERATION: slot.generation, INDEX: slot.index, ATTEMPT: attempt}
    if retry_of is not None:
        attrs |= {SLOT: slot.number, RETRY_OF: retry_of.number}
    return attrs
