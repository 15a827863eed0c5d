"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from optuna.study import Study

from optuna_taylorglo import __version__
from optuna_taylorglo.errors import RecipeError, UsageError
from optuna_taylorglo.recipes.load import line_of
from optuna_taylorglo.search.history import attach_recipe
from optuna_taylorglo.study.open import open_study
from optuna_taylorglo.study.storages import resolve_storage_url

if TYPE_CHECKING:
    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.training.preflight import Preflight
    from optuna_taylorglo.training.runtime import PrecisionName, RuntimeConfig

Commands: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"
Action = Callable[[Namespace, threading.Event], int]

# So that a typing error starts no endless work.
MOST_TRAININGS = MOST_PROCESSES = 1000

logger = logging.getLogger(__name__)


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


def add_seeds_option(parser: ArgumentParser, default: int, help: str) -> None:
    help += " (%(default)s)"
    parser.add_argument("--seeds", type=up_to(MOST_TRAININGS), default=default, help=help)


def add_output_option(
    parser: ArgumentParser, default: Path | None, help: str = "file (%(default)s)"
) -> None:
    parser.add_argument("--output", "-o", type=Path, default=default, help=help)


def check_output(path: Path) -> None:
    """Make sure, before anything is trained, that a file can be written; make its folder."""
    if path.is_dir():
        raise UsageError(f"--output {path} cannot be written: it is a folder.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        reason = f"{error.strerror}: {path.parent}"
        raise UsageError(f"--output {path} cannot be written ({reason}).") from error


def add_machine_options(parser: ArgumentParser) -> None:
    """Add the options of this machine, which `RuntimeOptions.of` reads."""
    add = parser.add_argument_group("this machine").add_argument
    add("--data-dir", type=Path, default=Path("data"), help="where data sets are (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (%(default)s)")
    precisions = ["auto", "32-true", "bf16-mixed", "16-mixed"]
    help = "numeric precision; auto takes bfloat16 where it is faster (%(default)s)"
    add("--precision", default="auto", choices=precisions, help=help)
    help = "CPU threads per worker; several workers of 1 beat one of several (%(default)s)"
    add("--threads", type=up_to(MOST_PROCESSES), default=1, help=help)
    help = "package whose classes the recipe may name, besides the bundled ones; repeatable"
    dest, metavar = "allowed_packages", "PACKAGE"
    add("--allow", action="append", default=[], dest=dest, metavar=metavar, help=help)


@dataclass(frozen=True)
class RuntimeOptions:
    """The options of `add_machine_options` and how much to log, to be sent to another process."""

    data_dir: Path = Path("data")
    device: str = "auto"
    precision: PrecisionName = "auto"
    threads: int = 1
    allowed_packages: Sequence[str] = ()
    verbose: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, arguments: Namespace) -> RuntimeOptions:
        """The options of a command."""
        return cls(**{each.name: getattr(arguments, each.name) for each in fields(cls)})

    def flags(self) -> list[str]:
        """The options that are not at their default, as a command line has them."""
        flags = []
        for name in ("data_dir", "device", "precision", "threads"):
            if getattr(self, name) != getattr(RuntimeOptions, name):
                flags += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        for name in self.allowed_packages:
            flags += ["--allow", name]
        return flags + ["-v"] * self.verbose + ["-q"] * self.quiet

    def machine(self) -> RuntimeConfig:
        """The runtime that they describe, set up for training."""
        # Allowed modules may be in the working directory, for scripts as for `python -m`.
        if self.allowed_packages and not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())
        # Takes seconds to import: wrong usage is answered before.
        from optuna_taylorglo.training.runtime import RuntimeConfig

        allowed = tuple(self.allowed_packages)
        runtime = RuntimeConfig(self.data_dir, self.device, self.precision, allowed)
        runtime.prepare(threads=self.threads)
        return runtime


def machine_of(arguments: Namespace) -> RuntimeConfig:
    """The runtime that the options of `add_machine_options` describe, set up for training."""
    return RuntimeOptions.of(arguments).machine()


def dry_run(recipe: Recipe, runtime: RuntimeConfig, path: Path | None = None) -> Preflight:
    """Take one training step and one validation batch, and log what looks wrong.

    Errors name the line of the recipe's file; `path` is None for a recipe out of a study.
    """
    from optuna_taylorglo.training.preflight import preflight

    try:
        found = preflight(recipe, runtime)
    except RecipeError as error:
        if path is None:
            raise
        line = line_of(path, error.field)
        raise error.from_source(f"{path}, line {line}" if line else str(path)) from error.__cause__
    for warning in found.warnings:
        logger.warning("%s", warning)
    return found


def up_to(most: float) -> Callable[[str], int]:
    """Whole numbers of at least 1 and at most so much, for argparse."""

    def number(text: str) -> int:
        if not 1 <= (value := int(text)) <= most:
            allowed = "at least 1" if most == math.inf else f"from 1 to {most}"
            raise argparse.ArgumentTypeError(f"{value} is not allowed, must be {allowed}")
        return value

    return number


positive = up_to(math.inf)


def seconds(text: str) -> float:
    """A time above 0, for argparse."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be above 0")
    return value
