"""Beside the SDK's tables, under any names, in any schema."""

from __future__ import annotations

import contextlib
from datetime import date, datetime, timezone
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from chatkit.store import NotFoundError
from servers import Database
from sqlalchemy import MetaData, event, inspect, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
    SessionRuns,
    SessionTracker,
    SQLAlchemyMetadataSession,
    TablesMissingError,
    session_tables,
)
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.core.features import table_names
from agents_session_metadata.doctor import diagnose
from conformance import raw
from conformance.approving import Deployer, deploys
from conformance.compaction import Client
from conformance.thread_items import user_item

pytestmark = pytest.mark.dialect

TABLES = {
    "agent_sessions",
    "agent_messages",
    "agent_sessions_metadata",
    "agent_sessions_metadata_elements",
}


async def create_by_hand(engine) -> None:
    """All tables, as a migration makes them: without an instance of any class."""
    metadata = MetaData()
    session_tables(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)


async def check_everything(session: SQLAlchemyMetadataSession) -> None:
    """The promises of the session, in short."""
    other = session.catalog.session("other")
    for one in (session, other):
        await one.add_items([raw.message("hello")])
        await one.set_metadata({"a": 1, "tags": ["x", "y"]})
    await session.edit_metadata(lambda metadata: metadata.update(a=2))
    assert await session.get_metadata() == {"a": 2, "tags": ["x", "y"]}
    assert await session.find_sessions_by_metadata("a", 2) == [session.session_id]
    page = await session.catalog.list_sessions({"tags": {"$contains": "x"}}, count_items=True)
    assert {info.session_id: info.item_count for info in page.sessions} == {
        session.session_id: 1,
        "other": 1,
    }
    await session.clear_session()
    await session.add_items([raw.message("again")])
    assert await session.get_metadata() == {}
    assert await session.get_items() == [raw.message("again")]
    assert await other.get_metadata() == {"a": 1, "tags": ["x", "y"]}
    assert await session.catalog.count_sessions() == 2


async def test_names_of_the_tables(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.get_metadata()
    assert await raw.table_names(engine) == TABLES
    await check_everything(session)


async def test_creating_by_history_alone(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.add_items([raw.message("a")])
    assert await raw.table_names(engine) >= TABLES


async def test_creating_by_the_catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.count_sessions() == 0
    assert await raw.table_names(engine) == TABLES
    # Without create_tables, what is there is enough.
    await check_everything(SQLAlchemyMetadataSession("chat", engine=engine))


async def test_creating_by_a_migration(engine):
    await create_by_hand(engine)
    assert await raw.table_names(engine) == {
        table.name for group in session_tables().groups for table in group.tables
    }
    await create_by_hand(engine)
    await check_everything(SQLAlchemyMetadataSession("chat", engine=engine))


async def test_the_sdk_columns_are_not_altered(engine):
    await raw.create_sdk_tables(engine)

    async def columns():
        async with engine.connect() as connection:
            return await connection.run_sync(
                lambda sync: {
                    table: sorted(
                        (column["name"], str(column["type"]), column["nullable"])
                        for column in inspect(sync).get_columns(table)
                    )
                    for table in ("agent_sessions", "agent_messages")
                }
            )

    before = await columns()
    await check_everything(SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True))
    assert await columns() == before


@pytest.mark.parametrize(
    ("length", "charset", "collation"),
    [
        (190, "utf8mb4", "utf8mb4_bin"),
        (255, "utf8mb4", "utf8mb4_general_ci"),
        (255, "latin1", "latin1_swedish_ci"),
        (64, "ascii", "ascii_bin"),
        (512, "utf8mb4", "utf8mb4_bin"),
    ],
    ids=str,
)
async def test_a_database_that_the_sdk_filled(engine, length, charset, collation):
    # A foreign key follows the column that its owner declared, whatever that was.
    await raw.create_sdk_tables(engine, length=length, charset=charset, collation=collation)
    plain = SQLAlchemySession("old", engine=engine)
    await plain.add_items([raw.message("from before")])
    session = SQLAlchemyMetadataSession("old", engine=engine, create_tables=True)
    assert await session.get_metadata() == {}
    assert await session.get_items() == [raw.message("from before")]
    page = await session.catalog.list_sessions()
    assert [(info.session_id, info.metadata) for info in page.sessions] == [("old", {})]
    assert await session.find_sessions_by_metadata({"a": {"$exists": False}}) == ["old"]
    await session.set_metadata({"a": 1})
    await session.clear_session()
    await check_everything(session)


@pytest.mark.only_on("mariadb", "mysql")
async def test_imports_where_ids_ignore_case(engine):
    await raw.create_sdk_tables(engine, collation="utf8mb4_general_ci")
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("Chat", metadata={"title": "old"})
    times = dict.fromkeys(("created_at", "updated_at"), "2026-01-01T00:00:00Z")
    records = [
        {"format": 1, "session_id": name, **times, "metadata": {"title": "new"}, "items": []}
        for name in ("one", "chat", "two")
    ]
    assert await catalog.import_sessions(records, on_conflict="skip") == 2
    assert [info.session_id async for info in catalog.iter_sessions()] == ["Chat", "one", "two"]
    assert await catalog.get_metadata("chat") == {"title": "old"}
    mine = catalog.scoped({"title": "mine"})
    record = {**records[1], "metadata": {"title": "mine"}}
    for on_conflict, kind in (("error", SessionExistsError), ("replace", SessionNotFoundError)):
        with pytest.raises(kind) as caught:
            await mine.import_sessions([record], on_conflict=on_conflict)
        assert caught.value.session_id == "chat"
        assert "Chat" not in str(caught.value)
    assert await mine.import_sessions([record], on_conflict="skip") == 0
    assert await catalog.import_sessions(records, on_conflict="replace") == 3
    assert [info.session_id async for info in catalog.iter_sessions()] == ["chat", "one", "two"]
    assert await catalog.get_metadata("chat") == {"title": "new"}


async def test_plain_sdk_sessions_on_our_tables(engine, database):
    await SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True).get_metadata()
    plain = SQLAlchemySession("plain", engine=database.engine())
    long = raw.message("x" * 100_000)
    await plain.add_items([raw.message("a"), long])
    assert await plain.pop_item() == long
    assert await plain.get_items() == [raw.message("a")]
    await plain.clear_session()
    assert await plain.get_items() == []


async def test_history_needs_no_tables_of_ours(engine):
    await raw.create_sdk_tables(engine)
    for on_clear in ("delete", "keep"):
        session = SQLAlchemyMetadataSession("chat", engine=engine, on_clear=on_clear)
        items = [raw.message(f"item {number}") for number in range(3)]
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.pop_item() == items[-1]
        compaction = OpenAIResponsesCompactionSession(
            "chat", session, client=Client([raw.message("summary")])
        )
        await compaction.run_compaction({"force": True, "compaction_mode": "input"})
        assert await session.get_items() == [raw.message("summary")]
        await session.clear_session()
        assert await session.get_items() == []
    assert "agent_sessions_metadata" not in await raw.table_names(engine)


METADATA_CALLS = {
    "get": lambda session: session.get_metadata(),
    "get_some": lambda session: session.get_metadata(["a"]),
    "set": lambda session: session.set_metadata({"a": 1}),
    "delete": lambda session: session.delete_metadata(),
    "edit": lambda session: session.edit_metadata(lambda metadata: metadata.update(a=1)),
    "find": lambda session: session.find_sessions_by_metadata("a", 1),
    "list": lambda session: session.catalog.list_sessions(),
    "create": lambda session: session.catalog.create_session("new", metadata={"a": 1}),
}


@pytest.mark.parametrize(
    "call",
    [
        each if each in {"get", "set"} else pytest.param(each, marks=pytest.mark.logic)
        for each in METADATA_CALLS
    ],
)
async def test_missing_tables_are_named(engine, call):
    await raw.create_sdk_tables(engine)
    session = SQLAlchemyMetadataSession("chat", engine=engine)
    with pytest.raises(TablesMissingError) as caught:
        await METADATA_CALLS[call](session)
    missing = {"agent_sessions_metadata", "agent_sessions_metadata_elements"}
    assert missing <= set(caught.value.tables)
    assert not {"agent_sessions", "agent_messages"} & set(caught.value.tables)
    assert all(name in str(caught.value) for name in caught.value.tables)
    assert "create_tables=True" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert await raw.count_rows(engine, "agent_sessions") == 0
    # Once they are there, the same object goes on.
    await SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True).get_metadata()
    await METADATA_CALLS[call](session)


async def test_an_empty_database_lacks_everything(engine):
    with pytest.raises(TablesMissingError) as caught:
        await SQLAlchemyMetadataSession("chat", engine=engine).get_metadata()
    assert TABLES - {"agent_messages"} <= set(caught.value.tables)
    assert await raw.table_names(engine) == set()


async def test_a_database_of_the_sdk_alone(engine):
    """History needs no table of ours, and what nobody has used is empty."""
    await raw.create_sdk_tables(engine)
    catalog = SessionCatalog(engine)
    await catalog.session("old").add_items([raw.message("hello"), raw.message("again")])
    page = await catalog.list_items("old", limit=1)
    assert [info.item for info in page.items] == [raw.message("hello")]
    page = await catalog.list_items("old", cursor=page.next_cursor)
    assert [info.item for info in page.items] == [raw.message("again")]
    assert [info.item for info in await catalog.rewind_session("old", turns=1)] == [
        raw.message("again")
    ]
    assert await catalog.list_indexes() == await catalog.usage() == []
    assert await catalog.feedback("old") == []
    runs = SessionRuns(catalog)
    assert (await runs.list()).runs == await runs.decisions() == []
    assert await runs.get("old") is None
    assert await runs.discard("old") is False
    assert await runs.delete_decisions(before=datetime.now(timezone.utc)) == 0
    with pytest.raises(LookupError, match="no run"):
        await runs.decide("old", "c1", approve=True)
    assert await raw.table_names(engine) == {"agent_sessions", "agent_messages"}
    for work in (
        lambda: catalog.get_metadata("old"),
        lambda: catalog.scoped({"owner_id": "u1"}).list_items("old"),
    ):
        with pytest.raises(TablesMissingError):
            await work()


async def test_one_missing_table_is_named_alone(engine):
    await create_by_hand(engine)
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    with pytest.raises(TablesMissingError) as caught:
        await SQLAlchemyMetadataSession("chat", engine=engine).set_metadata({"a": 1})
    assert "agent_sessions_metadata_elements" in caught.value.tables
    assert "agent_sessions_metadata" not in caught.value.tables
    assert "agent_sessions" not in caught.value.tables


async def test_missing_tables_under_names_of_ones_own(engine):
    session = SQLAlchemyMetadataSession(
        "chat",
        engine=engine,
        sessions_table="talks",
        metadata_table="facts",
    )
    with pytest.raises(TablesMissingError) as caught:
        await session.get_metadata()
    assert {"talks", "facts", "facts_elements"} <= set(caught.value.tables)


@pytest.mark.logic
async def test_two_tables_of_one_name(engine):
    for names in ({"metadata_table": "agent_sessions"}, {"messages_table": "agent_sessions"}):
        for make in (SQLAlchemyMetadataSession, SessionCatalog):
            first = ("chat",) if make is SQLAlchemyMetadataSession else ()
            with pytest.raises(ValueError, match="must have different names"):
                make(*first, engine=engine, **names)


@pytest.mark.logic
@pytest.mark.parametrize("name", ["sessions_table", "messages_table", "metadata_table"])
async def test_a_table_without_a_name(engine, name):
    with pytest.raises(ValueError, match="name of a table must not be empty"):
        SessionCatalog(engine, **{name: ""})


async def test_missing_triggers_on_sqlite_are_named(tmp_path):
    # Only SQLite needs triggers: elsewhere foreign keys do the work.
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/chat.db")
    try:
        await create_by_hand(engine)
        triggers = await raw.execute(
            engine, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        )
        assert triggers
        for name, _ in triggers:
            await raw.execute(engine, f'DROP TRIGGER "{name}"')
        session = SQLAlchemyMetadataSession("chat", engine=engine)
        with pytest.raises(TablesMissingError) as caught:
            await session.get_metadata()
        # Those of optional features are missed when the feature is used.
        core = session_tables().group("core").triggers
        assert {trigger.name for trigger in core} == set(caught.value.tables)
        assert len(core) < len(triggers)
        await create_by_hand(engine)
        await check_everything(session)
    finally:
        await engine.dispose()


async def test_metadata_without_a_sessions_table(engine):
    """A wrong name must not look like an empty database."""
    await SessionCatalog(engine, create_tables=True).create_session("chat", metadata={"a": 1})
    names = {"sessions_table": "other", "metadata_table": "agent_sessions_metadata"}
    for create_tables in (False, True):
        catalog = SessionCatalog(engine, create_tables=create_tables, **names)
        with pytest.raises(TablesMissingError, match="agent_sessions_metadata has rows") as caught:
            await catalog.count_sessions()
        assert caught.value.tables == ("other",)
    assert "other" not in await raw.table_names(engine)


async def test_an_upgrade_where_tables_exist_gets_the_triggers(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/chat.db")
    try:
        await create_by_hand(engine)
        for (name,) in await raw.execute(
            engine, "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ):
            await raw.execute(engine, f'DROP TRIGGER "{name}"')
        session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
        await session.set_metadata({"a": ["x"]})
        await raw.execute(engine, "DELETE FROM agent_sessions")
        assert await raw.metadata_rows(engine) == 0
    finally:
        await engine.dispose()


async def test_names_of_ones_own(engine):
    session = SQLAlchemyMetadataSession(
        "chat",
        engine=engine,
        create_tables=True,
        sessions_table="talks",
        messages_table="entries",
        metadata_table="Facts of talks",
    )
    await check_everything(session)
    names = await raw.table_names(engine)
    # MySQL on some file systems stores names in lower case.
    assert {"talks", "entries", "facts of talks"} <= {name.lower() for name in names}
    assert len(names) == 4
    assert sum(name.lower().startswith("facts of talks") for name in names) == 2


async def test_the_default_name_follows_the_sessions_table(engine):
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, sessions_table="talks", messages_table="entries"
    )
    await check_everything(session)
    assert {"talks", "entries", "talks_metadata"} <= await raw.table_names(engine)


async def test_two_sets_of_tables_in_one_schema(engine):
    sets = [
        {"sessions_table": f"{name}_sessions", "messages_table": f"{name}_messages"}
        for name in ("a", "b")
    ]
    sessions = [
        SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True, **names)
        for names in sets
    ]
    for session in sessions:
        await check_everything(session)
    await sessions[0].set_metadata({"where": "a"})
    assert await sessions[1].get_metadata() == {}
    await sessions[1].clear_session()
    assert await sessions[0].get_metadata() == {"where": "a"}
    assert len(await raw.table_names(engine)) == 8


async def test_long_names_do_not_collide(engine):
    # 63 bytes is what PostgreSQL keeps of a name; it cuts the rest without a word.
    long = "a_very_long_name_of_a_table_for_the_sessions_of_one_tenant_"
    sessions = [
        SQLAlchemyMetadataSession(
            "chat",
            engine=engine,
            create_tables=True,
            sessions_table=f"{long}{number}",
            messages_table=f"{long}m{number}",
        )
        for number in range(2)
    ]
    for number, session in enumerate(sessions):
        await check_everything(session)
        names = table_names(f"{long}{number}", f"{long}m{number}")
        assert [each for each in await diagnose(engine, names) if each.level == "error"] == []
    await sessions[0].set_metadata({"where": 0})
    assert await sessions[1].get_metadata() == {}
    assert len(await raw.table_names(engine)) == 8


@contextlib.asynccontextmanager
async def schema_of(database, tmp_path):
    """A second schema beside the default one: its name, and an engine that translates to it."""
    if database.kind == "sqlite":
        engine = database.engine()
        file = ":memory:" if not database.shared else tmp_path / "tenant.db"

        @event.listens_for(engine.sync_engine, "connect")
        def attach(connection, _):
            cursor = connection.cursor()
            cursor.execute(f"ATTACH DATABASE '{file}' AS tenant")
            cursor.close()

        yield "tenant", engine.execution_options(schema_translate_map={None: "tenant"})
        return
    engine = database.engine()
    # A schema of MySQL belongs to the server, so its name carries the database's.
    name = "tenant" if database.kind == "postgresql" else f"{make_url(database.url).database}_t"
    await raw.execute(engine, f"CREATE SCHEMA {name}")
    try:
        yield name, engine.execution_options(schema_translate_map={None: name})
    finally:
        if database.kind == "mysql":
            await raw.execute(engine, f"DROP SCHEMA {name}")


async def test_a_schema_translated_to(database, tmp_path):
    async with schema_of(database, tmp_path) as (schema, engine):
        session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
        await check_everything(session)
        async with engine.connect() as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names(schema))
        assert set(names) == TABLES
        assert await raw.table_names(engine) == set()
        await session.set_metadata({"tags": ["x"]})
        records = [record async for record in session.catalog.export_sessions()]
        await raw.execute(engine, f"DELETE FROM {schema}.agent_sessions")
        rows = await raw.execute(
            engine, f"SELECT count(*) FROM {schema}.agent_sessions_metadata_elements"
        )
        assert rows[0][0] == 0
        assert await session.catalog.import_sessions(records) == len(records)
        assert await session.get_metadata() == {"tags": ["x"]}
        # The engine without the translation has sessions of its own.
        plain = SQLAlchemyMetadataSession("chat", engine=database.engine())
        with pytest.raises(TablesMissingError):
            await plain.get_metadata()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("create_tables", [True, False])
async def test_somebody_elses_tables_in_the_search_path(database: Database, create_tables):
    keys = ("$text",)
    await raw.execute(database.engine(), "CREATE SCHEMA mine")
    path: dict[str, Any] = {"server_settings": {"search_path": "mine,public"}}
    if database.engine().driver == "psycopg":
        path = {"options": "-c search_path=mine,public"}
    session = await SessionCatalog(
        database.engine(connect_args=path), create_tables=True
    ).create_session("t", metadata={"owner_id": "u1"})
    await session.add_items([raw.message("mine")])
    # Somebody else has everything, in another schema that the names are looked for in.
    their_engine = database.engine()
    theirs = SessionCatalog(their_engine, create_tables=True)
    store = CatalogStore(theirs, scope=lambda owner: {"owner_id": owner})
    for key in keys:
        await theirs.create_index(key)
    their_session = await theirs.create_session("t", metadata={"owner_id": "u2"})
    await store.add_thread_item("t", user_item("t", "secret"), "u2")
    await SessionRuns(theirs).run("t", Deployer().agent(deploys("secret")), "secret")
    async with SessionTracker(their_session, model="m"):
        pass

    async def everything() -> list:
        names = await raw.execute(
            their_engine, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        )
        return [
            (
                name,
                sorted(map(str, await raw.execute(their_engine, f"SELECT * FROM public.{name}"))),
            )
            for (name,) in names
        ]

    before = await everything()
    assert "secret" in str(before)
    engine = database.engine(connect_args=path)
    catalog = SessionCatalog(engine, create_tables=create_tables)
    mine = catalog.scoped({"owner_id": "u1"})
    assert [info.session_id for info in (await mine.list_sessions()).sessions] == ["t"]
    assert [each.key for each in await catalog.list_indexes()] == ["$updated_at"]
    assert not any([await catalog.drop_index(key) for key in keys])
    for call in (
        SessionRuns(mine).list(),
        SessionRuns(mine).discard("t"),
        CatalogStore(mine, scope=None).load_thread_items("t", None, 9, "asc", None),
        mine.usage(by=("session_id",)),
        catalog.delete_usage(before=date.max),
    ):
        with contextlib.suppress(TablesMissingError, NotFoundError):
            assert "secret" not in str(await call)
    records = [record async for record in catalog.export_sessions()]
    assert "secret" not in str(records)
    assert await catalog.import_sessions(records, "replace") == 1
    assert (await mine.session("t").rewind(turns=1))[0].item == raw.message("mine")
    assert not [each for each in await diagnose(engine) if each.level == "error"]
    assert await catalog.delete_session("t")
    await catalog.create_session("t")
    assert await everything() == before
    if create_tables:
        for key in keys:
            await catalog.create_index(key)
        await CatalogStore(catalog, scope=None).add_thread_item("t", user_item("t", "own"), None)
        assert await everything() == before
        assert not [each for each in await diagnose(engine) if each.level == "error"]


async def test_percent_signs_in_table_names(database: Database):
    catalog = SessionCatalog(
        database.engine(), create_tables=True, sessions_table="a%b", messages_table="c%%d"
    )
    session = await catalog.create_session("chat", metadata={"owner_id": "u1", "title": "trip"})
    await catalog.create_index("$text")
    await session.add_items([{"role": "user", "content": each} for each in ("hi", "hi there")])
    records = [record async for record in catalog.export_sessions()]
    assert await catalog.import_sessions(records, "replace") == 1
    for key in ("$text", "$updated_at"):
        assert await catalog.drop_index(key)
