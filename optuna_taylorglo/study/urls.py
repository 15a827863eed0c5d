"""Storage URLs: defaults, checks, drivers, and how they are shown without passwords."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import sqlalchemy
from sqlalchemy.engine import URL, make_url

from optuna_taylorglo.errors import StorageURLError

DEFAULT_STORAGE = "sqlite:///taylorglo.db"

GRPC_PORT = 13000
"""Optuna's default."""

# Drivers in the order of preference, and the extra that installs the last of them.
_DRIVERS = {
    "postgresql": (("psycopg2", "psycopg"), "postgres"),
    "mysql": (("MySQLdb", "pymysql"), "mysql"),
}
_BACKENDS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def resolve_storage_url(option: str | None = None) -> str:
    """Storage URL from the option, else ``OPTUNA_STORAGE``, else a SQLite file right here."""
    return option or os.environ.get("OPTUNA_STORAGE") or DEFAULT_STORAGE


def read_url(url: str) -> URL:
    """Parse a URL of any kind.

    Raises:
        StorageURLError: If it cannot be read.
    """
    try:
        return make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        # The error would quote the URL, password and all.
        raise StorageURLError(
            f"Storage URL with scheme {url.split('://')[0]!r} cannot be read: expected "
            "scheme://user:password@host:port/database, special characters percent-encoded."
        ) from error


def is_proxy(url: str) -> bool:
    """Whether a URL is that of Optuna's gRPC proxy."""
    return url.startswith("grpc://")


def parse_url(url: str) -> URL:
    """Parse the URL of a database and choose a driver that is installed.

    Raises:
        StorageURLError: If it cannot be read, or nothing here can open it.
    """
    parsed = read_url(url)
    scheme = parsed.get_backend_name()
    if scheme not in _BACKENDS:
        raise StorageURLError(
            f"Storage URL {hide_password(parsed)} has the unknown scheme {scheme!r}: expected one "
            f"of {', '.join(sorted({*_BACKENDS, 'grpc'}))}, or the path of a journal file."
        )
    backend = _BACKENDS[scheme]
    if backend == "sqlite":
        _check_directory(parsed)
    if backend == "sqlite" or "+" in parsed.drivername:
        return parsed.set(drivername=parsed.drivername.replace(scheme, backend, 1))
    modules, extra = _DRIVERS[backend]
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            return parsed.set(drivername=f"{backend}+{module.lower()}")
    raise StorageURLError(
        f"No driver for {hide_password(parsed)} is installed: "
        f"pip install 'optuna-taylorglo[{extra}]'."
    )


def hide_password(url: URL | str) -> str:
    """The URL for people to read: the password is masked."""
    return make_url(url).render_as_string(hide_password=True)


def shown_url(url: str) -> str:
    """A storage URL or journal path for people to read: without a password."""
    return hide_password(read_url(url)) if "://" in url else url


def file_of(url: str) -> Path | None:
    """The file that a storage is kept in; None for a server or memory.

    Raises:
        StorageURLError: If the URL is wrong.
    """
    if "://" not in url:
        return Path(url)
    if is_proxy(url):
        return None
    parsed = parse_url(url)
    name = parsed.database
    is_file = parsed.get_backend_name() == "sqlite" and name and name != ":memory:"
    # A URI of SQLite's own says by itself whether it may be created.
    return Path(name) if is_file and name and not name.startswith("file:") else None


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database, also of one that is given as a URI of SQLite's own."""
    name = (url.database or "").removeprefix("file:")
    is_file = url.get_backend_name() == "sqlite" and name and name != ":memory:"
    return Path(name).absolute() if is_file and url.query.get("mode") != "memory" else None


def grpc_address(url: URL) -> tuple[str, int]:
    """Host and port in a URL ``grpc://host:port``.

    Raises:
        StorageURLError: If it has anything else, or the client is not installed.
    """
    shown = hide_password(url)
    if not url.host or url.username or url.database or url.query:
        raise StorageURLError(
            f"Storage URL {shown} must be grpc://host:port, and nothing more: the address of "
            "Optuna's gRPC proxy, which knows the database."
        )
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "google")):
        raise StorageURLError(
            f"No client for {shown} is installed: pip install 'optuna-taylorglo[grpc]'."
        )
    return url.host, url.port or GRPC_PORT


def journal_file(path: str) -> Path:
    """The path of a journal, if one can be there.

    Raises:
        StorageURLError: If not.
    """
    file = Path(path)
    if not path or file.is_dir() or not file.parent.is_dir():
        raise StorageURLError(
            f"Storage {path!r} is neither a URL such as {DEFAULT_STORAGE} nor a file in an "
            "existing directory (a plain path is an Optuna journal file)."
        )
    if file.is_file() and file.open("rb").read(16) == b"SQLite format 3\0":
        raise StorageURLError(f"{path} is an SQLite database: write sqlite:///{path}.")
    return file.resolve()


def _check_directory(url: URL) -> None:
    directory = Path((url.database or ".").removeprefix("file:")).parent
    if not directory.is_dir():
        raise StorageURLError(
            f"Directory {str(directory)!r} of {hide_password(url)} does not exist."
        )
