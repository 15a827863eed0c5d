"""``taylorglo export STUDY``: the best loss, or a trial's, as a file."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from rich.console import Console

from optuna_taylorglo.errors import StudyError
from optuna_taylorglo.search.history import trial_loss, winner
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.storage.open_study import open_study
from optuna_taylorglo.storage.urls import resolve_storage_url
from optuna_taylorglo.worker import DONE, add_storage_option


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("export", help="write the best loss, or a trial's, to a file")
    parser.add_argument("study", help="name of the study")
    parser.add_argument("--trial", type=int, help="number of a trial; default: the best")
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("best_loss.json"), help="file (%(default)s)"
    )
    add_storage_option(parser)
    parser.set_defaults(action=run)


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write the file."""
    study = open_study(arguments.study, resolve_storage_url(arguments.storage))
    attach_recipe(study, None)
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
