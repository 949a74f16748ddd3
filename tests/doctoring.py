"""What the tests of `doctor` and `ddl` do to a database."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import date

from conformance import raw
from servers import ignored_warnings, program
from sqlalchemy import insert, make_url

from agents_session_metadata import SessionCatalog
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.tables import query_tables
from agents_session_metadata.doctor import diagnose

SAFE = re.compile(
    r"CREATE (TABLE|INDEX|TRIGGER) .*|ALTER TABLE \S+ ADD COLUMN [^;,]*(?<!NOT NULL)"
    r"|DROP TRIGGER IF EXISTS [^;]*",
    re.DOTALL,
)
"""The only kinds of statements that `doctor` may print."""

GROUPS = query_tables(table_names()).groups
OPTIONAL = [table.name for group in GROUPS[1:] for table in group.tables]


def catalog_of(engine, names):
    """A catalog that creates tables of these names."""
    return SessionCatalog(
        engine,
        create_tables=True,
        sessions_table=names.sessions,
        messages_table=names.messages,
        metadata_table=names.metadata,
    )


async def every_table(engine, names):
    """A catalog with tables of these names, which all exist."""
    catalog = catalog_of(engine, names)
    for group in query_tables(names).groups:
        await catalog._store.database.ensure(group.name)
    return catalog


async def complete(engine, names=None):
    """Two sessions in tables of these names, the text index, and rows in every table."""
    names = names or table_names()
    catalog = await every_table(engine, names)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello"), raw.message("again")])
    await catalog.create_index("$text")
    await catalog.set_metadata("b", {"title": "About words"})
    of_runs = ("run_id", "token", "agent", "input", "progress", "value", "run_key")
    texts = dict.fromkeys((*of_runs, "outcome", "call_id", "data", "owner"), "{}")
    given = {"item_id": "1", "attachment_id": "1", "kind": "x", "day": date(2026, 1, 1)}
    given |= {"status": "waiting", "approve": False}
    async with engine.begin() as connection:
        for group in query_tables(names).groups:
            for table in group.tables if group.name in ("runs", "usage", "threads") else ():
                row = {"session_id": "a", **texts, **given}
                zeros = {column.name: 0 for column in table.c if not column.nullable}
                row = {name: (zeros | row)[name] for name in zeros | row if name in table.c}
                if group.name == "usage":
                    row["item_id"] = 1
                row.pop("id", None)
                row.pop("created_at", None)
                await connection.execute(insert(table).values(row))
    return catalog


async def problems(engine, names=None):
    """What `doctor` finds; every statement that it prints is of a safe kind."""
    found = await diagnose(engine, names)
    assert found[0].level == "info"
    for finding in found:
        for statement in finding.repair:
            assert SAFE.fullmatch(statement), statement
    return found[1:]


async def run(engine, statements):
    """Statements typed at a prompt, each in a transaction of its own, on one connection."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with ignored_warnings():
            for statement in statements:
                await connection.exec_driver_sql(_escaped(engine, statement))


async def mended(engine, names=None, rounds=6):
    """Run what is printed until nothing is; what is found then."""
    for _ in range(rounds):
        found = await problems(engine, names)
        if not printed(found):
            return found
        await run(engine, printed(found))
    raise AssertionError(f"still printed after {rounds} rounds: {found}")


async def run_without_foreign_keys(engine, statements):
    """As somebody who has switched foreign keys and triggers off."""
    off = {
        "sqlite": [],
        "postgresql": ["SET session_replication_role = replica"],
        "mysql": ["SET foreign_key_checks = 0"],
    }[engine.dialect.name]
    triggers = []
    if engine.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = await raw.execute(engine, query)
    drops = [f'DROP TRIGGER "{name}"' for name, _ in triggers]
    await run(engine, [*off, *drops, *statements, *(sql for _, sql in triggers)])
    await engine.dispose()


def _escaped(engine, statement):
    is_doubled = engine.dialect.paramstyle in ("format", "pyformat")
    return statement.replace("%", "%%") if is_doubled else statement


def in_mariadb(url, script):
    """Run a script in the database's own shell, as one who pastes it does."""
    place, environment = make_url(url), dict(os.environ)
    if place.password:
        environment["MYSQL_PWD"] = str(place.password)
    command = [
        *[program("mariadb", "mysql"), "--no-defaults", "--protocol=tcp"],
        *[f"--host={place.host}", f"--port={place.port or 3306}", f"--user={place.username}"],
        *["--default-character-set=utf8mb4", place.database],
    ]
    done = subprocess.run(
        command, check=False, input=script, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def printed(found):
    return [statement for finding in found for statement in finding.repair]


async def repair(engine, expected, levels=None):
    """What was found is what was expected; the statements, run as they stand, repair it all."""
    found = await problems(engine)
    assert expected in {finding.check for finding in found}
    assert {finding.level for finding in found} <= set(levels or ["error"])
    assert printed(found)
    await run(engine, printed(found))
    assert await problems(engine) == []
    return found


async def explained(engine, expected, levels=None):
    """What was found is what was expected, in words alone."""
    found = await problems(engine)
    assert expected in {finding.check for finding in found}, found
    assert {finding.level for finding in found} <= set(levels or ["error", "warning"])
    assert printed(found) == []
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


async def sqlite_retyped(engine, table, old, new):
    """Declare a table otherwise, as somebody who wrote the SQL by hand."""
    rows = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :t", t=table
    )
    definition, replaced = re.subn(old, new, rows[0][0])
    assert replaced
    indexes = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :t", t=table
    )
    triggers = await raw.execute(engine, "SELECT name, sql FROM sqlite_master WHERE type='trigger'")
    await run(
        engine,
        [
            *(f"DROP TRIGGER {name}" for name, _ in triggers),
            f"CREATE TABLE copy AS SELECT * FROM {table}",
            f"DROP TABLE {table}",
            definition,
            f"INSERT INTO {table} SELECT * FROM copy",
            "DROP TABLE copy",
            *(sql for (sql,) in indexes if sql),
            *(sql for _, sql in triggers),
        ],
    )
