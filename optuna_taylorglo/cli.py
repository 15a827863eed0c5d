"""``taylorglo``: the whole search by one command, and looking at what it has come to.

taylorglo run studies/digits_cnn.yaml      create or resume a study and search
taylorglo status STUDY                     how far it is
taylorglo export STUDY                     its best loss as a file
taylorglo baseline STUDY                   cross-entropy at the candidates' budget
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from optuna_taylorglo.config import RecipeMismatch, load_recipe
from optuna_taylorglo.results import Progress, progress, trial_loss, winner
from optuna_taylorglo.rules import RecipeError
from optuna_taylorglo.storage import hide_password, resolve_storage_url
from optuna_taylorglo.studies import (
    StudyError,
    create_companion,
    create_study,
    open_study,
    settle_recipe,
)
from optuna_taylorglo.supervisor import Supervisor, WorkersFailed
from optuna_taylorglo.worker import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    add_machine_options,
    add_storage_option,
    configure_logging,
    positive,
    stop_on_signals,
)

if TYPE_CHECKING:
    from optuna.study import Study

    from optuna_taylorglo.recipe import Recipe

logger = logging.getLogger("optuna_taylorglo.cli")

LOG_DIR = Path("taylorglo-logs")
BASELINE_SEEDS = 3


def build_parser() -> argparse.ArgumentParser:
    """The command line of `taylorglo`."""
    parser = argparse.ArgumentParser(
        prog="taylorglo", description="Evolve loss functions for your network."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    run = verbs.add_parser("run", help="create or resume a study and search with local workers")
    run.add_argument("recipe", type=Path, help="recipe file, such as studies/digits_cnn.yaml")
    run.add_argument("--study-name", help="name of the study; default: the recipe file's stem")
    run.add_argument(
        "--workers", type=positive, help="worker processes; default: one a core or GPU"
    )
    run.add_argument("--output", "-o", type=Path, default=Path("best_loss.json"))
    add_storage_option(run)
    add_machine_options(run)
    run.set_defaults(action=_run)

    evaluate = verbs.add_parser(
        "evaluate", help="compare the winner with baselines by full trainings on the test set"
    )
    evaluate.add_argument("study", help="name of the study")
    evaluate.add_argument(
        "--seeds", type=positive, default=10, help="trainings a loss (%(default)s)"
    )
    evaluate.add_argument(
        "--against",
        default="ce,ce-tuned,ce-smoothed,baikal-cma",
        help="what to compare with: ce, ce-tuned, ce-smoothed, baikal, baikal-cma or loss files, "
        "separated by commas (%(default)s)",
    )
    evaluate.add_argument(
        "--rerank",
        type=int,
        default=5,
        help="evaluate so many of the best candidates again with fresh seeds and take the best of "
        "them; 0: the single best evaluation, the paper's rule (%(default)s)",
    )
    evaluate.add_argument("--workers", type=positive, help="processes; default: one a core or GPU")
    evaluate.add_argument(
        "--output", "-o", type=Path, default=Path("verdict"), help="files to write (%(default)s.*)"
    )
    add_storage_option(evaluate)
    add_machine_options(evaluate)
    evaluate.set_defaults(action=_evaluate)

    for verb, action, text in (
        ("status", _status, "how far a search is"),
        ("export", _export, "write the best loss, or a trial's, to a file"),
        ("baseline", _baseline, "train with cross-entropy at the candidates' budget"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("study", help="name of the study")
        add_storage_option(command)
        command.set_defaults(action=action)
        if verb == "export":
            command.add_argument("--output", "-o", type=Path, default=Path("best_loss.json"))
            command.add_argument("--trial", type=int, help="number of a trial; default: the best")
        if verb == "baseline":
            command.add_argument("--seeds", type=positive, default=BASELINE_SEEDS)
            add_machine_options(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and turn what goes wrong into one message and an exit code."""
    arguments = build_parser().parse_args(argv)
    configure_logging()
    stop = stop_on_signals()
    try:
        code: int = arguments.action(arguments, stop)
    except (RecipeError, RecipeMismatch, StudyError, ValueError) as error:
        logger.error("%s", error)
        return USAGE
    except (WorkersFailed, OSError, RuntimeError) as error:
        logger.error("%s", error)
        return FAILED
    return code


def _run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    url = resolve_storage_url(arguments.storage)
    recipe = load_recipe(arguments.recipe)
    name = arguments.study_name or arguments.recipe.stem
    study = create_study(name, url)
    recipe = settle_recipe(study, recipe)
    console = Console()
    over = progress(study, recipe).generation >= recipe.search.generations
    if not over and not _search(study, recipe, arguments, url, stop, console):
        logger.info("stopped; the same command goes on where it was")
        return INTERRUPTED
    _announce_winner(study, recipe, arguments.output, url, console)
    return DONE


def _search(
    study: Study,
    recipe: Recipe,
    arguments: argparse.Namespace,
    url: str,
    stop: threading.Event,
    console: Console,
) -> bool:
    """Let workers search until the end; returns whether it was reached."""
    from optuna_taylorglo.live import LiveProgress

    machine = _machine_words(arguments)
    python = [sys.executable, "-m"]
    worker = [*python, "optuna_taylorglo.worker", "--study-name", study.study_name, *machine]
    baseline = [*python, "optuna_taylorglo.cli", "baseline", study.study_name, *machine]
    environments = _worker_environments(arguments.workers, arguments.device)
    # The URL goes by the environment: a command line, with the password in it, is for all to see.
    storage = {"OPTUNA_STORAGE": url}
    commands = [baseline, *([worker] * len(environments))]
    supervisor = Supervisor(
        commands,
        LOG_DIR / study.study_name,
        [extra | storage for extra in ({}, *environments)],
    )
    console.print(
        f"Study [bold]{study.study_name}[/] in {_shown(url)}: {len(environments)} workers, "
        f"{recipe.search.generations} generations of {recipe.search.population} candidates. "
        f"Logs in {LOG_DIR / study.study_name}."
    )
    supervisor.start()
    try:
        with LiveProgress(console) as live:
            while supervisor.poll() and not stop.wait(1.0):
                live.show(progress(study, recipe))
            live.show(progress(study, recipe))
    finally:
        supervisor.stop()
    return not stop.is_set()


def _machine_words(arguments: argparse.Namespace) -> list[str]:
    """The machine's options, for the command line of a worker."""
    return [
        *("--data-dir", str(arguments.data_dir), "--device", arguments.device),
        *("--precision", arguments.precision, "--threads", str(arguments.threads)),
        *(word for package in arguments.allow for word in ("--allow", package)),
    ]


def _worker_environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """One environment a worker: each sees one GPU, or shares the CPU."""
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    count = workers or gpus or len(os.sched_getaffinity(0))
    if gpus == 0:
        return [{} for _ in range(count)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[i % len(names)]} for i in range(count)]


def _announce_winner(
    study: Study, recipe: Recipe, output: Path, url: str, console: Console
) -> None:
    from optuna_taylorglo.description import describe

    best = winner(study)
    if best is None or best.value is None:
        raise StudyError(
            f"no candidate of study {study.study_name!r} trained at all. A larger learning rate, "
            "search.filter: trainable or loss.class_reduction: sum in the recipe may help."
        )
    loss = trial_loss(study, best)
    loss.save(output)
    state = progress(study, recipe)
    storage = "" if url == resolve_storage_url() else f" --storage {shlex.quote(_shown(url))}"
    console.print(f"\n[bold]Winner[/]: trial {best.number} of study {study.study_name}")
    console.print(str(describe(loss, loss.n_classes or 2)), highlight=False)
    console.print(f"{_fitness_line(state, recipe)}\n\nSaved to [bold]{output}[/]. Next:")
    for command in (
        f"taylorglo status {study.study_name}{storage}",
        f"optuna-dashboard {shlex.quote(_shown(url))}",
        f"python -c \"from optuna_taylorglo import load_loss; print(load_loss('{output}'))\"",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


def _status(arguments: argparse.Namespace, stop: threading.Event) -> int:
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    recipe = settle_recipe(study, None)
    state = progress(study, recipe)
    console = Console()
    console.print(f"Study [bold]{study.study_name}[/] in {_shown(url)}")
    console.print(
        f"Generations: {state.generation} of {state.generations} complete, "
        f"{state.filled} of {state.slots} candidates evaluated"
    )
    states = ", ".join(f"{n} {s.name.lower()}" for s, n in state.counts.items() if n)
    console.print(f"Trials: {states or 'none yet'}")
    console.print(_fitness_line(state, recipe))
    return DONE


def _export(arguments: argparse.Namespace, stop: threading.Event) -> int:
    study = open_study(arguments.study, resolve_storage_url(arguments.storage))
    settle_recipe(study, None)
    if arguments.trial is None:
        trial = winner(study)
        if trial is None:
            raise StudyError(f"study {study.study_name!r} has no complete trial yet.")
    else:
        trials = study.get_trials(deepcopy=False)
        if not 0 <= arguments.trial < len(trials):
            raise StudyError(
                f"--trial {arguments.trial} is not in study {study.study_name!r}, which has "
                f"{len(trials)} trials, numbered from 0."
            )
        trial = trials[arguments.trial]
    trial_loss(study, trial).save(arguments.output)
    Console().print(f"Loss of trial {trial.number} written to [bold]{arguments.output}[/].")
    return DONE


def _baseline(arguments: argparse.Namespace, stop: threading.Event) -> int:
    study = open_study(arguments.study, resolve_storage_url(arguments.storage))
    recipe = settle_recipe(study, None)

    from optuna_taylorglo.baseline import evaluate_cross_entropy
    from optuna_taylorglo.training import Interrupted, Machine, Training

    machine = Machine(
        data_dir=arguments.data_dir,
        device=arguments.device,
        precision=arguments.precision,
        allowed_packages=tuple(arguments.allow),
    )
    machine.prepare(threads=arguments.threads)
    try:
        evaluate_cross_entropy(study, Training(recipe, machine), arguments.seeds, stop)
    except Interrupted:
        return INTERRUPTED
    Console().print(_fitness_line(progress(study, recipe), recipe))
    return DONE


def _evaluate(arguments: argparse.Namespace, stop: threading.Event) -> int:
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    recipe = settle_recipe(study, None)

    from optuna_taylorglo.evaluate import Plan, evaluate
    from optuna_taylorglo.local_tasks import LocalTasks
    from optuna_taylorglo.training import Interrupted
    from optuna_taylorglo.verdict_file import SHORT_HEADER, keep_verdict, short_rows, write_verdict

    plan = Plan(arguments.seeds, tuple(arguments.against.split(",")), arguments.rerank)
    console = Console()
    companion = create_companion(study, url)
    environments = _worker_environments(arguments.workers, arguments.device)
    command = [sys.executable, "-m", "optuna_taylorglo.worker"]
    command += ["--study-name", companion.study_name, *_machine_words(arguments)]
    supervisor = Supervisor(
        [command] * len(environments),
        LOG_DIR / companion.study_name,
        [extra | {"OPTUNA_STORAGE": url} for extra in environments],
    )
    try:
        with LocalTasks(companion, supervisor, stop, console) as do:
            verdict = evaluate(study, recipe, plan, do)
    except Interrupted:
        logger.info("stopped; the same command goes on where it was")
        return INTERRUPTED
    keep_verdict(companion, verdict)
    table = Table(
        *SHORT_HEADER,
        title=f"{verdict.test_metric} after {recipe.budget.full} "
        f"{recipe.budget.unit}, {plan.seeds} seeds",
    )
    for row in short_rows(verdict):
        table.add_row(*row)
    console.print(table)
    console.print(verdict.text, highlight=False)
    files = write_verdict(verdict, arguments.output)
    console.print("Written to " + ", ".join(str(file) for file in files))
    return DONE


def _fitness_line(state: Progress, recipe: Recipe) -> str:
    """Best candidate and cross-entropy, in words that say how each number came about."""
    parts = []
    if state.best is not None and state.best.value is not None:
        parts.append(
            f"{recipe.fitness.metric}: {state.best.value:.4f}, one training of the best of "
            f"{state.counts_of_complete} candidates (expect less of it on other seeds)"
        )
    if state.cross_entropy:
        low, high = min(state.cross_entropy), max(state.cross_entropy)
        mean = sum(state.cross_entropy) / len(state.cross_entropy)
        parts.append(
            f"cross-entropy at the same budget: {mean:.4f}, mean of {len(state.cross_entropy)} "
            f"seeds ({low:.4f} to {high:.4f})"
        )
    return "\n".join(parts) or "No candidate is complete yet."


def _shown(url: str) -> str:
    return hide_password(url) if "://" in url else url


if __name__ == "__main__":
    sys.exit(main())
