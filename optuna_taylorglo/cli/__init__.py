"""``taylorglo``: the whole search by one command, and everything that follows from it."""

from optuna_taylorglo.cli.main import DONE, FAILED, INTERRUPTED, USAGE, build_parser, main

__all__ = ["DONE", "FAILED", "INTERRUPTED", "USAGE", "build_parser", "main"]
