"""Real workers, ``taylorglo run`` and ``taylorglo evaluate``, killed again and again.

A tiny search on the digits, as a user starts it: first by workers on their own, which find out by
silence that one has died; then by ``taylorglo run``, with a worker's real settings; then a verdict
by ``taylorglo evaluate``. Of the commands the workers are killed, and now and then the command
itself, which must take its workers with it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from chaos_jobs import Storage
from chaos_judge import Judgment
from optuna.study import Study
from optuna.trial import TrialState
from searches import results, small_recipe

import optuna_taylorglo
from optuna_taylorglo.attributes import KEY
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import open_storage

WORKERS = 3
MARK = "CHAOS_MARK"
UNTIL_ORPHANED = 15.0
"""Seconds in which children of a command that was killed have to end."""

LIMIT = 900.0

_IN_SEARCH = re.compile(
    r"trial \d+: generation (\d+), candidate (\d+)(?:, attempt (\d+))?: (?:-?\d|aborted|stopped)"
)
_IN_VERDICT = re.compile(r"training (\d+): .*: (?:-?\d+\.\d+ \(|aborted)")

Results = Mapping[Any, Any]


def attack_real(
    storage: Storage, total: int, seed: int, directory: Path
) -> Iterator[tuple[str, Judgment]]:
    """Kill real processes, `total` times in each of three stages; yields stages as they end."""
    os.chdir(directory)
    stage = Stage(storage.url, total, random.Random(seed), directory)
    try:
        yield from _stages(stage, directory)
    finally:
        _end(_marked(stage.mark))


def _stages(stage: Stage, directory: Path) -> Iterator[tuple[str, Judgment]]:
    recipe = small_recipe(directory / "serial.yaml", search={"n_generations": 12})
    for name in ("alone", "supervised"):
        shutil.copy(recipe, directory / f"{name}.yaml")
    evaluation = ["evaluate", "--workers", str(WORKERS), "--seeds", "8", "--against", "ce,focal"]
    serial_url = f"sqlite:///{directory / 'serial.db'}"
    _to_the_end("run", "serial.yaml", "--workers", "1", url=serial_url)
    _to_the_end(*evaluation, "serial", "--output", "serial", url=serial_url)
    serial = results(_study(serial_url, "serial"))
    verdict = _trainings(_study(serial_url, "serial-verdict"))
    yield "real workers", stage.workers_alone("alone", serial)
    search = ["run", "supervised.yaml", "--workers", str(WORKERS)]
    yield "real run", stage.command(search, "supervised", serial, _in_search)
    words = [*evaluation, "supervised"]
    yield "real evaluate", stage.command(words, "supervised-verdict", verdict, _in_verdict)


@dataclass
class Stage:
    """Kills processes on one storage.

    Attributes:
        url: The storage.
        total: Kills of a stage.
        dice: When, and whom.
        directory: Where commands run.
        mark: In the environment of all processes, by which they are found.
    """

    url: str
    total: int
    dice: random.Random
    directory: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def workers_alone(self, name: str, serial: Results) -> Judgment:
        """Workers that nobody looks after, replaced when they have been killed."""
        began = time.monotonic()
        optuna.create_study(study_name=name, storage=open_storage(self.url), direction="maximize")
        study = _study(self.url, name)
        logs = self.directory / "alone-logs"
        logs.mkdir()
        words = ["--study-name", name, "--recipe", f"{name}.yaml", "--no-check"]
        words += ["--heartbeat", "2", "--grace", "8"]

        def start() -> subprocess.Popen[bytes]:
            log = logs / f"{uuid.uuid4().hex}.log"
            return _start("optuna_taylorglo.worker", *words, url=self.url, mark=self.mark, log=log)

        crew = [start() for _ in range(WORKERS)]
        kills, due, errors = 0, 0.0, []
        while any(worker.poll() != 0 for worker in crew):
            if time.monotonic() - began > LIMIT:
                break
            if time.monotonic() > due and kills < self.total:
                busy = _busy(study)
                for number, worker in enumerate(crew):
                    if worker.pid in busy and worker.poll() is None:
                        worker.kill()
                        worker.wait()
                        crew[number] = start()
                        kills += 1
                        break
                due = time.monotonic() + self.dice.uniform(0.2, 2.0)
            for number, worker in enumerate(crew):
                if worker.poll() not in (None, 0):
                    errors.append(f"a worker ended with code {worker.returncode}")
                    crew[number] = start()
            time.sleep(0.02)
        over = all(worker.poll() == 0 for worker in crew)
        for worker in crew:
            worker.kill()
            worker.wait()
        return self._judge(study, serial, _in_search, logs, kills, over, errors, began)

    def command(
        self,
        words: list[str],
        name: str,
        serial: Results,
        places: Callable[[Study, Path], Counter[Any]],
    ) -> Judgment:
        """A command whose workers are killed, and every fourth time the command itself."""
        began = time.monotonic()
        log = self.directory / f"{name}.out"
        kills = orphans = 0
        errors: list[str] = []
        study: Study | None = None
        while time.monotonic() - began < LIMIT:
            command = _start("optuna_taylorglo.cli", *words, url=self.url, mark=self.mark, log=log)
            while command.poll() is None and time.monotonic() - began < LIMIT:
                time.sleep(self.dice.uniform(0.2, 2.0))
                if kills >= self.total:
                    continue
                with contextlib.suppress(KeyError, ProcessLookupError):
                    study = study or _study(self.url, name)
                    busy = _busy(study)
                    if not busy:
                        continue
                    if kills % 4 == 3:
                        command.kill()
                    else:
                        os.kill(self.dice.choice(sorted(busy)), signal.SIGKILL)
                    kills += 1
            if command.poll() is None:
                command.kill()
            if command.wait() == 0:
                break
            if command.returncode != -signal.SIGKILL:
                errors.append(f"{words[0]} ended with code {command.returncode}")
            orphans += _end_orphans(self.mark)
        over = command.returncode == 0
        study = study or _study(self.url, name)
        logs = self.directory / "taylorglo-logs" / name
        judgment = self._judge(study, serial, places, logs, kills, over, errors, began)
        return judgment if not orphans else _with_orphans(judgment, orphans)

    def _judge(
        self,
        study: Study,
        serial: Results,
        places: Callable[[Study, Path], Counter[Any]],
        logs: Path,
        kills: int,
        over: bool,
        errors: list[str],
        began: float,
    ) -> Judgment:
        seconds = time.monotonic() - began
        ours: Results = results(study) if places is _in_search else _trainings(study)
        told = places(study, logs)
        different = [key for key in ours.keys() | serial.keys() if ours.get(key) != serial.get(key)]
        finished = {place[0] for place in ours} if places is _in_search else ()
        return Judgment(
            attacks=kills,
            over=over,
            generations=len(finished),
            differences=[f"{key}: {ours.get(key)}, serial {serial.get(key)}" for key in different],
            lost=[f"{place} was finished, and is not there" for place in told if place not in ours],
            repeated=[f"{place} {count} times" for place, count in told.items() if count > 1],
            overtaken=[],
            left=[str(trial) for trial in study.trials if not trial.state.is_finished()],
            orphans=_end_orphans(self.mark),
            errors=errors,
            standstill=0.0,
            seconds=seconds,
        )


def _with_orphans(judgment: Judgment, orphans: int) -> Judgment:
    return Judgment(**vars(judgment) | {"orphans": judgment.orphans + orphans})


def _in_search(study: Study, logs: Path) -> Counter[Any]:
    """How often each evaluation was finished, by the workers' own words."""
    found = _IN_SEARCH.findall(_text(logs))
    # For people everything is counted from 1.
    return Counter((int(g) - 1, int(i) - 1, int(a or 1) - 1) for g, i, a in found)


def _in_verdict(study: Study, logs: Path) -> Counter[Any]:
    trials = study.trials
    return Counter(trials[int(n)].user_attrs.get(KEY) for n in _IN_VERDICT.findall(_text(logs)))


def _text(logs: Path) -> str:
    return "\n".join(log.read_text(errors="replace") for log in sorted(logs.glob("*.log")))


def _trainings(study: Study) -> dict[str, Any]:
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return {t.user_attrs[KEY]: (t.state, t.value) for t in study.get_trials(states=states)}


def _study(url: str, name: str) -> Study:
    return optuna.load_study(study_name=name, storage=open_storage(url))


def _busy(study: Study) -> set[int]:
    """Processes that hold a trial."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    workers = [WorkerProcess.of(trial) for trial in running]
    return {w.pid for w in workers if w is not None and Path(f"/proc/{w.pid}").exists()}


def _environment(url: str, mark: str = "") -> dict[str, str]:
    package = str(Path(optuna_taylorglo.__file__).parents[1])
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": package, "OPTUNA_STORAGE": url, MARK: mark}
    return os.environ | own


def _to_the_end(*words: str, url: str) -> None:
    command = [sys.executable, "-m", "optuna_taylorglo.cli", *words]
    subprocess.run(command, env=_environment(url), check=True, capture_output=True)


def _start(module: str, *words: str, url: str, mark: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=_environment(url, mark),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )


def _end_orphans(mark: str) -> int:
    """Count processes that outlast what started them, and end them."""
    deadline = time.monotonic() + UNTIL_ORPHANED
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    _end(found)
    return len(found)


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Living processes that were started under a mark."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found
