"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_taylorglo import __version__
from optuna_taylorglo.errors import UsageError
from optuna_taylorglo.search.study import attach_recipe
from optuna_taylorglo.study.open import open_study
from optuna_taylorglo.study.storages import resolve_storage_url

if TYPE_CHECKING:
    from optuna_taylorglo.recipes.schema import Recipe
    from optuna_taylorglo.training.runtime import PrecisionName, RuntimeConfig

Verbs = argparse._SubParsersAction
Action = Callable[[argparse.Namespace, threading.Event], int]


@dataclass(frozen=True)
class OpenedStudy:
    """A study that a command is about.

    Attributes:
        study: The study.
        recipe: Its recipe.
        url: Its storage.
    """

    study: Study
    recipe: Recipe
    url: str


def add_verb(
    verbs: Verbs[argparse.ArgumentParser], name: str, action: Action, help: str
) -> argparse.ArgumentParser:
    """A verb of ``taylorglo`` with the options that all of them have."""
    parser = verbs.add_parser(name, help=help)
    add_storage_option(parser)
    add_verbosity_options(parser)
    parser.set_defaults(action=action)
    return parser


def add_study_verb(
    verbs: Verbs[argparse.ArgumentParser], name: str, action: Action, help: str
) -> argparse.ArgumentParser:
    """A verb about a study that exists; `open_study_of` opens it."""
    parser = add_verb(verbs, name, action, help)
    parser.add_argument("study", help="name of the study")
    return parser


def open_study_of(arguments: argparse.Namespace) -> OpenedStudy:
    """The study that a verb of `add_study_verb` is about.

    Raises:
        UsageError: If there is no such study, or no worker has begun on it.
    """
    return open_study_at(arguments.study, resolve_storage_url(arguments.storage))


def open_study_at(study_name: str, url: str) -> OpenedStudy:
    """A study by its name and its storage; errors as `open_study_of`."""
    study = open_study(study_name, url)
    return OpenedStudy(study, attach_recipe(study, None), url)


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """The option that says where studies are kept."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="sqlite:///…, postgresql://…, mysql://… or a journal file; default: $OPTUNA_STORAGE, "
        "else sqlite:///taylorglo.db",
    )


def add_verbosity_options(parser: argparse.ArgumentParser) -> None:
    """How much is said; workers that a command starts are told the same."""
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what went wrong")


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """The option that says which version this is."""
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {__version__}",
        help="say which version this is",
    )


def add_output_option(parser: argparse.ArgumentParser, default: str) -> None:
    """The file that a command writes."""
    parser.add_argument(
        "--output", "-o", type=Path, default=Path(default), help="file (%(default)s)"
    )


def check_output(path: Path) -> None:
    """Make sure, before anything is trained, that a file can be written in the end.

    Folders on the way to it are made.

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
        reason = "it is a folder" if path.is_dir() else f"{path.parent} is not ours to write"
        raise UsageError(f"--output {path} cannot be written: {reason}.")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Options that belong to the machine; `RuntimeOptions` reads them."""
    group = parser.add_argument_group("this machine")
    group.add_argument(
        "--data-dir", type=Path, default=Path("data"), help="where data sets lie (%(default)s)"
    )
    group.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (%(default)s)"
    )
    group.add_argument(
        "--precision",
        default="auto",
        choices=["auto", "32-true", "bf16-mixed", "16-mixed"],
        help="numeric precision; auto takes bfloat16 where it is faster (%(default)s)",
    )
    group.add_argument(
        "--threads",
        type=up_to(MOST_PROCESSES),
        default=1,
        help="CPU threads per worker; several workers of 1 beat one of several (%(default)s)",
    )
    group.add_argument(
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
        precision: "auto", or a precision of `training.precision`.
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

    def machine(self) -> RuntimeConfig:
        """The machine that they describe, set up for training."""
        if self.allowed_packages:
            _find_modules_here()
        # Only now what takes seconds to import: wrong usage is answered before.
        from optuna_taylorglo.training.runtime import RuntimeConfig

        machine = RuntimeConfig(self.data_dir, self.device, self.precision, self.allowed_packages)
        machine.prepare(threads=self.threads)
        return machine


def machine_of(arguments: argparse.Namespace) -> RuntimeConfig:
    """The machine that the options of `add_machine_options` describe, set up for training."""
    return RuntimeOptions.of(arguments).machine()


def _find_modules_here() -> None:
    """Let allowed modules lie in the working directory, for scripts as for ``python -m``."""
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)


def given_machine_words(arguments: argparse.Namespace) -> list[str]:
    """The machine's options that are not at their default, as words of a command line."""
    parser = argparse.ArgumentParser()
    add_machine_options(parser)
    words = []
    for option, default in vars(parser.parse_args([])).items():
        value = getattr(arguments, option)
        if value != default:
            values = value if isinstance(value, list) else [value]
            words += [word for each in values for word in (_flag(option), str(each))]
    return words


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


MOST_TRAININGS = 1000
"""Of one kind that a command may be asked for, so that a slip of the pen starts no endless work."""

MOST_PROCESSES = 1000
"""That a command starts; a machine with more cores needs more commands."""


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be at least 1")
    return value


def up_to(most: int) -> Callable[[str], int]:
    """Whole numbers of at least 1 and at most so much, for argparse."""

    def number(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not allowed, must be from 1 to {most}")
        return value

    return number


def seconds(text: str) -> float:
    """A time above 0, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not allowed, must be above 0")
    return value
