"""A study and what trains for it: in this process, or with several on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.study import Study
from rich.console import Console

from optuna_taylorglo.attributes import KEY, TASK
from optuna_taylorglo.errors import StopRequested
from optuna_taylorglo.local import Job, LocalProcesses
from optuna_taylorglo.progress import LiveProgress, PlainConsole
from optuna_taylorglo.recipes.schema import Recipe, search_size
from optuna_taylorglo.search.candidates import new_log
from optuna_taylorglo.search.history import SearchHistory, attach_recipe
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.study.storages import shown_url
from optuna_taylorglo.text import as_file_name, visible
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.verdict.selection import is_undecided
from optuna_taylorglo.worker import Functions, Worker, WorkerConfig, run, run_reference

if TYPE_CHECKING:
    from optuna_taylorglo.verdict.runner import TaskQueue
    from optuna_taylorglo.verdict.tasks import Runner, Task

IN_MEMORY = "memory"


@dataclass
class Session:
    """A study, what trains for it, and where.

    Attributes:
        study: The study of the search.
        url: URL of its storage; `IN_MEMORY` for one of this process alone.
        functions: A user's training functions; None for a recipe.
        runtime: Where a recipe trains.
        n_workers: Processes on this machine; 1: this process itself, None: one per core or GPU.
        console: Where progress is shown.
        stop: Set to stop; trials in hand are released.
    """

    study: Study
    url: str
    functions: Functions | None = None
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    n_workers: int | None = 1
    console: Console = field(default_factory=PlainConsole)
    stop: threading.Event = field(default_factory=threading.Event)
    verbose: bool = False
    quiet: bool = False

    @property
    def config(self) -> WorkerConfig:
        """What workers of this session are told."""
        return WorkerConfig(
            self.study.study_name,
            self.url,
            self.runtime,
            self.functions,
            check=False,
            verbose=self.verbose,
            quiet=self.quiet,
        )

    @property
    def recipe(self) -> Recipe:
        """The recipe of the study, as it is now."""
        return attach_recipe(self.study)

    @property
    def is_complete(self) -> bool:
        """Whether the search is over and its winner is selected."""
        recipe = self.recipe
        history = SearchHistory(self.study, recipe)
        return history.finished and not is_undecided(self.study, recipe)

    def search(self) -> None:
        """Search until the end, and select the winner."""
        if self.n_workers == 1:
            self._search_here()
        else:
            self._search_locally()

    def _search_here(self) -> None:
        worker = Worker(self.study, self.config, self.stop)
        with LiveProgress(self.console) as live:
            worker.after_each = partial(self._show, live, new_log(self.recipe))
            worker.work()

    def _search_locally(self) -> None:
        # So that the function is checked before anything is started.
        if self.functions is not None:
            _ = Worker(self.study, self.config, self.stop).trainer
        jobs = [] if self.functions is not None else [Job(run_reference, (self.config,))]
        processes, n_workers = self._processes(self.study, jobs)
        recipe = self.recipe
        self.console.print(
            f"Study {self.study.study_name} in {shown_url(self.url)}: {_counted(n_workers)}, "
            f"{search_size(recipe.search)}. Logs in {log_dir(self.study.study_name)}.",
            soft_wrap=True,
        )
        log = new_log(recipe)  # so that each look reads new trials only
        processes.start()
        try:
            with LiveProgress(self.console) as live:
                while processes.poll() and not self.stop.wait(1.0):
                    self._show(live, log)
                self._show(live, log)
        finally:
            processes.stop()
        if self.stop.is_set():
            raise StopRequested

    def _show(self, live: LiveProgress, log: Any) -> None:
        recipe = self.recipe  # another process may make the search longer
        live.show(SearchHistory(self.study, recipe, log))
        if is_undecided(self.study, recipe):
            live.show_round("selection of the winner", *_selection_progress(self.study))

    @contextlib.contextmanager
    def trainings(self) -> Iterator[tuple[Study, Runner]]:
        """The evaluation study, and what trains tasks for it while the body runs."""
        evaluation_study = opening.create_evaluation_study(self.study, self.url)
        with LiveProgress(self.console) as live:
            if self.n_workers == 1:
                worker = Worker(self.study, self.config, self.stop)
                yield evaluation_study, _TrainingsHere(evaluation_study, worker, live)
                return
            processes, _ = self._processes(evaluation_study)
            try:
                yield (
                    evaluation_study,
                    _LocalTrainings(evaluation_study, processes, self.stop, live),
                )
            finally:  # even if a closed terminal takes no output
                processes.stop()

    def _processes(self, study: Study, others: Sequence[Job] = ()) -> tuple[LocalProcesses, int]:
        """Workers on a study and other processes, not started yet; and how many workers."""
        config = replace(self.config, study_name=study.study_name)
        environments = _environments(self.n_workers, self.runtime.device)
        workers = [Job(run, (config,), environment) for environment in environments]
        return LocalProcesses([*others, *workers], log_dir(study.study_name)), len(workers)


class _Trainings:
    """Trains tasks and shows how far that is; by local processes, or by a worker of this one."""

    def __init__(self, evaluation_study: Study, live: LiveProgress) -> None:
        from optuna_taylorglo.verdict.runner import TaskQueue

        self.evaluation_study, self.live = evaluation_study, live
        self.queue: TaskQueue = TaskQueue(evaluation_study)
        self._done_before: Counter[str] = Counter()  # by earlier calls, by stage

    def __call__(self, tasks: Sequence[Task]) -> list[float | None]:
        """Values of tasks in order, None for a training that diverged; trained if need be."""
        values = self._train(tasks)
        self._done_before.update(task.stage for task in tasks)
        return values

    def _train(self, tasks: Sequence[Task]) -> list[float | None]:
        raise NotImplementedError

    def _show(self, tasks: Sequence[Task]) -> None:
        stages = [task.stage for task in tasks]
        done = Counter(compress(stages, self.queue.which_done(tasks)))
        stage = next((each for each in stages if done[each] < stages.count(each)), stages[-1])
        before, total = self._done_before[stage], stages.count(stage)
        self.live.show_round(visible(stage), before + done[stage], before + total)


class _TrainingsHere(_Trainings):
    def __init__(self, evaluation_study: Study, worker: Worker, live: LiveProgress) -> None:
        super().__init__(evaluation_study, live)
        self.worker = worker

    def _train(self, tasks: Sequence[Task]) -> list[float | None]:
        self.queue.enqueue(tasks)
        self.worker.after_each = partial(self._show, tasks)
        return self.worker.run_tasks(self.evaluation_study, tasks)


class _LocalTrainings(_Trainings):
    """Workers are started when there is something to do."""

    def __init__(
        self,
        evaluation_study: Study,
        processes: LocalProcesses,
        stop: threading.Event,
        live: LiveProgress,
    ) -> None:
        super().__init__(evaluation_study, live)
        self.processes, self.stop = processes, stop

    def _train(self, tasks: Sequence[Task]) -> list[float | None]:
        self.queue.enqueue(tasks)
        wait = 0.1
        while (values := self.queue.results(tasks)) is None:
            self._show(tasks)
            if not self.processes.poll():
                self.processes.start()
            if self.stop.wait(wait):
                raise StopRequested
            # Each poll reads the database on a core that the workers need.
            wait = min(1.1 * wait, 0.7)
        return values


def log_dir(study_name: str) -> Path:
    """Where the logs of a study's local workers are."""
    return Path("taylorglo-logs") / as_file_name(study_name)


def _counted(n_workers: int) -> str:
    return "1 worker" if n_workers == 1 else f"{n_workers} workers"


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """One environment per worker: each sees one GPU, or shares the CPU."""
    import joblib  # type: ignore[import-untyped]
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus == 0:
        # Cores that this process may use; a device that was named, such as cuda:1, has one worker.
        return [{}] * (workers or (joblib.cpu_count() if device in ("auto", "cpu") else 1))
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible_gpus.split(",") if visible_gpus else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(workers or gpus)]


def _selection_progress(study: Study) -> tuple[int, int]:
    """How many trainings of a selection are done, of how many."""
    evaluation_study = opening.find_evaluation_study(study)
    is_done = {
        trial.user_attrs[KEY]: trial.state.is_finished()  # of its last attempt
        for trial in ([] if evaluation_study is None else counted_trials(evaluation_study))
        if KEY in trial.user_attrs and trial.user_attrs[TASK]["loss"]["name"] == "finalist"
    }
    return sum(is_done.values()), len(is_done)
