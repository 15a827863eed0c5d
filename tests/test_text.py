"""Text out of the package acts on nothing, and files are there as a whole or not at all."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from optuna_taylorglo.text import (
    VisibleFormatter,
    as_file_name,
    counted,
    visible,
    write_atomically,
)

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


def test_one_thing_is_no_plural() -> None:
    counts = [counted(n, "full trainings") for n in (0, 1, 1000)]
    assert counts == ["0 full trainings", "1 full training", "1000 full trainings"]


def test_names_become_one_part_of_a_path_each_and_plain_ones_stay(tmp_path: Path) -> None:
    names = ["../../../x", "..", ".", "", "/etc/x", "a/b", "a%2Fb", "\x1b", "é" * 600, "\ud83d"]
    folders = {tmp_path / as_file_name(name) for name in names}
    for folder in folders:
        folder.mkdir()
    assert set(tmp_path.iterdir()) == folders
    assert len(folders) == len(names)
    for name in ("digits_cnn", "digits-cnn.v2-verdict", "x~1"):
        assert as_file_name(name) == name


def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "report.html"
    write_atomically(path, "θ = 1\n")
    assert path.read_bytes() == "θ = 1\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, "people may not read it"

    def fail(descriptor: int) -> None:
        # Whatever is written so far, readers see the old file.
        assert path.read_text() == "θ = 1\n"
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "half of the ne")
    assert path.read_text() == "θ = 1\n"
    assert os.listdir(path.parent) == ["report.html"]
