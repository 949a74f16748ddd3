"""`must_exist=True`: nothing is created, and nothing that was deleted comes back."""

from __future__ import annotations

import asyncio

import pytest
from agents.extensions.memory import SQLAlchemySession
from servers import Database

from agents_session_metadata import SessionCatalog, SessionNotFoundError
from conformance import raw

pytestmark = pytest.mark.logic


def retitle(metadata) -> None:
    metadata["title"] = "changed"


async def assert_refused(awaitable, session_id: str = "chat") -> None:
    with pytest.raises(SessionNotFoundError) as caught:
        await awaitable
    assert caught.value.session_id == session_id


@pytest.mark.parametrize("scope", [None, {"owner_id": "mine"}])
async def test_nothing_is_created(catalog, engine, scope):
    catalog = catalog.scoped(scope) if scope else catalog
    session, strict = catalog.session("chat"), catalog.session("chat", must_exist=True)
    called: list[object] = []
    for values in ({"a": 1}, {"tags": ["x"]}, {}):
        await assert_refused(catalog.set_metadata("chat", values, must_exist=True))
        await assert_refused(session.set_metadata(values, must_exist=True))
        await assert_refused(strict.set_metadata(values))
    await assert_refused(catalog.edit_metadata("chat", called.append, must_exist=True))
    await assert_refused(session.edit_metadata(called.append, must_exist=True))
    await assert_refused(strict.edit_metadata(called.append))
    await assert_refused(strict.add_items([raw.message("hello")]))
    await assert_refused(strict._atomic_replace_items([raw.message("hello")]))
    await strict.add_items([])
    assert await strict._atomic_replace_items([]) is True
    assert called == []
    assert await strict.get_items() == []
    assert await strict.pop_item() is None
    await strict.clear_session()
    assert await strict.get_metadata() == {}
    assert await strict.delete_metadata() == 0
    assert await raw.count_rows(engine, "agent_sessions") == 0


async def test_what_exists_is_written(catalog):
    made = await catalog.create_session("chat", metadata={"a": 1})
    strict = catalog.session("chat", must_exist=True)
    await strict.set_metadata({})
    await strict.set_metadata({"b": 2})
    assert await made.edit_metadata(retitle, must_exist=True) == {
        "a": 1,
        "b": 2,
        "title": "changed",
    }
    await catalog.set_metadata("chat", {"c": 3}, must_exist=True)
    await strict.add_items([raw.message("hello")])
    assert await strict.get_items() == [raw.message("hello")]
    assert await strict._atomic_replace_items([raw.message("short")]) is True
    assert await strict.get_items() == [raw.message("short")]


async def test_outside_the_scope_nothing_exists(everyone, mine):
    for values in ({}, {"a": 1}):
        await assert_refused(mine.set_metadata("theirs-0", values, must_exist=True), "theirs-0")
    strict = mine.session("theirs-0", must_exist=True)
    await assert_refused(strict.edit_metadata(retitle), "theirs-0")
    await assert_refused(strict.add_items([raw.message("a")]), "theirs-0")
    await strict.clear_session()


@pytest.mark.parametrize("on_clear", ["delete", "keep"])
async def test_clearing_keeps_row_and_metadata(engine, on_clear):
    catalog = SessionCatalog(engine, create_tables=True, on_clear=on_clear)
    await catalog.create_session("chat", metadata={"a": ["x"]})
    await raw.set_times(engine, "chat")
    created_at, _ = await raw.times(engine, "chat")
    strict = catalog.session("chat", must_exist=True)
    await strict.add_items([raw.message("hello")])
    # As the SDK compacts around other wrappers.
    await strict.clear_session()
    assert await strict.get_items() == []
    await strict.add_items([raw.message("summary")])
    assert await strict.get_metadata() == {"a": ["x"]}
    assert (await raw.times(engine, "chat"))[0] == created_at
    assert await catalog.delete_session("chat") is True
    await assert_refused(strict.add_items([raw.message("late")]))


async def test_created_sessions_may_come_back(catalog):
    created = await catalog.create_session("chat")
    made, _ = await catalog.get_or_create_session({"topic": 1})
    forked = await catalog.fork_session("chat")
    for session in (created, made, forked):
        await catalog.delete_session(session.session_id)
        await session.add_items([raw.message("again")])
        assert len(await session.get_items()) == 1


@pytest.mark.parametrize("deleter", ["catalog", "plain"])
async def test_deletes_while_others_write(database: Database, deleter):
    """Whoever comes first: after the delete nothing of the session is left."""
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    plain = SQLAlchemySession("chat", engine=engine)
    for turn in range(12):
        await catalog.create_session("chat", metadata={"tags": ["x"]})
        strict = catalog.session("chat", must_exist=True)

        async def delete(turns: int = turn) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await (plain.clear_session() if deleter == "plain" else catalog.delete_session("chat"))

        results = await asyncio.gather(
            strict.add_items([raw.message("a")]),
            strict.set_metadata({"tags": ["y"]}),
            delete(),
            strict.edit_metadata(retitle),
            strict._atomic_replace_items([raw.message("b")]),
            strict.add_items([raw.message("c")]),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        assert {type(error) for error in errors} <= {SessionNotFoundError}
        for table in ("agent_sessions", "agent_messages", "agent_sessions_metadata"):
            assert await raw.count_rows(engine, table) == 0
