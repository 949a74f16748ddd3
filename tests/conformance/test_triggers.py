"""An application's own triggers, one for each event on each table, change no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from scaling import scale
from servers import Database
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import (
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
)
from conformance import raw

pytestmark = pytest.mark.dialect

TABLES = [
    "agent_sessions",
    "agent_messages",
    "agent_sessions_metadata",
    "agent_sessions_metadata_elements",
]
EVENTS = [
    f"{time} {event}" for time in ("BEFORE", "AFTER") for event in ("INSERT", "UPDATE", "DELETE")
]

# What a trigger does: it writes a row whose key the database makes, changes several rows, reads
# others, and leaves a variable of the connection behind.
AUDIT = {
    "sqlite": ["CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, n INTEGER)"],
    "postgresql": [
        "CREATE TABLE audit (id SERIAL PRIMARY KEY, what TEXT, n INTEGER)",
        """CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO audit (what, n) SELECT TG_TABLE_NAME, count(*) FROM agent_sessions;
            UPDATE audit SET n = n + 1;
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
            RETURN NEW;
        END $$""",
    ],
    "mysql": ["CREATE TABLE audit (id INTEGER AUTO_INCREMENT PRIMARY KEY, what TEXT, n INTEGER)"],
}
BODY = {
    "sqlite": "BEGIN INSERT INTO audit (what, n) VALUES ('{table}', 1);"
    " UPDATE audit SET n = n + 1; END",
    "postgresql": "EXECUTE FUNCTION audited()",
    "mysql": "BEGIN INSERT INTO audit (what, n) VALUES ('{table}', 1);"
    " UPDATE audit SET n = n + 1; SET @agent_session_created = 1, @created = 1; END",
}


def triggers(kind: str, table: str, event: str) -> Iterator[str]:
    each = "" if kind == "sqlite" else "FOR EACH ROW "
    name = f"own_{table}_{event.lower().replace(' ', '_')}"
    yield f"CREATE TRIGGER {name} {event} ON {table} {each}{BODY[kind].format(table=table)}"


async def add_triggers(
    engine: AsyncEngine, kind: str, event: str | None, table: str | None, *, updates: bool = True
) -> None:
    # Some rows first: the next key that the database makes is no 1.
    statements = [*AUDIT[kind], *["INSERT INTO audit (what, n) VALUES ('first', 0)"] * 3]
    for one in TABLES if table is None else [table]:
        for when in EVENTS if event is None else [event]:
            statements += triggers(kind, one, when)
    for statement in statements:
        text = statement if updates else statement.replace("UPDATE audit SET n = n + 1;", "")
        async with engine.begin() as connection:
            await connection.exec_driver_sql(text)


async def check_everything(engine: AsyncEngine) -> None:
    """The promises of creating, writing, scoping and deleting, for two owners."""
    everyone = SessionCatalog(engine)
    mine, theirs = (everyone.scoped({"owner_id": owner}) for owner in ("me", "them"))
    values = {"title": "a", "tags": ["x", "y"], "n": 1}
    for catalog, name in ((mine, "mine"), (theirs, "theirs")):
        await catalog.create_session(name, metadata=values)
        await catalog.session(name).add_items([raw.message(name), raw.message("second")])
    before = [record async for record in everyone.export_sessions({"owner_id": "them"})]

    # Nobody creates what exists, and nobody takes over what is another's.
    for catalog in (everyone, mine, theirs):
        with pytest.raises(SessionExistsError):
            await catalog.create_session("theirs", metadata={"title": "stolen"})
    with pytest.raises(SessionNotFoundError):
        await mine.set_metadata("theirs", {"title": "stolen"})
    with pytest.raises(SessionNotFoundError):
        await mine.edit_metadata("theirs", lambda metadata: metadata.update(title="stolen"))
    with pytest.raises(SessionNotFoundError):
        await mine.delete_metadata("theirs", ["title"])
    with pytest.raises(SessionNotFoundError):
        await mine.session("theirs").add_items([raw.message("stolen")])
    with pytest.raises(SessionNotFoundError):
        await mine.fork_session("theirs", "stolen")
    with pytest.raises(SessionExistsError):
        await everyone.fork_session("mine", "theirs")
    with pytest.raises(ScopeError):
        await mine.set_metadata("mine", {"owner_id": "them"})
    assert await mine.session("theirs").pop_item() is None
    await mine.session("theirs").clear_session()
    assert await mine.delete_session("theirs") is False
    with pytest.raises(SessionExistsError):
        await everyone.import_sessions(before)
    with pytest.raises(SessionNotFoundError):
        await mine.import_sessions(
            [{**before[0], "metadata": {"owner_id": "me"}}], on_conflict="replace"
        )
    assert await everyone.import_sessions(before, on_conflict="skip") == 0
    assert [record async for record in everyone.export_sessions({"owner_id": "them"})] == before

    # What is not there is never found by must_exist.
    with pytest.raises(SessionNotFoundError):
        await everyone.set_metadata("nobody", {"a": 1}, must_exist=True)
    with pytest.raises(SessionNotFoundError):
        await everyone.session("nobody", must_exist=True).add_items([raw.message("a")])
    assert await everyone.get_session("nobody") is None

    # Writing: the same answers and counts as without triggers, and no activity.
    await raw.set_times(engine, "mine")
    times = await raw.times(engine, "mine")
    await mine.set_metadata("mine", {"tags": ["z"], "new": None})
    edited = await mine.edit_metadata("mine", lambda metadata: metadata.update(n=2))
    assert edited == {"owner_id": "me", "title": "a", "tags": ["z"], "n": 2, "new": None}
    assert await mine.delete_metadata("mine", ["new", "n", "not there"]) == 2
    assert await mine.delete_metadata("mine", ["new"]) == 0
    assert await mine.delete_metadata("nobody") == 0
    assert await raw.times(engine, "mine") == times
    await mine.set_metadata("made", values)
    await mine.edit_metadata("edited", lambda metadata: metadata.update(values))
    await mine.session("said").add_items([raw.message("said")])
    for name in ("made", "edited"):
        assert await everyone.get_metadata(name) == {**values, "owner_id": "me"}
    assert await everyone.get_metadata("said") == {"owner_id": "me"}
    assert len(await mine.session("said").get_items()) == 1
    found, created = await mine.get_or_create_session({"topic": 1})
    again, created_again = await mine.get_or_create_session({"topic": 1})
    assert (created, created_again, found.session_id) == (True, False, again.session_id)
    assert await mine.fork_session("made", "copy") is not None
    assert await mine.count_sessions({"tags": {"$contains": "x"}}) == 3

    # Deleting counts sessions, and ends them whole.
    popped = await mine.session("mine").pop_item()
    assert popped == raw.message("second")
    assert await mine.delete_session("copy") is True
    assert await mine.delete_session("copy") is False
    assert await mine.delete_sessions({"tags": {"$contains": "x"}}, batch_size=1) == 2
    assert await mine.delete_metadata("mine") == 2
    await mine.session("mine").clear_session()
    assert await mine.delete_sessions() == 2
    assert [record async for record in everyone.export_sessions()] == before
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 4
    assert await raw.count_rows(engine, "agent_sessions_metadata_elements") == 2


EVERYTHING = (None, None)


@pytest.mark.scaled
@pytest.mark.parametrize(
    ("event", "table"),
    scale(
        [EVERYTHING],
        [EVERYTHING, *((event, None) for event in EVENTS), *((None, table) for table in TABLES)],
    ),
)
async def test_triggers_of_the_application_on_our_tables(database: Database, event, table):
    engine = database.engine()
    assert await SessionCatalog(engine, create_tables=True).count_sessions() == 0
    await add_triggers(engine, database.kind, event, table)
    await check_everything(engine)
    assert await raw.count_rows(engine, "audit") > 3


async def test_fifty_callers_create_one_session(shared_database: Database):
    engine = shared_database.engine(pool_size=50)
    mine = SessionCatalog(engine, create_tables=True).scoped({"owner_id": "me"})
    assert await mine.count_sessions() == 0
    # Triggers that change the same rows wait for each other in another order than the sessions.
    await add_triggers(engine, shared_database.kind, None, None, updates=False)

    async def create() -> bool:
        try:
            await mine.create_session("created")
        except SessionExistsError:
            return False
        return True

    assert sum(await asyncio.gather(*[create() for _ in range(50)])) == 1
    said = [mine.session("said").add_items([raw.message(f"{n}")]) for n in range(50)]
    await asyncio.gather(*said)
    contents = [item["content"] for item in await mine.session("said").get_items()]
    assert sorted(contents, key=int) == [f"{n}" for n in range(50)]
    found = await asyncio.gather(*[mine.get_or_create_session({"n": 1}) for _ in range(50)])
    assert sum(created for _, created in found) == 1
    assert len({session.session_id for session, _ in found}) == 1
    # What creates a session gives it the values of the scope.
    assert await mine.count_sessions() == await raw.count_rows(engine, "agent_sessions") == 3


@pytest.mark.only_on("postgresql")  # It has such a function.
async def test_a_trigger_that_suppresses_redundant_updates(database: Database):
    engine = database.engine()
    assert await SessionCatalog(engine, create_tables=True).count_sessions() == 0
    for table in TABLES:
        await raw.execute(
            engine,
            f"CREATE TRIGGER z_min BEFORE UPDATE ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        )
    await check_everything(engine)


TWO = {"tags": {"$contains": "x"}}
DELETIONS = {
    "delete_session": lambda catalog, _: catalog.delete_session("kept"),
    "delete_sessions": lambda catalog, _: catalog.delete_sessions(TWO),
    "clear_session": lambda catalog, _: catalog.session("kept").clear_session(),
    "import": lambda catalog, records: catalog.import_sessions(records, on_conflict="replace"),
}


@pytest.fixture
async def kept(database: Database):
    """A catalog of two sessions, and the records of both."""
    catalog = SessionCatalog(database.engine(), create_tables=True)
    for name in ("kept", "other"):
        session = await catalog.create_session(name, metadata={"tags": ["x"]})
        await session.add_items([raw.message("first"), raw.message("second")])
    return catalog, [record async for record in catalog.export_sessions()]


ITEM_DELETIONS = {
    **DELETIONS,
    "keep": lambda catalog, _: catalog.session("kept", must_exist=True).clear_session(),
    "rewind": lambda catalog, _: catalog.session("kept").rewind(turns=1),
    "compaction": lambda catalog, _: catalog.session("kept")._atomic_replace_items([]),
    "delete_metadata": lambda catalog, _: catalog.session("kept").delete_metadata(["tags"]),
}


RAISING = {
    "sqlite": ["CREATE TRIGGER own BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"],
    "postgresql": [
        """CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'no'; END $$""",
        "CREATE TRIGGER own BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION own()",
    ],
    "mysql": [
        """CREATE TRIGGER own BEFORE DELETE ON {table} FOR EACH ROW
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"""
    ],
}


REFUSED = {
    "agent_sessions": DELETIONS,
    "agent_messages": sorted({*ITEM_DELETIONS} - {"delete_metadata", "delete_session"}),
    "agent_sessions_metadata": ["delete_metadata"],
}


@pytest.mark.parametrize(
    ("table", "deletion"),
    [
        ("agent_messages", "delete_session"),
        *(
            pytest.param(table, each, marks=pytest.mark.logic)
            for table, deletions in REFUSED.items()
            for each in deletions
        ),
    ],
)
async def test_a_trigger_that_refuses_deletions(database: Database, kept, table, deletion):
    catalog, before = kept
    for statement in RAISING[database.kind]:
        async with catalog.engine.begin() as connection:
            await connection.exec_driver_sql(statement.format(table=table))
    with pytest.raises(DBAPIError, match="no"):
        await ITEM_DELETIONS[deletion](catalog, before)
    assert [record async for record in catalog.export_sessions()] == before


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.parametrize("deletion", DELETIONS)
async def test_a_trigger_that_deletes_a_session_with_its_messages(
    database: Database, kept, deletion
):
    catalog, before = kept
    delete = "DELETE FROM agent_sessions WHERE session_id = OLD.session_id;"
    if database.kind == "sqlite":
        await raw.execute(
            catalog.engine,
            f"CREATE TRIGGER own AFTER DELETE ON agent_messages BEGIN {delete} END",
        )
    else:
        async with catalog.engine.begin() as connection:
            await connection.exec_driver_sql(
                "CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN {delete} RETURN NULL; END $$"
            )
            await connection.exec_driver_sql(
                "CREATE TRIGGER own AFTER DELETE ON agent_messages"
                " FOR EACH ROW EXECUTE FUNCTION own()"
            )
    await DELETIONS[deletion](catalog, before)
    left = [record["session_id"] async for record in catalog.export_sessions()]
    assert left == {"delete_sessions": [], "import": ["kept", "other"]}.get(deletion, ["other"])


@pytest.mark.parametrize("first", ["create", "find"])
async def test_the_first_writes_of_a_connection(database: Database, everyone, first):
    """A connection knows nothing yet, or knows what it did to another session."""
    mine = SessionCatalog(database.engine()).scoped({"owner_id": "mine"})
    if first == "create":
        await mine.session("new").add_items([raw.message("mine")])
    for _ in range(2):
        with pytest.raises(SessionNotFoundError):
            await mine.session("theirs-0").add_items([raw.message("stolen")])
        await mine.session("new").add_items([raw.message("mine")])
    assert await everyone.get_metadata("new") == {"owner_id": "mine"}
    assert len(await everyone.session("theirs-0").get_items()) == 1
