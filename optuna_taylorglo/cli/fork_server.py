"""Imported by the fork server of `cli.forked` alone, whose copies then have all that workers need.

It ends with the command that started it and at no signal before, because it alone hears how its
copies end: one SIGTERM for a whole group, as batch systems send it, must not silence it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import warnings

_IMPORTED = (
    "lightning_modules.data",
    "lightning_modules.nets",
    "optuna_taylorglo.cli.verbs.baseline",
    "optuna_taylorglo.report.dashboard",
    "optuna_taylorglo.search.objective",
    "optuna_taylorglo.search.scheduler",
    "optuna_taylorglo.verdict.choosing",
    "optuna_taylorglo.verdict.reference",
    "optuna_taylorglo.verdict.task_runner",
    "optuna_taylorglo.worker",
)

_IGNORED = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

_heard_before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nobody asked for these imports yet
    for _name in _IMPORTED:
        importlib.import_module(_name)

# A collection would write into every object, and with it copy the pages that the processes share.
gc.collect()
gc.freeze()
# What is frozen is not freed when Python ends, of which extension modules complain at length.
atexit.register(os._exit, 0)


def hear_signals_again() -> None:
    """Undo in a copy what is for the server only."""
    while _heard_before:
        signal.signal(*_heard_before.popitem())
