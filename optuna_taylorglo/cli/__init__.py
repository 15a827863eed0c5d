"""``taylorglo``: the whole search by one command, and everything that follows from it."""

from optuna_taylorglo.cli.main import build_parser, main
from optuna_taylorglo.process import DONE, FAILED, INTERRUPTED, USAGE

__all__ = ["DONE", "FAILED", "INTERRUPTED", "USAGE", "build_parser", "main"]
