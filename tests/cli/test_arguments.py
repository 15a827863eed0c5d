"""Arguments of verbs that cannot be right are refused before anything is done."""

from __future__ import annotations

import pytest
from drawn_studies import searched_study

from optuna_taylorglo import cli, load_loss
from optuna_taylorglo.cli import evaluate, options, output
from optuna_taylorglo.errors import UsageError


@pytest.mark.parametrize("port", ["0", "65536", "99999999"])
def test_a_port_that_does_not_exist(port, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["dashboard", "s", "--port", port])
    assert exit_.value.code == cli.USAGE
    assert f"{port} is not allowed, must be from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("over", "values", "wrong"),
    [
        ("fraction", "2,3", "2, 3"),
        ("fraction", "0,0.5", "0"),
        ("fraction", "nan", "nan"),
        ("label_noise", "0.2,1.5,-1", "1.5, -1"),
        ("length", "100,0.5,inf", "0.5, inf"),
    ],
)
def test_values_that_a_setting_cannot_have(over, values, wrong, caplog):
    assert cli.main(["sweep", "s", "--over", over, "--values", values]) == cli.USAGE
    assert f"--values {wrong} not allowed for {over}, must be" in caplog.text


def test_values_that_it_can_have():
    for over, values in {
        "fraction": [0.1, 1.0],
        "label_noise": [0.0, 1.0],
        "length": [1.0, 400.0],
    }.items():
        evaluate._check_values(over, values)


def test_a_missing_folder_is_made(tmp_path, monkeypatch):
    study = searched_study()
    opened = options.OpenedStudy(study, None, "")
    monkeypatch.setattr(options, "open_study_of", lambda arguments: opened)
    path = tmp_path / "new" / "folder" / "loss.json"
    words = ["export", "s", "-o", str(path)]
    assert output.export(cli.build_parser().parse_args(words), None) == cli.DONE
    assert load_loss(path).origin.study == study.study_name


@pytest.mark.parametrize(
    "verb", ["run r.yaml", "export s", "report s", "evaluate s", "sweep s --over length --values 1"]
)
def test_a_file_that_cannot_be_written_is_told_before_anything_else(
    verb, tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main([*verb.split(), "-o", "file/out"]) == cli.USAGE
    assert "cannot be written: file is no folder" in caplog.text


def test_a_folder_is_no_file_to_write(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        options.check_output(tmp_path)


def test_allowed_modules_may_lie_in_the_working_directory(tmp_path, monkeypatch):
    """As for ``python -m``; the script's own folder is what stands in the path otherwise."""
    from optuna_taylorglo import worker

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/somewhere"])
    words = ["--study-name", "s", "--device", "cpu"]
    options.machine_of(worker.build_parser().parse_args(words))
    import sys

    assert sys.path == ["/somewhere"]
    options.machine_of(worker.build_parser().parse_args([*words, "--allow", "mine"]))
    assert sys.path == [str(tmp_path), "/somewhere"]
