"""Text out of the package acts on nothing, and files are there as a whole or not at all."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import IO

import pytest
from rich.table import Table

from optuna_taylorglo.cli.progress import PlainConsole, bold
from optuna_taylorglo.cli.workers import log_dir
from optuna_taylorglo.text import VisibleFormatter, as_file_name, visible, write_atomically

TEXTS = {
    "\x1b[31mred\x1b]0;title\x07": r"\x1b[31mred\x1b]0;title\x07",
    "over\rwritten\x08": r"over\rwritten\x08",
    "\x9b31m": r"\x9b31m",
    "\u202egnp.exe": r"\u202egnp.exe",
    "half \ud83d": r"half \ud83d",
    "two\n\tlines, ümläut, 損失, 👍": "two\n\tlines, ümläut, 損失, 👍",
}


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_control_characters_are_spelt_out_and_all_else_stays(text: str) -> None:
    assert visible(text) == TEXTS[text]


def test_log_records_act_on_no_terminal() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        where = (type(error), error, error.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "study %s", ("\x1b[31m",), where)
    said = VisibleFormatter("%(message)s").format(record)
    assert said.startswith("study \\x1b[31m\nTraceback")
    assert "ValueError: \\x1b[2J" in said
    assert "\x1b" not in said


def test_the_console_takes_nothing_for_an_instruction(capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole()
    name = "x[/red]y :smile: [bold]\x1b[31m"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    console.print(name, bold(name))
    console.print(table)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.replace("\n", " ").count("x[/red]y :smile: [bold]\\x1b[31m") >= 2
    assert out.count("x[/red]y") == 6


@pytest.mark.parametrize(
    "name",
    ["../../../x", "..", ".", "", "/etc/x", "a/b", "a%2Fb", "\x1b", "é" * 300, "é" * 301, "\ud83d"],
    ids=ascii,
)
def test_logs_lie_in_a_folder_of_their_own_whatever_the_studys_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = log_dir(name)
    folder.mkdir(parents=True)
    assert [each.name for each in tmp_path.iterdir()] == ["taylorglo-logs"]
    assert folder.resolve().parent == (tmp_path / "taylorglo-logs").resolve()


def test_different_names_have_different_folders_and_plain_ones_stay() -> None:
    names = ["a/b", "a%2Fb", "a_b", "a b", "é" * 300, "é" * 301, "", ".", "..", "%2E"]
    assert len({as_file_name(name) for name in names}) == len(names)
    for name in ("digits_cnn", "digits-cnn.v2-verdict", "x~1"):
        assert as_file_name(name) == name


def test_text_and_what_a_writer_writes_arrive(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "θ = 1\n")
    write_atomically(tmp_path / "bytes", lambda file: file.write(b"\x00\xff"))
    assert (tmp_path / "text").read_bytes() == "θ = 1\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["bytes", "text"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "loss.json"
    write_atomically(path, "old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half of the ne")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["loss.json"]


def test_until_the_file_is_whole_readers_see_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "loss.json"
    write_atomically(path, "old")

    def write(file: IO[bytes]) -> None:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"

    write_atomically(path, write)
    assert path.read_text() == "new"


def test_others_may_read_it(tmp_path: Path) -> None:
    """Temporary files are their owner's only; what is written for people is not."""
    path = tmp_path / "report.html"
    write_atomically(path, "page")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
