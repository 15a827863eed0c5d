"""Real workers, ``taylorglo run`` and ``taylorglo evaluate`` under attack.

A tiny search on the digits, as a user starts it: by workers of their own, by ``taylorglo run``, and
then a verdict by ``taylorglo evaluate``, all with a worker's real settings. Either processes are
killed, of the commands the workers and every fourth time the command itself, which must take its
workers with it; or the server stops for a while.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
from chaos_judge import Judgment
from optuna.study import Study
from optuna.trial import TrialState
from searches import results, small_recipe

import optuna_taylorglo
from optuna_taylorglo.attributes import KEY
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import create_study, open_storage

WORKERS = 3
MARK = "CHAOS_MARK"
UNTIL_ORPHANED = 15.0  # seconds in which children of a command that was killed have to end

LIMIT = 1500.0
SEARCH = {"search": {"n_generations": 12}, "budget": {"evaluation": 300, "full": 300}}
EVALUATE = ("evaluate", "--workers", str(WORKERS), "--seeds", "8", "--against", "ce,focal")

_SEARCHED = re.compile(
    r"trial \d+: generation (\d+), candidate (\d+)(?:, attempt (\d+))?: (?:-?\d|aborted|stopped)"
)
_TRAINED = re.compile(r"training (\d+): .*: (?:-?\d+\.\d+ \(|aborted)")

Results = Mapping[Any, Any]


def attack_real(
    url: str, total: int, seed: int, directory: Path, server: Any = None, outage: float = 20.0
) -> Iterator[tuple[str, Judgment]]:
    """Attack real processes, `total` times in each stage; yields stages as they end.

    The server, if there is one, is stopped for `outage` seconds; otherwise processes are killed.
    """
    os.chdir(directory)
    stage = Stage(url, total, random.Random(seed), directory, server, outage)
    small_recipe(directory / "serial.yaml", **SEARCH)
    for name in ("alone", "supervised"):
        shutil.copy("serial.yaml", f"{name}.yaml")
    serial_url = f"sqlite:///{directory / 'serial.db'}"
    try:
        for words in (("run", "serial.yaml", "--workers", "1"), (*EVALUATE, "serial")):
            stage.start("optuna_taylorglo.cli", *words, url=serial_url).wait()
        if server is None:
            yield "real workers", stage.workers("alone", _searched(_study(serial_url, "serial")))
        for name, words in (
            ("run", ("run", "supervised.yaml", "--workers", str(WORKERS))),
            ("evaluate", (*EVALUATE, "supervised")),
        ):
            suffix, found = ("", _searched) if name == "run" else ("-verdict", _trained)
            expected = found(_study(serial_url, f"serial{suffix}"))
            yield f"real {name}", stage.command(words, f"supervised{suffix}", expected, found)
    finally:
        _end(_marked(stage.mark))


@dataclass
class Stage:
    """Attacks processes on one storage, which have a mark in their environment."""

    url: str
    total: int
    dice: random.Random
    directory: Path
    server: Any
    outage: float
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, module: str, *words: str, url: str = "") -> subprocess.Popen[bytes]:
        package = str(Path(optuna_taylorglo.__file__).parents[1])
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": package, MARK: self.mark}
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{uuid.uuid4().hex}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", f"import sys, {module} as m; sys.exit(m.main())", *words],
                env=os.environ | own | {"OPTUNA_STORAGE": url or self.url},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def workers(self, name: str, expected: Results) -> Judgment:
        """Workers without a command, replaced when they have been killed."""
        began = time.monotonic()
        study = create_study(name, self.url)
        words = ("optuna_taylorglo.cli.worker", "--study-name", name, "--recipe", f"{name}.yaml")
        crew = [self.start(*words) for _ in range(WORKERS)]
        kills, errors = 0, []
        while any(worker.poll() != 0 for worker in crew) and time.monotonic() - began < LIMIT:
            time.sleep(self.dice.uniform(0.2, 2.0))
            busy = _busy(study) if kills < self.total else []
            for number, worker in enumerate(crew):
                if worker.pid in busy[:1]:
                    worker.kill()
                    kills += 1
                    worker.wait()
                elif worker.poll():
                    errors.append(f"a worker ended with code {worker.returncode}")
                if worker.poll():
                    crew[number] = self.start(*words)
        over = all(worker.poll() == 0 for worker in crew)
        judgment = self._judge(study, expected, _searched, "logs", kills, began)
        return replace(judgment, over=over, errors=errors)

    def command(
        self, words: tuple[str, ...], name: str, expected: Results, found: Callable[..., Results]
    ) -> Judgment:
        """A command under attack, started again when it was killed."""
        began, done, orphans, errors = time.monotonic(), 0, 0, []
        study: Study | None = None
        while time.monotonic() - began < LIMIT:
            command = self.start("optuna_taylorglo.cli", *words)
            while command.poll() is None and time.monotonic() - began < LIMIT:
                time.sleep(self.dice.uniform(0.2, 2.0))
                with contextlib.suppress(KeyError, ProcessLookupError):
                    study = study or _study(self.url, name)
                    if done < self.total and (busy := _busy(study)):
                        self._strike(command, busy, done)
                        done += 1
            command.kill()
            if command.wait() == 0:
                break
            if command.returncode != -signal.SIGKILL:
                errors.append(f"{words[0]} ended with code {command.returncode}")
            orphans += _end_orphans(self.mark)
        study = study or _study(self.url, name)
        logs = f"taylorglo-logs/{name}"
        judgment = self._judge(study, expected, found, logs, done, began)
        over, orphans = command.returncode == 0, orphans + judgment.orphans
        return replace(judgment, over=over, orphans=orphans, errors=errors)

    def _strike(self, command: subprocess.Popen[bytes], busy: list[int], done: int) -> None:
        if self.server is not None:
            self.server.stop()
            time.sleep(self.outage)
            self.server.start()
        elif done % 4 == 3:
            command.kill()
        else:
            os.kill(self.dice.choice(busy), signal.SIGKILL)

    def _judge(
        self,
        study: Study,
        expected: Results,
        found: Callable[[Study], Results],
        logs: str,
        attacks: int,
        began: float,
    ) -> Judgment:
        ours, told = found(study), _told(study, self.directory / logs)
        different = [k for k in ours.keys() | expected.keys() if ours.get(k) != expected.get(k)]
        ends = sorted(t.datetime_complete for t in study.trials if t.datetime_complete)
        return Judgment(
            attacks=attacks,
            over=True,
            generations=0,
            differences=[f"{k}: {ours.get(k)}, serial {expected.get(k)}" for k in different],
            lost=[f"{place} was finished, and is not there" for place in told if place not in ours],
            repeated=[f"{place} {count} times" for place, count in told.items() if count > 1],
            overtaken=[],
            left=[str(trial) for trial in study.trials if not trial.state.is_finished()],
            orphans=_end_orphans(self.mark),
            errors=[],
            standstill=max((b - a).total_seconds() for a, b in pairwise(ends)),
            seconds=time.monotonic() - began,
        )


def _told(study: Study, logs: Path) -> Counter[Any]:
    """How often each evaluation was finished, by the workers' own logs."""
    text = "\n".join(log.read_text(errors="replace") for log in sorted(logs.glob("*.log")))
    trials = study.trials
    if any(KEY in trial.user_attrs for trial in trials):
        return Counter(trials[int(n)].user_attrs[KEY] for n in _TRAINED.findall(text))
    # In the log everything is counted from 1.
    return Counter((int(g) - 1, int(i) - 1, int(a or 1) - 1) for g, i, a in _SEARCHED.findall(text))


def _searched(study: Study) -> Results:
    return results(study)


def _trained(study: Study) -> Results:
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return {t.user_attrs[KEY]: (t.state, t.value) for t in study.get_trials(states=states)}


def _study(url: str, name: str) -> Study:
    return optuna.load_study(study_name=name, storage=open_storage(url))


def _busy(study: Study) -> list[int]:
    """Processes that hold a trial."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    workers = [WorkerProcess.of(trial) for trial in running]
    return [w.pid for w in workers if w is not None and Path(f"/proc/{w.pid}").exists()]


def _end_orphans(mark: str) -> int:
    """Count processes that outlast what started them, and end them."""
    deadline = time.monotonic() + UNTIL_ORPHANED
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    _end(found)
    return len(found)


def _end(pids: list[int]) -> None:
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
