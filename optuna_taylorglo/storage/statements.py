"""The statements by which a trial is found, taken, kept alive and ended, each built once.

Hundreds of workers claim at the same moment, and to build a statement costs as much as to send it.
What changes from call to call is a named parameter.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy
from optuna.trial import TrialState
from sqlalchemy import bindparam
from sqlalchemy.dialects import mysql, postgresql, sqlite

from optuna_taylorglo.storage.optuna_private import (
    ATTRIBUTES,
    BEATS,
    STUDY_ATTRIBUTES,
    TRIALS,
)

GLANCE = (
    sqlalchemy.select(
        TRIALS.c.state,
        sqlalchemy.func.count().label("number"),
        sqlalchemy.select(STUDY_ATTRIBUTES.c.value_json)
        .where(
            STUDY_ATTRIBUTES.c.study_id == bindparam("of_study"),
            STUDY_ATTRIBUTES.c.key == bindparam("of_key"),
        )
        .scalar_subquery()
        .label("attribute"),
    )
    .where(TRIALS.c.study_id == bindparam("of_study"))
    .group_by(TRIALS.c.state)
)
"""How many trials of ``of_study`` are in each state, and its attribute ``of_key``."""

END = (
    sqlalchemy.update(TRIALS)
    .where(TRIALS.c.trial_id == bindparam("of_trial"), TRIALS.c.state == bindparam("before"))
    .values({"state": bindparam("after"), "datetime_complete": bindparam("now")})
)
"""Brings ``of_trial`` from the state ``before`` to ``after``."""

IS_RUNNING = sqlalchemy.select(TRIALS.c.state == TrialState.RUNNING).where(
    TRIALS.c.trial_id == bindparam("of_trial")
)
"""Whether ``of_trial`` runs."""


@functools.cache
def ready(*, with_values: bool) -> sqlalchemy.Select[Any]:
    """Ids of trials of ``of_study`` that wait and are ready, in order of their numbers.

    Ready are those whose attribute ``ready_key`` is their own number and, if asked for, whose
    attribute ``further_key`` is one of ``further_values``.
    """
    mark, further = ATTRIBUTES.alias(), ATTRIBUTES.alias()
    own_number = sqlalchemy.cast(TRIALS.c.number, sqlalchemy.String(16))
    query = (
        sqlalchemy.select(TRIALS.c.trial_id)
        .join(mark, mark.c.trial_id == TRIALS.c.trial_id)
        .where(
            TRIALS.c.study_id == bindparam("of_study"),
            TRIALS.c.state == TrialState.WAITING,
            mark.c.key == bindparam("ready_key"),
            mark.c.value_json == own_number,
        )
        .order_by(TRIALS.c.number)
    )
    if with_values:
        query = query.join(further, further.c.trial_id == TRIALS.c.trial_id).where(
            further.c.key == bindparam("further_key"),
            further.c.value_json.in_(bindparam("further_values", expanding=True)),
        )
    return query


@functools.cache
def set_running(dialect: str) -> sqlalchemy.Update:
    """Sets ``of_trial`` running if it waits; tells its id, but in MySQL."""
    return _set_running(dialect, TRIALS.c.trial_id == bindparam("of_trial"))


@functools.cache
def set_first_running(dialect: str, *, with_values: bool) -> sqlalchemy.Update:
    """Sets the first trial running that is `ready`, and tells its id; not for MySQL."""
    # Others look past a trial that one is about to take; SQLite has one writer at a time.
    first = ready(with_values=with_values).limit(1).with_for_update(skip_locked=True, of=TRIALS)
    return _set_running(dialect, TRIALS.c.trial_id == first.scalar_subquery())


def _set_running(dialect: str, which: sqlalchemy.ColumnElement[bool]) -> sqlalchemy.Update:
    change: sqlalchemy.Update = (
        sqlalchemy.update(TRIALS)
        .where(which, TRIALS.c.state == TrialState.WAITING)
        .values({"state": TrialState.RUNNING, "datetime_start": bindparam("now")})
    )
    return change if dialect == "mysql" else change.returning(TRIALS.c.trial_id)


@functools.cache
def set_attribute(dialect: str) -> sqlalchemy.Insert:
    """Sets a user attribute of a trial: ``of_trial``, ``of_key``, ``content``."""
    row: dict[str, Any] = {
        "trial_id": bindparam("of_trial"),
        "key": bindparam("of_key"),
        "value_json": bindparam("content"),
    }
    return _upsert(dialect, ATTRIBUTES, row, ["trial_id", "key"])


@functools.cache
def beat(dialect: str) -> sqlalchemy.Insert:
    """Gives a sign of life of ``of_trial``, by the database's clock."""
    now = sqlalchemy.func.current_timestamp()
    row = {"trial_id": bindparam("of_trial"), "heartbeat": now}
    return _upsert(dialect, BEATS, row, ["trial_id"])


def _upsert(
    dialect: str, table: sqlalchemy.Table, row: dict[str, Any], keys: list[str]
) -> sqlalchemy.Insert:
    """Inserts a row, or changes the one with the same keys."""
    names = [name for name in row if name not in keys]
    if dialect == "mysql":
        insert = mysql.insert(table).values(row)
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in names})
    kind: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = kind(table).values(row)
    changed = {name: statement.excluded[name] for name in names}
    upsert: sqlalchemy.Insert = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    return upsert
