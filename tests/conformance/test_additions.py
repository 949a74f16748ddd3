"""Tables change by addition: a database of version 0.2.0 gets later columns and indexes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import commands
import pytest
from doctoring import catalog_of, every_table, printed, problems, run
from processes import run_processes
from servers import Database
from sqlalchemy import event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import ItemInfo, SessionCatalog, SessionRuns, TablesMissingError
from agents_session_metadata.core.features import table_names
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.doctor import upgrade
from agents_session_metadata.idempotency.feature import append_once
from agents_session_metadata.types import JSONValue
from conformance import raw
from conformance.old_layout import ADDED, ADDED_INDEXES, OWN, create_old, write_old

pytestmark = pytest.mark.dialect


@pytest.fixture
async def engine(shared_database: Database) -> AsyncEngine:
    engine = shared_database.engine()
    await create_old(engine)
    return engine


async def columns(engine: AsyncEngine, end: str) -> set[str]:
    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_columns(f"{OWN}_{end}"))
    return {column["name"] for column in found}


async def indexed(engine: AsyncEngine, end: str) -> list[list[str]]:
    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_indexes(f"{OWN}_{end}"))
    return [index["column_names"] for index in found]


async def answer_once(catalog: SessionCatalog) -> list[ItemInfo]:
    """Uses the table of answers to requests with a key."""
    return await append_once(catalog._store, "chat", "another", [], lambda _: [])


async def test_columns_and_indexes_are_added_when_their_feature_is_first_used(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.get_metadata("chat") == {"title": "Lisbon"}
    for end, added in ADDED.items():
        assert not added & await columns(engine, end)  # The core needs none of them.

    [row] = await catalog.usage(by=("model",))
    assert (row.model, row.input_tokens, str(row.cost)) == ("small", 10, "0.000001")
    assert ADDED["usage"] <= await columns(engine, "usage")
    assert not ADDED["runs"] & await columns(engine, "runs")

    runs = SessionRuns(catalog)
    [listed] = (await runs.list()).runs
    assert (listed.session_id, listed.status, listed.agent) == ("chat", "failed", "clerk")
    [decision] = await runs.decisions("chat")
    assert (decision.call_id, decision.by) == ("call-1", "ana")
    for end, added in ADDED.items():
        assert added <= await columns(engine, end)

    assert await answer_once(catalog) == []
    for end, column in ADDED_INDEXES.items():
        assert [column] in await indexed(engine, end)
    assert await missing(engine) == []
    assert await upgrade(engine) == []


async def test_a_process_of_version_0_2_writes_beside_the_new_columns(engine):
    catalog = await every_table(engine, table_names())
    await catalog.create_session("older", metadata={"title": "Porto"})
    await write_old(engine, "older")
    assert [row.session_id for row in await catalog.usage(by=("session_id",))] == ["chat", "older"]
    runs = SessionRuns(catalog)
    assert {each.session_id for each in (await runs.list()).runs} == {"chat", "older"}
    assert len(await runs.decisions()) == 2


@pytest.mark.parametrize("create_tables", [False, True])
async def test_history_after_a_failed_run_needs_no_new_column(engine, create_tables):
    catalog = SessionCatalog(engine, create_tables=create_tables)
    item: Any = {"role": "user", "content": "Hello"}
    [added] = await catalog.add_items("chat", [item])
    assert await catalog.rewind_session("chat", before=added.item_id) == [added]
    assert (ADDED["runs"] <= await columns(engine, "runs")) == create_tables


async def test_without_create_tables_the_feature_names_the_columns_and_the_command(engine):
    catalog = SessionCatalog(engine)
    runs = SessionRuns(catalog)
    for _ in range(2):
        for work, table in (
            (catalog.usage, "usage"),
            (runs.list, "runs"),
            (runs.decisions, "run_decisions"),
            (lambda: runs.decide("chat", "call-1", approve=True), "runs"),
        ):
            with pytest.raises(TablesMissingError, match="agent-sessions ddl --upgrade") as caught:
                await work()
            expected = {f"{OWN}_{table}.{column}" for column in ADDED[table]}
            assert expected <= set(caught.value.tables)
            assert all("." in name for name in caught.value.tables)
    for end, added in ADDED.items():
        assert not added & await columns(engine, end)

    await run(engine, await upgrade(engine))
    # The same process goes on.
    assert len(await catalog.usage()) == 1
    assert len(await runs.decisions()) == 1


async def test_without_create_tables_metadata_history_and_indexes_need_nothing(engine):
    catalog = SessionCatalog(engine)
    session = await catalog.create_session("other", metadata={"tags": ["x"]})
    await session.add_items([raw.message("one"), raw.message("two")])
    assert await session.rewind(turns=1)
    assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == 1
    page = await catalog.list_sessions(count_items=True)
    assert {each.session_id: each.item_count for each in page} == {"chat": 1, "other": 1}
    await catalog.fork_session("other", "copy")
    assert await answer_once(catalog) == []  # Only an index is missing.
    for session_id in ("chat", "other", "copy"):
        assert await catalog.delete_session(session_id)
    assert await raw.count_rows(engine, f"{OWN}_runs") == 0


async def test_what_ddl_upgrade_prints_is_what_first_use_runs_and_makes_doctor_clean(
    engine, shared_database
):
    plain = [finding.check for finding in await problems(engine)]
    assert sorted(set(plain)) == ["columns", "indexes"]
    result = await asyncio.to_thread(commands.run, "ddl", "--upgrade", url=shared_database.url)
    assert (result.exit_code, result.stderr) == (0, "")
    statements = result.stdout.replace(";\n", "\n").strip().split("\n")
    assert all(each.startswith(("ALTER TABLE ", "CREATE INDEX ")) for each in statements)
    assert len(statements) == sum(map(len, ADDED.values())) + len(ADDED_INDEXES)
    # `doctor` prints the same ones.
    assert sorted(printed(await problems(engine))) == sorted(statements)

    await run(engine, statements)
    assert await missing(engine) == []
    again = await asyncio.to_thread(commands.run, "ddl", "--upgrade", url=shared_database.url)
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == "nothing is missing\n"

    # The statements of first use are those, on a database that was not upgraded by hand.
    for end, added in ADDED.items():
        for column in added:
            await raw.execute(engine, f"ALTER TABLE {OWN}_{end} DROP COLUMN {column}")
    for end in ADDED_INDEXES:
        on = f" ON {OWN}_{end}" if shared_database.kind == "mysql" else ""
        await raw.execute(engine, f"DROP INDEX {OWN}_{end}_time_idx{on}")
    executed: list[str] = []
    event.listen(
        engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _k, statement, *_: executed.append(statement),
    )
    await every_table(engine, table_names())
    made = [each for each in executed if each.startswith(("ALTER TABLE ", "CREATE "))]
    assert sorted(made) == sorted(statements)


async def missing(engine: AsyncEngine) -> list[Any]:
    """What doctor finds, but its advice to create the index on the SDK's table."""
    return [each for each in await problems(engine) if "'$updated_at'" not in each.problem]


@pytest.mark.parametrize("has_sdk", [True, False])
async def test_ddl_upgrade_on_a_database_without_our_tables(shared_database, has_sdk):
    engine = shared_database.engine()
    if has_sdk:
        await raw.create_sdk_tables(engine)
    statements = await upgrade(engine)
    await run(engine, statements)
    assert await upgrade(engine) == []
    session = SessionCatalog(engine).session("a")
    await session.set_metadata({"tags": ["x"]})
    assert await SessionCatalog(engine).usage() == []


async def test_ddl_upgrade_does_not_hide_a_misspelled_sessions_table(engine, shared_database):
    result = await asyncio.to_thread(
        commands.run,
        *("ddl", "--upgrade", "--sessions-table", "other", "--metadata-table", OWN),
        url=shared_database.url,
    )
    assert (result.exit_code, result.stdout) == (1, "")
    assert "its name is misspelled" in result.stderr


@pytest.mark.logic
@pytest.mark.parametrize(
    "options",
    [[], ["--upgrade", "--dialect", "sqlite"], ["--upgrade", "--drop"], ["--upgrade", "--all"]],
)
def test_ddl_takes_a_dialect_or_a_database(options):
    result = commands.run("ddl", *options, url="sqlite:///none.db")
    assert (result.exit_code, result.stdout) == (2, "")


AT_ONCE = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import SessionCatalog, SessionRuns

async def main():
    engine = create_async_engine(sys.argv[1])
    catalog = SessionCatalog(engine, create_tables=True)
    emit(len(await catalog.usage()))
    emit(len(await SessionRuns(catalog).decisions()))
    await engine.dispose()

start()
asyncio.run(main())
"""


async def test_processes_that_add_the_same_columns_at_once_all_go_on(engine, shared_database):
    await engine.dispose()
    assert await run_processes(AT_ONCE, [[shared_database.url]] * 4) == [[1, 1]] * 4
    for end, added in ADDED.items():
        assert added <= await columns(engine, end)


async def test_many_callers_at_once_in_one_process(engine):
    catalogs = [SessionCatalog(engine, create_tables=True) for _ in range(5)]
    found = await asyncio.gather(*(catalog.usage() for catalog in catalogs))
    assert [len(rows) for rows in found] == [1] * 5


async def test_in_a_table_with_a_long_name(shared_database):
    engine, names = shared_database.engine(), table_names("Chats", "Entries", "Facts " + "x" * 50)
    await every_table(engine, names)
    table = engine.dialect.identifier_preparer.quote(
        next(each for each in await raw.table_names(engine) if each.lower().endswith("_usage"))
    )
    await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN exact_cost")
    await engine.dispose()
    again = create_async_engine(shared_database.url)
    assert await catalog_of(again, names).usage() == []
    assert await upgrade(again, names) == []
    await again.dispose()


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
async def test_a_user_who_may_not_alter_tables(engine, shared_database):
    user = f"only_{make_url(shared_database.url).database}"[:30]
    tables = [each for each in await raw.table_names(engine) if each.startswith("agent_")]
    if shared_database.kind == "postgresql":
        login, of_user = f"CREATE ROLE {user} LOGIN", user
        drops = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
        more = [f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}"]
    else:
        login, of_user, more = f"CREATE USER {user}@'%'", f"{user}@'%'", []
        drops = [f"DROP USER {user}"]
    grants = [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {of_user}" for table in tables]
    for statement in (login, *grants, *more):
        await raw.execute(engine, statement)
    restricted = create_async_engine(make_url(shared_database.url).set(username=user))
    try:
        catalog = SessionCatalog(restricted, create_tables=True)
        await catalog.set_metadata("chat", {"title": "Porto"})
        assert await answer_once(catalog) == []  # Only an index is missing.
        with pytest.raises(TablesMissingError, match="agent-sessions ddl --upgrade") as caught:
            await catalog.usage()
        assert caught.value.tables == (f"{OWN}_usage.exact_cost",)
        await run(engine, await upgrade(engine))
        assert len(await catalog.usage()) == 1
    finally:
        await restricted.dispose()
        for drop in drops:
            await raw.execute(engine, drop)


# ---- locks ----


@asynccontextmanager
async def holding(engine: AsyncEngine, statement: str) -> AsyncIterator[Any]:
    """A transaction that has run a statement and does not end before the block does."""
    async with engine.connect() as connection:
        await connection.execute(text(statement))
        yield connection
        await connection.rollback()


@pytest.mark.thorough
@pytest.mark.only_on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize(
    "missing",
    [
        # MariaDB creates a table that refers to another one without waiting for its writers.
        pytest.param("a table", marks=pytest.mark.not_on("mariadb")),
        "a column",
    ],
)
async def test_nobody_queues_longer_behind_a_first_use_that_waits_for_a_lock(
    engine, shared_database, missing
):
    table = "agent_sessions"
    if missing == "a table":
        await raw.execute(engine, f"DROP TABLE {OWN}_idempotency")
        first_use = answer_once
    else:
        table = f"{OWN}_usage"

        async def first_use(catalog: SessionCatalog) -> JSONValue:
            return len(await catalog.usage())

    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.count_sessions()
    change = f"UPDATE {table} SET session_id = session_id"
    async with holding(engine, f"{change} WHERE session_id = 'nobody'"):
        task = asyncio.create_task(first_use(catalog))
        await asyncio.sleep(0.5)
        assert not task.done()
        begin = time.monotonic()
        await asyncio.wait_for(raw.execute(engine, f"{change} WHERE session_id = 'none'"), 20)
        assert time.monotonic() - begin < 8
        assert not task.done()
    # It is tried again.
    assert await asyncio.wait_for(task, 30) in ([], 1)


SETTINGS = {
    "mysql": ("SET SESSION lock_wait_timeout = {}", "SELECT @@lock_wait_timeout"),
    "postgresql": ("SET lock_timeout = '{}s'", "SELECT CAST(setting AS integer) / 1000"),
}


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize(("own", "within"), [(77, 5), (2, 2)])
async def test_the_connection_gets_its_own_lock_timeout_back(engine, shared_database, own, within):
    change, look = SETTINGS[shared_database.kind]
    if shared_database.kind == "postgresql":
        look += " FROM pg_settings WHERE name = 'lock_timeout'"
    pooled = shared_database.engine(pool_size=1, max_overflow=0)

    @event.listens_for(pooled.sync_engine, "connect")
    def configure(connection, _record):
        cursor = connection.cursor()
        cursor.execute(change.format(own))
        cursor.close()
        connection.commit()

    waits = []

    @event.listens_for(pooled.sync_engine, "before_cursor_execute")
    def note_wait(connection, cursor, statement, *_):
        if statement.strip().startswith(("ALTER", "CREATE", "DROP")):
            waits.append(connection.exec_driver_sql(look).scalar())

    catalog = SessionCatalog(pooled, create_tables=True)
    await catalog.usage()
    await catalog.create_index("$updated_at")
    await catalog.drop_index("$updated_at")
    assert waits == [within] * 3
    assert await raw.execute(pooled, look) == [(own,)]

    def fail(sync):
        with dialect_of(sync.dialect).brief_waits(sync):
            sync.execute(text("SELECT nothing"))

    async with pooled.connect() as connection:
        with pytest.raises(DBAPIError, match="nothing"):
            await connection.run_sync(fail)
        await connection.rollback()
        assert (await connection.execute(text(look))).scalar() == own


async def test_settings_of_healthy_tables_are_not_touched(engine):
    await every_table(engine, table_names())
    await engine.dispose()
    executed: list[str] = []
    event.listen(
        engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _k, statement, *_: executed.append(statement),
    )
    again = SessionCatalog(engine, create_tables=True)
    await again.usage()
    await SessionRuns(again).decisions()
    await answer_once(again)
    assert executed
    assert not [each for each in executed if "timeout" in each or each.startswith("SET")]
