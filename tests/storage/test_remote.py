"""Optuna's gRPC proxy as a storage, through outages of the proxy."""

from __future__ import annotations

import importlib.util
import multiprocessing
import multiprocessing.pool
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import optuna
import pytest
from optuna.storages import BaseStorage
from optuna.storages._grpc.server import make_server
from optuna.testing.pytest_storages import StorageTestCase
from proxies import Proxy

from optuna_taylorglo.attributes import BEAT
from optuna_taylorglo.errors import StorageUnreachable, StorageURLError
from optuna_taylorglo.storage import remote
from optuna_taylorglo.storage.locks import study_lock
from optuna_taylorglo.storage.open_storage import open_storage, url_of
from optuna_taylorglo.storage.open_study import create_command, create_study, open_study
from optuna_taylorglo.storage.remote import RemoteStorage
from optuna_taylorglo.storage.retry import is_outage, outage_reason
from optuna_taylorglo.storage.urls import file_of, read_url, shown_url

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")


@pytest.fixture
def proxy(sqlite_url: str) -> Iterator[Proxy]:
    proxy = Proxy(sqlite_url)
    yield proxy
    proxy.kill()


@pytest.fixture(scope="module")
def shared_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy(f"sqlite:///{tmp_path_factory.mktemp('proxy')}/a.db")
    yield proxy
    proxy.kill()


class TestConformance(StorageTestCase):
    """What Optuna asks of every storage."""

    @pytest.fixture
    def storage(self) -> Iterator[BaseStorage]:
        server = make_server(optuna.storages.InMemoryStorage(), "127.0.0.1", 0)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield open_storage(f"grpc://127.0.0.1:{port}")
        server.stop(None)

    @pytest.mark.skip(reason="a map has no order on the wire; nothing here depends on one")
    def test_get_all_trials_params_order(self) -> None: ...


def test_a_study_through_the_proxy(shared_proxy: Proxy) -> None:
    study = create_study("a", shared_proxy.url)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.report(0.5, 1)
    study.tell(trial, 1.0)
    study.set_user_attr("taylorglo:recipe", {})
    again = open_study("a", shared_proxy.url)
    assert (again.best_value, again.trials[0].intermediate_values) == (1.0, {1: 0.5})
    with study_lock(again._storage, "a"):
        again.ask()


def test_the_proxy_is_named(shared_proxy: Proxy) -> None:
    storage = open_storage(shared_proxy.url)
    assert url_of(storage) == shown_url(shared_proxy.url) == shared_proxy.url
    assert file_of(shared_proxy.url) is None
    assert "--storage DATABASE_OF_THE_PROXY" in create_command("a", shared_proxy.url)


def test_signs_of_life_are_counters(shared_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(storage=open_storage(shared_proxy.url, heartbeat=1, grace=10))
    silent, beating = study.ask()._trial_id, study.ask()._trial_id
    watcher: Any = open_storage(shared_proxy.url, heartbeat=1, grace=10)
    assert watcher.get_heartbeat_interval() == 1
    start = time.monotonic()
    for seconds in (0, 8, 16):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: start + seconds)
        study._storage.record_heartbeat(beating)  # type: ignore[attr-defined]
        stale = watcher._get_stale_trial_ids(study._study_id)
    assert stale == [silent]
    assert watcher.get_trial(beating).user_attrs[BEAT] == 3


def test_a_proxy_that_is_killed_and_started_again(proxy: Proxy) -> None:
    study = create_study("a", proxy.url)
    trial = study.ask()
    proxy.kill()
    pool = multiprocessing.pool.ThreadPool(1)
    result = pool.apply_async(lambda: [trial.report(0.5, 1), study.tell(trial, 1.0)])
    time.sleep(0.5)
    assert not result.ready()
    proxy.start()
    result.get(60)
    assert [(t.value, t.intermediate_values) for t in study.trials] == [(1.0, {1: 0.5})]


def test_nobody_waits_for_a_proxy_that_hangs_for_ever(
    shared_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(shared_proxy.url, outage_limit=0)
    monkeypatch.setattr(remote, "_DEADLINE", 0.5)
    with shared_proxy.hanging(), pytest.raises(grpc.RpcError) as caught:
        storage.get_all_studies()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert is_outage(caught.value)
    assert "eadline" in outage_reason(caught.value)


def test_no_proxy_there() -> None:
    with pytest.raises(StorageUnreachable, match=r"Cannot open grpc://127\.0\.0\.1:1: "):
        open_storage("grpc://127.0.0.1:1", patience=0.5)


@pytest.mark.parametrize(
    "url", ["grpc://", "grpc://host/db", "grpc://me:secret@host:1", "grpc://host:1?a=b"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(StorageURLError, match="must be grpc://host:port") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_the_port_may_be_left_out() -> None:
    assert remote.address_of(read_url("grpc://host")) == ("host", 13000)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StorageURLError, match=r"pip install 'optuna-taylorglo\[grpc\]'"):
        open_storage("grpc://host:1")


def test_nobody_else_needs_the_library() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from optuna_taylorglo.storage.open_storage import open_storage\n"
        "open_storage('sqlite://').get_all_studies()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_every_call_of_a_study_is_patient() -> None:
    """None of Optuna's methods is left as it was."""
    for name in optuna.storages.BaseStorage.__abstractmethods__:
        assert getattr(RemoteStorage, name) is not getattr(optuna.storages.GrpcStorageProxy, name)
