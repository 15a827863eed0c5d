"""``taylorglo status``, ``export``, ``report``, ``dashboard``: what a study holds; ``losses``."""

from __future__ import annotations

import socket
import threading
from argparse import Namespace
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from optuna_taylorglo.attributes import EVALUATION_OF, GENERATION, INDEX
from optuna_taylorglo.cli import options
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.evolution.history import SearchHistory, trial_loss
from optuna_taylorglo.losses.files import library, load_loss
from optuna_taylorglo.process import DONE, FAILED
from optuna_taylorglo.progress import PlainConsole
from optuna_taylorglo.recipes.load import settled_recipe
from optuna_taylorglo.recipes.schema import TrainingRecipe
from optuna_taylorglo.report.dashboard import fitness_line, is_installed, refresh, serve
from optuna_taylorglo.study.heartbeat import WorkerProcess
from optuna_taylorglo.study.open import check_file_exists, find_evaluation_study, open_storage
from optuna_taylorglo.study.optuna_private import study_id_of
from optuna_taylorglo.study.storages import resolve_storage_url, shown_url
from optuna_taylorglo.text import counted, write_atomically
from optuna_taylorglo.validation import nearest
from optuna_taylorglo.verdict.selection import is_undecided, load_selection, selected_loss


def add_commands(commands: options.Commands) -> None:
    help = "how far a search is and who works on it, or which studies there are"
    parser = options.add_command(commands, status, help, study=False)
    parser.add_argument("study", nargs="?", help="name of the study; default: a list of all")

    help = "write the winner, or a trial's loss, to a file"
    parser = options.add_command(commands, export, help)
    parser.add_argument("--trial", type=int, help="number of a trial; default: the winner")
    options.add_output_option(parser, "loss.json")

    parser = options.add_command(commands, report, "write a page about a study that works offline")
    options.add_output_option(parser, "report.html")

    parser = options.add_command(commands, dashboard, "watch a study in the browser")
    parser.add_argument("--port", type=options.up_to(65535), default=8080, help="(%(default)s)")

    help = "the losses that come with the package, or what one of them is"
    parser = options.add_command(commands, losses, help, study=False, storage=False)
    parser.add_argument("name", nargs="?", help="name of a loss; default: a list of all")
    help = "page to write with a picture of the loss, or of all"
    parser.add_argument("--output", "-o", type=Path, help=help)


def status(arguments: Namespace, stop: threading.Event) -> int:
    """Print the state of a study, or a line for each."""
    if arguments.study is not None:
        return _show_study(options.open_study_of(arguments), PlainConsole())
    url, console = resolve_storage_url(arguments.storage), PlainConsole()
    check_file_exists(url)
    storage = open_storage(url)
    table = Table("study", "data", "model", "generation", "best", "state")
    for name in sorted(optuna.get_all_study_names(storage)):
        study = optuna.load_study(study_name=name, storage=storage)
        if EVALUATION_OF not in study.user_attrs:
            table.add_row(name, *_cells(study))
    console.print(f"Studies in {shown_url(url)}" + ("" if table.row_count else ": none"))
    if table.row_count:
        console.print(table)
    return DONE


def _cells(study: Study) -> tuple[str, ...]:
    if (recipe := settled_recipe(study)) is None:
        return "", "", "", "", "no worker has begun"
    history, running = SearchHistory(study, recipe), _running(study)
    data, model = "in Python", "in Python"
    if isinstance(recipe, TrainingRecipe):
        data, model = (part.class_path.rsplit(".", 1)[-1] for part in (recipe.data, recipe.model))
    best = "" if history.best is None else f"{history.best.values[0]:.4f}"
    state = "winner not selected" if is_undecided(study, recipe) else "complete"
    if running:
        state = f"{len(running)} training"
    elif not history.finished:
        state = "interrupted" if history.trials else "not begun"
        if not history.trials and find_evaluation_study(study) is not None:
            state = "learning rate tuned"
    return data, model, f"{history.n_finished} of {recipe.search.total_generations}", best, state


def _show_study(opened: options.OpenedStudy, console: Console) -> int:
    """Generations, trials by state, workers, time left, and the best."""
    study, recipe, url = opened
    history, running = SearchHistory(study, recipe), _running(study)
    console.print(f"Study {study.study_name} in {shown_url(url)}")
    console.print(
        f"Generations: {history.n_finished} of {recipe.search.total_generations} complete, "
        f"{history.n_filled} of {counted(history.n_slots, 'candidates')} evaluated"
    )
    if recipe.search.method == "glo":
        console.print(f"Equal functions: {counted(history.n_reused, 'trees')} not evaluated again")
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in history.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    _show_workers(running, console)
    if running and not history.finished and (left := time_left(history)) is not None:
        about = str(left).partition(".")[0]
        console.print(f"Time left: about {about} for the search at the current rate")
    selection = load_selection(study)
    if recipe.selection is not None and history.finished:
        winner = "not selected yet" if selection is None else selection.winner.name
        console.print(f"Winner: {winner}")
    console.print(fitness_line(history, selection))
    return DONE


def _running(study: Study) -> list[FrozenTrial]:
    """Running trials of a search and of its evaluation study."""
    studies, running = filter(None, (study, find_evaluation_study(study))), (TrialState.RUNNING,)
    return [t for each in studies for t in each.get_trials(deepcopy=False, states=running)]


def _show_workers(running: list[FrozenTrial], console: Console) -> None:
    if not running:
        console.print("Workers: none is training")
        return
    table = Table("worker", "does", "for", "last heartbeat", title="Workers that train now")
    for trial in running:
        attrs, name = trial.user_attrs, f"training {trial.number}"
        if GENERATION in attrs:
            name = f"generation {attrs[GENERATION] + 1}, candidate {attrs[INDEX] + 1}"
        worker, start = WorkerProcess.of(trial), trial.datetime_start
        since = "" if start is None else str(datetime.now() - start).partition(".")[0]
        heartbeat = "none" if worker is None else f"{worker.silent_seconds:.0f} s ago"
        table.add_row(str(worker or "unknown"), name, since, heartbeat)
    console.print(table)


def time_left(history: SearchHistory) -> timedelta | None:
    """Time until the search is over at the rate of its latest evaluations; None if unknown."""
    ended = sorted(
        trial.datetime_complete
        for trial in history.trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.datetime_complete
    )[-50:]
    if len(ended) < 2:
        return None
    return (history.n_slots - history.n_filled) * (ended[-1] - ended[0]) / (len(ended) - 1)


def export(arguments: Namespace, stop: threading.Event) -> int:
    """Write the winner, or a trial's loss, to a file."""
    path = options.output_path(arguments, arguments.study, "loss.json")
    study = options.open_study_of(arguments).study
    if (number := arguments.trial) is None:
        selected = selected_loss(study)
        loss, name = selected.loss, selected.name
    else:
        trials = study.get_trials(deepcopy=False)
        if not 0 <= number < len(trials):
            n_trials = f"{counted(len(trials), 'trials')}, numbered from 0"
            which = f"study {study.study_name!r}, which has {n_trials}"
            raise UsageError(f"--trial {number} is not in {which}.")
        loss, name = trial_loss(study, trials[number]), f"trial {number}"
    loss.save(path)
    PlainConsole().print(f"Loss of {name} written to {path}.", soft_wrap=True)
    return DONE


def report(arguments: Namespace, stop: threading.Event) -> int:
    """Write a page about a study, with the newest verdict if there is one."""
    path = options.output_path(arguments, arguments.study, "report.html")
    opened = options.open_study_of(arguments)

    from optuna_taylorglo.report.build import write_report

    storage = None if opened.url == resolve_storage_url() else opened.url
    write_report(opened.study, path, storage=storage)
    PlainConsole().print(f"Report written to {path}.", soft_wrap=True)
    return DONE


def losses(arguments: Namespace, stop: threading.Event) -> int:
    """Print the losses of the library, or one of them; draw them if asked to."""
    known, console = library(), PlainConsole()
    if (name := arguments.name) is not None and name not in known:
        hint = nearest(name, known) or f"there are {', '.join(known)}"
        raise UsageError(f"there is no loss {name!r} in the library; {hint}")
    if arguments.output is not None:
        options.output_path(arguments, "losses", "")

    from optuna_taylorglo.losses.describe import describe

    found = {each: load_loss(each) for each in ([name] if name else known)}
    for each, loss in found.items():
        about = None if loss.origin is None else loss.origin.library
        assert about is not None, "a loss of the library says where it comes from"
        console.print(f"{each}: {about.use}. Found on {'; '.join(about.found_on)}.")
        if name:
            console.print(str(describe(loss, 10)))
            table = Table("task", "this loss", "best standard loss", "cross-entropy")
            for outcome in about.outcomes:
                standard = f"{outcome.standard:.3f} ({outcome.standard_loss})"
                numbers = f"{outcome.loss:.3f}", standard, f"{outcome.cross_entropy:.3f}"
                table.add_row(outcome.task, *numbers)
            console.print("Test accuracy on other tasks, each loss tuned by as many trainings:")
            console.print(table)
    if arguments.output is not None:
        from optuna_taylorglo.visualization import plot_losses

        write_atomically(arguments.output, plot_losses(found).to_html(include_plotlyjs=True))
        console.print(f"Picture written to {arguments.output}.", soft_wrap=True)
    return DONE


def dashboard(arguments: Namespace, stop: threading.Event) -> int:
    """Serve the Optuna dashboard with our figures, on this machine only, until Ctrl-C."""
    if not is_installed():
        raise UsageError("the dashboard is not installed: pip install optuna-dashboard")
    study = options.open_study_of(arguments).study
    refresh(study)
    try:
        socket.create_server(("127.0.0.1", arguments.port)).close()
    except OSError as error:
        raise UsageError(f"--port {arguments.port} cannot be used: {error.strerror}.") from error
    # The server blocks in a thread of its own, so that this one can wait for a signal.
    server = threading.Thread(target=serve, args=(study, arguments.port), daemon=True)
    server.start()
    address = f"http://127.0.0.1:{arguments.port}/dashboard/studies/{study_id_of(study)}"
    PlainConsole().print(f"Dashboard of study {study.study_name}: {address}\nCtrl-C ends it.")
    while server.is_alive() and not stop.wait(0.5):
        pass
    return DONE if stop.is_set() else FAILED
