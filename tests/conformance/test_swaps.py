"""In the middle of a call, another process deletes the session, and another owner makes its id."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from chatkit.store import NotFoundError
from chatkit.types import FileAttachment
from servers import Database
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import (
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.chatkit import CatalogStore
from conformance import raw
from conformance.thread_items import user_item

MINE, THEIRS = ({"owner_id": owner} for owner in ("u1", "u2"))


async def swap(database: Database) -> None:
    engine = database.engine()
    catalog = SessionCatalog(engine)
    await catalog.scoped(MINE).delete_session("chat")
    session = await catalog.scoped(THEIRS).create_session("chat", metadata={"status": "theirs"})
    await session.add_items([raw.message("theirs")])
    await engine.dispose()


def meanwhile(
    engine: AsyncEngine, work: Callable[[], Coroutine], is_meant: Callable[[str, Any], bool]
) -> threading.Thread:
    """Do some work before the first statement that is meant, or as soon as it lets others write."""
    thread = threading.Thread(target=lambda: asyncio.run(work()))

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def before(connection, cursor, statement, parameters, *arguments) -> None:
        if thread.ident is None and is_meant(statement, parameters):
            thread.start()
            thread.join(1)

    return thread


def swap_before(engine: AsyncEngine, database: Database, start: str) -> threading.Thread:
    """Swap before the first statement that begins so."""
    return meanwhile(
        engine, lambda: swap(database), lambda statement, _: statement.startswith(start)
    )


async def my_session(engine: AsyncEngine):
    session = await SessionCatalog(engine, create_tables=True).scoped(MINE).create_session("chat")
    await session.add_items([raw.message("mine")])
    return session


WRITES = ["clear_session", "pop_item", "add_items"]


async def check_write(engine: AsyncEngine, database: Database, session, method: str) -> None:
    """A write does not reach the session that another owner makes just before it."""
    verb = "INSERT INTO" if method == "add_items" else "DELETE FROM"
    thread = swap_before(engine, database, f"{verb} agent_messages")
    arguments = [[raw.message("more")]] if method == "add_items" else []
    result = await getattr(session, method)(*arguments)
    await asyncio.to_thread(thread.join)
    assert result == (raw.message("mine") if method == "pop_item" else None)
    theirs = SessionCatalog(engine).scoped(THEIRS).session("chat")
    assert await theirs.get_items() == [raw.message("theirs")]
    assert await session.get_items() == []


@pytest.mark.parametrize("method", WRITES)
async def test_an_engine_that_commits_each_statement(shared_database: Database, method):
    engine = shared_database.engine(isolation_level="AUTOCOMMIT")
    session = await my_session(engine)
    await check_write(engine, shared_database, session, method)


@pytest.mark.not_on("sqlite")  # Its writers do not wait for one session.
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_session_that_leaves_the_scope_while_a_write_waits(
    shared_database: Database, level
):
    """A snapshot from before the wait would show the former owner."""
    engine = shared_database.engine(isolation_level=level)
    session = await my_session(engine)
    everyone, mine = SessionCatalog(engine), SessionCatalog(engine).scoped(MINE)
    is_locked, is_awaited = threading.Event(), threading.Event()
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *_: is_awaited.set())

    def give_away(metadata) -> None:
        is_awaited.clear()
        is_locked.set()
        assert is_awaited.wait(10)
        time.sleep(0.1)  # Until the statement waits.
        metadata.update(THEIRS)

    async def hand_over() -> None:
        other = shared_database.engine()
        await SessionCatalog(other).edit_metadata("chat", give_away)
        await other.dispose()

    items = [raw.message("more")]
    for write, is_refused in (
        (lambda: session.add_items(items), True),
        (lambda: mine.session("chat", must_exist=True).add_items(items), True),
        (lambda: session._atomic_replace_items(items), True),
        (session.pop_item, False),
        (session.clear_session, False),
    ):
        await everyone.set_metadata("chat", MINE)
        thread = threading.Thread(target=lambda: asyncio.run(hand_over()))
        is_locked.clear()
        thread.start()
        assert await asyncio.to_thread(is_locked.wait, 10)
        with pytest.raises(SessionNotFoundError) if is_refused else contextlib.nullcontext():
            assert await write() is None
        await asyncio.to_thread(thread.join)
    assert await everyone.session("chat").get_items() == [raw.message("mine")]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("method", WRITES)
async def test_a_driver_that_commits_each_statement(shared_database: Database, method):
    engine = shared_database.engine(connect_args={"isolation_level": None})
    session = await my_session(engine)
    await engine.dispose()  # Writes of metadata change the setting of a connection.
    await check_write(engine, shared_database, session, method)


@pytest.mark.parametrize("level", ["AUTOCOMMIT", None])
async def test_reading_items(shared_database: Database, level):
    options = {} if level is None else {"isolation_level": level}
    engine = shared_database.engine(**options)
    session = await my_session(engine)
    thread = swap_before(engine, shared_database, "SELECT agent_messages.message_data")
    assert await session.get_items() in ([], [raw.message("mine")])
    await asyncio.to_thread(thread.join)
    theirs = SessionCatalog(engine).scoped(THEIRS).session("chat")
    assert await theirs.get_items(limit=3) == [raw.message("theirs")]


async def test_the_values_that_statistics_add(shared_database: Database):
    engine = shared_database.engine()
    await my_session(engine)
    mine = SessionCatalog(engine).scoped(MINE)
    await mine.set_metadata("chat", {"status": "mine"})
    thread = swap_before(engine, shared_database, "SELECT agent_sessions_metadata.")
    found = await mine.statistics()
    await asyncio.to_thread(thread.join)
    assert found.by_status in ({}, {"mine": 1})


def chatkit_store(engine: AsyncEngine) -> CatalogStore[str]:
    catalog = SessionCatalog(engine, create_tables=True)
    return CatalogStore(catalog, scope=lambda owner: {"owner_id": owner})


@pytest.mark.not_on("sqlite")  # nobody else writes in the meantime
async def test_a_fork_to_an_id_that_becomes_free(shared_database: Database):
    """Whoever waits for that id must not lose the lock on what is copied."""
    engine = shared_database.engine()
    await my_session(engine)
    everyone = SessionCatalog(engine)
    mine = everyone.scoped(MINE)
    await mine.create_session("copy")

    async def free_and_swap() -> None:
        other = shared_database.engine()
        await SessionCatalog(other).delete_session("copy")
        await other.dispose()
        await swap(shared_database)

    def looks_for_the_copy(statement: str, parameters: object) -> bool:
        # PostgreSQL inserts the row, or locks the one that is there, by one statement.
        locks = statement.startswith(
            ("SELECT agent_sessions.session_id", "INSERT INTO agent_sessions ")
        )
        return locks and "copy" in str(parameters)

    thread = meanwhile(engine, free_and_swap, looks_for_the_copy)
    with contextlib.suppress(SessionExistsError, SessionNotFoundError):
        await mine.fork_session("chat", "copy", metadata=MINE)
        assert await mine.session("copy").get_items() == [raw.message("mine")]
    await asyncio.to_thread(thread.join)
    left = await everyone.get_session("copy")
    assert left is None or left.metadata == {**MINE, "forked_from": "chat"}
    assert raw.message("theirs") not in await everyone.session("copy").get_items()


async def test_the_thread_items_of_a_fork(shared_database: Database):
    engine = shared_database.engine()
    store = chatkit_store(engine)
    catalog = SessionCatalog(engine, create_tables=True)
    theirs, mine = (catalog.scoped(scope) for scope in (THEIRS, MINE))
    await theirs.create_session("thread")
    await store.add_thread_item("thread", user_item("thread", "secret"), "u2")

    async def exchange() -> None:
        other = shared_database.engine()
        await SessionCatalog(other).scoped(THEIRS).delete_session("thread")
        await SessionCatalog(other).scoped(MINE).create_session("thread")
        await other.dispose()

    thread = meanwhile(engine, exchange, lambda _, parameters: "thread" in str(parameters))
    try:
        await mine.fork_session("thread", "copy")
    except SessionNotFoundError:
        return
    finally:
        await asyncio.to_thread(thread.join)
    assert (await store.load_thread_items("copy", None, 9, "asc", "u1")).data == []


async def test_saving_an_attachment(shared_database: Database):
    engine = shared_database.engine()
    store = chatkit_store(engine)

    def attachment(name: str) -> FileAttachment:
        return FileAttachment(id="file", name=name, mime_type="text/plain")

    async def save() -> None:
        other = shared_database.engine()
        with contextlib.suppress(NotFoundError):
            await chatkit_store(other).save_attachment(attachment("theirs"), "u2")
        await other.dispose()

    async def delete() -> None:
        other = shared_database.engine()
        await chatkit_store(other).delete_attachment("file", "u2")
        await other.dispose()

    await store.save_attachment(attachment("old"), "u2")
    name = "agent_sessions_metadata_attachments"
    threads = [
        meanwhile(engine, delete, lambda text, _: text.startswith("SELECT") and name in text),
        meanwhile(engine, save, lambda text, _: text.startswith(f"UPDATE {name}")),
    ]
    with contextlib.suppress(NotFoundError):
        await store.save_attachment(attachment("mine"), "u1")
    for thread in threads:
        if thread.ident is not None:
            await asyncio.to_thread(thread.join)
    for owner, expected in (("u1", "mine"), ("u2", "theirs")):
        with contextlib.suppress(NotFoundError):
            assert (await store.load_attachment("file", owner)).name == expected
