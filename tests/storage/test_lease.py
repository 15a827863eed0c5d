"""A lock that is made of nothing but an attribute of the study."""

from __future__ import annotations

import threading
import time

import optuna
import pytest
from optuna.storages import InMemoryStorage

from optuna_taylorglo.attributes import LEASE
from optuna_taylorglo.storage import lease
from optuna_taylorglo.storage.lease import Leases


@pytest.fixture
def storage() -> InMemoryStorage:
    storage = InMemoryStorage()
    optuna.create_study(study_name="a", storage=storage)
    optuna.create_study(study_name="b", storage=storage)
    return storage


def test_one_at_a_time(storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty at the same moment, of whom one holds it until all have tried."""
    monkeypatch.setattr(lease, "_SETTLED", 2.0)
    start, end = threading.Barrier(20), threading.Barrier(20)
    holders: list[bool] = []

    def try_it() -> None:
        start.wait()
        with Leases(storage).held_if_free("a") as is_mine:
            holders.append(is_mine)
            end.wait()

    threads = [threading.Thread(target=try_it) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(holders), sum(holders)) == (20, 1)


def test_given_back(storage: InMemoryStorage) -> None:
    for _ in range(2):
        with Leases(storage).held_if_free("a") as is_mine:
            assert is_mine
            with Leases(storage).held_if_free("b") as is_mine:
                assert is_mine
    study_id = storage.get_study_id_from_name("a")
    assert storage.get_study_user_attrs(study_id)[LEASE] is None


def test_waiting_for_it(storage: InMemoryStorage) -> None:
    order = []

    def wait() -> None:
        with Leases(storage).held("a"):
            order.append("second")

    with Leases(storage).held("a"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_what_a_dead_holder_left_ends_by_itself(
    storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_id = storage.get_study_id_from_name("a")
    storage.set_study_user_attr(study_id, LEASE, "of the dead")
    ours = Leases(storage)
    with ours.held_if_free("a") as is_mine:
        assert not is_mine
    later = time.monotonic() + lease.LENGTH
    monkeypatch.setattr(lease.time, "monotonic", lambda: later)
    # Whoever comes only now does not know how old it is.
    with Leases(storage).held_if_free("a") as is_mine:
        assert not is_mine
    with ours.held_if_free("a") as is_mine:
        assert is_mine


def test_a_lease_that_another_has_taken_over_is_not_given_back(storage: InMemoryStorage) -> None:
    study_id = storage.get_study_id_from_name("a")
    with Leases(storage).held("a"):
        storage.set_study_user_attr(study_id, LEASE, "of another")
    assert storage.get_study_user_attrs(study_id)[LEASE] == "of another"
