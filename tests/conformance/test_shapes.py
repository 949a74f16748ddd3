"""Tables with other columns, or that do not distinguish ids, are refused and left as they are."""

from __future__ import annotations

import re
from functools import partial

import pytest
from agents.extensions.memory import SQLAlchemySession
from chatkit.store import NotFoundError
from servers import Database
from sqlalchemy import inspect, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    PausedRuns,
    SessionCatalog,
    SessionNotFoundError,
    TablesMismatchError,
)
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.storage.tables import table_names
from conformance import raw

NAMES = {"sessions_table": "agent_messages", "messages_table": "agent_sessions"}


async def everything(engine) -> dict:
    """The columns and triggers of the whole database."""
    async with engine.connect() as connection:

        def look(sync):
            inspector = inspect(sync)
            return {
                name: [column["name"] for column in inspector.get_columns(name)]
                for name in inspector.get_table_names()
            }

        triggers = {
            "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
            "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        }.get(
            engine.dialect.name,
            "SELECT trigger_name FROM information_schema.triggers"
            " WHERE trigger_schema = database()",
        )
        found = (await connection.execute(text(triggers))).scalars()
        return {**await connection.run_sync(look), "triggers": sorted(found)}


async def create_sessions(engine, kind: str) -> None:
    """Create a sessions table as another program may, with ids of this type."""
    times = ", ".join(
        f"{name} TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL"
        for name in ("created_at", "updated_at")
    )
    await raw.execute(
        engine, f"CREATE TABLE agent_sessions (session_id {kind} PRIMARY KEY, {times})"
    )


async def refused(engine, about: str, **names: str) -> None:
    """Nothing is created, written or read with these names."""
    before = await everything(engine)
    catalog = SessionCatalog(engine, create_tables=True, **names)
    for work in (
        lambda: catalog.create_session("chat", metadata={"a": 1}),
        catalog.count_sessions,
        lambda: catalog.create_index("owner_id"),
        lambda: catalog.create_index("$text"),
        lambda: catalog.session("chat").set_metadata({"a": 1}),
    ):
        with pytest.raises(TablesMismatchError, match=about):
            await work()
    assert await everything(engine) == before
    findings = await diagnose(engine, table_names(**names))
    assert any(finding.level == "error" for finding in findings)
    assert [each for finding in findings for each in finding.repair] == []


async def test_exchanged_names(shared_database: Database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await session.add_items([raw.message("hello")])
    await refused(engine, "agent_messages has no column", **NAMES)
    await SQLAlchemySession("chat", engine=engine).add_items([raw.message("again")])
    assert len(await session.get_items()) == 2


async def test_another_table_as_metadata(shared_database: Database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await catalog.create_index("owner_id")
    other = "agent_sessions_metadata_activity"
    await refused(engine, f"{other} has no column", metadata_table=other)


@pytest.mark.parametrize("lacking", ["created_at", "updated_at", "session_id"])
async def test_a_table_of_the_application(shared_database: Database, lacking):
    engine = shared_database.engine()
    columns = {
        "session_id": "session_id VARCHAR(100) NOT NULL",
        "created_at": "created_at TIMESTAMP NULL",
        "updated_at": "updated_at TIMESTAMP NULL",
    }
    rest = [definition for name, definition in columns.items() if name != lacking]
    await raw.execute(engine, f"CREATE TABLE agent_sessions (own INTEGER, {', '.join(rest)})")
    await refused(engine, f"agent_sessions has no column {lacking}")
    own, value = ("own", 1) if lacking == "session_id" else ("session_id", "'chat'")
    await raw.execute(engine, f"INSERT INTO agent_sessions ({own}) VALUES ({value})")


LOOSE = {
    "sqlite": "VARCHAR(255) COLLATE NOCASE",
    "mysql": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}
MESSAGES = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "id INTEGER PRIMARY KEY AUTO_INCREMENT",
}


async def loosen(engine, table: str) -> None:
    """Make a table anew whose ids ignore case, without a foreign key."""
    kind = engine.dialect.name
    await raw.execute(engine, f"DROP TABLE {table}")
    if table == "agent_messages":
        columns = (
            f"{MESSAGES[kind]}, session_id {LOOSE[kind]} NOT NULL, message_data TEXT NOT NULL,"
        )
        await raw.execute(
            engine,
            f"CREATE TABLE {table} ({columns}"
            " created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)",
        )
    else:
        binary, large = {
            "sqlite": ("BLOB", "BLOB"),
            "mysql": ("VARBINARY(512)", "LONGBLOB"),
        }[kind]
        await raw.execute(
            engine,
            f"CREATE TABLE {table} (session_id {LOOSE[kind]} NOT NULL,"
            f" {engine.dialect.identifier_preparer.quote('key')} VARCHAR(255) NOT NULL,"
            f" value TEXT NOT NULL, search_key {binary} NOT NULL, search_rest {large} NOT NULL,"
            " created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,"
            " updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)",
        )


# A PostgreSQL without ICU, as the tests start, has no such collation.
@pytest.mark.not_on("postgresql")
async def test_messages_that_do_not_distinguish_ids(shared_database: Database):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.create_session("chat-A", metadata={"owner_id": "u1"})
    await first.create_session("chat-a", metadata={"owner_id": "u2"})
    await loosen(engine, "agent_messages")
    await engine.dispose()
    engine = shared_database.engine()
    await raw.execute(
        engine,
        "INSERT INTO agent_messages (session_id, message_data) VALUES"
        ' (\'chat-A\', \'{"role": "user", "content": "secret"}\')',
    )
    catalog = SessionCatalog(engine).scoped({"owner_id": "u2"})
    session = catalog.session("chat-a")
    for work in (
        session.pop_item,
        session.clear_session,
        lambda: session.add_items([raw.message("hello")]),
        session.get_items,
        lambda: session.rewind(turns=1),
        lambda: catalog.fork_session("chat-a", "copy"),
        lambda: catalog.delete_session("chat-a"),
        lambda: catalog.delete_sessions({"owner_id": "u2"}),
    ):
        with pytest.raises(TablesMismatchError, match="does not distinguish 'a' and 'A'"):
            pytest.fail(repr(await work()))
    assert await raw.count_rows(engine, "agent_messages") == 1
    findings = await diagnose(engine)
    [finding] = [each for each in findings if each.check == "collations"]
    assert (finding.level, "agent_messages" in finding.problem) == ("error", True)


@pytest.mark.not_on("postgresql")
async def test_metadata_that_does_not_distinguish_ids(shared_database: Database):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.create_session("chat-A", metadata={"owner_id": "u1"})
    if engine.dialect.name != "sqlite":
        await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    await loosen(engine, "agent_sessions_metadata")
    await engine.dispose()
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True).scoped({"owner_id": "u2"})
    with pytest.raises(TablesMismatchError, match="does not distinguish 'a' and 'A'"):
        await catalog.create_session("chat-a")
    findings = await diagnose(engine)
    levels = [each.level for each in findings if each.check == "collations"]
    assert "error" in levels


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("table", ["agent_messages", "agent_sessions_metadata_elements"])
async def test_ids_that_a_collation_may_take_for_one(shared_database: Database, table):
    """Also if it tells everything apart that is tried."""
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("a")
    await raw.create_loose_collation(engine, "own")
    await raw.drop_foreign_keys(engine, table)
    await raw.execute(engine, f"ALTER TABLE {table} ALTER session_id TYPE VARCHAR COLLATE own")
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    problem = f"{table}.session_id has a collation that may take different texts for one"
    with pytest.raises(TablesMismatchError, match=problem):
        await catalog.scoped({"owner_id": "u2"}).create_session("b")


@pytest.mark.only_on("mariadb")
async def test_all_tables_may_follow_the_sessions(shared_database: Database):
    """As on a server whose collation the application has chosen."""
    engine = shared_database.engine()
    await create_sessions(engine, LOOSE["mysql"])
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat-A", metadata={"owner_id": "u1"})
    await session.add_items([raw.message("hello")])
    assert len(await catalog.session("chat-a").get_items()) == 1


@pytest.mark.only_on("mariadb")
async def test_a_unique_index_by_which_rows_would_be_merged(shared_database: Database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"slug": "my-chat"})
    await raw.execute(
        engine,
        "ALTER TABLE agent_sessions_metadata ADD own VARCHAR(190) COLLATE utf8mb4_general_ci AS"
        " (CASE WHEN `key` = 'slug' THEN left(value, 190) END) PERSISTENT, ADD UNIQUE (own)",
    )
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    with pytest.raises(TablesMismatchError, match="unique index own"):
        await catalog.create_session("b", metadata={"slug": "MY-CHAT"})
    (finding,) = [each for each in await diagnose(engine) if each.level == "error"]
    assert "unique index own" in finding.problem
    await raw.execute(engine, "ALTER TABLE agent_sessions_metadata DROP INDEX own, ADD INDEX (own)")
    assert (await catalog.create_session("b", metadata={"slug": "MY-CHAT"})).session_id == "b"
    assert await catalog.get_metadata("a") == {"slug": "my-chat"}


@pytest.mark.only_on("postgresql")
async def test_ids_that_are_padded(shared_database: Database):
    engine = shared_database.engine()
    await raw.create_sdk_tables(engine)
    for kind in ("CHAR(64)", "VARCHAR(64)"):
        for table in ("agent_sessions", "agent_messages"):
            await raw.execute(engine, f"ALTER TABLE {table} ALTER session_id TYPE {kind}")
        catalog = SessionCatalog(shared_database.engine(), create_tables=True)
        errors = [each.problem for each in await diagnose(engine) if "pads ids" in each.problem]
        if kind == "VARCHAR(64)":
            await catalog.create_session("chat", metadata={"owner_id": "u1"})
            assert errors == []
            return
        for work in (catalog.count_sessions, partial(catalog.create_session, "chat")):
            with pytest.raises(TablesMismatchError, match="has a type that does not store"):
                await work()
        assert len(errors) == 2


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("kind", ["UUID", "STRING", "NUMERIC", "INT"])
async def test_sessions_that_store_numbers(shared_database: Database, kind):
    """The metadata of `0012` would stay when the session `12` is deleted."""
    engine = shared_database.engine()
    await create_sessions(engine, kind)
    catalog = SessionCatalog(engine, create_tables=True)
    with pytest.raises(TablesMismatchError, match="changes texts that it stores"):
        await catalog.create_session("0012", metadata={"owner_id": "u1"})
    assert any(each.level == "error" for each in await diagnose(engine))


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("collation", ["utf8mb4_nopad_bin", "utf8mb4_general_ci"])
@pytest.mark.parametrize("of_sessions", ["CHAR", "VARCHAR"])
async def test_messages_that_cut_trailing_spaces_off_ids(
    shared_database: Database, collation, of_sessions
):
    engine, text = shared_database.engine(), f"CHARACTER SET utf8mb4 COLLATE {collation}"
    await create_sessions(engine, f"{of_sessions}(64) {text}")
    await raw.execute(
        engine,
        "CREATE TABLE agent_messages (id INT AUTO_INCREMENT PRIMARY KEY,"
        f" session_id CHAR(64) {text} NOT NULL, message_data LONGTEXT {text} NOT NULL,"
        " created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL, INDEX (session_id, created_at),"
        " FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE)",
    )
    catalog = SessionCatalog(engine, create_tables=True)
    create = catalog.scoped({"owner_id": "u1"}).create_session("Chat")
    refused = "nopad" in collation
    if refused:
        about = "agent_sessions" if of_sessions == "CHAR" else "agent_messages"
        with pytest.raises(TablesMismatchError, match=f"{about}.session_id cuts trailing spaces"):
            await create
    else:
        await (await create).add_items([raw.message("mine")])
        with pytest.raises(SessionNotFoundError):
            await catalog.scoped({"owner_id": "u2"}).session("Chat ").add_items([raw.message("x")])
        assert len(await catalog.session("Chat").get_items()) == 1
    found = await diagnose(engine)
    cut = "agent_messages.session_id has the type CHAR"
    assert any(cut in each.problem and each.level == "error" for each in found) is refused
    spaces = "agent_messages.session_id does not distinguish .*trailing spaces"
    [level] = [each.level for each in found if re.search(spaces, each.problem)]
    assert level == ("error" if refused and of_sessions == "VARCHAR" else "warning")


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("charset", ["utf16", "ucs2", "utf32", "ascii", "latin1"])
async def test_history_in_other_character_sets(shared_database: Database, charset):
    engine = shared_database.engine()
    await create_sessions(engine, f"VARCHAR(100) CHARACTER SET {charset}")
    catalog = SessionCatalog(engine, create_tables=True)
    session = catalog.session("chat")
    await session.add_items([raw.message("hello")])
    assert len(await session.get_items()) == 1


@pytest.mark.only_on("postgresql")
async def test_columns_in_upper_case(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    await raw.execute(engine, 'ALTER TABLE agent_sessions RENAME updated_at TO "UPDATED_AT"')
    catalog = SessionCatalog(shared_database.engine())
    with pytest.raises(TablesMismatchError, match="no column updated_at"):
        await catalog.list_sessions()


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    "key", ['session_id COLLATE NOCASE, "key"', 'session_id, "key" COLLATE NOCASE']
)
async def test_a_primary_key_with_another_collation_than_its_columns(
    shared_database: Database, key
):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("a", metadata={"n": 1})
    (create,) = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE name = 'agent_sessions_metadata'"
    )
    changed = create[0].replace('PRIMARY KEY (session_id, "key")', f"PRIMARY KEY ({key})")
    assert changed != create[0]
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata")
    await raw.execute(engine, changed)
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    with pytest.raises(TablesMismatchError, match="unique index"):
        await catalog.scoped({"owner_id": "u2"}).create_session("A")
    assert any(each.level == "error" for each in await diagnose(engine))


@pytest.mark.not_on("mariadb")  # It is refused there.
async def test_a_unique_column_of_the_application(shared_database: Database):
    """It prevents equal values where it cannot lead to another row."""
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    column = "lower(value)" if engine.dialect.name == "postgresql" else "value COLLATE NOCASE"
    where = "WHERE key = 'slug'"
    await raw.execute(
        engine, f"CREATE UNIQUE INDEX slugs ON agent_sessions_metadata ({column}) {where}"
    )
    catalog = SessionCatalog(shared_database.engine())
    await catalog.create_session("a", metadata={"slug": "my-chat"})
    with pytest.raises(IntegrityError):
        await catalog.create_session("b", metadata={"slug": "MY-CHAT"})
    assert await catalog.get_metadata("a") == {"slug": "my-chat"}
    assert await catalog.get_session("b") is None


@pytest.mark.only_on("sqlite")
async def test_ids_that_are_equal_as_numbers(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("1001")
    (create,) = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE name = 'agent_sessions_metadata'"
    )
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata")
    await raw.execute(engine, create[0].replace("session_id VARCHAR", "session_id STRING"))
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    with pytest.raises(TablesMismatchError, match="'1' and '01'"):
        await catalog.scoped({"owner_id": "u2"}).create_session("01001")


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "change",
    [
        "MODIFY session_id CHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL",
        "MODIFY `key` CHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (session_id(20), `key`)",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (`key`)",
    ],
)
async def test_columns_and_keys_that_cut_what_they_hold(shared_database: Database, change):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("a")
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    await raw.execute(
        engine,
        "ALTER TABLE agent_sessions_metadata DROP FOREIGN KEY agent_sessions_metadata_session_fk",
    )
    await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata {change}")
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    about = "cuts trailing spaces off" if "CHAR(255)" in change else "unique index"
    with pytest.raises(TablesMismatchError, match=about):
        await catalog.create_session("a ", metadata={"owner_id": "u2"})
    assert any(each.level == "error" for each in await diagnose(engine))


@pytest.mark.only_on("mariadb")
async def test_a_number_of_the_application_that_the_server_gives(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("a")
    await raw.execute(
        engine, "ALTER TABLE agent_sessions ADD own BIGINT AUTO_INCREMENT, ADD INDEX (own)"
    )
    assert [each.problem for each in await diagnose(engine) if each.level == "error"] == []


async def ignore_case(engine, table: str, column: str) -> None:
    """Let a column of a table ignore case; its triggers stay, and its foreign keys go."""
    if engine.dialect.name == "sqlite":
        await raw.alter_on_sqlite(
            engine, table, rf"\b{column} VARCHAR[^ ,]*", r"\g<0> COLLATE NOCASE"
        )
        return
    await retype(engine, table, column, LOOSE["mysql"])


async def retype(engine, table: str, column: str, kind: str) -> None:
    """Give a column another type, without its foreign keys on MariaDB."""
    quoted = engine.dialect.identifier_preparer.quote(column)
    if engine.dialect.name == "postgresql":
        await raw.execute(engine, f"ALTER TABLE {table} ALTER {quoted} TYPE {kind}")
        return
    keys = await raw.execute(
        engine,
        "SELECT DISTINCT table_name, constraint_name FROM information_schema.key_column_usage"
        f" WHERE table_schema = database() AND '{table}' IN (table_name, referenced_table_name)"
        " AND referenced_table_name IS NOT NULL",
    )
    for child, key in keys:
        await raw.execute(engine, f"ALTER TABLE {child} DROP FOREIGN KEY {key}")
    await raw.execute(engine, f"ALTER TABLE {table} MODIFY {quoted} {kind} NOT NULL")


PAUSED = "agent_sessions_metadata_paused"
ITEMS = "agent_sessions_metadata_thread_items"


@pytest.mark.not_on("postgresql")
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions_metadata_elements", "session_id"),
        (PAUSED, "session_id"),
        (ITEMS, "session_id"),
        (ITEMS, "item_id"),
        ("agent_sessions_metadata_attachments", "attachment_id"),
    ],
)
async def test_optional_tables_that_do_not_distinguish_ids(
    shared_database: Database, table, column
):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.create_session("Chat", metadata={"owner_id": "u1", "tags": ["a"]})
    await PausedRuns(first).list()
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    await ignore_case(engine, table, column)
    await engine.dispose()

    engine = shared_database.engine()
    catalog = SessionCatalog(engine)
    if table == PAUSED:
        refused = PausedRuns(catalog).get("chat")
    elif table.endswith("_elements"):
        refused = catalog.get_session("chat")
    else:
        refused = CatalogStore(catalog, scope=None).delete_attachment("none", None)
    with pytest.raises(TablesMismatchError, match=f"{table}.{column} does not distinguish"):
        await refused
    findings = await diagnose(engine)
    [finding] = [each for each in findings if each.check == "collations"]
    assert (finding.level, f"{table}.{column}" in finding.problem) == ("error", True)


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize(
    ("table", "column", "room"),
    [
        ("agent_messages", "session_id", 36),
        ("agent_sessions_metadata", "session_id", 36),
        ("agent_sessions_metadata", "key", 8),
        ("agent_sessions_metadata_elements", "key", 8),
        (PAUSED, "session_id", 36),
        (ITEMS, "session_id", 36),
        ("agent_messages", "session_id", 20),
    ],
)
async def test_columns_with_less_room_than_ids_have(shared_database: Database, table, column, room):
    """Databases cut off spaces that a column has no room for."""
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    kind = f"VARCHAR({room})"
    if engine.dialect.name == "mysql":
        kind += " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    elif room == 20:
        kind = "outer_id"
        await raw.execute(engine, "CREATE DOMAIN inner_id AS VARCHAR(20)")
        await raw.execute(engine, "CREATE DOMAIN outer_id AS inner_id")
    await retype(engine, table, column, kind)
    await engine.dispose()

    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    if table == PAUSED:
        work = PausedRuns(catalog).get("x")
    elif table == ITEMS:
        work = CatalogStore(catalog, scope=None).delete_attachment("none", None)
    else:
        work = catalog.scoped({"owner_id": "u1"}).create_session("x")
    about = f"{table}.{column} holds {room} characters, not 255"
    with pytest.raises(TablesMismatchError, match=about):
        await work
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(each.startswith(f"{table}.{column} ") for each in errors)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
async def test_keys_of_a_character_set_that_lacks_characters(shared_database: Database, charset):
    """A server that is not strict stores each of these as a question mark."""
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    kind = f"VARCHAR(255) CHARACTER SET {charset} COLLATE {charset}_nopad_bin"
    await retype(engine, "agent_sessions_metadata", "key", kind)
    catalog = SessionCatalog(shared_database.engine())
    with pytest.raises(TablesMismatchError, match=r"_metadata\.key does not hold every text"):
        await catalog.create_session("a", metadata={"\U0001f600": 1})


@pytest.mark.only_on("postgresql", "mariadb")
async def test_all_columns_may_have_the_room_of_the_sessions(shared_database: Database):
    engine = shared_database.engine()
    await raw.create_sdk_tables(engine)
    kind = "VARCHAR(36)"
    if engine.dialect.name == "mysql":
        kind += " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    for table in ("agent_messages", "agent_sessions"):
        await retype(engine, table, "session_id", kind)
    catalog = SessionCatalog(engine, create_tables=True)
    mine, others = (catalog.scoped({"owner_id": owner}) for owner in ("u1", "u2"))
    session = await mine.create_session("x" * 36, metadata={"tags": ["a"]})
    await session.add_items([raw.message("mine")])
    for work in (
        lambda: others.session("x" * 36 + " ").add_items([raw.message("hello")]),
        lambda: others.set_metadata("x" * 36 + " ", {"a": 1}),
        lambda: others.create_session("x" * 36 + " "),
    ):
        with pytest.raises((SessionNotFoundError, IntegrityError)):
            await work()
    assert await session.get_items() == [raw.message("mine")]
    assert await session.get_metadata() == {"owner_id": "u1", "tags": ["a"]}


OTHER_TYPES = {
    "postgresql": ["uuid", "bigint", "name", '"char"', "CHAR(255)", "bytea", "of_names", "letters"],
    "mysql": ["UUID", "BIGINT", "BINARY(255)", "VARBINARY(255)", "ENUM('a')", "SET('a')"],
}


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions", "session_id"),
        ("agent_messages", "session_id"),
        ("agent_sessions_metadata", "key"),
    ],
)
async def test_types_that_do_not_store_every_text(shared_database: Database, table, column):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    if engine.dialect.name == "postgresql":
        await raw.execute(engine, "CREATE DOMAIN of_names AS name")
        await raw.execute(engine, "CREATE TYPE letters AS ENUM ('a', 'b')")
        for each in (
            "agent_messages",
            "agent_sessions_metadata_elements",
            "agent_sessions_metadata",
        ):
            await raw.drop_foreign_keys(engine, each)
    for kind in OTHER_TYPES[engine.dialect.name]:
        using = f' USING "{column}"::text::{kind}' if engine.dialect.name == "postgresql" else ""
        await retype(engine, table, column, kind + using)
        catalog = SessionCatalog(shared_database.engine()).scoped({"owner_id": "u1"})
        with pytest.raises(TablesMismatchError, match=f"{table}.{column} has a type that does not"):
            pytest.fail(f"{kind}: {await catalog.create_session('a')}")
        errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
        assert any(each.startswith(f"{table}.{column} has the type ") for each in errors), kind
        # Not every type is made of every other one.
        using = f'VARCHAR USING "{column}"::text' if using else "VARCHAR(255)"
        await retype(engine, table, column, using)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("table", ["agent_messages", "agent_sessions_metadata", PAUSED])
async def test_a_collation_that_takes_more_ids_for_one_than_that_of_the_sessions(
    shared_database: Database, table
):
    """Both ignore case, and one also ignores accents."""
    engine = shared_database.engine()
    kind = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_{}_ci"
    await create_sessions(engine, kind.format("as"))
    await PausedRuns(SessionCatalog(engine, create_tables=True)).list()
    await retype(engine, table, "session_id", kind.format("ai"))
    catalog = SessionCatalog(shared_database.engine())
    create = catalog.create_session("\u00e9")
    with pytest.raises(TablesMismatchError, match=f"{table}.session_id does not distinguish"):
        await (PausedRuns(catalog).list() if table == PAUSED else create)
    create.close()
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(each.startswith(f"{table}.session_id ") for each in errors)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("VARCHAR(512) CHARACTER SET latin1", "has a type that does not store every value"),
        ("BINARY(255)", "has a type that does not store every value"),
        ("VARBINARY(64)", "holds 64 bytes, not 512"),
    ],
)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions_metadata", "search_key"),
        ("agent_sessions_metadata_elements", "search_key"),
        ("agent_sessions_metadata_usage", "owner_key"),
    ],
)
async def test_search_keys_that_do_not_distinguish_values(
    shared_database: Database, table, column, kind, problem
):
    """A scope compares them."""
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.usage()
    await raw.execute(engine, f"ALTER TABLE {table} MODIFY {column} {kind} NOT NULL")
    catalog = SessionCatalog(shared_database.engine()).scoped({"owner_id": "u1"})
    work = catalog.usage() if column == "owner_key" else catalog.create_session("a")
    with pytest.raises(TablesMismatchError, match=f"{table}.{column} {problem}"):
        await work
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(each.startswith(f"{table}.{column} ") for each in errors)


async def refused_with_percents(engine, kind: str) -> None:
    """Some drivers need each % to be doubled in statements, but not in values."""
    await create_sessions(engine, kind)
    name = engine.dialect.identifier_preparer.quote_identifier("100%").replace("%%", "%")
    await raw.execute(engine, f"ALTER TABLE agent_sessions RENAME TO {name}")
    catalog = SessionCatalog(engine, create_tables=True, sessions_table="100%")
    with pytest.raises(TablesMismatchError, match=r"100%.session_id "):
        await catalog.create_session("a")


async def test_a_table_with_a_percent_sign_in_its_name(shared_database: Database):
    engine = shared_database.engine()
    kind = {"sqlite": "INT", "postgresql": "CHAR(9)"}.get(engine.dialect.name, "ENUM('a')")
    await refused_with_percents(engine, kind)


@pytest.mark.only_on("postgresql")
async def test_a_table_with_a_percent_sign_in_its_name_by_psycopg(shared_database: Database):
    engine = create_async_engine(make_url(shared_database.url).set(drivername="postgresql+psycopg"))
    await refused_with_percents(engine, "CHAR(9)")
    await engine.dispose()


async def drop_primary_key(engine, table: str) -> None:
    """Let a table have no primary key, and foreign keys to it be gone where they need one."""
    if engine.dialect.name == "postgresql":
        name = f"{table}_pkey"
        await raw.execute(engine, f"ALTER TABLE {table} DROP CONSTRAINT {name} CASCADE")
        return
    if engine.dialect.name == "mysql":
        # An index that is not unique is enough for the foreign keys that lead to the table.
        [[first]] = await raw.execute(
            engine,
            "SELECT group_concat(concat('`', column_name, '`') ORDER BY seq_in_index)"
            " FROM information_schema.statistics WHERE table_schema = database()"
            f" AND table_name = '{table}' AND index_name = 'PRIMARY'",
        )
        await raw.execute(
            engine, f"ALTER TABLE {table} DROP PRIMARY KEY, ADD INDEX no_key ({first})"
        )
        return
    await raw.alter_on_sqlite(
        engine, table, r"PRIMARY KEY \(.*?\)(.*?)(WITHOUT ROWID\s*)?$", r"CHECK (1)\1"
    )


@pytest.mark.parametrize(
    "table",
    [
        "agent_sessions",
        "agent_sessions_metadata",
        "agent_sessions_metadata_elements",
        PAUSED,
        ITEMS,
        "agent_sessions_metadata_attachments",
    ],
)
async def test_tables_that_can_have_two_rows_of_one_key(shared_database: Database, table):
    """After a change of the owner, the former one would find the other row."""
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    await drop_primary_key(engine, table)
    catalog = SessionCatalog(shared_database.engine())
    if table == PAUSED:
        work = PausedRuns(catalog).get("x")
    elif table in (ITEMS, "agent_sessions_metadata_attachments"):
        work = CatalogStore(catalog, scope=None).delete_attachment("none", None)
    else:
        work = catalog.create_session("x", metadata={"owner_id": "u1"})
    with pytest.raises(TablesMismatchError, match=rf"{table} has no primary key \("):
        await work
    problem = f"the primary key of {table} is not"
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(each.startswith(problem) for each in errors)


CLAUSES = {
    "agent_sessions": "UNIQUE (session_id COLLATE NOCASE) ON CONFLICT REPLACE",
    "agent_messages": "UNIQUE (message_data)\n on /* own */ conflict -- own\n ignore",
    "agent_sessions_metadata": 'UNIQUE ("key", value) ON CONFLICT REPLACE',
    "agent_sessions_metadata_elements": "UNIQUE (search_key)ON CONFLICT REPLACE",
    PAUSED: "UNIQUE (item_count) ON CONFLICT REPLACE",
    ITEMS: "UNIQUE (item_id) ON CONFLICT IGNORE",
    "agent_sessions_metadata_usage": "UNIQUE (day, agent) ON CONFLICT REPLACE",
}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("table", list(CLAUSES))
async def test_keys_that_replace_rows_or_leave_them_out(shared_database: Database, table):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    await first.usage()
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    end = r"\s*\)\s*(WITHOUT ROWID\s*)?$"
    await raw.alter_on_sqlite(engine, table, end, f", {CLAUSES[table]})")
    catalog = SessionCatalog(shared_database.engine())
    work = catalog.usage() if table.endswith("_usage") else catalog.create_session("x")
    with pytest.raises(TablesMismatchError, match=f"{table} has a key with ON CONFLICT"):
        await work
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(f"{table} has a key with ON CONFLICT" in each for each in errors)


@pytest.mark.only_on("sqlite")
async def test_a_default_in_the_place_of_null_does_no_harm(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    clause = "NOT NULL ON CONFLICT REPLACE DEFAULT 'ON CONFLICT REPLACE'"
    await raw.alter_on_sqlite(
        engine,
        "agent_sessions",
        "session_id VARCHAR NOT NULL",
        f"own TEXT {clause}, session_id VARCHAR NOT NULL",
    )
    catalog = SessionCatalog(shared_database.engine())
    assert (await catalog.create_session("x")).session_id == "x"


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("table", "columns"),
    [
        (PAUSED, "item_count"),
        (ITEMS, "item_id"),
        ("agent_sessions_metadata_elements", "`key`, search_key"),
        ("agent_sessions_metadata_activity", "`key`, search_key"),
    ],
)
async def test_unique_indexes_by_which_an_upsert_takes_another_row(
    shared_database: Database, table, columns
):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    await first.create_index("owner_id")
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    await raw.execute(engine, f"ALTER TABLE {table} ADD UNIQUE own ({columns})")
    catalog = SessionCatalog(shared_database.engine())
    if table == PAUSED:
        work = PausedRuns(catalog).get("x")
    elif table == ITEMS:
        work = CatalogStore(catalog, scope=None).delete_attachment("none", None)
    else:
        work = catalog.list_sessions({"owner_id": "u1"})
    with pytest.raises(TablesMismatchError, match=f"{table} has the unique index own"):
        await work
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(f"{table} has the unique index own" in each for each in errors)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions_metadata", "value"),
        (PAUSED, "details"),
        ("agent_sessions_metadata_usage", "owner_id"),
        ("agent_sessions_metadata_attachments", "owner"),
    ],
)
async def test_values_of_a_character_set_that_lacks_characters(
    shared_database: Database, table, column
):
    """Where the server is not strict, two owners would become one."""
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    await first.usage()
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    await raw.execute(engine, f"ALTER TABLE {table} MODIFY {column} LONGTEXT CHARACTER SET latin1")
    catalog = SessionCatalog(shared_database.engine())
    if table == PAUSED:
        work = PausedRuns(catalog).get("x")
    elif column == "owner":
        work = CatalogStore(catalog, scope=None).delete_attachment("none", None)
    else:
        work = catalog.usage() if column == "owner_id" else catalog.create_session("x")
    with pytest.raises(TablesMismatchError, match=f"{table}.{column} holds characters of latin1"):
        await work
    errors = [each.problem for each in await diagnose(engine) if each.level == "error"]
    assert any(f"{table}.{column} holds characters of latin1" in each for each in errors)


@pytest.mark.only_on("postgresql")
async def test_domains_of_texts_are_as_good_as_texts(shared_database: Database):
    engine = shared_database.engine()
    await raw.create_sdk_tables(engine)
    await raw.execute(engine, "CREATE DOMAIN inner_id AS TEXT")
    await raw.execute(engine, "CREATE DOMAIN outer_id AS inner_id NOT NULL")
    for table in ("agent_messages", "agent_sessions"):
        await retype(engine, table, "session_id", "outer_id")
    catalog = SessionCatalog(engine, create_tables=True)
    await PausedRuns(catalog).list()
    await retype(engine, "agent_sessions_metadata", "session_id", "inner_id")
    session = await catalog.create_session("x", metadata={"tags": ["a"]})
    await session.add_items([raw.message("hello")])
    assert [each.problem for each in await diagnose(engine) if each.level == "error"] == []


@pytest.mark.only_on("postgresql")
async def test_bytes_of_another_type(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    await raw.execute(engine, "ALTER TABLE agent_sessions_metadata ALTER search_rest TYPE text")
    with pytest.raises(TablesMismatchError, match=r"_metadata\.search_rest has a type that"):
        await SessionCatalog(shared_database.engine()).create_session("x")


@pytest.mark.only_on("postgresql")
async def test_a_foreign_key_whose_name_another_one_has(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).create_session("x", metadata={"a": 1})
    key, table = "agent_sessions_metadata_session_fk", "agent_sessions_metadata"
    for change in (
        f"DROP CONSTRAINT {key}",
        "ADD own VARCHAR",
        f"ADD CONSTRAINT {key} FOREIGN KEY (own) REFERENCES agent_sessions",
    ):
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    [finding] = [each for each in await diagnose(engine) if each.level == "error"]
    for statement in finding.repair:
        await raw.execute(engine, statement)
    assert [each.problem for each in await diagnose(engine) if each.level == "error"] == []


@pytest.mark.only_on("mariadb")
async def test_doctor_reports_what_no_other_check_finds(shared_database: Database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_index("$text")
    await ignore_case(engine, "agent_sessions_metadata_words_state", "session_id")
    [finding] = [each for each in await diagnose(engine) if each.level == "error"]
    assert "words_state.session_id does not distinguish" in finding.problem
    assert "shows more" not in finding.problem


@pytest.mark.only_on("mariadb")
async def test_a_primary_key_of_the_first_characters(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    table = "agent_sessions_metadata_elements"
    await raw.execute(
        engine,
        f"ALTER TABLE {table} DROP PRIMARY KEY, ADD PRIMARY KEY (session_id, `key`(1), position)",
    )
    with pytest.raises(TablesMismatchError, match=f"{table} has the unique index PRIMARY"):
        await SessionCatalog(shared_database.engine()).create_session("x")
    assert any(each.level == "error" for each in await diagnose(engine))


@pytest.mark.not_on("mariadb")  # It has no such keys.
@pytest.mark.parametrize("table", ["agent_messages", "agent_sessions_metadata", ITEMS])
async def test_foreign_keys_that_give_rows_to_another_session(shared_database: Database, table):
    """Also in tables that the process does not use otherwise."""
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    with pytest.raises(NotFoundError):
        await CatalogStore(first, scope=None).delete_attachment("none", None)
    key = "FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE SET DEFAULT"
    if engine.dialect.name == "sqlite":
        await raw.alter_on_sqlite(engine, table, "ON DELETE CASCADE", "ON DELETE SET DEFAULT")
    else:
        await raw.execute(engine, f"ALTER TABLE {table} ADD CONSTRAINT own {key}")
    with pytest.raises(TablesMismatchError, match=f"{table} has a foreign key with SET DEFAULT"):
        await SessionCatalog(shared_database.engine()).create_session("x")
    levels = {each.level for each in await diagnose(engine)}
    assert "error" in levels


async def test_a_unique_index_may_be_in_the_place_of_a_primary_key(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    await drop_primary_key(engine, "agent_sessions_metadata")
    key = engine.dialect.identifier_preparer.quote("key")
    await raw.execute(
        engine, f"CREATE UNIQUE INDEX own ON agent_sessions_metadata ({key}, session_id)"
    )
    session = await SessionCatalog(shared_database.engine()).create_session("x", metadata={"a": 1})
    await session.set_metadata({"a": 2})
    assert await session.get_metadata() == {"a": 2}


@pytest.mark.only_on("sqlite")
async def test_a_trigger_that_would_end_the_paused_run_of_another_session(
    shared_database: Database,
):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await PausedRuns(first).list()
    await ignore_case(engine, PAUSED, "session_id")
    await engine.dispose()
    with pytest.raises(TablesMismatchError, match=f"{PAUSED}.session_id does not distinguish"):
        await SessionCatalog(shared_database.engine()).create_session("chat")


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "kind", ["UUID", "INET6", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_cs"]
)
@pytest.mark.parametrize("column", ["session_id", "key"])
async def test_a_column_that_is_not_binary(shared_database: Database, kind, column):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).count_sessions()
    await ignore_case(engine, "agent_sessions_metadata", column)
    quoted = engine.dialect.identifier_preparer.quote(column)
    await raw.execute(
        engine, f"ALTER TABLE agent_sessions_metadata MODIFY {quoted} {kind} NOT NULL"
    )
    await engine.dispose()
    with pytest.raises(TablesMismatchError, match=f"agent_sessions_metadata.{column} "):
        await SessionCatalog(shared_database.engine()).count_sessions()
