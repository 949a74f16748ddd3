"""Previews of sessions: what they show, and what is read for them."""

from __future__ import annotations

import dataclasses
import functools
import json
from datetime import datetime, timedelta, timezone

import pytest
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from sqlalchemy import event, insert

from agents_session_metadata import SessionCatalog, session_tables
from conformance import raw
from conformance.test_history import OUTPUT, TURN
from conformance.test_plans import _plan, _rows_read


async def test_previews(catalog, engine):
    long = "  A question\n\n about\ttrams 😀 " + "x" * 5_000
    shown = ("A question about trams 😀 " + "x" * 5_000)[:200]
    content = [{"type": "input_text", "text": "in parts"}, {"type": "input_image"}]
    histories = {
        "answer-first": ([raw.message("hello", "assistant"), *TURN], "question"),
        "content-first": ([{"content": long, "role": "user"}], shown),
        "empty": ([], None),
        "late": ([OUTPUT] * 9 + TURN, "question"),
        "later": ([OUTPUT] * 10 + TURN, None),
        "long": ([raw.message(long), raw.message("not this")], shown),
        "megabytes": ([{"content": "y" * 3_000_000, "role": "user"}], "y" * 200),
        "no-user": ([raw.message('"role":"user"', "assistant")] * 20, None),
        "parts": ([{"role": "user", "type": "message", "content": content}], "in parts"),
    }
    for session_id, (items, _) in histories.items():
        await catalog.create_session(session_id)
        await catalog.session(session_id).add_items(items)
    expected = {session_id: preview for session_id, (_, preview) in histories.items()}
    encrypted = EncryptedSession("encrypted", catalog.session("encrypted"), "key")
    await encrypted.add_items(TURN)
    plain = SQLAlchemySession("spaces", engine=engine)
    await plain.add_items(TURN)
    await raw.execute(
        engine,
        "UPDATE agent_messages SET message_data = :data WHERE session_id = 'spaces'",
        data=json.dumps(raw.message("with spaces")),
    )
    expected |= {"encrypted": None, "spaces": "with spaces"}
    page = await catalog.list_sessions(preview=True, order_by="session_id")
    assert {info.session_id: info.preview for info in page.sessions} == expected
    walked = {info.session_id: info.preview async for info in catalog.iter_sessions(preview=True)}
    assert walked == expected
    for session_id, preview in expected.items():
        assert (await catalog.get_session(session_id, preview=True, keys=[])).preview == preview
        assert (await catalog.get_session(session_id)).preview is None
    page = await catalog.list_sessions(preview=True, order_by="session_id", limit=2)
    more = await catalog.list_sessions(
        preview=True, order_by="session_id", limit=2, cursor=page.next_cursor
    )
    found = {info.session_id: info.preview for info in page.sessions + more.sessions}
    assert found == dict(sorted(expected.items())[:4])


@pytest.mark.parametrize("indexed", [False, True])
async def test_previews_beside_metadata(catalog, indexed):
    if not indexed:
        await catalog.drop_index("$updated_at")
    kept = {"B": [1, 2], "a": None, "é": "x" * 500}
    for number in range(4):
        session = catalog.session(f"chat-{number}")
        await session.add_items([raw.message(f"question {number}")])
        await session.set_metadata({"owner_id": "u1", **(kept if number % 2 else {})})
    await catalog.create_session("empty", metadata={"owner_id": "u1", **kept})
    for keys in (None, [], ["a", "é"], ["B", "owner_id"], ["nope"]):
        without = await catalog.list_sessions({"owner_id": "u1"}, keys=keys)
        page = await catalog.list_sessions({"owner_id": "u1"}, keys=keys, preview=True)
        assert len(page.sessions) == 5
        for info, plain in zip(page.sessions, without.sessions, strict=True):
            number = info.session_id.removeprefix("chat-")
            expected = None if number == "empty" else f"question {number}"
            assert info == dataclasses.replace(plain, preview=expected)


async def test_previews_read_the_beginning_of_each_history(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    tables = session_tables()
    began = datetime(2026, 1, 1, tzinfo=timezone.utc).replace(tzinfo=None)
    lengths = {"long": 5_000, **{f"short-{number}": 12 for number in range(19)}}
    await catalog.count_sessions()
    async with engine.begin() as connection:
        for session_id, length in lengths.items():
            await connection.execute(insert(tables.sessions), [{"session_id": session_id}])
            times = [began + timedelta(seconds=number) for number in range(length)]
            rows = [
                {"session_id": session_id, "message_data": json.dumps(OUTPUT), "created_at": at}
                for at in times
            ]
            await connection.execute(insert(tables.messages), rows)
    if shared_database.name.startswith("mysql"):  # It does so by itself, after some seconds.
        await raw.execute(engine, "ANALYZE TABLE agent_sessions, agent_messages")
    ask = functools.partial(catalog.list_sessions, keys=[], preview=True, order_by="session_id")
    for _ in range(2):
        read = await _rows_read(shared_database, engine, ask, whole=True)
        # Those of the page, and of each history what an incremental sort takes at a time. At each
        # row that MySQL searches, it looks for the last row to search.
        assert read <= 20 * (120 if shared_database.name.startswith("mysql") else 50)
        if shared_database.kind == "sqlite":
            plan = await _plan(shared_database, engine, ask)
            assert "SEARCH beginning USING INDEX" in plan
            assert plan.count("TEMP B-TREE") == 1, plan  # Only the page is sorted.
        if shared_database.kind == "postgresql":
            await raw.execute(engine, "ANALYZE")


async def test_previews_take_no_further_statement(catalog, engine):
    for number in range(5):
        await catalog.session(f"chat-{number}").add_items(TURN * 50)
    await catalog.list_sessions({"nobody": 1}, preview=True)
    statements = []
    event.listen(
        engine.sync_engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *_: statements.append(statement),
    )
    await catalog.list_sessions()
    without = len(statements)
    await catalog.list_sessions(preview=True)
    assert len(statements) == 2 * without
    await catalog.list_sessions({"nobody": 1}, preview=True)
    assert len(statements) == 3 * without
