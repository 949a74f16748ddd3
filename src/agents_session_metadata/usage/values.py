"""Counts the values that some sessions have under some keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, select

from agents_session_metadata.core.messages import Restriction
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.values import decode_value


def read_values(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
    keys: Sequence[str],
    restrict: Restriction,
) -> dict[str, list[tuple[Any, int]]]:
    """Returns values by key, each with its number of sessions, without invalid JSON.

    `restrict` restricts the statement to sessions that the caller can still see.
    """
    found: dict[str, list[tuple[Any, int]]] = {key: [] for key in keys}
    if not ids:
        return found
    statement = _statement(tables, dialect, min(len(ids), dialect.many + 1))
    statement, parameters = restrict(statement, tables.metadata.c.session_id)
    parameters = {**parameters, **dialect.list_parameters("ids", ids), "keys": keys}
    rows = connection.execute(statement, parameters)
    for (key, text), number in Counter(map(tuple, rows.all())).items():
        try:
            found[key].append((decode_value(text), number))
        except ValueError:  # noqa: PERF203  # each value for itself
            continue
    return found


@lru_cache(maxsize=256)
def _statement(tables: SessionTables, dialect: Dialect, count: int) -> Statement:
    rows = tables.metadata
    return select(rows.c.key, rows.c.value).where(
        dialect.one_of(rows.c.session_id, "ids", count),
        rows.c.key.in_(bindparam("keys", expanding=True)),
    )
