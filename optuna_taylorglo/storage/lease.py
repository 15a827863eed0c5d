"""A lock for storages that have none: an attribute of the study, which says who does what now.

Nothing but reading and writing is asked of the storage, so two processes may in rare cases both
believe that the lock is theirs, which the protocol of the queue bears. A lease that its holder
keeps for too long, because it is dead or suspended, is nobody's.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

from optuna.logging import get_logger
from optuna.storages import BaseStorage

from optuna_taylorglo.attributes import LEASE

LENGTH = 10.0
"""Seconds after which a lease that was not given back is nobody's."""

# Seconds after which one who wrote its name sees whether another did so at the same moment: longer
# than that one takes from its look to its own writing.
_SETTLED = 0.2
_BETWEEN_TRIES = 0.1

_logger = get_logger(__name__)


class Leases:
    """The leases that one process asks a storage for.

    Args:
        storage: The storage.
    """

    def __init__(self, storage: BaseStorage) -> None:
        self._storage = storage
        # What was there, and since when, by this process's clock: others' clocks may differ.
        self._seen: dict[int, tuple[object, float]] = {}

    @contextlib.contextmanager
    def held_if_free(self, study_name: str) -> Iterator[bool]:
        """Hold the lease of a study unless somebody else does.

        Yields:
            Whether it is held.
        """
        study_id = self._storage.get_study_id_from_name(study_name)
        token = self._take(study_id)
        try:
            yield token is not None
        finally:
            if token is not None:
                self._give_back(study_id, token)

    @contextlib.contextmanager
    def held(self, study_name: str) -> Iterator[None]:
        """Hold the lease of a study, waiting for it as long as others may keep theirs."""
        study_id = self._storage.get_study_id_from_name(study_name)
        while (token := self._take(study_id)) is None:
            time.sleep(_BETWEEN_TRIES)
        try:
            yield
        finally:
            self._give_back(study_id, token)

    def _holder(self, study_id: int) -> object:
        return self._storage.get_study_user_attrs(study_id).get(LEASE)

    def _take(self, study_id: int) -> str | None:
        """A token if the lease is ours now."""
        holder, now = self._holder(study_id), time.monotonic()
        if holder is not None:
            seen, since = self._seen.get(study_id, (None, now))
            self._seen[study_id] = (holder, since if seen == holder else now)
            if now - self._seen[study_id][1] < LENGTH:
                return None
        token = uuid.uuid4().hex
        self._storage.set_study_user_attr(study_id, LEASE, token)
        time.sleep(_SETTLED)
        return token if self._holder(study_id) == token else None

    def _give_back(self, study_id: int, token: str) -> None:
        try:
            if self._holder(study_id) == token:
                self._storage.set_study_user_attr(study_id, LEASE, None)
        except Exception as error:
            _logger.debug(f"A lease ends by itself: {error}")
