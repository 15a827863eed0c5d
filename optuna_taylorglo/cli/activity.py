"""What is going on in a study right now: who works on what, and when it will be over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_taylorglo.attributes import COMPANION_OF, GENERATION, INDEX, WORKER
from optuna_taylorglo.queue.identity import WorkerIdentity, worker_of
from optuna_taylorglo.search.history import SearchHistory
from optuna_taylorglo.storage.open_study import find_companion
from optuna_taylorglo.storage.optuna_private import storage_of, study_id_of, trial_id_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage
from optuna_taylorglo.storage.transitions import last_signs

SILENT = 120.0
"""Seconds without a sign of life, of which a worker gives one a minute, that are worth a word."""

_RECENT = 50
"""Evaluations by which the speed of a search is measured."""


@dataclass(frozen=True)
class Activity:
    """A training in hand.

    Attributes:
        worker: Who does it; None for a worker of an earlier version.
        doing: What it is, in words.
        seconds: For how long it has been going on.
        silent: Seconds since the last sign of life; None where the storage cannot say, or there
            was none.
        watched: Whether the storage knows of signs of life.
    """

    worker: WorkerIdentity | None
    doing: str
    seconds: float
    silent: float | None
    watched: bool = True

    @property
    def seems_lost(self) -> bool:
        """Whether nobody seems to be at work on it, though it is not given up."""
        if self.silent is None:
            return self.watched
        return self.silent > SILENT


def activities(study: Study) -> list[Activity]:
    """Trainings in hand, of the search and of what follows it."""
    return [
        activity
        for each in (study, find_companion(study))
        if each is not None
        for activity in _activities(each)
    ]


def _activities(study: Study) -> list[Activity]:
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    storage = storage_of(study)
    watched = isinstance(storage, OutageTolerantStorage)
    signs = last_signs(storage, study_id_of(study), WORKER) if watched else {}
    silent = {trial_id: sign.age for trial_id, sign in signs.items() if sign.when is not None}
    now = datetime.now()
    return [
        Activity(
            worker_of(trial),
            _in_words(trial, in_companion=COMPANION_OF in study.user_attrs),
            (now - (trial.datetime_start or now)).total_seconds(),
            silent.get(trial_id_of(trial)),
            watched=watched,
        )
        for trial in running
    ]


def _in_words(trial: FrozenTrial, *, in_companion: bool) -> str:
    attrs = trial.user_attrs
    if in_companion:
        return f"training {trial.number}: {attrs.get('loss')}"
    if GENERATION not in attrs:
        return f"trial {trial.number}"
    return f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"


def seconds_left(history: SearchHistory) -> float | None:
    """Time until the search is over at the pace of its latest evaluations; None if unknown."""
    ended = [
        trial.datetime_complete
        for trial in history.trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and trial.datetime_complete is not None
    ]
    return _left(sorted(ended)[-_RECENT:], history.n_slots - history.n_filled)


def _left(ended: Sequence[datetime], missing: int) -> float | None:
    if len(ended) < 2:
        return None
    return (ended[-1] - ended[0]).total_seconds() / (len(ended) - 1) * missing


def duration(seconds: float) -> str:
    """A time for people: "40 s", "12 min", "3 h 20 min"."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
