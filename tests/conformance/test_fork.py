"""Copies of sessions."""

from __future__ import annotations

import asyncio
import random

import pytest

from agents_session_metadata import (
    InvalidMetadataError,
    MetadataLimitError,
    MetadataLimits,
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
    SQLAlchemyMetadataSession,
    keys,
)
from conformance import corpus, raw

METADATA = {"owner_id": "u1", "title": "one", "tags": ["work", 1, None], "n": 10**30, "f": 1.0}


@pytest.fixture
async def session(catalog):
    session = await catalog.create_session("chat", metadata=METADATA)
    await session.add_items([raw.message(f"{number} 😀\0") for number in range(25)])
    return session


ORIGIN = {"forked_from": "chat"}


async def only_the_source(catalog):
    """Nothing but the source is there, and it is as it was."""
    page = await catalog.list_sessions(count_items=True)
    assert [(info.session_id, info.item_count) for info in page.sessions] == [("chat", 25)]
    assert page.sessions[0].metadata == METADATA


async def test_a_copy(catalog, session):
    before = await session.get_items(), await session.get_metadata()
    copy = await catalog.fork_session("chat", "copy")
    assert type(copy) is SQLAlchemyMetadataSession
    assert copy.session_id == "copy"
    assert (await session.get_items(), await session.get_metadata()) == before
    assert (await copy.get_items(), await copy.get_metadata()) == (
        before[0],
        {**before[1], **ORIGIN},
    )
    types = {key: type(value) for key, value in {**METADATA, **ORIGIN}.items()}
    assert {key: type(value) for key, value in (await copy.get_metadata()).items()} == types


async def test_long_items_keep_their_order(catalog):
    # MariaDB moves them out of memory while it copies.
    chance = random.Random(1)
    for number in range(6):
        session = await catalog.create_session(f"long-{number}")
        sizes = [chance.choice([10, 500, 4_000, 9_000, 20_000]) for _ in range(30)]
        await session.add_items([raw.message(f"{size} {size * 'x'}") for size in sizes])
        copy = await catalog.fork_session(session.session_id)
        assert await copy.get_items() == await session.get_items()


async def test_elements_are_found_in_the_copy(catalog, session):
    copy = await catalog.fork_session("chat")
    expected = {"chat", copy.session_id}
    assert len(expected) == 2
    for element in ("work", 1, None):
        found = await session.find_sessions_by_metadata({"tags": {"$contains": element}})
        assert set(found) == expected
    counts = await catalog.count_values("tags")
    assert {(value.value, value.count) for value in counts} == {("work", 2), (1, 2), (None, 2)}
    await copy.set_metadata({"tags": ["home"]})
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "work"}}) == ["chat"]


@pytest.mark.logic
async def test_copy_and_source_go_their_own_ways(catalog, session):
    copy = await catalog.fork_session("chat", "copy")
    await copy.add_items([raw.message("more")])
    await copy.set_metadata({"title": "two", "new": True})
    await session.pop_item()
    await session.delete_metadata(["n"])
    assert len(await copy.get_items()) == 26
    assert await copy.get_metadata() == {**METADATA, **ORIGIN, "title": "two", "new": True}
    assert len(await session.get_items()) == 24
    await session.clear_session()
    assert len(await copy.get_items()) == 26
    assert (await copy.get_items())[-1] == raw.message("more")


@pytest.mark.logic
async def test_metadata_of_the_copy(catalog, session):
    changed = {"title": "a copy", "forked_from": "chat", "tags": ["copied"]}
    copy = await catalog.fork_session("chat", "copy", metadata=changed)
    assert await copy.get_metadata() == {**METADATA, **changed}
    assert await session.get_metadata() == METADATA
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "work"}}) == ["chat"]
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "copied"}}) == ["copy"]


async def test_everything_that_metadata_may_hold(catalog):
    for session_id, metadata in corpus.sessions().items():
        await catalog.create_session(session_id, metadata=metadata)
        copy = await catalog.fork_session(session_id)
        copied = await copy.get_metadata()
        assert copied.pop("forked_from") == session_id
        assert repr(copied) == repr(await catalog.get_metadata(session_id))


@pytest.mark.logic
async def test_a_copy_has_no_runs_of_its_original(catalog):
    runs = dict.fromkeys(keys.RUN_KEYS, 3) | {"status": "completed", "tool_calls": [["t", 3, 1]]}
    own = {"title": "one", "title_auto": "one", "agent": "a", "purpose": "p", "owner_id": "u1"}
    shown = {"pinned": True, "archived": True}
    await catalog.create_session("chat", metadata={**runs, **own, **shown})
    copy = await catalog.fork_session("chat", "copy")
    assert await copy.get_metadata() == {**own, **ORIGIN}
    await catalog.fork_session("copy", "again")
    family = await catalog.statistics({"owner_id": "u1"})
    assert (family.sessions, family.runs, family.tools["t"].calls) == (3, 3, 3)
    assert family.by_status == {"completed": 1}

    renamed = await catalog.fork_session("chat", metadata={"title": "two", "pinned": True})
    found = await renamed.get_metadata(["title", "title_auto", "pinned"])
    assert found == {"title": "two", "title_auto": None, "pinned": True}
    scoped = catalog.scoped({"status": "completed", "archived": True})
    inside = await scoped.fork_session("chat")
    assert await inside.get_metadata(["status", "archived", "pinned", "phase"]) == {
        "status": "completed",
        "archived": True,
        "pinned": None,
        "phase": None,
    }


@pytest.mark.logic
async def test_an_empty_session(catalog):
    await catalog.create_session("chat")
    copy = await catalog.fork_session("chat")
    assert (await copy.get_items(), await copy.get_metadata()) == ([], ORIGIN)
    assert await catalog.count_sessions() == 2


async def test_the_new_id_is_taken(catalog, session):
    other = await catalog.create_session("other", metadata={"a": 1})
    await other.add_items([raw.message("mine")])
    for taken in ("other", "chat"):
        with pytest.raises(SessionExistsError) as caught:
            await catalog.fork_session("chat", taken, metadata={"title": "two"})
        assert caught.value.session_id == taken
    assert (await other.get_items(), await other.get_metadata()) == (
        [raw.message("mine")],
        {"a": 1},
    )
    await other.clear_session()
    await only_the_source(catalog)


@pytest.mark.logic
async def test_the_source_is_missing(catalog, session):
    for missing in ("nobody", "chat ", "CHAT", "a\0", ""):
        for new_id in (None, "a", "zzz"):
            with pytest.raises(SessionNotFoundError) as caught:
                await catalog.fork_session(missing, new_id)
            assert caught.value.session_id == missing
    await only_the_source(catalog)


@pytest.mark.logic
async def test_what_cannot_be_stored(catalog, session):
    for new_id in ("", "x" * 256, "a\0", "\ud800"):
        with pytest.raises(ValueError, match="id"):
            await catalog.fork_session("chat", new_id)
    for metadata in ({"a": b""}, {"$a": 1}, {"": 1}):
        with pytest.raises(InvalidMetadataError):
            await catalog.fork_session("chat", "copy", metadata=metadata)
    await only_the_source(catalog)


@pytest.mark.logic
async def test_limits(catalog, session):
    limits = MetadataLimits(max_keys=len(METADATA) + 1, max_value_bytes=100)
    small = SessionCatalog(catalog.engine, metadata_limits=limits)
    for metadata in ({"one": "more"}, {"title": "x" * 200}):
        with pytest.raises(MetadataLimitError):
            await small.fork_session("chat", "copy", metadata=metadata)
    await only_the_source(catalog)
    copy = await small.fork_session("chat", "copy", metadata={"title": "short"})
    assert (await copy.get_metadata())["title"] == "short"


@pytest.mark.logic
async def test_within_a_scope(mine, everyone):
    copy = await mine.fork_session("mine-0", "mine-copy", metadata={"title": "a copy"})
    assert (await copy.get_metadata())["owner_id"] == "mine"
    assert await copy.get_items() == [raw.message("mine 0")]
    assert await mine.count_sessions() == 3
    with pytest.raises(SessionNotFoundError):
        await mine.fork_session("theirs-0", "stolen")
    with pytest.raises(SessionExistsError):
        await mine.fork_session("mine-0", "theirs-0")
    with pytest.raises(ScopeError) as caught:
        await mine.fork_session("mine-0", "given", metadata={"owner_id": "theirs"})
    assert caught.value.key == "owner_id"
    assert await everyone.count_sessions() == 5
    await mine.delete_session("mine-copy")


async def test_one_of_many_copies_wins(catalog, session):
    results = await asyncio.gather(
        *[catalog.fork_session("chat", "copy", metadata={"by": number}) for number in range(10)],
        return_exceptions=True,
    )
    assert sum(isinstance(result, SessionExistsError) for result in results) == 9
    (by,) = [number for number, one in enumerate(results) if not isinstance(one, Exception)]
    copy = catalog.session("copy")
    assert await copy.get_metadata() == {**METADATA, **ORIGIN, "by": by}
    assert len(await copy.get_items()) == 25
