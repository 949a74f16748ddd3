"""The logger of changes: one line per session for each committed change, without values."""

from __future__ import annotations

import logging

import pytest
from agents import Agent
from agents.testing import ScriptedModel

from agents_session_metadata import (
    MetadataLimits,
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionRuns,
)
from conformance import raw

LOGGER = "agents_session_metadata.changes"


@pytest.fixture
def lines(caplog, catalog):
    """A function that returns the lines since its last call."""
    caplog.set_level(logging.DEBUG, LOGGER)

    def taken():
        found = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        assert all(record.levelno == logging.DEBUG for record in caplog.records)
        caplog.clear()
        return found

    return taken


async def test_one_session(catalog, lines):
    session = catalog.session("a")
    await session.set_metadata({"title": "secret", "tags": ["secret"]})
    assert lines() == ["session 'a': created; set 'tags', 'title'"]
    await session.set_metadata({"title": "other"})
    assert lines() == ["session 'a': set 'title'"]
    await session.edit_metadata(lambda metadata: metadata.pop("tags") and metadata.update(n=1))
    assert lines() == ["session 'a': removed 'tags'; set 'n'"]
    assert await session.delete_metadata(["n", "nothing"]) == 1
    assert lines() == ["session 'a': removed 'n'"]
    await session.add_items([raw.message("secret")])
    assert await session.get_metadata() == {"title": "other"}
    await session.edit_metadata(lambda metadata: None)
    await session.set_metadata({})
    assert lines() == []
    await session.clear_session()
    assert lines() == ["session 'a': deleted"]
    await session.add_items([raw.message("secret")])
    assert lines() == ["session 'a': created"]
    assert await catalog.delete_session("a")
    assert not await catalog.delete_session("a")
    assert lines() == ["session 'a': deleted"]


async def test_many_sessions(catalog, lines):
    for name in ("a", "b"):
        await catalog.create_session(name, metadata={"n": 1, "run": "failed"})
    assert lines() == [
        "session 'a': created; set 'n', 'run'",
        "session 'b': created; set 'n', 'run'",
    ]
    await catalog.fork_session("a", "c")
    assert lines() == ["session 'c': created; set 'forked_from', 'n'"]
    records = [record async for record in catalog.export_sessions({"n": 1})]
    assert await catalog.import_sessions(records, on_conflict="skip") == 0
    assert lines() == []
    assert await catalog.import_sessions(records[:1], on_conflict="replace") == 1
    assert lines() == ["session 'a': deleted; created; set 'n'"]
    assert await catalog.delete_sessions({"n": 1}) == 3
    assert sorted(lines()) == [f"session '{name}': deleted" for name in "abc"]
    assert await catalog.import_sessions(records) == 3
    assert [line.split(";")[0] for line in lines()] == [
        f"session '{name}': created" for name in "abc"
    ]


@pytest.mark.logic
async def test_a_run_that_is_given_up(catalog, lines):
    session = await catalog.create_session("a")
    runs = SessionRuns(catalog)
    for give_up in (
        lambda: runs.discard("a"),
        lambda: session.rewind(turns=1),
        lambda: catalog.fork_session("a", "b"),
    ):
        with pytest.raises(Exception, match="no scripted steps"):
            await runs.run("a", Agent(name="a", model=ScriptedModel([])), "hi")
        lines()
        await give_up()
        assert lines()[0] == "session 'a': removed 'run'"


async def test_what_is_not_committed(catalog, engine, lines):
    await catalog.create_session("a", metadata={"owner_id": "u1"})
    lines()
    limited = SessionCatalog(engine, metadata_limits=MetadataLimits(max_keys=1))
    with pytest.raises(ValueError, match="too many"):
        await limited.set_metadata("new", {"a": 1, "b": 2})
    with pytest.raises(ZeroDivisionError):
        await catalog.edit_metadata("new", lambda metadata: metadata.update(a=1 // 0))
    with pytest.raises(SessionExistsError):
        await catalog.create_session("a", metadata={"b": 1})
    with pytest.raises(ScopeError):
        await catalog.scoped({"owner_id": "u1"}).set_metadata("a", {"owner_id": "u2"})
    await catalog.edit_metadata("other", lambda metadata: None)
    assert await catalog.get_session("other") is None
    assert lines() == []


async def test_nothing_is_remembered_at_another_level(catalog, lines, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    await catalog.create_session("a", metadata={"n": 1})
    caplog.set_level(logging.DEBUG, LOGGER)
    await catalog.set_metadata("a", {"m": 1})
    assert lines() == ["session 'a': set 'm'"]
