"""What the tests of `doctor` and `ddl` do to a database."""

from __future__ import annotations

import pytest
from conformance import raw
from servers import SHARED_DATABASES

from agents_session_metadata.doctor import diagnose


async def problems(engine, names=None):
    found = await diagnose(engine, names)
    assert found[0].level == "info"
    return found[1:]


async def run(engine, statements):
    """Statements typed at a prompt, each in a transaction of its own, on one connection."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in statements:
            is_formatted = engine.dialect.driver == "asyncmy"
            await connection.exec_driver_sql(
                statement.replace("%", "%%") if is_formatted else statement
            )


async def repair(engine, expected, levels=None):
    """What was found is what was expected; the statements, run as they stand, repair it all."""
    found = await problems(engine)
    assert expected in {finding.check for finding in found}
    assert {finding.level for finding in found} <= set(levels or ["error"])
    statements = [statement for finding in found for statement in finding.repair]
    assert statements
    await run(engine, statements)
    assert await problems(engine) == []
    return found


async def intact(catalog, sessions=("a", "b")):
    """The sessions are what they were, and everything works."""
    page = await catalog.list_sessions(
        {"tags": {"$contains": "x"}}, order_by="session_id", count_items=True
    )
    assert [(s.session_id, s.item_count) for s in page.sessions] == [(each, 1) for each in sessions]
    assert all(s.metadata == {"tags": ["x", "y"], "n": 1} for s in page.sessions)
    await catalog.delete_session("a")
    assert await catalog.count_sessions() == len({*sessions} - {"a"})
    # The session gone, its rows are gone with it, whoever deletes it.
    await raw.execute(catalog.engine, "DELETE FROM agent_messages WHERE session_id = 'b'")
    await raw.execute(catalog.engine, "DELETE FROM agent_sessions WHERE session_id = 'b'")
    assert await raw.metadata_rows(catalog.engine) == 0


def of_kind(kind):
    """The names of the databases of a kind."""
    kinds = {"sqlite-file": "sqlite", "mariadb": "mysql"}
    return [name for name in SHARED_DATABASES if kinds.get(name, "postgresql") == kind]


def only(*kinds):
    """Collect a test for these kinds of databases only."""
    names = [name for kind in kinds for name in of_kind(kind)]
    return pytest.mark.parametrize("shared_database", names, indirect=True)


async def exact_collation(engine):
    if engine.dialect.name != "mysql":
        return ""
    async with engine.connect() as connection:
        is_mariadb = connection.dialect.is_mariadb
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


async def ddl_dialect(engine):
    async with engine.connect() as connection:
        if getattr(connection.dialect, "is_mariadb", False):
            return "mariadb"
    return engine.dialect.name
