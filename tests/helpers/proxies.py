"""Optuna's gRPC proxy as a process of its own, to be killed and started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SERVER = """
import sys
from optuna.storages import run_grpc_proxy_server
from optuna_taylorglo.study.open import open_storage
run_grpc_proxy_server(open_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""


class Proxy:
    """A proxy in front of a storage.

    Args:
        url: URL of the storage behind it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"grpc://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _SERVER, self._url, str(self.port)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, "the proxy ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, "the proxy does not listen"
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It keeps its connections and answers nobody."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
