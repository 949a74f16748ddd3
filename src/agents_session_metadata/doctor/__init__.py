"""Checks a live database, and prints the statements that create missing objects.

`diagnose` and `upgrade` change nothing. `rewrite_search_keys` rewrites search keys and list
elements from the stored values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TypeAlias, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from agents_session_metadata.core.definitions import TableNames
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.schema import foreign_table, upgrade_statements
from agents_session_metadata.dialects import PRODUCTS, connected_name, dialect_of
from agents_session_metadata.dialects.urls import with_transactions

from .rows import Rewritten, check_orphans, check_values, rewrite_search_keys
from .structure import (
    Finding,
    Inspection,
    check_ids,
    check_obsolete,
    check_tables,
    check_triggers,
)

__all__ = ["Finding", "Rewritten", "diagnose", "rewrite_search_keys", "upgrade"]

T = TypeVar("T")

Check: TypeAlias = Callable[[Inspection], Iterator[Finding]]
_CHECKS: tuple[Check, ...] = (
    check_tables,
    check_ids,
    check_triggers,
    check_obsolete,
    check_orphans,
    check_values,
)


async def diagnose(engine: AsyncEngine, names: TableNames | None = None) -> list[Finding]:
    """Checks one set of tables; the engine's schema translation applies.

    The first finding has the versions in use. A healthy database has no other findings.
    """

    def examine(connection: Connection) -> list[Finding]:
        with warnings.catch_warnings():
            # SQLAlchemy warns of columns and indexes that it cannot read, and drivers of whatever
            # the server says about tables and views of the application.
            warnings.simplefilter("ignore")
            return [*_examine(Inspection(connection, names or table_names()))]

    return await _read(engine, examine)


async def upgrade(engine: AsyncEngine, names: TableNames | None = None) -> list[str]:
    """Returns the statements that add what a database lacks of the tables of this version.

    Raises:
        TablesMissingError: If metadata has rows but the sessions table is missing.
    """
    return await _read(
        engine, lambda connection: upgrade_statements(connection, names or table_names())
    )


async def _read(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    dialect = dialect_of(engine.dialect)
    in_transactions = with_transactions(engine).sync_engine

    def connect() -> T:
        with dialect.connect(in_transactions) as connection:
            dialect.check_connection(connection)
            return work(connection)

    return await greenlet_spawn(connect)


def _examine(inspection: Inspection) -> Iterator[Finding]:
    connection = inspection.connection
    yield Finding("info", "versions", ", ".join(_versions(connection)))
    for problem in inspection.dialect.server_warnings(connection):
        yield Finding("warning", "server", problem)
    foreign = foreign_table(inspection.expected, inspection.existing)
    if foreign is not None:
        yield Finding("error", "tables", foreign)
        return
    for check in _CHECKS:
        yield from _checked(inspection, check)


def _checked(inspection: Inspection, check: Check) -> Iterator[Finding]:
    try:
        yield from check(inspection)
    except DBAPIError as error:
        # Such as a comparison of columns whose types do not fit each other.
        inspection.connection.rollback()
        name = check.__name__.removeprefix("check_").replace("_", " ")
        yield Finding("error", name, f"could not be checked: {error.orig}")


def _versions(connection: Connection) -> Iterator[str]:
    dialect = connection.dialect
    number = ".".join(map(str, dialect.server_version_info or ()))
    yield f"{PRODUCTS[connected_name(dialect)]} {number}"
    driver = dialect.driver.removesuffix("_async")
    for package in (driver, "SQLAlchemy", "openai-agents", "agents-session-metadata"):
        yield f"{package} {version(package)}"
