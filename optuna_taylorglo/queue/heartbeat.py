"""Signs of life of a running trial."""

from __future__ import annotations

import threading
from typing import Any, Self

from optuna.logging import get_logger
from optuna.trial import Trial

from optuna_taylorglo.storage.optuna_private import storage_of, trial_id_of
from optuna_taylorglo.storage.retry import without_retry

_logger = get_logger(__name__)


class Heartbeat:
    """Gives signs of life of a trial while the body of its ``with`` statement runs.

    Optuna's own heartbeat works in ``study.optimize`` only. A database that does not answer is
    tried again soon, and never disturbs the training.

    Args:
        trial: The running trial.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial_id = trial_id_of(trial)
        self._storage: Any = storage_of(trial.study)
        self._interval = heartbeat_interval(self._storage)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")

    def __enter__(self) -> Self:
        if self._interval is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # The thread may be waiting for a database that is away; it ends by itself later.
            self._thread.join(timeout=1.0)

    def _beat(self) -> None:
        assert self._interval is not None
        wait = 0.0
        while not self._stop.wait(wait):
            wait = float(self._interval)
            try:
                with without_retry():
                    self._storage.record_heartbeat(self._trial_id)
            except Exception as error:
                wait = min(wait, 5.0)
                _logger.debug(f"No heartbeat: {error}")
        self._storage.remove_session()


def heartbeat_interval(storage: Any) -> int | None:
    """Seconds between signs of life, or None for a storage without them."""
    get_interval = getattr(storage, "get_heartbeat_interval", None)
    interval: int | None = get_interval() if get_interval is not None else None
    return interval
