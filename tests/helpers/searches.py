"""Small searches on the digits, for tests of worker and command line."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import yaml
from forked import Command
from optuna.trial import TrialState

from optuna_taylorglo.attributes import ATTEMPT, GENERATION, INDEX
from optuna_taylorglo.study.open import open_storage

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "studies" / "digits_cnn.yaml"


def small_recipe(path: Path, **changes: dict[str, Any]) -> Path:
    """The digits recipe cut down to a few steps, with some sections changed, as a file."""
    content = yaml.safe_load(DIGITS.read_text())
    content["budget"] |= {"evaluation": 6, "full": 6}
    content["early_abort"] = {"unit": "steps", "at": 4, "threshold": 0.11, "attempts": 2}
    content["early_stop"] = {"unit": "steps", "at": 5, "keep": 0.5}
    content["search"] |= {"popsize": 4, "n_generations": 2}
    content["search"] |= {"space": "theta", "filter": "trainable"}
    for section, values in changes.items():
        old = content.get(section) or {}
        content[section] = old | values if isinstance(values, dict) else values
    path.write_text(yaml.safe_dump(content))
    return path


def process(module: str, *words: str, cwd: Path, storage: str | None = None) -> Command:
    """Run the `main` of a module in a process of its own."""
    own = {} if storage is None else {"OPTUNA_STORAGE": storage}
    return Command(module, words, cwd, os.environ | own)


def descendants_of(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found + [further for child in found for further in descendants_of(child)]


def is_alive(pid: int) -> bool:
    """Whether a process runs; where nobody asks for its exit code, it stays in the list."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something to come true, as long as the test's own time limit allows."""
    while not condition():
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answer(url: str) -> str:
    """What a server answers; nothing while it is just starting."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())
    return ""


def load(url: str, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=open_storage(url))


def results(study: optuna.Study) -> dict[tuple[int, ...], tuple[Any, ...]]:
    """Candidate and outcome at each (generation, index, attempt), lost trials left out."""
    return {
        tuple(t.user_attrs[key] for key in (GENERATION, INDEX, ATTEMPT)): (
            *(t.params, t.state, t.value, t.intermediate_values),
        )
        for t in study.trials
        if t.state in (TrialState.COMPLETE, TrialState.PRUNED)
    }
