"""A file is there as a whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

import pytest

from optuna_taylorglo.files import write_atomically


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
