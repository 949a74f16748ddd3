"""Checks a live database: what is wrong, and the SQL that repairs it.

`diagnose` changes nothing. The statements that it gives are safe to run in their order, also if
one of them fails: they add what is missing, and never change or delete what an application wrote.
`rewrite_search_keys` writes search keys again from the stored values.
"""

from __future__ import annotations

from sqlalchemy.exc import NotSupportedError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects.urls import with_transactions
from agents_session_metadata.storage.tables import TableNames, table_names

from .checks import check
from .findings import Finding
from .inspection import inspect_database
from .rewriting import Rewritten, rewrite_search_keys

__all__ = ["Finding", "Rewritten", "diagnose", "rewrite_search_keys"]


async def diagnose(engine: AsyncEngine, names: TableNames | None = None) -> list[Finding]:
    """Examine the tables of one name in an engine's database.

    Args:
        engine: The engine; a schema translation is followed.
        names: The names of the tables; the default names if omitted.

    Returns:
        What was found; the versions in use come first, as information. A healthy database gives
        nothing else. If the tables do not belong together, only that is reported, and no finding
        has statements.

    Raises:
        UnsupportedDialectError: If the engine is for another database, or has an unsupported
            setting.
    """
    dialect_of(engine.dialect)
    try:
        return await _examined(engine, names or table_names())
    except NotSupportedError:
        # asyncpg had prepared a statement before the tables were repaired, and has dropped it now.
        return await _examined(engine, names or table_names())


async def _examined(engine: AsyncEngine, names: TableNames) -> list[Finding]:
    dialect = dialect_of(engine.dialect)
    in_transactions = with_transactions(engine).sync_engine

    def examine() -> list[Finding]:
        with dialect.connect(in_transactions) as connection:
            dialect.check_settings(connection)
            return check(inspect_database(connection, names))

    return await greenlet_spawn(examine)
