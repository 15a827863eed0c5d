"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

Commands = argparse._SubParsersAction
Action = Callable[[argparse.Namespace, threading.Event], int]

MOST_TRAININGS = 1000
"""Largest number of trainings of one kind, so that a typing error starts no endless work."""

MOST_PROCESSES = 1000
"""Largest number of processes or threads."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedStudy:
    """A study with a recipe, and where it is.

    Attributes:
        study: The study.
        recipe: Its recipe.
        url: Its storage.
    """

    study: Study
    recipe: Recipe
    url: str


def open_study_at(study_name: str, url: str) -> OpenedStudy:
    """Open a study that exists.

    Raises:
        UsageError: If there is no such study, or it has no recipe.
    """
    study = open_study(study_name, url)
    return OpenedStudy(study, attach_recipe(study), url)


def open_study_of(arguments: argparse.Namespace) -> OpenedStudy:
    """The study that a command of `add_study_command` is about; errors as `open_study_at`."""
    return open_study_at(arguments.study, resolve_storage_url(arguments.storage))


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, action: Action, help: str
) -> argparse.ArgumentParser:
    """Add a command with the options that all have."""
    parser = commands.add_parser(name, help=help)
    add_storage_option(parser)
    add_verbosity_options(parser)
    parser.set_defaults(action=action)
    return parser


def add_study_command(
    commands: Commands[argparse.ArgumentParser], name: str, action: Action, help: str
) -> argparse.ArgumentParser:
    """Add a command about an existing study, which `open_study_of` opens."""
    parser = add_command(commands, name, action, help)
    parser.add_argument("study", help="name of the study")
    return parser


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="sqlite:///…, postgresql://…, mysql://… or a journal file; default: $OPTUNA_STORAGE, "
        "else sqlite:///taylorglo.db",
    )


def add_verbosity_options(parser: argparse.ArgumentParser) -> None:
    """How much is logged, also by the workers that a command starts."""
    parser.add_argument("-v", "--verbose", action="store_true", help="log more")
    parser.add_argument("-q", "--quiet", action="store_true", help="log errors only")


def add_version_option(parser: argparse.ArgumentParser) -> None:
    version = f"%(prog)s {__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version")


def add_seeds_option(parser: argparse.ArgumentParser, default: int, help: str) -> None:
    parser.add_argument(
        "--seeds", type=up_to(MOST_TRAININGS), default=default, help=f"{help} (%(default)s)"
    )


def add_output_option(
    parser: argparse.ArgumentParser, default: str | None, help: str = "file (%(default)s)"
) -> None:
    path = None if default is None else Path(default)
    parser.add_argument("--output", "-o", type=Path, default=path, help=help)


def check_output(path: Path) -> None:
    """Make sure, before anything is trained, that a file can be written; make its folder.

    Raises:
        UsageError: If it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {path} cannot be written: {path.parent} is no folder, and none can be made "
            f"({error.strerror})."
        ) from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        reason = "it is a folder" if path.is_dir() else f"no permission to write to {path.parent}"
        raise UsageError(f"--output {path} cannot be written: {reason}.")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this machine, which `RuntimeOptions.of` reads."""
    add = parser.add_argument_group("this machine").add_argument
    add("--data-dir", type=Path, default=Path("data"), help="where data sets are (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (%(default)s)")
    add(
        "--precision",
        default="auto",
        choices=["auto", "32-true", "bf16-mixed", "16-mixed"],
        help="numeric precision; auto takes bfloat16 where it is faster (%(default)s)",
    )
    add(
        "--threads",
        type=up_to(MOST_PROCESSES),
        default=1,
        help="CPU threads per worker; several workers of 1 beat one of several (%(default)s)",
    )
    add(
        "--allow",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="package whose classes the recipe may name, besides the bundled ones; repeatable",
    )


@dataclass(frozen=True)
class RuntimeOptions:
    """The options of `add_machine_options`, in a form that can be sent to another process.

    Attributes:
        data_dir: Where data sets are.
        device: Such as "auto" or "cuda:1".
        precision: "auto", or a precision of Lightning's.
        threads: CPU threads of a process.
        allowed_packages: Packages, besides the bundled ones, whose classes a recipe may name.
        verbose: Whether to log more.
        quiet: Whether to log errors only.
    """

    data_dir: Path = Path("data")
    device: str = "auto"
    precision: PrecisionName = "auto"
    threads: int = 1
    allowed_packages: tuple[str, ...] = ()
    verbose: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RuntimeOptions:
        """The options of a command."""
        names = ("data_dir", "device", "precision", "threads", "verbose", "quiet")
        given = {name: getattr(arguments, name) for name in names}
        return cls(allowed_packages=tuple(arguments.allow), **given)

    def flags(self) -> list[str]:
        """The options of the machine that are not at their default, as a command line has them."""
        flags = []
        for name in ("data_dir", "device", "precision", "threads"):
            if getattr(self, name) != getattr(RuntimeOptions, name):
                flags += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return flags + [word for name in self.allowed_packages for word in ("--allow", name)]

    def machine(self) -> RuntimeConfig:
        """The runtime that they describe, set up for training."""
        # Allowed modules may be in the working directory, for scripts as for `python -m`.
        if self.allowed_packages and not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())
        # Takes seconds to import: wrong usage is answered before.
        from optuna_taylorglo.training.runtime import RuntimeConfig

        runtime = RuntimeConfig(self.data_dir, self.device, self.precision, self.allowed_packages)
        runtime.prepare(threads=self.threads)
        return runtime


def machine_of(arguments: argparse.Namespace) -> RuntimeConfig:
    """The runtime that the options of `add_machine_options` describe, set up for training."""
    return RuntimeOptions.of(arguments).machine()


def dry_run(recipe: Recipe, runtime: RuntimeConfig, path: Path | None = None) -> Preflight:
    """Take one training step and one validation batch, and log what looks wrong.

    Args:
        recipe: The recipe.
        runtime: This machine.
        path: The recipe's file, whose line an error names; None for a recipe out of a study.

    Raises:
        UsageError: If it cannot work; the message says what to change.
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
        value = int(text)
        if not 1 <= value <= most:
            allowed = "at least 1" if most == math.inf else f"from 1 to {most}"
            raise argparse.ArgumentTypeError(f"{value} is not allowed, must be {allowed}")
        return value

    return number


positive = up_to(math.inf)


def seconds(text: str) -> float:
    """A time above 0, for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be above 0")
    return value
