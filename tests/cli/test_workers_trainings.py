"""Tasks that local workers do: what is said meanwhile."""

from __future__ import annotations

import io
import threading

import optuna
import pytest
from rich.console import Console

from optuna_taylorglo.cli.progress import LiveProgress
from optuna_taylorglo.cli.workers import LocalTrainings
from optuna_taylorglo.verdict.runner import TaskQueue
from optuna_taylorglo.verdict.tasks import Task, cross_entropy


class OneAtATime:
    """A supervisor whose worker does one task at each look, and takes down what is shown."""

    def __init__(self, evaluation_study: optuna.Study, live: LiveProgress) -> None:
        self.queue = TaskQueue(evaluation_study)
        self.live = live
        self.shown: list[str] = []

    def start(self) -> None:
        """Workers are there from the beginning."""

    def poll(self) -> bool:
        (line,) = self.live.tasks
        self.shown.append(f"{line.description} {line.completed}/{line.total}")
        trial = self.queue.claim()
        assert trial is not None
        self.queue.finish(trial, 0.5)
        return True


def tasks(name: str, label: str, seeds: range, *, on_test_set: bool = False) -> list[Task]:
    loss = cross_entropy(name, label)
    return [Task(loss, seed, 10, "steps", on_test_set) for seed in seeds]


@pytest.mark.parametrize("terminal", [True, False])
def test_stages_are_named_and_counted_over_several_calls(terminal):
    evaluation_study = optuna.create_study(direction="maximize")
    output = io.StringIO()
    with LiveProgress(Console(file=output, force_terminal=terminal, width=80)) as live:
        supervisor = OneAtATime(evaluation_study, live)
        train = LocalTrainings(evaluation_study, supervisor, threading.Event(), live)
        train(tasks("label-smoothing", "a", range(2)))
        train(tasks("label-smoothing", "b", range(2, 3)))
        ends = tasks("ce", "cross-entropy", range(2), on_test_set=True)
        train([*ends, *tasks("winner", "evolved loss", range(5, 6), on_test_set=True)])
        assert train(ends) == [0.5, 0.5]
    assert supervisor.shown == [
        *("tuning label smoothing 0/2", "tuning label smoothing 1/2", "tuning label smoothing 2/3"),
        *("testing cross-entropy 0/2", "testing cross-entropy 1/2", "testing evolved loss 0/1"),
    ]
    if not terminal:
        assert output.getvalue().splitlines() == [
            "tuning label smoothing: 2 trainings",
            "testing cross-entropy: 2 trainings",
            "testing evolved loss: 1 trainings",
        ]
