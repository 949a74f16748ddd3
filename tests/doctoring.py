"""What the tests of `doctor` and `ddl` do to a database."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
from datetime import date

from conformance import raw
from servers import SHARED_DATABASES, program
from sqlalchemy import insert, inspect, make_url
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import SessionCatalog
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.storage.tables import query_tables, table_names

_NAME = r"""(?:"[^"]+"|`[^`]+`|[\w.]+)"""
_CHARSET = r"([ ]/\*.*?\*/)?[ ]CHARACTER[ ]SET[ ]\w+[ ]COLLATE[ ]\w+"
_WIDE = (
    rf"(?:(?:LONGTEXT|VARCHAR\(\d+\)){_CHARSET}|LONGBLOB|VARBINARY\(512\)"
    r"|\w+\(\d+\)[ ][^;]*AUTO_INCREMENT)"
)
_DERIVED = r"""(?:\w+|"[^"]+|`[^`]+)_(?:elements|activity|words|words_queue)["`]?"""
_FILLED = r"""(?:\w+|"[^"]+|`[^`]+)_(?:activity|words_queue)["`]?"""
_STATES = r"""(?:\w+|"[^"]+|`[^`]+)_(?:indexes|words_state)["`]?"""
_OF_ROWS = r"after_(?:delete|insert|update)|activity_\w+|words_of_\w+"
_OURS = rf"""(?:\w+\.)?["`]?[^"`();]+_(?:{_OF_ROWS})["`]?"""

SAFE = re.compile(
    rf"""CREATE[ ]TABLE[ ]{_NAME}[ ]\(\n(?!.*SELECT).*
    |CREATE[ ]INDEX[ ]{_NAME}[ ]ON[ ]{_NAME}[ ]\([^()]*\)
    |CREATE[ ]TRIGGER[ ](IF[ ]NOT[ ]EXISTS[ ])?{_OURS}[ ](AFTER|BEFORE)[ ].*
    |CREATE[ ]OR[ ]REPLACE[ ]FUNCTION[ ]{_OURS}\(\)[ ]RETURNS[ ]trigger[ ].*
    |SET[ ]search_path[ ]TO[ ]{_NAME}(,[ ]{_NAME})*
    |REVOKE[ ]ALL[ ]ON[ ]FUNCTION[ ]{_OURS}\(\)[ ]FROM[ ]PUBLIC
    |DROP[ ]TRIGGER[ ]IF[ ]EXISTS[ ]{_OURS}([ ]ON[ ]{_NAME})?
    |DO[ ][$]body[$][ ]BEGIN[ ]DROP[ ]TRIGGER[ ]IF[ ]EXISTS[ ]{_OURS}[ ]ON[ ]{_NAME};
        [ ]DROP[ ]FUNCTION[ ]IF[ ]EXISTS[ ]{_OURS}\(\)[ ]CASCADE;[ ]END[ ][$]body[$]
    |ALTER[ ]TABLE[ ]{_NAME}[ ]ADD[ ](CONSTRAINT[ ]{_NAME}[ ])?FOREIGN[ ]KEY[ ]?\([^;]*
    |ALTER[ ]TABLE[ ]{_NAME}[ ]ADD[ ]PRIMARY[ ]KEY[ ]\([^()]*\)
    |ALTER[ ]TABLE[ ]{_NAME}[ ]ALTER[ ]COLUMN[ ]\w+[ ](
        SET[ ]DEFAULT[ ]\(?CURRENT_TIMESTAMP\)?
        |ADD[ ]GENERATED[ ]BY[ ]DEFAULT[ ]AS[ ]IDENTITY[ ]\(START[ ]WITH[ ]\d+\)
        |TYPE[ ](TEXT|VARCHAR|VARCHAR\(\d+\))[ ]COLLATE[ ]{_NAME}\.{_NAME})
    |ALTER[ ]TABLE[ ]{_NAME}[ ]MODIFY[ ]COLUMN[ ]`\w+`[ ]{_WIDE}[^;]*
    |ALTER[ ]TABLE[ ]{_NAME}[ ]ALTER[ ]INDEX[ ]{_NAME}[ ]NOT[ ]IGNORED
    |DELETE[ ]FROM[ ]{_DERIVED}[ ]WHERE[ ][^;]*
    |UPDATE[ ]{_STATES}[ ]SET[ ]state=0[^;]*[ ]WHERE[ ][^;]*state[ ]!=[ ]2
    |INSERT[ ](OR[ ]IGNORE[ ]|IGNORE[ ])?INTO[ ]{_FILLED}[ ]\([^()]*\)[ ](SELECT|VALUES)[ ][^;]*
    """,
    re.VERBOSE | re.DOTALL,
)
"""The only kinds of statements that `doctor` may print."""
_TEXT = re.compile("'([^']|'')*'")

GROUPS = query_tables(table_names()).groups
BY_APPLICATION = ["_paused", "_usage", "_thread_items", "_attachments"]
"""The ends of the names of optional tables whose rows follow from nothing else."""
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
    """Two sessions in tables of these names, an index of each kind, and rows in every table."""
    names = names or table_names()
    catalog = await every_table(engine, names)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello"), raw.message("again")])
    for key in ("tags", "$updated_at"):
        await catalog.create_index(key)
    await catalog.set_metadata("b", {"title": "About words"})
    texts = dict.fromkeys(("state", "details", "decisions", "data", "owner"), "{}")
    texts["details"] = '{"agent": null, "pending": [], "encrypted": false, "wrapped": false}'
    given = {"item_id": "1", "attachment_id": "1", "kind": "x", "day": date(2026, 1, 1)}
    async with engine.begin() as connection:
        for group in query_tables(names).groups:
            for table in group.tables if group.name in ("paused", "usage", "threads") else ():
                row = {"session_id": "a", **texts, **given}
                zeros = {column.name: 0 for column in table.c if not column.nullable}
                row = {name: (zeros | row)[name] for name in zeros | row if name in table.c}
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
            assert SAFE.fullmatch(_TEXT.sub("''", statement)), statement
    return found[1:]


async def run(engine, statements):
    """Statements typed at a prompt, each in a transaction of its own, on one connection."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
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


async def run_on(engine, statements, *, harsh=True):
    """As a shell that goes on after an error; `harsh` settings make mistakes worse."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        settings = {"sqlite": "PRAGMA foreign_keys = ON", "mysql": "SET SESSION sql_mode = ''"}
        if harsh and engine.dialect.name in settings:
            await connection.exec_driver_sql(settings[engine.dialect.name])
        for statement in statements:
            with contextlib.suppress(DBAPIError):
                await connection.exec_driver_sql(_escaped(engine, statement))
        await connection.invalidate()


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


def split(script):
    """The statements of a script; a trigger's body has semicolons of its own."""
    statements, rest = [], ""
    for part in script.split(";"):
        rest += part
        if sqlite3.complete_statement(f"{rest};"):
            statements.append(rest.strip())
            rest = ""
        else:
            rest += ";"
    return [each for each in statements if each]


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


def of_kind(kind):
    """The names of the databases of a kind."""
    kinds = {"sqlite-file": "sqlite", "mariadb": "mysql", "mariadb-url": "mysql"}
    return [name for name in SHARED_DATABASES if kinds.get(name, "postgresql") == kind]


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


async def without_foreign_keys(engine, table):
    async with engine.connect() as connection:
        keys = await connection.run_sync(lambda sync: inspect(sync).get_foreign_keys(table))
    word = "FOREIGN KEY" if engine.dialect.name == "mysql" else "CONSTRAINT"
    for key in keys:
        await raw.execute(engine, f"ALTER TABLE {table} DROP {word} {key['name']}")


async def drop_column(engine, table, column):
    await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN {column}")


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


FOREIGN_KEYS = ["agent_messages", "agent_sessions_metadata", "agent_sessions_metadata_elements"]


def parent_of(table):
    return table.removesuffix("_elements") if "elements" in table else "agent_sessions"
