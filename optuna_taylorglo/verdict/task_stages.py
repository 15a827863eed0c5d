"""What a training of a companion study is for, in words for people who wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from optuna_taylorglo.verdict.families import FAMILIES
from optuna_taylorglo.verdict.tasks import Task

_TUNED = {
    "ce-tuned": "tuning cross-entropy's learning rate",
    "ce-smoothed": "tuning label smoothing",
    "best-standard": "tuning the standard losses",
    "contender": "choosing the winner",
    "pilot": "pilot for the length of evaluations",
    "candidate": "ranking candidates",
}


def stage_of(task: Task) -> str:
    """The stage that a training belongs to, such as "tuning label smoothing"."""
    if task.on_test_set:
        setting = "".join(f" at {name} {value}" for name, value in task.data_args.items())
        return f"testing {task.loss.label}{setting}"
    name = task.loss.name
    if name in FAMILIES:
        return f"tuning {name.replace('-', ' ')}"
    return _TUNED.get(name, f"training {task.loss.label}")


def stage_in_hand(tasks: Sequence[Task], done: Sequence[bool]) -> tuple[str, int, int]:
    """The first stage that is not over.

    Args:
        tasks: Trainings that were asked for, at least one.
        done: Which of them have come to an end.

    Returns:
        The stage, how many of its trainings are done, and how many it has.
    """
    stages = [stage_of(task) for task in tasks]
    opened = (stage for stage, is_done in zip(stages, done, strict=True) if not is_done)
    stage = next(opened, stages[-1])
    of_it = [is_done for each, is_done in zip(stages, done, strict=True) if each == stage]
    return stage, sum(of_it), len(of_it)
