"""How databases are connected to, and what every session is told first.

A worker has one connection while it talks to the database and none while it trains. Each session
counts time in UTC, since signs of life are written and compared as timestamps without a zone. And
the server ends the transaction of a process that has stopped in the middle of one: suspended, or
on a machine that has vanished. With it go the locks that everybody else waits for.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL

CONNECT_TIMEOUT = 10
"""Seconds to wait for a server that does not answer."""

SILENT_CLIENT = 15
"""Seconds after which PostgreSQL ends a transaction whose client says nothing."""

SILENT_CLIENT_MYSQL = 30
"""The same for MySQL and MariaDB, which end the connection, inside a transaction or not."""

_SILENT_SERVER = 30
_LOCK_WAIT_MYSQL = 10

_POSTGRESQL_SETTINGS = {
    "TimeZone": "UTC",
    "idle_in_transaction_session_timeout": f"{SILENT_CLIENT}s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": f"{_SILENT_SERVER}s",
}
_MYSQL_SETTINGS = {
    "time_zone": "'+00:00'",
    "wait_timeout": SILENT_CLIENT_MYSQL,
    "innodb_lock_wait_timeout": _LOCK_WAIT_MYSQL,
}


def engine_kwargs(url: URL) -> dict[str, Any]:
    """Keyword arguments of ``create_engine`` for a database that many workers share.

    Args:
        url: URL of the database; what its query says about the connection stays as it is.
    """
    backend = url.get_backend_name()
    if backend == "sqlite":
        return {"connect_args": {"timeout": 60}}
    connect_args: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT}
    if backend == "postgresql":
        # A server that vanishes without a word is noticed within a minute, not within hours:
        # keepalives watch over a connection that waits, the other limit over one that sends.
        connect_args |= {
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 1000 * _SILENT_SERVER,
        }
    else:
        connect_args |= {"read_timeout": _SILENT_SERVER, "write_timeout": _SILENT_SERVER}
    return {
        # One connection is kept between two calls, until it is released. Further ones are made
        # when needed and closed after use: for the lock, for signs of life.
        "pool_size": 1,
        "max_overflow": -1,
        # What the server has closed meanwhile is replaced without anybody noticing.
        "pool_pre_ping": True,
        "pool_events": [(_tell_postgresql if backend == "postgresql" else _tell_mysql, "connect")],
        "connect_args": {k: v for k, v in connect_args.items() if k not in url.query},
    }


# By statements, not by startup options: connection poolers refuse the latter, and the user's own,
# in PGOPTIONS, PGTZ or the URL, are neither lost nor stronger.
def _tell_postgresql(connection: Any, record: object) -> None:
    settings = ", ".join(
        f"set_config('{name}', '{value}', false)" for name, value in _POSTGRESQL_SETTINGS.items()
    )
    before = connection.autocommit
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {settings}")
    connection.autocommit = before


def _tell_mysql(connection: Any, record: object) -> None:
    settings = ", ".join(f"SESSION {name} = {value}" for name, value in _MYSQL_SETTINGS.items())
    with connection.cursor() as cursor:
        cursor.execute(f"SET {settings}")
