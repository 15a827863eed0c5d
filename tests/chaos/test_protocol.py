"""Claims, deaths, late results and outages in any order, against a model that knows the ending.

Hypothesis makes up stories and acts them out with the real queue on SQLite; after each step what is
stored is compared with a serial run. An outage makes one statement or commit fail, before or after
it took effect.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import optuna
import sqlalchemy
from chaos_jobs import Place, SearchJob
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_taylorglo.attributes import STALE
from optuna_taylorglo.evolution.candidates import MAX_FAILURES
from optuna_taylorglo.evolution.scheduler import GenerationScheduler
from optuna_taylorglo.study import queue as queue_module
from optuna_taylorglo.study.heartbeat import fail_trial
from optuna_taylorglo.study.open import open_storage
from optuna_taylorglo.study.queue import record_failure

JOB = SearchJob(generations=2, popsize=3, seconds=0.0)
SERIAL = dict(JOB.expected())
STEPS = 25


@dataclass
class Worker:
    """A process, as far as the database knows."""

    queue: GenerationScheduler
    trial: Trial
    place: Place
    audible: bool = True  # whether its heartbeats arrive


class View:
    """What can be seen of a search at one time."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        self.unfinished = [trial for trial in trials if not trial.state.is_finished()]
        self.running = [t for t in self.unfinished if t.state == TrialState.RUNNING]
        self.stored = JOB.outcomes(trials)
        places = [place for place in SERIAL if place not in self.stored]
        current = min((JOB.slot(place) // JOB.popsize for place in places), default=None)
        # Places of the current generation without a result, and slots that a worker could take.
        self.missing = sorted(p for p in places if JOB.slot(p) // JOB.popsize == current)
        held = {JOB.slot(place) for trial in self.running if (place := JOB.place(trial))}
        self.available = {JOB.slot(place) for place in self.missing} - held


class Fuse:
    """Makes one of the coming statements or commits of an engine fail."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self._left: dict[str, int] = {}
        self._after = False
        for name in ("do_execute", "do_commit"):
            setattr(engine.dialect, name, self._fused(name, getattr(engine.dialect, name)))

    def light(self, name: str, left: int, after: bool) -> None:
        self._left, self._after = {name: left}, after

    def put_out(self) -> None:
        self._left = {}

    def _fused(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*args: Any, **kwargs: Any) -> Any:
            if name not in self._left:
                return call(*args, **kwargs)
            self._left[name] -= 1
            blown = self._left[name] < 0
            if blown:
                self.put_out()
            if not blown or self._after:
                result = call(*args, **kwargs)
            if blown:
                raise sqlite3.OperationalError("the database went away")
            return result

        return fused


class Search(RuleBasedStateMachine):
    """A search that anything may happen to."""

    @initialize()
    def begin(self) -> None:
        logging.disable()  # thousands of outages
        # Workers of this machine do not wait for each other.
        self.no_wait = mock.patch.object(queue_module, "TAKEOVER", (0.0, 0.0))
        self.no_wait.start()
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "study.db"
        shutil.copy(_template(), path)
        self.storage: Any = open_storage(f"sqlite:///{path}")
        self.fuse = Fuse(self.storage.database.engine)
        # The onlooker has connections of its own, which never fail.
        self.onlooker: Any = open_storage(f"sqlite:///{path}")
        self.study = optuna.load_study(study_name=JOB.study_name, storage=self.onlooker)
        self.at_work: list[Worker] = []
        self.idle: list[GenerationScheduler] = []
        self.acknowledged: set[Place] = set()
        self.exceptions: dict[int, int] = {}

    def look(self) -> View:
        return View(self.study.get_trials(deepcopy=False))

    def _claim(self) -> Worker | None:
        before = self.look()
        available, missing = before.available, before.missing
        queue = self.idle.pop() if self.idle else JOB.queue(self.storage)
        trial = queue.claim()
        if trial is None:
            # Read again: a claim whose answer was lost holds its slot for a while.
            left = self.look().available
            assert not left, f"no worker has slots {left}, and none may"
            assert queue.over == (not missing)
            self.idle.append(queue)
            return None
        place = JOB.place(trial)
        of_slot = [p for p in missing if JOB.slot(p) == JOB.slot(place)]
        assert of_slot, f"{place} is not of the current generation, or done: {missing}"
        assert place == min(of_slot), f"{place} instead of {min(of_slot)}"
        assert JOB.slot(place) in available, f"{place} has its worker"
        theta = queue.sampler.suggest(trial)
        assert theta == [SERIAL[place].params[name] for name in queue.sampler.names]
        self.at_work.append(Worker(queue, trial, place))
        return self.at_work[-1]

    def _finish(self, worker: Worker) -> None:
        self.at_work.remove(worker)
        self.idle.append(worker.queue)
        try:
            for step, value in SERIAL[worker.place].reports.items():
                worker.trial.report(value, step)
        except UpdateFinishedTrialError:
            assert not worker.audible
            return
        if JOB.conclude(worker.queue, worker.trial, SERIAL[worker.place]):
            self.acknowledged.add(worker.place)
        else:
            assert not worker.audible, "only a stale trial's result is dropped"

    @rule()
    def claim(self) -> None:
        self._claim()

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(self.at_work), "who"))

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.at_work), "who")
        self.at_work.remove(worker)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.at_work), "who").audible = False

    @rule()
    def time_passes(self) -> None:
        """For longer than the grace period: what has no heartbeat fails as stale."""
        heard = {worker.trial._trial_id for worker in self.at_work if worker.audible}
        for trial in self.look().running:
            if trial._trial_id not in heard:
                fail_trial(self.onlooker, trial._trial_id, STALE, "no heartbeat")

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def raise_(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.at_work), "who")
        slot = JOB.slot(worker.place)
        if self.exceptions.get(slot, 0) >= MAX_FAILURES:
            return
        self.exceptions[slot] = self.exceptions.get(slot, 0) + 1
        self.at_work.remove(worker)
        record_failure(worker.trial, RuntimeError("of the training's own"))
        worker.queue.finish(worker.trial, state=TrialState.FAIL)
        self.idle.append(worker.queue)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.at_work), "who")
        self.at_work.remove(worker)
        worker.queue.release(worker.trial)
        self.idle.append(worker.queue)

    @rule(
        what=st.sampled_from(["do_execute", "do_commit"]),
        left=st.integers(0, 12),
        after=st.booleans(),
    )
    def database_will_go_away(self, what: str, left: int, after: bool) -> None:
        self.fuse.light(what, left, after)

    @invariant()
    def what_is_stored_is_serial_and_once(self) -> None:
        stored = self.look().stored
        for place, outcomes in stored.items():
            assert outcomes == [SERIAL.get(place)], place
        assert self.acknowledged <= stored.keys(), "a finished evaluation was thrown away"

    def teardown(self) -> None:
        if not hasattr(self, "directory"):
            return
        try:
            self._bring_to_an_end()
        finally:
            logging.disable(logging.NOTSET)
            self.no_wait.stop()
            self.storage.remove_session()
            self.onlooker.remove_session()
            self.directory.cleanup()

    def _bring_to_an_end(self) -> None:
        self.fuse.put_out()
        late = [worker for worker in self.at_work if not worker.audible]
        for worker in [worker for worker in self.at_work if worker.audible]:
            self._finish(worker)
        for _ in range(3 * len(SERIAL)):
            self.time_passes()
            worker = self._claim()
            if worker is not None:
                self._finish(worker)
            elif not self.look().missing:
                break
        assert self.look().stored == {place: [outcome] for place, outcome in SERIAL.items()}
        for worker in late:
            self._finish(worker)
        self.time_passes()
        self._claim()
        self.what_is_stored_is_serial_and_once()
        assert not self.look().unfinished


_templates: list[tuple[Any, Path]] = []


def _template() -> Path:
    """A database with the study and nothing in it, made once."""
    if not _templates:
        directory = tempfile.TemporaryDirectory()
        path = Path(directory.name) / "study.db"
        storage: Any = open_storage(f"sqlite:///{path}")
        JOB.queue(storage)
        storage.remove_session()
        storage.database.engine.dispose()
        _templates.append((directory, path))
    return _templates[0][1]


TestSearch = Search.TestCase
TestSearch.settings = settings(
    max_examples=12,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    # A failure would be made shorter for minutes. Add `Phase.shrink` to be told a shorter story.
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
