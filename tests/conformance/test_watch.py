"""`watch`: what changed since the last poll, whoever wrote it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import event

from agents_session_metadata import CorruptMetadataError, InvalidFilterError, SessionCatalog
from conformance import raw

POLL = 0.02


@asynccontextmanager
async def watching(catalog, *args, **options):
    """A function that returns the next `count` changes; they are the only ones."""
    async with aclosing(catalog.watch(*args, interval=POLL, initial=True, **options)) as changes:

        async def following(count):
            found = []
            for _ in range(count):
                change = await asyncio.wait_for(anext(changes), 20)
                found.append((change.kind, change.session.session_id))
            return found

        yield following


async def test_what_other_writers_do(catalog, engine):
    await catalog.create_session("a", metadata={"size": 1, "nested": {"b": 1, "a": [None]}})
    await raw.set_times(engine, "a", updated_at="2020-01-01 00:00:00")
    other = SQLAlchemySession("b", engine=engine)
    async with watching(catalog) as following:
        assert await following(1) == [("added", "a")]
        await other.add_items([raw.message("hello")])
        assert await following(1) == [("added", "b")]
        await other.add_items([raw.message("within the same second")])
        assert await following(1) == [("changed", "b")]
        await other.pop_item()
        assert await following(1) == [("changed", "b")]
        await catalog.set_metadata("a", {"size": True})
        assert await following(1) == [("changed", "a")]
        await catalog.set_metadata("a", {"size": 1, "nested": {"a": [None], "b": 1}})
        assert await following(1) == [("changed", "a")]
        await catalog.delete_metadata("a", ["size"])
        assert await following(1) == [("changed", "a")]
        await other.clear_session()
        assert await following(1) == [("removed", "b")]


async def test_the_newest_sessions_that_match(catalog, engine):
    for number in range(3):
        await catalog.create_session(f"s{number}", metadata={"owner_id": "u1", "title": "old"})
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-0{number + 1} 00:00:00")
    await catalog.create_session("other", metadata={"owner_id": "u2"})
    mine = catalog.scoped({"owner_id": "u1"})
    where = {"title": "old"}
    async with watching(mine, where, limit=2, keys=["title"]) as following:
        assert await following(2) == [("added", "s1"), ("added", "s2")]
        await mine.session("s0").add_items([raw.message("now the newest")])
        assert await following(2) == [("removed", "s1"), ("added", "s0")]
        # Neither a key that is not read, nor another owner's session, is a change.
        await mine.set_metadata("s2", {"tags": ["x"]})
        await catalog.set_metadata("other", {"title": "old"})
        await mine.set_metadata("s0", {"title": "new"})
        assert await following(2) == [("removed", "s0"), ("added", "s1")]
        await mine.delete_session("s2")
        assert await following(1) == [("removed", "s2")]


async def test_sessions_that_were_removed_at_once_are_shown_oldest_first(catalog, engine):
    names = [f"s{number}" for number in range(8)]
    for number, name in enumerate(names):
        await catalog.create_session(name)
        await raw.set_times(engine, name, updated_at=f"2020-01-0{number + 1} 00:00:00")
    async with watching(catalog) as following:
        assert await following(8) == [("added", name) for name in names]
        await catalog.delete_sessions({"$session_id": {"$in": names}})
        assert await following(8) == [("removed", name) for name in names]


async def test_a_removed_session_is_as_it_was_seen_last(catalog):
    await catalog.create_session("a", metadata={"title": "first"})
    changes = catalog.watch(interval=POLL)
    waiting = asyncio.ensure_future(anext(changes))
    while True:  # The first poll only remembers, so a change after it is reported.
        await catalog.set_metadata("a", {"title": "second"})
        done, _ = await asyncio.wait({waiting}, timeout=5 * POLL)
        if done:
            break
        await catalog.set_metadata("a", {"title": "third"})
        await asyncio.sleep(2 * POLL)
    assert (await waiting).kind == "changed"
    await catalog.delete_session("a")
    kinds = []
    async for change in changes:
        kinds.append(change.kind)
        if change.kind == "removed":
            break
    assert set(kinds) <= {"changed", "removed"}
    assert change.session.metadata["title"] in ("second", "third")
    await changes.aclose()


async def test_a_poll_is_few_statements_and_holds_no_connection(catalog, engine):
    mine = catalog.scoped({"owner_id": "u1"})
    await mine.create_session("a")
    changes = mine.watch(interval=1, initial=True)
    await anext(changes)
    statements = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def count(_connection, _cursor, statement, *_):
        statements.append(statement)

    waiting = asyncio.ensure_future(anext(changes))
    while not statements:  # noqa: ASYNC110  # seen by a plain function
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert len(statements) <= 2
    assert getattr(engine.pool, "checkedout", lambda: 0)() == 0
    waiting.cancel()


async def test_values_that_are_not_json(catalog, engine):
    await catalog.create_session("a", metadata={"title": "x", "tags": []})
    statement = "UPDATE agent_sessions_metadata SET value = '{' WHERE {0} = 'tags'"
    key = engine.dialect.identifier_preparer.quote("key")
    await raw.execute(engine, statement.replace("{0}", key))
    with pytest.raises(CorruptMetadataError):
        await anext(catalog.watch(initial=True))
    errors = []
    change = await anext(catalog.watch(initial=True, on_corrupt=errors.append))
    assert change.session.metadata == {"title": "x"}
    assert [(error.session_id, error.key) for error in errors] == [("a", "tags")]


@pytest.mark.logic
def test_arguments(catalog: SessionCatalog):
    for wrong in ({"limit": 0}, {"limit": 1001}, {"interval": 0}, {"interval": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            catalog.watch(**wrong)
    with pytest.raises(InvalidFilterError):
        catalog.watch({"a": {"$unknown": 1}})
    with pytest.raises(TypeError):
        catalog.watch(keys="title")


async def test_on_poll_tells_when_no_later_change_is_missed(catalog):
    await catalog.create_session("a")
    follows, seen = asyncio.Event(), []

    async def follow():
        async with aclosing(catalog.watch(interval=POLL, on_poll=follows.set)) as changes:
            async for change in changes:
                seen.append((change.kind, change.session.session_id))
                return

    task = asyncio.create_task(follow())
    await asyncio.wait_for(follows.wait(), 20)
    assert seen == []
    await catalog.create_session("b")
    await asyncio.wait_for(task, 20)
    assert seen == [("added", "b")]
