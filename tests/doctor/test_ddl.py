"""`ddl`: what it prints makes what `create_tables=True` makes."""

from __future__ import annotations

import asyncio
import sqlite3

import commands
import pytest
from conformance import raw
from doctoring import (
    OPTIONAL,
    ddl_dialect,
    every_table,
    exact_collation,
    in_mariadb,
    problems,
    run,
)
from sqlalchemy import event, inspect, text

from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.schema import create_statements, drop_statements
from agents_session_metadata.dialects import DIALECTS

pytestmark = pytest.mark.dialect


def printed(dialect, names=None):
    return [f"{statement};" for statement in create_statements(dialect, names or table_names())]


async def objects_of(engine):
    """Everything that a database knows of its tables."""

    def read(sync):
        inspector = inspect(sync)
        found = {}
        for table in sorted(inspector.get_table_names()):
            found[table] = (
                sorted(
                    (
                        column["name"],
                        repr(column["type"]),
                        str(getattr(column["type"], "collation", None)),
                        column["nullable"],
                        str(column["default"]),
                    )
                    for column in inspector.get_columns(table)
                ),
                inspector.get_pk_constraint(table)["constrained_columns"],
                sorted(map(repr, inspector.get_foreign_keys(table))),
                sorted(map(repr, inspector.get_indexes(table))),
                sorted(inspector.get_table_options(table).items()) if is_mysql else None,
            )
        if engine.dialect.name == "sqlite":
            query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
            found["sqlite_master"] = [
                (name, " ".join(sql.split()))
                for name, sql in sync.execute(text(query))
                if name != "sqlite_sequence"
            ]
        return found

    is_mysql = engine.dialect.name == "mysql"
    async with engine.connect() as connection:
        return await connection.run_sync(read)


@pytest.mark.parametrize("names", [None, table_names("talks", "entries", "Facts of talks")])
async def test_the_printed_sql_makes_what_create_tables_makes(engine, names):
    executed = []
    event.listen(
        engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _k, statement, *_: executed.append(statement),
    )
    await every_table(engine, names or table_names())
    dialect = await ddl_dialect(engine)
    made = [" ".join(s.split()) for s in executed if s.strip().upper().startswith("CREATE")]
    text_of = printed(dialect, names)
    created = [each for each in text_of if not each.startswith("UPDATE ")]
    assert [f"{statement};" for statement in made] == [" ".join(s.split()) for s in created]
    by_library = await objects_of(engine)
    assert len(by_library) >= 4

    await run(engine, drop_statements(dialect, names or table_names(), everything=True))
    emptied = await objects_of(engine)
    assert emptied.pop("sqlite_master", []) == []
    assert emptied == {}

    if dialect == "sqlite":
        connection = sqlite3.connect(engine.url.database)
        connection.executescript("\n".join(text_of))
        connection.close()
    else:
        await run(engine, text_of)
    assert await objects_of(engine) == by_library
    assert await problems(engine, names) == []


async def test_the_printed_sql_runs_twice_beside_the_tables_of_the_sdk(engine):
    await raw.create_sdk_tables(engine, length=255, collation=await exact_collation(engine))
    script = printed(await ddl_dialect(engine))
    await run(engine, script)
    made = await objects_of(engine)
    assert len(made) >= 4 + len(OPTIONAL)
    # On MySQL and MariaDB, the index on `updated_at` is created with its table only.
    assert all(each.level == "info" for each in await problems(engine))
    await run(engine, script)
    assert await objects_of(engine) == made


@pytest.mark.only_on("mariadb", "mysql")
async def test_the_shell_runs_the_printed_sql(engine, shared_database):
    dialect = await ddl_dialect(engine)
    await run(engine, printed(dialect))
    made = await objects_of(engine)
    for options, expected in ((["--drop", "--all"], {}), ([], made)):
        result = await asyncio.to_thread(commands.run, "ddl", "--dialect", dialect, *options)
        in_mariadb(shared_database.url, result.stdout)
        assert await objects_of(engine) == expected


async def test_dropping_ours_leaves_the_sdk_working(filled):
    engine = filled.engine
    for _ in range(2):  # a second time is harmless
        await run(engine, drop_statements(await ddl_dialect(engine), table_names()))
    assert await raw.table_names(engine) == {"agent_sessions", "agent_messages"}
    session = filled.session("a")
    assert await session.get_items() == [raw.message("hello")]
    await session.clear_session()
    assert await raw.count_rows(engine, "agent_sessions") == 1


def test_mysql_and_mariadb_differ_in_their_collation():
    mysql, mariadb = (
        "\n".join(create_statements(each, table_names())) for each in ("mysql", "mariadb")
    )
    assert mysql.count("utf8mb4_0900_bin") == mariadb.count("utf8mb4_nopad_bin") > 0
    assert "nopad" not in mysql


def test_a_percent_sign_in_a_name_stays_single():
    names = table_names("100%", "50%")
    for dialect in DIALECTS:
        assert "100%" in create_statements(dialect, names)[0]
        assert "%%" not in "".join(create_statements(dialect, names))


def test_an_unknown_dialect():
    with pytest.raises(ValueError, match="must be one of postgresql, mysql, mariadb, sqlite"):
        create_statements("oracle", table_names())
