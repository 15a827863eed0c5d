"""``taylorglo-worker --study-name NAME [--recipe FILE]``: evaluate trials."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from optuna_taylorglo.cli import options
from optuna_taylorglo.study.storages import resolve_storage_url
from optuna_taylorglo.worker import WorkerConfig, run


def build_parser() -> argparse.ArgumentParser:
    """The command line of a worker."""
    parser = argparse.ArgumentParser(
        prog="taylorglo-worker", description="Evaluate candidates of a TaylorGLO study."
    )
    options.add_version_option(parser)
    parser.add_argument("--study-name", required=True, help="name of the study")
    options.add_storage_option(parser)
    help = "a file or the name of a bundled one; needed once, later workers find it in the study"
    parser.add_argument("--recipe", type=Path, metavar="FILE", help=help)
    add = parser.add_argument_group("limits").add_argument
    add("--n-generations", type=options.positive, help="stop after this generation")
    add("--timeout", type=options.seconds, default=math.inf, help="claim no trial after this time")
    add("--max-trials", type=options.positive, default=math.inf, help="stop after this many trials")
    options.add_machine_options(parser)
    add = parser.add_argument_group("heartbeat").add_argument
    for name, default, text in (
        ("--heartbeat-interval", 60, "seconds between two heartbeats"),
        (
            "--grace-period",
            240,
            "seconds without one; after half as much again a trial is repeated",
        ),
    ):
        add(name, type=options.positive, default=default, help=f"{text} (%(default)s)")
    options.add_verbosity_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    given = parser.parse_args(argv)
    if given.heartbeat_interval >= given.grace_period:
        parser.error(
            f"--heartbeat-interval {given.heartbeat_interval} must be shorter than "
            f"--grace-period {given.grace_period}"
        )
    own = "recipe n_generations timeout max_trials heartbeat_interval grace_period verbose quiet"
    return run(
        WorkerConfig(
            given.study_name,
            resolve_storage_url(given.storage),
            options.runtime_of(given),
            **{name: getattr(given, name) for name in own.split()},
        )
    )


if __name__ == "__main__":
    sys.exit(main())
