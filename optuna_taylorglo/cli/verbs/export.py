"""``taylorglo export STUDY``: the winner, or a trial's loss, as a file."""

from __future__ import annotations

import argparse
import threading

from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_taylorglo.cli import options
from optuna_taylorglo.cli.console import PlainConsole, bold
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.process import DONE
from optuna_taylorglo.search.history import trial_loss
from optuna_taylorglo.verdict.winner import selected_loss


def add_parser(verbs: options.Verbs[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    help_ = "write the winner, or a trial's loss, to a file"
    parser = options.add_study_verb(verbs, "export", run, help_)
    parser.add_argument("--trial", type=int, help="number of a trial; default: the winner")
    options.add_output_option(parser, "best_loss.json")


def run(arguments: argparse.Namespace, stop: threading.Event) -> int:
    """Write the file."""
    options.check_output(arguments.output)
    study = options.open_study_of(arguments).study
    if arguments.trial is None:
        chosen = selected_loss(study)
        loss, name = chosen.loss, chosen.name
    else:
        trial = _numbered(study, arguments.trial)
        loss, name = trial_loss(study, trial), f"trial {trial.number}"
    loss.save(arguments.output)
    PlainConsole().print(f"Loss of {name} written to ", bold(arguments.output), ".", sep="")
    return DONE


def _numbered(study: Study, number: int) -> FrozenTrial:
    trials = study.get_trials(deepcopy=False)
    if not 0 <= number < len(trials):
        raise UsageError(
            f"--trial {number} is not in study {study.study_name!r}, which has {len(trials)} "
            "trials, numbered from 0."
        )
    return trials[number]
