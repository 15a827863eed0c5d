"""Signs of life of a running trial."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from optuna.logging import get_logger
from optuna.trial import Trial

from optuna_taylorglo.storage.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.storage.outage_tolerant import release_connections
from optuna_taylorglo.storage.retry import without_retry
from optuna_taylorglo.storage.transitions import beat

_logger = get_logger(__name__)


class Heartbeat:
    """Gives signs of life of a trial while the body of its ``with`` statement runs.

    The body should include the writing of the result, for which the database may keep one waiting.
    Optuna's own heartbeat works in ``study.optimize`` only. A database that does not answer is
    tried again soon, and never disturbs the training.

    Args:
        trial: The running trial.
        on_given_up: Called, from another thread, at each sign of life that comes too late: the
            trial was given up, perhaps because this process was suspended.
    """

    def __init__(self, trial: Trial, on_given_up: Callable[[], object] = lambda: None) -> None:
        self._trial_id = trial_id_of(trial)
        self._storage: Any = storage_of(trial.study)
        self._interval = heartbeat_interval(self._storage)
        self._on_given_up = on_given_up
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    def __enter__(self) -> Self:
        if self._interval is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # The thread may be waiting for a database that is away; it ends by itself later.
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        assert self._interval is not None
        # The claim itself was the first sign of life.
        wait = float(self._interval)
        while not self._stop.wait(wait):
            wait = float(self._interval)
            try:
                with without_retry():
                    if not beat(self._storage, self._trial_id) and not self._stop.is_set():
                        self._on_given_up()
            except Exception as error:
                wait = min(wait, 5.0)
                _logger.debug(f"No heartbeat: {error}")
            finally:
                release_connections(self._storage)


def heartbeat_interval(storage: Any) -> int | None:
    """Seconds between signs of life, or None for a storage without them."""
    get_interval = getattr(storage, "get_heartbeat_interval", None)
    interval: int | None = get_interval() if get_interval is not None else None
    return interval
