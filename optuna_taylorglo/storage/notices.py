"""Telling workers that wait that there is something to look at, where a database can."""

from __future__ import annotations

import contextlib
import hashlib
import random
import select
import threading
import time
from typing import Any

import sqlalchemy
from optuna.logging import get_logger
from optuna.storages import BaseStorage

from optuna_taylorglo.storage.bell import Bell
from optuna_taylorglo.storage.open_storage import is_served, url_of
from optuna_taylorglo.storage.outage_tolerant import OutageTolerantStorage

_logger = get_logger(__name__)

# Seconds after which an event of this process is heard while the database is listened to, and
# between two looks at the bell.
_STOP_HEARD, _BELL_HEARD = 0.5, 0.2

# Seconds until one sees again whether anybody else on this machine listens.
_BETWEEN_WATCHES = 1.0

# Seconds by which two who claim a trial of a server keep apart, on average.
_CLAIM = 0.008

# How many that may be when all are told.
_MANY = 80

# A wait for less than this is not worth a connection.
_SHORT_WAIT = 0.1

# Seconds until listening is tried again where there was no room for it.
_NO_ROOM = 60.0

# Listening is a convenience; half of the connections are for those who work.
_ROOM = sqlalchemy.text(
    "SELECT 2 * sum(numbackends) <= current_setting('max_connections')::int FROM pg_stat_database"
)


class Notices:
    """Notices between all who work on a study.

    On one machine all hear a bell, and one of them keeps watch for all: it looks at the study often
    and listens for notices from other machines, which PostgreSQL passes on, so that a server has to
    do with few of those who wait. A notice can be lost (nobody listened yet, a connection broke, a
    pooler is in between), so whoever waits looks at the study now and then all the same.

    Args:
        storage: The study's storage.
        study_name: The study.
    """

    def __init__(self, storage: BaseStorage, study_name: str) -> None:
        digest = hashlib.sha256(study_name.encode()).hexdigest()[:32]
        self._channel = f"taylorglo_{digest}"
        self._engine: sqlalchemy.Engine | None = None
        if isinstance(storage, OutageTolerantStorage):
            engine = storage.database.engine
            self._engine = engine if engine.dialect.name == "postgresql" else None
        self._is_served = is_served(storage)
        url = url_of(storage)
        self._bell = None if url is None else Bell(f"{url} {study_name}")
        self._last_ring = self._ring()
        self._connection: sqlalchemy.Connection | None = None
        self._another_watches = False
        self._no_room_until = 0.0

    def send(self, trials: int | None = None) -> None:
        """Wake those who wait; never raises, since they look now and then anyway.

        Args:
            trials: How many trials there are to take; as many are woken on each machine, over the
                time that so many claims take. None if all have to know.
        """
        # The bell first, so that who listens here finds it rung when the notice comes back.
        if self._bell is not None:
            self._bell.ring(trials)
            self._last_ring = self._ring()
        if self._engine is None:
            return
        message = "" if trials is None else str(trials)
        query = sqlalchemy.text("SELECT pg_notify(:channel, :message)")
        try:
            with self._engine.begin() as connection:
                connection.execute(query, {"channel": self._channel, "message": message})
        except Exception as error:
            _logger.debug(f"No notice sent: {error}")

    def pass_on(self, trials: int) -> None:
        """Tell others of trials of which nobody seems to have told, or they would wait on.

        Args:
            trials: How many there are to take.
        """
        if not self._was_rung():
            self.send(trials)

    def wait(self, seconds: float, stop: threading.Event, *, if_watched: float = 0.0) -> bool:
        """Wait for a notice, for some time or for an event, whichever comes first.

        What is sent between two waits is not missed: the bell is compared with the last wait, and
        who listens does so from the first wait until a notice comes or `close`. After a notice the
        connection is the storage's, which so need not make one at the very moment when everybody
        else does.

        Args:
            seconds: How long at most.
            stop: Ends the wait when set.
            if_watched: The same while another process on this machine keeps watch, if longer.

        Returns:
            Whether there was a notice.
        """
        began = watch_due = time.monotonic()
        while not stop.is_set():
            if self._bell is not None and self._was_rung():
                if self._connection is not None:
                    self._stop_listening()
                    return True
                if self._is_served:
                    # Hundreds must not all come at once.
                    stop.wait(random.uniform(0.0, _CLAIM * (self._bell.tickets or _MANY)))
                if self._bell.take_ticket():
                    return True
            now = time.monotonic()
            if self._connection is None and seconds >= _SHORT_WAIT and now >= watch_due:
                self._keep_watch()
                watch_due = now + _BETWEEN_WATCHES
            longest = max(seconds, if_watched) if self._another_watches else seconds
            left = began + longest - now
            if self._connection is not None:
                if self._heard(max(0.0, min(left, _STOP_HEARD))):
                    return True
            elif self._bell is not None:
                stop.wait(max(0.0, min(left, _BELL_HEARD)))
            else:
                stop.wait(max(0.0, left))
            if left <= 0:
                return False
        return False

    def close(self) -> None:
        """Stop listening and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)
        self._end_watch()

    def _ring(self) -> int:
        return 0 if self._bell is None else self._bell.last_ring

    def _was_rung(self) -> bool:
        before, self._last_ring = self._last_ring, self._ring()
        return self._last_ring != before

    def _heard(self, seconds: float) -> bool:
        """Listen for so long, and pass on what is heard."""
        assert self._connection is not None
        try:
            driver: Any = self._connection.connection.dbapi_connection
            select.select([driver], [], [], seconds)
            heard = _notices_in(driver)
        except Exception as error:
            _logger.debug(f"Listening for notices ended: {error}")
            self.close()
            return False
        if heard:
            if self._bell is not None and not self._was_rung():
                self._bell.ring(int(heard[-1]) if heard[-1].isdecimal() else None)
                self._last_ring = self._ring()
            self._stop_listening()
        return bool(heard)

    def _keep_watch(self) -> None:
        """Look and listen for all on this machine, unless another does."""
        if not self._is_served:
            return
        self._another_watches = self._bell is not None and not self._bell.keep_watch()
        has_room = time.monotonic() >= self._no_room_until
        if self._engine is not None and has_room and not self._another_watches:
            self._listen()

    def _end_watch(self) -> None:
        if self._bell is not None:
            self._bell.end_watch()

    def _stop_listening(self) -> None:
        """Leave the connection to the storage, which has something to do now."""
        connection, self._connection = self._connection, None
        self._end_watch()
        assert connection is not None
        try:
            connection.execute(sqlalchemy.text("UNLISTEN *"))
            connection.close()
        except Exception as error:
            _logger.debug(f"Listening for notices ended: {error}")
            _close(connection)

    def _listen(self) -> None:
        assert self._engine is not None
        try:
            connection = self._engine.connect()
        except Exception as error:
            _logger.debug(f"Not listening for notices: {error}")
        else:
            try:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                if connection.execute(_ROOM).scalar():
                    connection.execute(sqlalchemy.text(f"LISTEN {self._channel}"))
                    self._connection = connection
                    return
            except Exception as error:
                _logger.debug(f"Not listening for notices: {error}")
            _close(connection)
        self._no_room_until = time.monotonic() + _NO_ROOM * random.uniform(0.5, 1.0)


def _close(connection: sqlalchemy.Connection) -> None:
    """Close a connection to the server, which the pool would keep."""
    with contextlib.suppress(Exception):
        connection.detach()
    with contextlib.suppress(Exception):
        connection.close()


def _notices_in(connection: Any) -> list[str]:
    """What the notices say that a driver's connection has received; they are taken from it."""
    if hasattr(connection, "pgconn"):
        connection.pgconn.consume_input()
        said = []
        while (notice := connection.pgconn.notifies()) is not None:
            said.append(notice.extra.decode())
        return said
    # psycopg2
    connection.poll()
    said = [notice.payload for notice in connection.notifies]
    connection.notifies.clear()
    return said
