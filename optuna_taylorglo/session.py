"""A study and what trains for it: in this process, or with several on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
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
from optuna_taylorglo.errors import StopRequested, StudyError, UsageError
from optuna_taylorglo.evolution.candidates import new_log, resolve_start
from optuna_taylorglo.evolution.history import SearchHistory, attach_recipe, direction_of
from optuna_taylorglo.local import Job, LocalProcesses, prepare
from optuna_taylorglo.losses.files import load_loss
from optuna_taylorglo.progress import LiveProgress, PlainConsole
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import FunctionRecipe, Recipe, TrainingRecipe, search_size
from optuna_taylorglo.report.dashboard import refresh_if_installed
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.queue import counted_trials
from optuna_taylorglo.study.storages import shown_url
from optuna_taylorglo.text import as_file_name, counted, visible
from optuna_taylorglo.training.runtime import RuntimeConfig
from optuna_taylorglo.verdict.baselines import (
    NO_LR_FACTOR,
    LearningRates,
    TunedRate,
    evaluate_cross_entropy,
    tuned_rates,
)
from optuna_taylorglo.verdict.selection import is_undecided
from optuna_taylorglo.verdict.statistics import Role
from optuna_taylorglo.verdict.tasks import compared_evolved_loss
from optuna_taylorglo.worker import (
    REFERENCE_SEEDS,
    Functions,
    Worker,
    WorkerConfig,
    check_kind,
    run,
    run_reference,
)

if TYPE_CHECKING:
    from optuna_taylorglo.verdict.runner import TaskQueue
    from optuna_taylorglo.verdict.statistics import Verdict
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
        n_workers: Processes on this machine; None: one per core or GPU.
        in_process: Whether this process itself trains, in the place of others.
        console: Where progress is shown.
        stop: Set to stop; trials in hand are released.
    """

    study: Study
    url: str
    functions: Functions | None = None
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    n_workers: int | None = None
    in_process: bool = False
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
        if self.in_process:
            self._search_here()
        else:
            self._search_locally()

    def _search_here(self) -> None:
        worker = Worker(self.study, self.config, self.stop)
        if self.functions is None:
            self.runtime.prepare()
        evaluate_cross_entropy(self.study, worker.trainer, REFERENCE_SEEDS, self.stop)
        self._tell_scale()
        with LiveProgress(self.console) as live:
            worker.after_each = partial(self._show, live, new_log(self.recipe))
            worker.work()

    def _search_locally(self) -> None:
        # So that the function is checked before anything is started.
        if self.functions is not None:
            _ = Worker(self.study, self.config, self.stop).trainer
        reference = Job(run_reference, (self.config,))
        processes, n_workers = self._processes(self.study, [reference])
        recipe = self.recipe
        self.console.print(
            f"Study {self.study.study_name} in {shown_url(self.url)}: "
            f"{counted(n_workers, 'workers')}, "
            f"{search_size(recipe.search)}. Logs in {log_dir(self.study.study_name)}.",
            soft_wrap=True,
        )
        log = new_log(recipe)  # so that each look reads new trials only
        is_settled = self._tell_scale()
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
        if not is_settled:
            self._tell_scale()

    def _tell_scale(self) -> bool:
        """Say what is searched where the optimizer undoes the scale of a loss, if that is known."""
        follows = {
            "learning_rate": "the learning rate is searched in its place",
            "fixed": "nothing is searched in its place",
        }
        if self.recipe.search.scale in follows:
            told = f"The optimizer undoes the scale of a loss: {follows[self.recipe.search.scale]}."
            if isinstance(self.recipe, FunctionRecipe) and self.recipe.search.scale == "fixed":
                told += " Multiply the learning rate by candidate.lr_factor to search that."
            self.console.print(told, soft_wrap=True)
        return self.recipe.search.scale != "auto"

    def _show(self, live: LiveProgress, log: Any) -> None:
        recipe = self.recipe  # another process may make the search longer
        live.show(SearchHistory(self.study, recipe, log))
        if is_undecided(self.study, recipe) and (progress := _selection_progress(self.study))[1]:
            live.show_round("selection of the winner", *progress)

    def check(self, *, for_verdict: bool) -> None:
        """Try a recipe's training, and for a verdict its test, before many of them."""
        if not self.in_process:
            prepare()
        if isinstance(recipe := self.recipe, TrainingRecipe):
            from optuna_taylorglo.training.preflight import dry_run

            self.runtime.prepare()
            found = dry_run(recipe, self.runtime, for_verdict=for_verdict)
            if for_verdict and found.missing is not None:
                raise found.missing
        elif for_verdict and (self.functions is None or self.functions.test is None):
            raise UsageError("test is missing: give the function that returns the test metric.")

    @property
    def learning_rates(self) -> LearningRates:
        """How learning rates are varied here."""
        if isinstance(recipe := self.recipe, FunctionRecipe):
            return LearningRates.of_function(self.study, recipe)
        assert isinstance(recipe, TrainingRecipe)
        return LearningRates.find(self.study, recipe, self.runtime)

    def compare(self, n_seeds: int, against: Sequence[str]) -> Verdict:
        """Compare the winner with baselines by full trainings on the test set."""
        from optuna_taylorglo.verdict import compare, output

        compare.check_comparison(n_seeds, against)
        self.check(for_verdict=True)
        rates = self.learning_rates
        with self.trainings() as (evaluation_study, train):
            verdict = compare.evaluate(
                self.study,
                self.recipe,
                train,
                seeds=n_seeds,
                against=against,
                rates=rates,
                test_version=self._test_version,
            )
            output.save_verdict(evaluation_study, verdict)
        if opening.is_shared(self.study):
            refresh_if_installed(self.study)
        return verdict

    @property
    def _test_version(self) -> str:
        """A hash of the test function's source, so that another one's results do not count."""
        test = None if self.functions is None else self.functions.test
        if test is None:
            return ""
        try:
            text = inspect.getsource(test if inspect.isroutine(test) else type(test))
        except (OSError, TypeError):  # typed at a prompt
            code = getattr(test, "__code__", None)
            text = "" if code is None else f"{code.co_code.hex()} {code.co_names}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tune_learning_rate(self, loss: str | os.PathLike[str] | None = None) -> list[TunedRate]:
        """Cross-entropy, or a loss, at several learning rates, the best on validation first."""
        compared = None
        if loss is not None:
            name = Path(loss).stem
            compared = compared_evolved_loss(name, name, Role.BASELINE, load_loss(loss))
        if self.functions is not None:
            _ = Worker(self.study, self.config, self.stop).trainer  # it tries the function
        rates = self.learning_rates
        if (obstacle := rates.obstacle) is not None or rates.by_scale:
            whose = obstacle or NO_LR_FACTOR
            raise UsageError(f"the learning rate cannot be tuned: {whose}.")
        with self.trainings() as (_, train):
            return tuned_rates(self.recipe, train, rates, compared)

    @contextlib.contextmanager
    def trainings(self) -> Iterator[tuple[Study, Runner]]:
        """The evaluation study, and what trains tasks for it while the body runs."""
        evaluation_study = opening.create_evaluation_study(self.study, self.url)
        with LiveProgress(self.console) as live:
            if self.in_process:
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


def open_session(
    recipe: Recipe,
    name: str,
    url: str,
    *,
    path: Path | None = None,
    **settings: Any,
) -> Session:
    """A study to search in, created if it is missing; a recipe is tried before that.

    Args:
        recipe: What is searched.
        name: Name of the study.
        url: URL of the storage, or `IN_MEMORY`.
        path: The recipe's file, which errors name.
        settings: Further fields of the session.
    """
    recipe, functions = resolve_start(recipe), settings.get("functions")
    if isinstance(recipe, TrainingRecipe) and not _is_complete(name, url):
        settings["runtime"].prepare()
        if not settings.get("in_process"):
            prepare()

        from optuna_taylorglo.training.preflight import dry_run

        dry_run(recipe, settings["runtime"], path)
    if url == IN_MEMORY:
        study = opening.create_in_memory(name or "search", direction_of(recipe))
    else:
        study = opening.create_study(name, url, direction=direction_of(recipe))
    if (saved := settled_recipe(study)) is not None:
        check_kind(study, saved, by_function=functions is not None)
    attach_recipe(study, recipe)
    return Session(study, url, **settings)


def _is_complete(name: str, url: str) -> bool:
    """Whether a study exists and is complete, so that there is nothing to try or search."""
    try:
        return url != IN_MEMORY and Session(opening.open_study(name, url), url).is_complete
    except StudyError:
        return False


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
