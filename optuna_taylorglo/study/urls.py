"""Storage URLs: defaults, checks, drivers, and how they are shown without passwords."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import sqlalchemy
from sqlalchemy.engine import URL, make_url

from optuna_taylorglo.errors import StorageURLError

DEFAULT_STORAGE = "sqlite:///taylorglo.db"

# The modules that can reach a server, best first, and the extra that installs the last one.
_DRIVERS = {
    "grpc": (("grpc",), "grpc"),
    "postgresql": (("psycopg2", "psycopg"), "postgres"),
    "mysql": (("MySQLdb", "pymysql"), "mysql"),
}
_ALIASES = {"postgres": "postgresql", "mariadb": "mysql"}


def resolve_storage_url(option: str | None = None) -> str:
    """Storage URL from the option, else ``OPTUNA_STORAGE``, else a SQLite file right here."""
    return option or os.environ.get("OPTUNA_STORAGE") or DEFAULT_STORAGE


def is_proxy(url: str) -> bool:
    """Whether a URL is that of Optuna's gRPC proxy."""
    return url.startswith("grpc://")


def shown_url(url: str) -> str:
    """A storage URL or journal path for people to read: without a password."""
    return _read(url).render_as_string(hide_password=True) if "://" in url else url


def parse_url(url: str) -> URL:
    """Parse a storage URL and choose a driver that is installed."""
    parsed, shown = _read(url), shown_url(url)
    scheme, _, driver = parsed.drivername.partition("+")
    backend = _ALIASES.get(scheme, scheme)
    if backend not in (known := {"sqlite", *_DRIVERS}):
        raise StorageURLError(
            f"Storage URL {shown} has the unknown scheme {scheme!r}: expected one of "
            f"{', '.join(sorted({*known, *_ALIASES}))}, or the path of a journal file."
        )
    has_more = parsed.username or parsed.database or parsed.query
    if backend == "grpc" and (has_more or not parsed.host):
        raise StorageURLError(
            f"Storage URL {shown} must be grpc://host:port, and nothing more: the address of "
            "Optuna's gRPC proxy, which knows the database."
        )
    if backend in _DRIVERS and not driver:
        modules, extra = _DRIVERS[backend]
        installed = [name for name in modules if importlib.util.find_spec(name) is not None]
        if not installed:
            raise StorageURLError(
                f"No driver for {shown} is installed: pip install 'optuna-taylorglo[{extra}]'."
            )
        driver = installed[0].lower()
    return parsed.set(drivername="+".join(filter(None, (backend, driver))))


def file_of(url: str) -> Path | None:
    """The absolute path of the file that a storage is kept in; None for a server or memory."""
    name, is_journal = url, "://" not in url
    if not is_journal:
        parsed = parse_url(url)
        # With this prefix the database is given as a URI of SQLite's own.
        name = (parsed.database or "").removeprefix("file:")
        in_memory = name in ("", ":memory:") or parsed.query.get("mode") == "memory"
        if in_memory or parsed.get_backend_name() != "sqlite":
            return None
    file = Path(name).resolve()
    if file.is_dir() or not file.parent.is_dir():
        raise StorageURLError(
            f"Storage {url!r} is not a file in an existing directory: expected a URL such as "
            f"{DEFAULT_STORAGE}, or the path of an Optuna journal file."
        )
    if is_journal and file.is_file() and file.open("rb").read(16) == b"SQLite format 3\0":
        raise StorageURLError(f"{url} is an SQLite database: write sqlite:///{url}.")
    return file


def _read(url: str) -> URL:
    try:
        return make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        # The error would quote the URL, password and all.
        raise StorageURLError(
            f"Storage URL with scheme {url.split('://')[0]!r} cannot be read: expected "
            "scheme://user:password@host:port/database, special characters percent-encoded."
        ) from error
