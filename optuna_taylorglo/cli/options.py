"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from optuna.study import Study

from optuna_taylorglo import __version__
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.evolution.history import attach_recipe
from optuna_taylorglo.recipes.schema import Recipe
from optuna_taylorglo.study.open import open_study
from optuna_taylorglo.study.storages import resolve_storage_url
from optuna_taylorglo.text import as_file_name, check_writable
from optuna_taylorglo.training.runtime import RuntimeConfig

Commands: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"
Action = Callable[[Namespace, threading.Event], int]

# So that a typing error starts no endless work.
MOST_TRAININGS = MOST_PROCESSES = 1000


class OpenedStudy(NamedTuple):
    """A study with a recipe, and the URL of its storage."""

    study: Study
    recipe: Recipe
    url: str


def open_study_of(arguments: Namespace) -> OpenedStudy:
    """The study of a command; a `UsageError` says if there is none, or it has no recipe."""
    url = resolve_storage_url(arguments.storage)
    study = open_study(arguments.study, url)
    return OpenedStudy(study, attach_recipe(study), url)


def add_command(
    commands: Commands,
    action: Action,
    help: str,
    *,
    study: bool = True,
    storage: bool = True,
    machine: bool = False,
) -> ArgumentParser:
    """Add a command with the name of its function, and with options that several have."""
    parser = commands.add_parser(action.__name__, help=help)
    parser.set_defaults(action=action)
    if study:
        parser.add_argument("study", help="name of the study")
    if storage:
        add_storage_option(parser)
    add_verbosity_options(parser)
    if machine:
        add_machine_options(parser)
    return parser


def add_storage_option(parser: ArgumentParser) -> None:
    help = "database or journal file; default: $OPTUNA_STORAGE, else sqlite:///taylorglo.db"
    parser.add_argument("--storage", metavar="URL", help=help)


def add_verbosity_options(parser: ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    parser.add_argument("-q", "--quiet", action="store_true", help="log errors only")


def add_version_option(parser: ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def add_seeds_option(parser: ArgumentParser, default: int, help: str, least: int = 1) -> None:
    help += " (%(default)s)"
    parser.add_argument("--seeds", type=up_to(MOST_TRAININGS, least), default=default, help=help)


def add_output_option(parser: ArgumentParser, ending: str, help: str = "file") -> None:
    help = f"{help}; default: STUDY_{ending}"
    parser.add_argument("--output", "-o", type=Path, help=help)


def output_path(
    arguments: Namespace, study_name: str, ending: str, suffixes: Sequence[str] = ()
) -> Path:
    """The file to write, named after the study unless it was given.

    A `UsageError` says, before anything is opened or trained, that it cannot be written. Suffixes
    are those of several files that are written.
    """
    path: Path = arguments.output or Path(f"{as_file_name(study_name)}_{ending}")
    for each in (path, *(Path(f"{path}{suffix}") for suffix in suffixes)):
        _check_output(each)
    return path


def _check_output(path: Path) -> None:
    problem, folder = f"--output {path} cannot be written", path.parent
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise UsageError(f"{problem}: it is {kind}.")
        if not folder.exists():
            make = shlex.join(["mkdir", "-p", str(folder)])
            raise UsageError(f"{problem}: there is no folder {folder}. Make it with\n  {make}")
        check_writable(path)
    except OSError as error:
        raise UsageError(f"{problem} in {folder.absolute()}: {error.strerror}.") from error


def add_machine_options(parser: ArgumentParser) -> None:
    """Add the options of this machine, which `runtime_of` reads."""
    add = parser.add_argument_group("this machine").add_argument
    add("--data-dir", type=Path, default=Path("data"), help="where data sets are (%(default)s)")
    add("--device", type=_device, default="auto", help=f"{_DEVICES} (%(default)s)")
    precisions = ["auto", "32-true", "bf16-mixed", "16-mixed"]
    help = "numeric precision; auto takes bfloat16 where it is faster (%(default)s)"
    add("--precision", default="auto", choices=precisions, help=help)
    help = "CPU threads per worker; several workers of 1 beat one of several (%(default)s)"
    add("--threads", type=up_to(MOST_PROCESSES), default=1, help=help)
    help = "package whose classes the recipe may name, besides the bundled ones; repeatable"
    dest, metavar = "allowed_packages", "PACKAGE"
    add("--allow", action="append", default=[], dest=dest, metavar=metavar, help=help)


def runtime_of(arguments: Namespace) -> RuntimeConfig:
    """The options of `add_machine_options`."""
    given = {each.name: getattr(arguments, each.name) for each in fields(RuntimeConfig)}
    return RuntimeConfig(**given | {"allowed_packages": tuple(given["allowed_packages"])})


def add_workers_option(parser: ArgumentParser) -> None:
    help = "processes; default: one per core or GPU"
    parser.add_argument("--workers", type=up_to(MOST_PROCESSES), help=help)


def session_settings(arguments: Namespace, stop: threading.Event) -> dict[str, Any]:
    """How the trainings of a command are done, as fields of `Session`."""
    return {
        "runtime": runtime_of(arguments),
        "n_workers": arguments.workers,
        "in_process": False,
        "stop": stop,
        "verbose": arguments.verbose,
        "quiet": arguments.quiet,
    }


_DEVICES = "auto, cpu, mps, cuda, or one GPU such as cuda:1"


def _device(text: str) -> str:
    """A device that some machine has, for argparse."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed, must be {_DEVICES}")
    return text


def up_to(most: float, least: int = 1) -> Callable[[str], int]:
    """Whole numbers in a range, for argparse."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            problem = f"{text!r} is not allowed, must be a whole number"
            raise argparse.ArgumentTypeError(problem) from None
        if not least <= value <= most:
            allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{value} is not allowed, must be {allowed}")
        return value

    return number


positive = up_to(math.inf)


def seconds(text: str) -> float:
    """A time above 0, for argparse."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be above 0")
    return value
