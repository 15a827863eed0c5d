"""Options that commands share: what a user says reaches the workers that a command starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optuna_taylorglo import cli, worker
from optuna_taylorglo.cli.options import RuntimeOptions, machine_of

MACHINES = {
    "nothing said": [],
    "verbose": ["-v"],
    "quiet": ["--quiet"],
    "a folder with a blank": ["--data-dir", "my data/sets"],
    "everything": [
        *("--data-dir", "/data", "--device", "cuda:1", "--precision", "bf16-mixed"),
        *("--threads", "3", "--allow", "mine", "--allow", "yours.nets", "-v"),
    ],
}


def test_a_hint_repeats_what_was_said_about_the_machine_and_no_more():
    parse = cli.build_parser().parse_args
    assert RuntimeOptions.of(parse(["run", "r.yaml", "-v"])).flags() == []
    said = parse(["run", "r.yaml", *MACHINES["everything"]])
    heard = parse(["evaluate", "s", *RuntimeOptions.of(said).flags()])
    for name in ("data_dir", "device", "precision", "threads", "allow"):
        assert getattr(heard, name) == getattr(said, name), name


@pytest.mark.parametrize("case", MACHINES)
@pytest.mark.parametrize("verb", ["run r.yaml", "evaluate s", "sweep s --over length --values 1,2"])
def test_commands_that_start_workers_take_every_option_of_a_worker(case, verb):
    said = cli.build_parser().parse_args([*verb.split(), *MACHINES[case]])
    heard = worker.build_parser().parse_args(["--study-name", "s", *MACHINES[case]])
    assert RuntimeOptions.of(said) == RuntimeOptions.of(heard)


def test_options_become_a_machine_that_is_ready():
    threads = torch.get_num_threads()
    words = ["--study-name", "s", "--data-dir", "d", "--device", "cpu", "--precision", "32-true"]
    try:
        machine = machine_of(
            worker.build_parser().parse_args([*words, "--allow", "a", "--threads", "2"])
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (machine.data_dir, machine.allowed_packages) == (Path("d"), ("a",))
    assert (machine.torch_device.type, machine.resolved_precision) == ("cpu", "32-true")


@pytest.mark.parametrize(
    ("option", "bad"),
    [("--timeout", "nan"), ("--timeout", "inf"), ("--timeout", "0"), ("--grace-period", "0")],
)
def test_senseless_numbers_are_refused(option, bad, capsys):
    with pytest.raises(SystemExit) as exit_:
        worker.build_parser().parse_args(["--study-name", "s", option, bad])
    assert exit_.value.code == cli.USAGE
    assert option in capsys.readouterr().err


def test_a_heartbeat_must_be_shorter_than_the_grace_period(capsys):
    with pytest.raises(SystemExit):
        worker.main(["--study-name", "s", "--heartbeat-interval", "9", "--grace-period", "9"])
    assert "--heartbeat-interval 9 must be shorter than --grace-period 9" in capsys.readouterr().err
