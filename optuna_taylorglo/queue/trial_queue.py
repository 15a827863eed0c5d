"""The one protocol by which workers share the trials of a study.

What is to be evaluated lies in the study as trials that wait, each with all its parameters. Whoever
finds none *opens up*: looks at the whole study, works out which trials are due, and adds them. A
trial that waits is *ready* if it carries its own number: whoever made it knew which number it would
get, so it lies where it was meant to. If two processes open up at once, only one's trials get the
numbers that they were made for.

To add trials, to take one that is ready, to end it, and to give it up are one transaction each.
Nothing depends on a lock, which somebody may hold who is suspended: that under which a study is
opened up only keeps many workers from doing the same work at once. Whatever step a worker dies at,
others go on from what they find.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo.attributes import LOOK_AT, READY, RELEASED, WORKER
from optuna_taylorglo.queue.heartbeat import heartbeat_interval
from optuna_taylorglo.queue.identity import own_identity, worker_in
from optuna_taylorglo.queue.late_words import with_late_words
from optuna_taylorglo.queue.lost_workers import SilenceWatch
from optuna_taylorglo.storage.locks import study_lock, study_lock_if_free
from optuna_taylorglo.storage.notices import Notices
from optuna_taylorglo.storage.open_storage import is_served
from optuna_taylorglo.storage.optuna_private import (
    new_trial,
    storage_of,
    study_id_of,
    trial_id_of,
)
from optuna_taylorglo.storage.outage_tolerant import release_connections
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT, retry_during_outage
from optuna_taylorglo.storage.transitions import (
    Glance,
    Marks,
    add_waiting,
    end,
    glance,
    look_and_take,
    running_trials,
    take,
)

T = TypeVar("T")

_logger = get_logger(__name__)

# A worker told to stop has little time; a trial it cannot release is found by its silence.
_RELEASE_LIMIT = 10.0

# Seconds after which a worker says that it waits, and until it says so again.
_FIRST_WORD, _BETWEEN_WORDS = 10.0, 60.0

# Trials of others that it names.
_NAMED = 3

# First wait in seconds, and its growth. In a file beside us a trial is found within a tenth of the
# time waited for it; each look at a server costs that a connection, and hundreds may wait.
_NEAR_WAITS, _FAR_WAITS = (0.05, 1.1), (0.25, 2.0)

# Seconds until the next look after a notice of which nothing was left for this worker, and at most
# while another on this machine keeps watch.
_AFTER_NOTICE, _WATCHED_WAIT = 0.5, 15.0

# Seconds after which a worker with nothing to do looks at the whole study without any reason.
_BETWEEN_LOOKS = 300.0

# Trials that one worker looks after: with more of them, there are as many more who do.
_LOOKED_AFTER = 8

_DEFAULT_INTERVAL = 60
"""Seconds between signs of life where a storage has none, for what is done now and then."""


@dataclass(frozen=True)
class Look:
    """What a look at a whole study has shown.

    Attributes:
        n_trials: Trials that it had.
        due: New trials to be added in this order, so that all that can be evaluated now is running
            or ready.
        not_ready: Trials that wait and are not ready.
        results_needed: Results that must come in, at least, before anything else can be due, but
            for what is lost or fails. So many workers do not read the whole study at each of them.
        stage: How far the work is, by which a worker can tell that it is over.
        again_at: When the same study is worth another look, in terms of `time.monotonic`.
    """

    n_trials: int
    due: Sequence[FrozenTrial] = ()
    not_ready: Sequence[FrozenTrial] = ()
    results_needed: int = 1
    stage: int = 0
    again_at: float = math.inf


@dataclass(frozen=True)
class LatePlace:
    """Where the result of a trial that was given up too early still belongs.

    Attributes:
        attributes: User attributes of the new trial that holds the result.
        repeats: Trials made to repeat it, which it makes needless.
    """

    attributes: dict[str, Any]
    repeats: list[FrozenTrial]


class TrialQueue(ABC):
    """Hands out the trials of a study, watches over them and takes them back.

    ```
    while (trial := queue.wait_for_trial(stop)) is not None:
        with Heartbeat(trial):
            queue.finish(trial, evaluate(trial))
    ```

    Which trials are due is for subclasses to say. Every method waits for a database that went away.

    Args:
        study: The study.

    Attributes:
        over: Whether there will be nothing to do any more.
        tells_of_failures: Whether somebody waits for each trial, and is to be told that it failed.
    """

    tells_of_failures: ClassVar[bool] = False

    def __init__(self, study: Study) -> None:
        self.study = study
        self.over = False
        self._storage: Any = storage_of(study)
        self._study_id = study_id_of(study)
        self._outage_limit: float = getattr(self._storage, "outage_limit", DEFAULT_OUTAGE_LIMIT)
        self._notices = Notices(self._storage, study.study_name)
        self._watch = SilenceWatch(study)
        self._watch_due = self._idle_watch_due = 0.0
        self._interval = heartbeat_interval(self._storage) or _DEFAULT_INTERVAL
        self._between_watches = self._interval / 4
        self._look_due = time.monotonic() + _BETWEEN_LOOKS
        # Whether to look at the whole study even before a trial is taken that is ready.
        self._look_first = False
        # Trials that waited at the last glance, and the most that ever ran.
        self._waiting = self._most_running = 0
        # What it was like when it was last looked at.
        self._then: Counter[TrialState] | None = None

    @abstractmethod
    def _look(self) -> Look:
        """Look at the study, change nothing, and say what it lacks. Sets `over`."""

    @abstractmethod
    def _admit(self, waiting: FrozenTrial) -> dict[str, Any] | None:
        """What a trial that waits lacks to be ready, as user attributes; None to withdraw it."""

    @abstractmethod
    def _is_repeat(self, trial: FrozenTrial) -> bool:
        """Whether a new trial is made for something that was begun before."""

    @abstractmethod
    def _place_of_late_result(self, given_up: FrozenTrial) -> LatePlace | None:
        """Where the result of a trial that was given up still belongs; None if nobody waits."""

    def _marks(self) -> Marks:
        """Which of the trials that are ready this queue may take."""
        return Marks(READY)

    def wait_for_trial(
        self,
        stop: threading.Event | None = None,
        *,
        longest_wait: float = 2.0,
        deadline: float = math.inf,
    ) -> Trial | None:
        """Claim a trial, waiting for one as long as it takes.

        Args:
            stop: Ends the wait when set.
            longest_wait: Seconds between two looks at the storage, at most.
            deadline: Ends the wait, in terms of `time.monotonic`.

        Returns:
            A running trial, or None when the queue is over, ``stop`` was set or time is up.
        """
        stop = stop or threading.Event()
        wait, growth = _FAR_WAITS if is_served(self._storage) else _NEAR_WAITS
        silent_until = time.monotonic() + _FIRST_WORD
        heard: bool | None = None
        try:
            while not stop.is_set() and time.monotonic() < deadline:
                trial = self.claim(limit=deadline - time.monotonic())
                if trial is not None and heard is False and self._waiting > 1:
                    # Whoever should have told died before he could.
                    self._notices.pass_on(self._waiting - 1)
                if trial is not None or self.over:
                    return trial
                if time.monotonic() >= silent_until:
                    _logger.info(self._awaited())
                    silent_until = time.monotonic() + _BETWEEN_WORDS
                left = max(0.0, deadline - time.monotonic())
                heard = self._notices.wait(
                    min(wait * random.uniform(0.5, 1.0), left),
                    stop,
                    if_watched=min(_WATCHED_WAIT, self._interval, left),
                )
                wait = _AFTER_NOTICE if heard else min(growth * wait, longest_wait)
        finally:
            self._notices.close()
            release_connections(self._storage)
        return None

    def _awaited(self) -> str:
        """For what a worker with nothing to do waits, in words."""
        counts = glance(self._storage, self._study_id, LOOK_AT).counts
        running = counts[TrialState.RUNNING]
        if not running:
            return "waiting for work"
        now = datetime.now()
        by = []
        for began, worker in running_trials(self._storage, self._study_id, WORKER, _NAMED):
            age = max(0, round((now - (began or now)).total_seconds()))
            by.append(f"on {worker_in(worker) or 'an unknown worker'} since {age} s")
        if running > _NAMED:
            by.append(f"and {running - _NAMED} more")
        trainings = "1 training" if running == 1 else f"{running} trainings"
        return f"waiting for {trainings}{self._of_what()}: {', '.join(by)}"

    def _of_what(self) -> str:
        """What the trials that run belong to, for the log."""
        return ""

    def claim(self, *, limit: float = math.inf) -> Trial | None:
        """Take the next trial, if there is one to take.

        Args:
            limit: Seconds to wait for a database that is away, at most.

        Returns:
            A running trial, or None: ``over`` tells whether the queue is, or whether others are
            still busy.
        """
        try:
            limit = min(limit, self._outage_limit)
            taken = self._patiently(self._claim, limit=limit)
            return None if taken is None else new_trial(self.study, taken)
        finally:
            release_connections(self._storage)

    def _patiently(self, call: Callable[[], T], *, limit: float) -> T:
        """Make a call again and again while the database is away, or has no connection to spare.

        Between two tries it has none of its own either: of many who each keep one and wait for a
        second, nobody would ever go on.
        """

        def attempt() -> T:
            try:
                return call()
            except Exception:
                self._notices.close()
                release_connections(self._storage)
                raise

        return retry_during_outage(attempt, limit=limit)

    def _claim(self) -> FrozenTrial | None:
        clock = time.monotonic()
        if clock >= self._watch_due:
            self._watch.give_up()
            share = max(1, self._most_running / _LOOKED_AFTER)
            self._watch_due = clock + self._between_watches * share
            self._idle_watch_due = clock + self._between_watches
        (now, mark), taken = self._look_and_take(unless=self._must_look_first)
        self._waiting = now[TrialState.WAITING]
        self._most_running = max(self._most_running, now[TrialState.RUNNING])
        if taken is not None:
            return taken
        self._look_first = self._must_look_first(now)
        if clock >= self._idle_watch_due:
            self._look_first |= bool(self._watch.give_up())
            self._idle_watch_due = clock + self._between_watches
        look_at, stage = mark if isinstance(mark, list) and len(mark) == 2 else (0, 0)
        if self._ends_at(stage):
            self.over = True
            return None
        then, waiting = self._then or Counter(), now[TrialState.WAITING]
        strangers_wait = waiting > 0 and waiting != then[TrialState.WAITING]
        enough = _results(now) >= look_at
        alone = now[TrialState.RUNNING] == 0
        # Of a study that is as it was when this one last looked, another look would show the same.
        pays = (strangers_wait or enough or alone) and now != self._then
        if self._look_first or pays or clock >= self._look_due:
            return self._open_up(now, mark)
        return None

    def _must_look_first(self, now: Counter[TrialState]) -> bool:
        # What was lost goes first, or a generation would wait for its repetition in the end.
        then = self._then or Counter()
        return self._look_first or now[TrialState.FAIL] != then[TrialState.FAIL]

    def _ends_at(self, stage: int) -> bool:
        """Whether the work is over when it is so far, as a `Look` has it."""
        return False

    def _look_and_take(
        self, unless: Callable[[Counter[TrialState]], bool] = lambda counts: False
    ) -> tuple[Glance, FrozenTrial | None]:
        marks, worker = self._marks(), _claimed()
        return look_and_take(self._storage, self._study_id, LOOK_AT, marks, worker, unless)

    def _open_up(self, now: Counter[TrialState], mark: object) -> FrozenTrial | None:
        """Make ready all that is due, and take a trial.

        Args:
            now: How many trials are in each state.
            mark: What the last one who looked has left for others.
        """
        was_over = self.over
        repeats: list[int] = []
        with study_lock_if_free(self._storage, self.study.study_name) as is_mine:
            # Another does it now, or has done it while this one waited.
            if not is_mine:
                return self._look_and_take()[1]
            if not self._look_first and (taken := self._look_and_take()[1]) is not None:
                return taken
            while (look := self._look()).due or look.not_ready:
                for waiting in look.not_ready:
                    self._make_ready(waiting)
                repeats += self._add(look)
                # They need not wait until this one has made sure that nothing else is due.
                self._notices.send(len(look.due) + len(look.not_ready))
            if (new := [_results(now) + look.results_needed, look.stage]) != mark:
                self.study.set_user_attr(LOOK_AT, new)
        self._then, self._look_first = now, False
        self._look_due = min(time.monotonic() + _BETWEEN_LOOKS, look.again_at)
        if self.over and not was_over:
            self._notices.send()
        for trial_id in repeats:
            if (taken := take(self._storage, trial_id, _claimed())) is not None:
                return taken
        return None if self.over else self._look_and_take()[1]

    def _add(self, look: Look) -> list[int]:
        """Add what is due; returns the ids of those that repeat something."""
        for number, trial in enumerate(look.due, start=look.n_trials):
            trial.set_user_attr(READY, number)
        added = add_waiting(self._storage, self._study_id, look.due, look.n_trials)
        pairs = zip(look.due, added, strict=False)
        return [trial_id for trial, trial_id in pairs if self._is_repeat(trial)]

    def _make_ready(self, waiting: FrozenTrial) -> None:
        missing = self._admit(waiting)
        trial_id = trial_id_of(waiting)
        if missing is None:
            withdrawn, before = {RELEASED: True}, TrialState.WAITING
            end(self._storage, trial_id, TrialState.FAIL, attributes=withdrawn, before=before)
            return
        # Somebody else may have withdrawn it.
        with contextlib.suppress(UpdateFinishedTrialError):
            for key, value in (missing | {READY: waiting.number}).items():
                self._storage.set_trial_user_attr(trial_id, key, value)

    def finish(
        self, trial: Trial, value: float | None = None, *, state: TrialState | None = None
    ) -> None:
        """Record the outcome of a trial, however long the database takes.

        A trial given up in the meantime is no error: its result is used if nobody has finished the
        repetition yet, else a line in the log says so.

        Args:
            trial: A trial from :meth:`claim`.
            value: The objective's value; one that is not finite counts as an abort.
            state: PRUNED for an abort, FAIL for a failure; otherwise a value is needed.
        """
        if state is None:
            if value is None:
                raise ValueError("value must be a number unless state is PRUNED or FAIL.")
            state = TrialState.COMPLETE if math.isfinite(value) else TrialState.PRUNED
        elif state not in (TrialState.PRUNED, TrialState.FAIL) or value is not None:
            raise ValueError(f"state must be PRUNED or FAIL, without a value, got {state!r}.")
        told = value if state == TrialState.COMPLETE else None
        # The connection is kept for the claim that follows.
        self._patiently(lambda: self._finish(trial, told, state), limit=self._outage_limit)

    def _finish(
        self,
        trial: Trial,
        value: float | None,
        state: TrialState,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        # Who has aborted or failed takes what follows upon himself, before anything else.
        self._look_first = state != TrialState.COMPLETE
        trial_id = trial_id_of(trial)
        told = value
        if state == TrialState.PRUNED:
            told = _last_report(self._storage.get_trial(trial_id))
        if end(self._storage, trial_id, state, told, attributes=attributes):
            return
        stored = self._storage.get_trial(trial_id)
        # A try whose answer was lost may have succeeded; a failure makes no difference any more.
        if stored.state == state or state == TrialState.FAIL:
            return
        with study_lock(self._storage, self.study.study_name):
            place = self._place_of_late_result(stored)
            while place is not None and not self._withdraw_all(place.repeats):
                place = self._place_of_late_result(stored)
            if place is None:
                _logger.warning(
                    f"Trial {trial.number} was given up as lost before it ended as {state.name} "
                    f"with value {value}; somebody else has its result by now."
                )
                return
            late = with_late_words(trial, stored)
            self.study.add_trial(
                create_trial(
                    state=state,
                    value=_last_report(late) if state == TrialState.PRUNED else value,
                    params=late.params,
                    distributions=late.distributions,
                    user_attrs=late.user_attrs | place.attributes,
                    intermediate_values=late.intermediate_values,
                )
            )

    def _withdraw_all(self, repeats: list[FrozenTrial]) -> bool:
        """Withdraw repetitions that are needless now; False if one has changed meanwhile."""
        fail, needless = TrialState.FAIL, {RELEASED: True}
        return all(
            end(self._storage, trial_id_of(r), fail, attributes=needless, before=r.state)
            for r in repeats
        )

    def is_wanted(self, trial: Trial) -> bool:
        """Whether it is worth while to go on with a trial that was given up.

        Not if the result is there, or somebody else is at work on it.
        """
        stored = self._storage.get_trial(trial_id_of(trial))
        if stored.state == TrialState.RUNNING:
            return True
        place = self._place_of_late_result(stored)
        return place is not None and not any(
            repeat.state == TrialState.RUNNING for repeat in place.repeats
        )

    def release(self, trial: Trial) -> None:
        """Give back a trial that this worker will not finish; it does not count as a failure."""

        def give_back() -> None:
            self._finish(trial, None, TrialState.FAIL, {RELEASED: True})

        try:
            self._patiently(give_back, limit=min(_RELEASE_LIMIT, self._outage_limit))
            # Others can take it up at once.
            self._notices.send(1)
        except Exception as error:
            _logger.warning(f"Trial {trial.number} could not be released: {error}")
        finally:
            release_connections(self._storage)


def _last_report(trial: FrozenTrial) -> float | None:
    """What Optuna keeps as the value of a trial that was pruned."""
    last = None if trial.last_step is None else trial.intermediate_values[trial.last_step]
    return None if last is None or math.isnan(last) else last


def _results(counts: Counter[TrialState]) -> int:
    return counts[TrialState.COMPLETE] + counts[TrialState.PRUNED]


def _claimed() -> dict[str, Any]:
    """What a trial says of the worker that has taken it."""
    return {WORKER: own_identity().to_dict()}
