"""Optuna's gRPC proxy as a storage, for workers that reach no database."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from optuna.exceptions import ExperimentalWarning
from optuna.storages import GrpcStorageProxy
from sqlalchemy.engine import URL

from optuna_taylorglo.errors import StorageURLError
from optuna_taylorglo.storage.counted_beats import CountedBeats
from optuna_taylorglo.storage.lease import Leases
from optuna_taylorglo.storage.retry import (
    DEFAULT_OUTAGE_LIMIT,
    noting_standstill,
    retry_during_outage,
)

DEFAULT_PORT = 13000
"""Optuna's own."""

# Seconds after which a call that nobody answers has failed. The proxy may itself be waiting for
# its database.
_DEADLINE = 60.0

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # By default a proxy that was away for long is tried again after two minutes only.
    ("grpc.max_reconnect_backoff_ms", 5000),
]

T = TypeVar("T")


class RemoteStorage(CountedBeats, GrpcStorageProxy):
    """Optuna's client of a gRPC proxy, whose every call outlasts an outage.

    A proxy passes on neither signs of life nor locks. The former are counters in the trials here,
    as in a journal; the latter are leases, kept in an attribute of the study.

    A call is repeated as a whole, as by `OutageTolerantStorage`.

    Args:
        host: Where the proxy runs.
        port: Where it listens.
        heartbeat: Seconds between two signs of life of a running trial.
        grace: Seconds without one after which a trial is given up.
        outage_limit: Seconds to wait for a proxy that went away.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        heartbeat: int,
        grace: int,
        outage_limit: float = DEFAULT_OUTAGE_LIMIT,
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            super().__init__(host=host, port=port)
        self.url = f"grpc://{host}:{port}"
        self.outage_limit = outage_limit
        self.set_intervals(heartbeat=heartbeat, grace=grace)
        self.leases = Leases(self)

    def _setup(self) -> None:
        import grpc

        super()._setup()
        self._channel.close()
        self._channel = grpc.insecure_channel(f"{self._host}:{self._port}", _CHANNEL_OPTIONS)
        self._stub = type(self._stub)(_with_deadline(self._channel))
        self._cache.grpc_client = self._stub

    def check_reachable(self) -> None:
        """Make one call, and only one, to see whether the proxy answers."""
        try:
            super().get_study_id_from_name("")
        except KeyError:
            return


def _patient(name: str) -> None:
    method = getattr(GrpcStorageProxy, name)

    def attempt(self: RemoteStorage, *args: Any, **kwargs: Any) -> Any:
        if not name.startswith("set_"):
            return method(self, *args, **kwargs)
        # Behind the proxy may be a file that has one writer at a time.
        return noting_standstill(lambda: method(self, *args, **kwargs), self.grace_period)

    def call(self: RemoteStorage, *args: Any, **kwargs: Any) -> Any:
        return retry_during_outage(lambda: attempt(self, *args, **kwargs), limit=self.outage_limit)

    call.__name__ = name
    setattr(RemoteStorage, name, call)


for _name in vars(GrpcStorageProxy):
    if not _name.startswith("_") and _name not in ("close", "wait_server_ready"):
        _patient(_name)


def _with_deadline(channel: Any) -> Any:
    """A channel on which no call waits for ever."""
    import grpc

    class Details(NamedTuple):
        method: str
        timeout: float | None
        metadata: Any
        credentials: Any
        wait_for_ready: bool | None
        compression: Any

    class Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(
            self, continuation: Callable[[Any, Any], T], details: Any, request: Any
        ) -> T:
            limited = Details(
                details.method,
                _DEADLINE,
                details.metadata,
                details.credentials,
                details.wait_for_ready,
                details.compression,
            )
            return continuation(limited, request)

    return grpc.intercept_channel(channel, Deadline())


def address_of(url: URL) -> tuple[str, int]:
    """Host and port in a URL ``grpc://host:port``.

    Raises:
        StorageURLError: If it has no host, or more than host and port, or nothing here can open
            it.
    """
    shown = url.render_as_string(hide_password=True)
    if not url.host or url.username or url.database or url.query:
        raise StorageURLError(
            f"Storage URL {shown} must be grpc://host:port, and nothing more: the address of "
            "Optuna's gRPC proxy, which knows the database."
        )
    for module in ("grpc", "google.protobuf"):
        if not _is_installed(module):
            raise StorageURLError(
                f"No client for {shown} is installed: pip install 'optuna-taylorglo[grpc]'."
            )
    return url.host, url.port or DEFAULT_PORT


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
