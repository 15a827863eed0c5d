"""The workflow as functions: tune the learning rate, search, compare.

Each takes a training function or a recipe, works in this process or with several on this machine,
and continues what the study in its storage holds.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import optuna
from optuna.study import Study
from optuna.trial import TrialState

from optuna_taylorglo.errors import OperationError, UsageError
from optuna_taylorglo.evolution.history import SearchHistory, attach_recipe
from optuna_taylorglo.progress import PlainConsole
from optuna_taylorglo.recipes.load import find_recipe, load_recipe
from optuna_taylorglo.recipes.schema import Recipe, TrainingRecipe, function_recipe
from optuna_taylorglo.session import IN_MEMORY, Session, open_session
from optuna_taylorglo.study import open as opening
from optuna_taylorglo.study.optuna_private import storage_of
from optuna_taylorglo.study.storages import resolve_storage_url
from optuna_taylorglo.training.runtime import PrecisionName, RuntimeConfig
from optuna_taylorglo.validation import nearest
from optuna_taylorglo.verdict.baselines import DEFAULT_BASELINES
from optuna_taylorglo.verdict.selection import load_selection, selected_loss
from optuna_taylorglo.worker import Functions, Worker, WorkerConfig, check_kind

if TYPE_CHECKING:
    from optuna_taylorglo.losses.tree_loss import EvolvedLoss
    from optuna_taylorglo.training.function import Function
    from optuna_taylorglo.verdict.baselines import TunedRate
    from optuna_taylorglo.verdict.statistics import Verdict


class SearchResult:
    """What a search found; `search` makes it.

    Attributes:
        study: The study, for Optuna's own functions and for our plots.

    Examples:
        >>> from optuna_taylorglo import search
        >>> result = search(train, n_classes=3, n_generations=2, popsize=4, progress=False)
        >>> result.best_value > 0
        True
        >>> result.save("best_loss.json")
        >>> verdict = result.compare(test, n_seeds=2, against=["ce"])
        >>> result.report("report.html")  # with the verdict
    """

    def __init__(self, session: Session) -> None:
        self._session, self.study = session, session.study
        if SearchHistory(self.study, session.recipe).best is None:
            raise OperationError(
                f"no candidate of study {self.study.study_name!r} trained at all. A larger "
                "learning rate, loss.class_reduction: sum or search.filter: trainable may help."
            )

    @property
    def best_loss(self) -> EvolvedLoss:
        """The winner, in the place of `nn.CrossEntropyLoss`."""
        return selected_loss(self.study).loss

    @property
    def best_value(self) -> float:
        """Its validation metric: the mean of its full trainings, or of one without a selection."""
        selection = load_selection(self.study)
        if selection is not None and (mean := selection.winner.mean) is not None:
            return mean
        best = SearchHistory(self.study, self._session.recipe).best
        assert best is not None, "checked in the beginning"
        return float(best.values[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the winner to a file that `load_loss` reads."""
        self.best_loss.save(path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page about the search, and its verdict if there is one, that works offline."""
        from optuna_taylorglo.report.build import write_report

        url = self._session.url
        is_default = url in (IN_MEMORY, resolve_storage_url())
        write_report(self.study, path, storage=None if is_default else url)

    def compare(
        self,
        test: Function | None = None,
        *,
        n_seeds: int = 10,
        against: Sequence[str] = DEFAULT_BASELINES,
        n_workers: int | None = None,
    ) -> Verdict:
        """Compare the winner with tuned baselines on the test set; see `compare`.

        Args:
            test: Trains as `train` does and returns the test metric; for a recipe, None.
            n_seeds: Fresh trainings of each loss.
            against: Names of baselines, or paths of loss files.
            n_workers: Processes on this machine; by default as many as the search had.
        """
        session = self._session
        if session.functions is not None:
            session = replace(session, functions=_checked_functions(session.functions.train, test))
        if n_workers is not None:
            _url_of(None if session.url == IN_MEMORY else session.url, n_workers)
            session = replace(session, n_workers=n_workers, in_process=n_workers == 1)
        return session.compare(n_seeds, against)

    def __str__(self) -> str:
        from optuna_taylorglo.losses.describe import describe
        from optuna_taylorglo.report.dashboard import fitness_line, start_note

        selected = selected_loss(self.study)
        history = SearchHistory(self.study, self._session.recipe)
        lines = [
            f"Winner: {selected.name}",
            str(describe(selected.loss, selected.loss.n_classes or 2)),
            start_note(self.study, history),
            fitness_line(history, load_selection(self.study)),
        ]
        return "\n".join(filter(None, lines))


def search(
    train: Function | str | os.PathLike[str] | TrainingRecipe,
    *,
    n_classes: int | None = None,
    n_generations: int | None = None,
    popsize: int | None = None,
    seed: int | None = None,
    metric: str = "accuracy",
    direction: opening.Direction = "maximize",
    settings: Mapping[str, Any] | None = None,
    storage: str | None = None,
    study_name: str | None = None,
    n_workers: int | None = 1,
    progress: bool = True,
    **runtime: Any,
) -> SearchResult:
    """Search for a loss with which a network trains better.

    The search has a study, which the same call continues. With a storage, the call may be made by
    any number of processes at once, on any machine: they share the trainings. Candidates do not
    depend on how many processes there are, nor on which of them are killed.

    Args:
        train: A function that is called with a `Candidate`, trains a network with
            ``candidate.loss`` and returns its validation metric; or a recipe: its file, the name
            of a bundled one, or a `TrainingRecipe`.
        n_classes: Number of classes, for a function.
        n_generations: Generations of CMA-ES after 21 trainings of known losses; the default is the
            recipe's, or 2. 0: the best known loss is all that is wanted.
        popsize: Candidates per generation; the default is the recipe's, or 8.
        seed: Decides every candidate and every training's seed; the default is the recipe's, or 0.
        metric: What the function returns, for texts and figures.
        direction: Whether greater or smaller values are better, for a function.
        settings: Further sections of a recipe, such as ``{"loss": {"class_weights": [1, 4]}}``.
        storage: URL of a database, or path of a journal file; None: in memory.
        study_name: Name of the study; for a recipe's file, its stem unless given.
        n_workers: Processes on this machine; 1: this process, None: one per core or GPU.
        progress: Whether to show it.
        runtime: Of a recipe: data_dir, device, precision, threads, allowed_packages.

    Returns:
        The winner, its validation metric and the study.

    Raises:
        UsageError: For arguments, a function or a study that cannot be used.

    Examples:
        >>> import torch
        >>> from optuna_taylorglo import search
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> def train(candidate):
        ...     torch.manual_seed(candidate.seed)
        ...     net = torch.nn.Linear(4, 3)
        ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * candidate.lr_factor)
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         candidate.loss(net(x[:30]), y[:30]).backward()
        ...         optimizer.step()
        ...     return (net(x[30:]).argmax(1) == y[30:]).float().mean().item()
        >>> result = search(train, n_classes=3, n_generations=2, popsize=4, progress=False)
        >>> len(result.study.trials)  # 21 with known losses, and two generations of four
        29
        >>> loss = result.best_loss  # in the place of nn.CrossEntropyLoss()
        >>> loss(torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])).shape
        torch.Size([])
    """
    recipe, functions, stem = _what_to_search(
        train, n_classes, metric, direction, settings, n_generations, popsize, seed
    )
    name = study_name or stem
    session = _session(recipe, functions, storage, name, n_workers, progress, runtime)
    if not session.is_complete:
        with _saving_what_is_in_memory(session):
            session.search()
    return SearchResult(session)


def run_worker(
    train: Function,
    *,
    storage: str,
    study_name: str,
    test: Function | None = None,
    n_trials: int | None = None,
    timeout: float | None = None,
) -> None:
    """Work on a study of `search` in this process until nothing is left to do.

    Args:
        train: The function that the search was started with.
        storage: URL of the database, or path of the journal file.
        study_name: Name of the study.
        test: The function of a comparison, to take part in that too.
        n_trials: Trainings after which to end.
        timeout: Seconds after which no training is begun.

    Examples:
        >>> from optuna_taylorglo import run_worker
        >>> def start():  # on any machine that reaches the database
        ...     from my_project import train
        ...     run_worker(train, storage="postgresql+psycopg://user@host/db", study_name="mine")
    """
    config = WorkerConfig(
        study_name,
        storage,
        functions=_checked_functions(train, test),
        timeout=math.inf if timeout is None else timeout,
        max_trials=math.inf if n_trials is None else n_trials,
    )
    study = opening.open_study(study_name, storage, patience=opening.WORKER_PATIENCE)
    Worker(study, config, threading.Event()).work()


def compare(
    study: Study,
    test: Function | None = None,
    *,
    train: Function | None = None,
    n_seeds: int = 10,
    against: Sequence[str] = DEFAULT_BASELINES,
    storage: str | None = None,
    n_workers: int | None = 1,
    progress: bool = True,
    **runtime: Any,
) -> Verdict:
    """Compare the winner of a study with tuned baselines and controls, by full trainings.

    Trainings are paired by seed, and tested with Holm's correction. They are stored with the study:
    a second call trains what is missing.

    Args:
        study: A complete search.
        test: For a search with a function: one that is called with a `Candidate`, trains as
            `train` does, and returns the metric on the test set.
        train: For such a search, the function of the search, by which baselines are tuned.
        n_seeds: Trainings of each loss.
        against: Names of baselines, or paths of loss files.
        storage: URL of the study's storage, for more than one process.
        n_workers: Processes on this machine; 1: this process, None: one per core or GPU.
        progress: Whether to show it.
        runtime: Of a recipe: data_dir, device, precision, threads, allowed_packages.

    Returns:
        Samples, paired differences and what they say, in `text`.

    Examples:
        >>> from optuna_taylorglo import compare, search
        >>> settings = {"n_generations": 2, "popsize": 4, "progress": False}
        >>> study = search(train, n_classes=3, **settings).study
        >>> verdict = compare(study, test, train=train, n_seeds=2, against=["ce"], progress=False)
        >>> [sample.label for sample in verdict.samples][:2]
        ['evolved loss', 'cross-entropy']
        >>> verdict.lead("ce").low <= verdict.lead("ce").value
        True
    """
    if not isinstance(study, Study):
        raise UsageError(f"study is {study!r}, must be an optuna Study of a search.")
    recipe = attach_recipe(study)
    functions = _checked_functions(train, test) if train or test else None
    check_kind(study, recipe, by_function=functions is not None)
    session = Session(
        study,
        _url_of(storage, n_workers),
        functions,
        _runtime(runtime),
        n_workers,
        in_process=n_workers == 1,
        console=PlainConsole(quiet=not progress),
    )
    return session.compare(n_seeds, against)


def tune_learning_rate(
    train: Function | str | os.PathLike[str] | TrainingRecipe,
    *,
    loss: str | os.PathLike[str] | None = None,
    n_classes: int | None = None,
    seed: int | None = None,
    metric: str = "accuracy",
    direction: opening.Direction = "maximize",
    settings: Mapping[str, Any] | None = None,
    storage: str | None = None,
    study_name: str | None = None,
    n_workers: int | None = 1,
    progress: bool = True,
    **runtime: Any,
) -> list[TunedRate]:
    """Train with a loss at several learning rates: a dozen trainings, before any search.

    Args:
        train: As for `search`; a function must multiply its learning rate by
            ``candidate.lr_factor``.
        loss: A loss of the library, such as wrong-labels, or a loss file; None: cross-entropy.
        n_classes: Number of classes, for a function.
        seed: Decides the seeds of trainings; the default is the recipe's, or 0.
        metric: What the function returns, for texts.
        direction: Whether greater or smaller values are better, for a function.
        settings: Further sections of a recipe, for a function.
        storage: URL of a database, or path of a journal file; None: in memory.
        study_name: Name of the search that is to follow; its trainings are not touched.
        n_workers: Processes on this machine; 1: this process, None: one per core or GPU.
        progress: Whether to show it.
        runtime: Of a recipe: data_dir, device, precision, threads, allowed_packages.

    Returns:
        The rates with their mean validation metrics, the best first.

    Examples:
        >>> from optuna_taylorglo import tune_learning_rate
        >>> tuned = tune_learning_rate(train, n_classes=3, progress=False)
        >>> sorted(each.rate for each in tuned)  # factors on the function's own
        [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
        >>> best = tuned[0].label
    """
    recipe, functions, stem = _what_to_search(
        train, n_classes, metric, direction, settings, None, None, seed
    )
    # A study of its own: the recipe of a search may change after this.
    name = f"{study_name or stem or 'search'}_learning_rate"
    session = _session(recipe, functions, storage, name, n_workers, progress, runtime)
    return session.tune_learning_rate(loss)


def _what_to_search(
    train: Function | str | os.PathLike[str] | TrainingRecipe,
    n_classes: int | None,
    metric: str,
    direction: opening.Direction,
    settings: Mapping[str, Any] | None,
    n_generations: int | None,
    popsize: int | None,
    seed: int | None,
) -> tuple[Recipe, Functions | None, str]:
    """The recipe of a search, the functions that train if any, and a name for the study."""
    changes = {"n_generations": n_generations, "popsize": popsize, "seed": seed}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not callable(train):
        recipe, stem = train, ""
        if not isinstance(recipe, TrainingRecipe):
            if not isinstance(recipe, str | os.PathLike):
                raise UsageError(
                    f"train is {recipe!r}, must be a function of a candidate, or a recipe: its "
                    "file, the name of a bundled one, or a TrainingRecipe."
                )
            path = find_recipe(recipe)
            recipe, stem = load_recipe(path), path.stem
        given = {"n_classes": n_classes is not None, "settings": settings is not None}
        given |= {"metric": metric != "accuracy", "direction": direction != "maximize"}
        if wrong := [name for name, is_given in given.items() if is_given]:
            raise UsageError(f"{wrong[0]} is for a training function; a recipe says it itself.")
        if seed is not None:
            stem += f"_seed_{seed}"
        return recipe.changed(search=recipe.search.changed(**changes)), None, stem
    if n_classes is None:
        raise UsageError("n_classes is missing: give the number of classes, such as n_classes=10.")
    if not isinstance(settings, Mapping | None):
        example = "{'search': {'popsize': 8}}"
        raise UsageError(f"settings is {settings!r}, must be sections of a recipe: {example}.")
    mode = {"maximize": "max", "minimize": "min"}.get(direction)
    if mode is None:
        raise UsageError(f"direction is {direction!r}, must be 'maximize' or 'minimize'.")
    content: dict[str, Any] = {"n_classes": n_classes, **(settings or {})}
    content["fitness"] = {"metric": metric, "mode": mode} | content.get("fitness", {})
    content["search"] = content.get("search", {}) | changes
    return function_recipe(content), _checked_functions(train), ""


@contextlib.contextmanager
def _saving_what_is_in_memory(session: Session) -> Iterator[None]:
    """If the body raises, write the trainings of a search in memory to a file that continues it."""
    try:
        yield
    except BaseException as error:
        name = session.study.study_name
        if session.url == IN_MEMORY and session.study.get_trials(states=(TrialState.COMPLETE,)):
            file, saved = "taylorglo.log", f"{name}_{datetime.now():%Y%m%d_%H%M%S}"
            note = "Nothing is lost: call search again with the same arguments and "
            note += f"storage={file!r}, study_name={saved!r}."
            try:
                optuna.copy_study(
                    from_study_name=name,
                    from_storage=storage_of(session.study),
                    to_storage=opening.open_storage(file),
                    to_study_name=saved,
                )
            except Exception as problem:  # the first error is the one to be told
                note = f"What was trained could not be saved to {file}: {problem}"
            error.add_note(note)
        raise


def _checked_functions(train: Any, test: Any = None) -> Functions:
    for name, function in (("train", train), ("test", test)):
        if function is not None and not callable(function):
            raise UsageError(f"{name} is {function!r}, must be a function of a candidate.")
    return Functions(train, test)


def _session(
    recipe: Recipe,
    functions: Functions | None,
    storage: str | None,
    name: str,
    n_workers: int | None,
    progress: bool,
    runtime: Mapping[str, Any],
) -> Session:
    url, config = _url_of(storage, n_workers), _runtime(runtime)
    if storage is not None and not name:
        raise UsageError("study_name is missing: it is how the study is found in the storage.")
    if not isinstance(name, str):
        raise UsageError(f"study_name is {name!r}, must be text.")
    if functions is not None and runtime:
        given = ", ".join(runtime)
        raise UsageError(f"{given}: for recipes only; a training function decides by itself.")
    return open_session(
        recipe,
        name,
        url,
        functions=functions,
        runtime=config,
        n_workers=n_workers,
        in_process=n_workers == 1,
        console=PlainConsole(quiet=not progress),
    )


def _url_of(storage: str | None, n_workers: int | None) -> str:
    if n_workers is not None and (not isinstance(n_workers, int) or n_workers < 1):
        raise UsageError(f"n_workers is {n_workers!r}, must be 1 or more, or None for all cores.")
    if storage is None and n_workers != 1:
        raise UsageError(
            f"n_workers {n_workers} needs a storage that processes can share, such as "
            "storage='sqlite:///taylorglo.db'."
        )
    if storage is not None and not isinstance(storage, str):
        raise UsageError(
            f"storage is {storage!r}, must be a URL such as 'sqlite:///taylorglo.db', or the path "
            "of a journal file."
        )
    return storage or IN_MEMORY


def _runtime(options: Mapping[str, Any]) -> RuntimeConfig:
    known = [each.name for each in fields(RuntimeConfig)]
    if unknown := [name for name in options if name not in known]:
        others = ("n_workers", "n_generations", "popsize", "seed", "storage", "study_name", "train")
        hint = nearest(unknown[0], [*known, *others]) or f"of a recipe there are {', '.join(known)}"
        raise UsageError(f"there is no argument {unknown[0]!r}; {hint}")
    plain, threads, precisions = dict(options), options.get("threads", 1), get_args(PrecisionName)
    if not isinstance(threads, int) or threads < 1:
        raise UsageError(f"threads is {threads!r}, must be 1 or more.")
    if (precision := options.get("precision", "auto")) not in precisions:
        raise UsageError(f"precision is {precision!r}, must be one of {', '.join(precisions)}.")
    for name, kind in (("data_dir", Path), ("allowed_packages", tuple)):
        if name in plain:
            plain[name] = kind(plain[name])
    return RuntimeConfig(**plain)
