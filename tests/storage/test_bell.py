"""A bell between the processes of one machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from optuna_taylorglo.storage import bell as module
from optuna_taylorglo.storage.bell import Bell

spawn = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_every_ring_is_heard_by_those_of_the_same_name() -> None:
    here, there, elsewhere = Bell("a"), Bell("a"), Bell("b")
    rings = {there.last_ring}
    for number in range(100):
        here.ring(number)
        rings.add(there.last_ring)
    assert len(rings) == 101
    assert elsewhere.last_ring == 0
    assert elsewhere.take_ticket()


def test_a_ring_may_be_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    bells = [Bell("a") for _ in range(3)]
    bells[0].ring(2)
    ring = bells[0].last_ring
    assert [bell.take_ticket() for bell in bells] == [True, True, False]
    assert bells[1].tickets == 2
    assert bells[0].last_ring == ring, "to take a ticket is not to ring"
    # What nobody has heard yet is not lost, what nobody wanted is.
    bells[0].ring(2)
    bells[1].ring(1)
    assert [bells[0].take_ticket() for _ in range(4)] == [True, True, True, False]
    assert bells[1].tickets == 3
    bells[0].ring(2)
    monkeypatch.setattr(module, "_MOMENT", 0)
    bells[1].ring(1)
    assert [bells[0].take_ticket() for _ in range(2)] == [True, False]
    bells[0].ring()
    assert all(bell.take_ticket() for bell in bells)
    assert bells[0].tickets is None


def take_a_ticket(directory: str, number: int) -> bool:
    tempfile.tempdir = directory
    return Bell("a").take_ticket()


def test_no_ticket_is_given_twice(directory: Path) -> None:
    Bell("a").ring(20)
    with spawn.Pool(4) as pool:
        taken = pool.starmap(take_a_ticket, [(str(directory), n) for n in range(40)], chunksize=1)
    assert sum(taken) == 20


def test_one_keeps_watch() -> None:
    first, second = Bell("a"), Bell("a")
    assert first.keep_watch()
    assert first.keep_watch()
    assert not second.keep_watch()
    assert Bell("b").keep_watch()
    first.end_watch()
    assert second.keep_watch()
    assert not first.keep_watch()


def watch_for_ever(directory: str, kept: object) -> None:
    tempfile.tempdir = directory
    bell = Bell("a")
    kept.put(bell.keep_watch())  # type: ignore[attr-defined]
    signal.pause()


def test_the_watch_ends_with_its_process(directory: Path) -> None:
    kept = spawn.Queue()
    other = spawn.Process(target=watch_for_ever, args=(str(directory), kept))
    other.start()
    assert kept.get(timeout=60)
    assert not Bell("a").keep_watch()
    other.kill()
    other.join()
    assert Bell("a").keep_watch()


@pytest.mark.parametrize("problem", ["a file", "open to all"])
def test_where_there_is_no_safe_place_everybody_keeps_watch(directory: Path, problem: str) -> None:
    Bell("a").ring()
    (place,) = directory.iterdir()
    if problem == "a file":
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
        place.write_text("")
    else:
        os.chmod(place, 0o777)
    first, second = Bell("a"), Bell("a")
    assert first.keep_watch()
    assert second.keep_watch()
    first.ring()
    assert second.last_ring == 0
    first.end_watch()


def test_users_without_a_name_have_a_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    Bell("a").ring(1)
    assert Bell("a").tickets == 1
