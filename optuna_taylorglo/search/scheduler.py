"""Who evaluates what next: trials are handed out, watched over and taken back here.

All workers of a study hand out trials to themselves under one lock, from what the trials in the
storage say. A generation starts when every slot of the one before it is closed; lost and aborted
slots go first. Whatever step a worker dies at, the next one finds a state it can go on from.
"""

from __future__ import annotations

import math
import random
import threading
import time
import warnings
from typing import Any, Self

from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.logging import get_logger
from optuna.storages import fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from optuna_taylorglo.attributes import RELEASED
from optuna_taylorglo.search.generations import GenerationLog, Slot, slot_attrs
from optuna_taylorglo.search.sampler import TaylorGLOSampler
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.retry import DEFAULT_OUTAGE_LIMIT, retry_during_outage, without_retry

_logger = get_logger(__name__)

# A worker told to stop has little time; a trial it cannot hand back is found by its silence.
_HAND_BACK_PATIENCE = 10.0


class GenerationScheduler:
    """Hands out the trials of a study, generation by generation.

    ```
    gate = GenerationScheduler(study, n_generations=60)
    while (trial := gate.wait_for_trial()) is not None:
        with Heartbeat(trial):
            value = evaluate(sampler.suggest(trial))
        gate.finish(trial, value)
    ```

    Optuna keeps storage, study id and trial ids to itself, but heartbeats and the hand-out of one
    particular trial need them; this module is where they are used.

    Args:
        study: A study whose sampler is a `TaylorGLOSampler`.
        n_generations: Generations after which the search is over; None for no end.
    """

    def __init__(self, study: Study, *, n_generations: int | None = None) -> None:
        if not isinstance(study.sampler, TaylorGLOSampler):
            raise ValueError(
                f"study must have a TaylorGLOSampler, got {type(study.sampler).__name__}."
            )
        if n_generations is not None and n_generations < 0:
            raise ValueError(f"n_generations must be at least 0, got {n_generations!r}.")
        self.study = study
        self.sampler = study.sampler
        self.n_generations = n_generations
        self.over = False
        self._storage: Any = study._storage
        self._patience: float = getattr(
            getattr(self._storage, "_backend", None), "patience", DEFAULT_OUTAGE_LIMIT
        )
        self._stale_check_due = 0.0
        self._idle = True

    def wait_for_trial(
        self, stop: threading.Event | None = None, *, longest_wait: float = 2.0
    ) -> Trial | None:
        """Claim a trial, waiting for one as long as it takes.

        Args:
            stop: Ends the wait when set.
            longest_wait: Seconds between two looks at the storage, at most.

        Returns:
            A running trial, or None when the search is over or ``stop`` was set.
        """
        stop = stop or threading.Event()
        wait = 0.05
        while not stop.is_set():
            trial = self.claim()
            if trial is not None or self.over:
                return trial
            stop.wait(wait * random.uniform(0.5, 1.0))
            wait = min(1.5 * wait, longest_wait)
        return None

    def claim(self) -> Trial | None:
        """Take the next trial, if there is one to take.

        Returns:
            A running trial, or None: ``over`` tells whether the search is, or whether others are
            still busy with the generation.
        """
        trial_id = retry_during_outage(self._claim, patience=self._patience)
        self._idle = trial_id is None
        return None if trial_id is None else Trial(self.study, trial_id)

    def _claim(self) -> int | None:
        # Waiting workers look in often; they must not queue for the lock to find nothing.
        # The first look, at a long study, takes its time.
        if self._idle:
            nothing = self._choose(self.sampler.read(self.study)) is None
            if nothing and time.monotonic() < self._stale_check_due:
                return None
        with study_lock(self._storage, self.study.study_name):
            self._fail_stale_trials()
            while True:
                ledger = self.sampler.read(self.study)
                slot = self._choose(ledger)
                if slot is None:
                    return None
                trial_id = self._adopt(slot) if slot.waiting else self._create(slot, ledger)
                if trial_id is not None:
                    return trial_id

    def _fail_stale_trials(self) -> None:
        """Give up trials without signs of life, but do not ask the database at every claim."""
        if time.monotonic() < self._stale_check_due:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self.study)
        self._stale_check_due = time.monotonic() + (_beat_interval(self._storage) or 60) / 4

    def _choose(self, ledger: GenerationLog) -> Slot | None:
        """The slot to work on next: lost, aborted and queued ones before untouched ones."""
        self.over = self.n_generations is not None and ledger.generation >= self.n_generations
        if self.over:
            return None
        idle = [slot for slot in ledger.current_slots() if not slot.closed and not slot.running]
        return min(idle, key=lambda slot: not slot.trials, default=None)

    def _adopt(self, slot: Slot) -> int | None:
        """Start a trial that somebody enqueued; None if somebody else was faster."""
        trial_id: int = slot.waiting[0]._trial_id
        for key, value in slot_attrs(slot, attempt=0).items():
            self._storage.set_trial_user_attr(trial_id, key, value)
        # The sign of life comes first, so that the trial never runs unwatched.
        if _beat_interval(self._storage) is not None:
            self._storage.record_heartbeat(trial_id)
        started = self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        return trial_id if started else None

    def _create(self, slot: Slot, ledger: GenerationLog) -> int | None:
        """Create a running trial for a slot; None if somebody else created one just before."""
        study_id = self.study._study_id
        expected_number = ledger.n_trials
        trial_id: int = self._storage.create_new_trial(study_id, self._template(slot))
        # Only a trial with the expected number is sure to have got the slot it was made for. The
        # lock can be lost with its connection, and not everybody who adds trials asks for it.
        expected = self._storage.get_trial_id_from_study_id_trial_number(study_id, expected_number)
        if trial_id == expected:
            return trial_id
        self._storage.set_trial_user_attr(trial_id, RELEASED, True)
        self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
        return None

    def _template(self, slot: Slot) -> FrozenTrial:
        """A running trial with the slot's candidate, or with what was evaluated there before."""
        params = dict(zip(self.sampler.names, self.sampler.candidate(slot), strict=True))
        distributions = self.sampler.distributions
        fixed: dict[str, Any] = {}
        for trial in slot.made_for_it:
            params |= trial.params
            distributions |= trial.distributions
            fixed |= trial.system_attrs.get("fixed_params", {})
        if fixed:
            # Optuna takes enqueued parameters as they are, even out of range, but only this way.
            params, distributions, fixed = {}, {}, params | fixed
        return create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            user_attrs=slot_attrs(
                slot,
                attempt=slot.next_attempt,
                retry_of=slot.trials[-1] if slot.trials else None,
            ),
            system_attrs={"fixed_params": fixed} if fixed else {},
        )

    def finish(
        self, trial: Trial, value: float | None = None, *, state: TrialState | None = None
    ) -> None:
        """Record the outcome of a trial, however long the database takes.

        A trial given up in the meantime is no error: its result is used if its slot is still open,
        and logged if another worker is at it already.

        Args:
            trial: A trial from :meth:`claim`.
            value: The objective's value; one that is not finite counts as an abort.
            state: PRUNED for an abort, FAIL for a loss; otherwise a value is needed.
        """
        if state is None:
            if value is None:
                raise ValueError("value must be a number unless state is PRUNED or FAIL.")
            state = TrialState.COMPLETE if math.isfinite(value) else TrialState.PRUNED
        elif state not in (TrialState.PRUNED, TrialState.FAIL) or value is not None:
            raise ValueError(f"state must be PRUNED or FAIL, without a value, got {state!r}.")
        told = value if state == TrialState.COMPLETE else None
        retry_during_outage(lambda: self._finish(trial, told, state), patience=self._patience)

    def _finish(self, trial: Trial, value: float | None, state: TrialState) -> None:
        # SQLite reads and writes a state in two steps; without the lock, giving up a trial and
        # finishing it could both succeed.
        with study_lock(self._storage, self.study.study_name):
            stored = self.study.tell(trial, value, state, skip_if_finished=True)
            if stored.state == state and (value is None or stored.value == value):
                return
            ledger = self.sampler.read(self.study)
            number = ledger.slot_number(trial.number)
            slot = next((s for s in ledger.current_slots() if s.number == number), None)
            if value is None or slot is None or slot.closed or slot.running:
                _logger.warning(
                    f"Trial {trial.number} was given up as lost before it ended as {state.name} "
                    f"with value {value}; its evaluation is repeated."
                )
                return
            self.study.add_trial(
                create_trial(
                    state=state,
                    value=value,
                    params=stored.params,
                    distributions=stored.distributions,
                    user_attrs=stored.user_attrs
                    | slot_attrs(slot, attempt=slot.next_attempt, retry_of=stored),
                    intermediate_values=stored.intermediate_values,
                )
            )

    def release(self, trial: Trial) -> None:
        """Give back a trial that this worker will not finish; it does not count as a loss."""

        def give_back() -> None:
            trial.set_user_attr(RELEASED, True)
            self._finish(trial, None, TrialState.FAIL)

        try:
            retry_during_outage(give_back, patience=min(_HAND_BACK_PATIENCE, self._patience))
        except UpdateFinishedTrialError:
            pass
        except Exception as error:
            _logger.warning(f"Trial {trial.number} could not be handed back: {error}")


def report(trial: Trial, value: float, step: int) -> None:
    """Report an intermediate value; a trial given up in the meantime is no reason to stop."""
    try:
        trial.report(value, step)
    except UpdateFinishedTrialError:
        _logger.warning(f"Trial {trial.number} was given up as lost while it was running.")


class Heartbeat:
    """Gives signs of life of a trial while the body of its ``with`` statement runs.

    Optuna's own heartbeat works in ``study.optimize`` only. A database that does not answer is
    tried again soon, and never disturbs the training.

    Args:
        trial: The running trial.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial_id = trial._trial_id
        self._storage: Any = trial.study._storage
        self._interval = _beat_interval(self._storage)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")

    def __enter__(self) -> Self:
        if self._interval is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # The thread may be waiting for a database that is away; it ends by itself later.
            self._thread.join(timeout=1.0)

    def _beat(self) -> None:
        assert self._interval is not None
        wait = 0.0
        while not self._stop.wait(wait):
            wait = float(self._interval)
            try:
                with without_retry():
                    self._storage.record_heartbeat(self._trial_id)
            except Exception as error:
                wait = min(wait, 5.0)
                _logger.debug(f"No heartbeat: {error}")
        remove_session = getattr(
            getattr(self._storage, "_backend", None), "remove_session", lambda: None
        )
        remove_session()


def _beat_interval(storage: Any) -> int | None:
    """Seconds between signs of life, or None for a storage without them."""
    get_interval = getattr(storage, "get_heartbeat_interval", None)
    interval: int | None = get_interval() if get_interval is not None else None
    return interval
