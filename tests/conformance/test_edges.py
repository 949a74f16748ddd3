"""Arguments that no key, id or moment can be, and more of them than a statement holds."""

from __future__ import annotations

import contextlib
import gc
from datetime import datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from scaling import scale
from servers import ignored_warnings
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    InvalidFilterError,
    InvalidMetadataError,
    SessionCatalog,
    SQLAlchemyMetadataSession,
    TablesMissingError,
)
from conformance import raw

IMPOSSIBLE_KEYS = ["", "\0", "a\0", "\ud800", "k" * 256, "k" * 100_000, "$gt"]
IMPOSSIBLE_IDS = ["", "\0", "chat\0", "\ud800", "i" * 256, "i" * 100_000]


@pytest.fixture
async def session(catalog):
    return await catalog.create_session("chat", metadata={"a": 1, "tags": ["x"]})


async def test_keys_that_cannot_be_are_missing(session, catalog):
    assert await session.get_metadata(IMPOSSIBLE_KEYS) == dict.fromkeys(IMPOSSIBLE_KEYS)
    assert await session.get_metadata([*IMPOSSIBLE_KEYS, "a"]) == {
        **dict.fromkeys(IMPOSSIBLE_KEYS),
        "a": 1,
    }
    assert (await catalog.get_session("chat", keys=IMPOSSIBLE_KEYS)).metadata == {}
    page = await catalog.list_sessions(keys=[*IMPOSSIBLE_KEYS, "a"])
    assert [info.metadata for info in page.sessions] == [{"a": 1}]
    assert await session.delete_metadata(IMPOSSIBLE_KEYS) == 0
    assert await session.delete_metadata([*IMPOSSIBLE_KEYS, "a"]) == 1


async def test_ids_that_cannot_be_are_found_nowhere(session, catalog):
    for session_id in IMPOSSIBLE_IDS:
        for condition in (session_id, {"$in": [session_id]}, {"$eq": session_id}):
            # Whether such a filter has a meaning is not said; that it is no error of a driver is.
            with contextlib.suppress(InvalidFilterError):
                assert await catalog.count_sessions({"$session_id": condition}) == 0
    with contextlib.suppress(InvalidFilterError):
        assert await catalog.count_sessions({"$session_id": {"$prefix": "chat\0"}}) == 0
    assert await catalog.count_sessions({"$session_id": {"$prefix": "chat" * 1_000}}) == 0


async def test_more_keys_than_a_driver_takes_parameters(session, catalog):
    many = [f"key {number}" for number in range(40_000)]
    assert await session.get_metadata([*many, "a"]) == {**dict.fromkeys(many), "a": 1}
    assert await session.delete_metadata([*many, "a"]) == 1
    assert await session.get_metadata() == {"tags": ["x"]}


async def test_more_keys_of_a_page_than_a_driver_takes_parameters(session, catalog):
    keys = [*[f"key {number}" for number in range(40_000)], "a"]
    with ignored_warnings():  # So many are too many for an optimization of MySQL's.
        assert (await catalog.get_session("chat", keys=keys)).metadata == {"a": 1}
        assert [info.metadata async for info in catalog.iter_sessions(keys=keys)] == [{"a": 1}]
        assert (await catalog.list_sessions(keys=keys)).sessions[0].metadata == {"a": 1}


@pytest.mark.scaled
@pytest.mark.logic
@pytest.mark.thorough
async def test_more_operands_than_a_driver_takes_parameters(session, catalog):
    many = [list(range(start, start + 1_000)) for start in range(0, 34_000, 1_000)]
    where = {"$or": [{"a": {"$in": operands}} for operands in many]}
    assert len([record async for record in catalog.export_sessions(where)]) == 1
    # test_filters asks list_sessions. The methods that are left out bind their operands alike.
    if scale(False, True):
        assert [info.session_id async for info in catalog.iter_sessions(where)] == ["chat"]
        assert (await catalog.last_session(where)).session_id == "chat"
        assert [one.value for one in await catalog.count_values("tags", where)] == ["x"]
    assert await catalog.statistics(where) == await catalog.statistics()
    assert await catalog.delete_sessions(where) == 1


@pytest.mark.thorough
async def test_more_elements_than_a_driver_takes_parameters(session):
    # Five bytes each fill the 64 KiB of a value.
    elements = list(range(1_000, 10_000))
    values = {f"key {number}": elements for number in range(5)}
    await session.set_metadata(values)
    assert (await session.get_metadata())["key 3"] == elements
    for element in (1_000, 9_999):
        assert await session.find_sessions_by_metadata({"key 4": {"$contains": element}}) == [
            "chat"
        ]
    await session.edit_metadata(lambda metadata: metadata["key 4"].remove(9_999))
    assert await session.find_sessions_by_metadata({"key 4": {"$contains": 9_999}}) == []
    assert await session.delete_metadata() == 7
    assert await raw.metadata_rows(session.engine) == 0


async def test_sessions_at_the_limit_of_everything(catalog):
    values = {f"{number:03} {'👍' * 251}": "ä" * 32_000 for number in range(100)}
    await catalog.create_session("full", metadata=values)
    assert await catalog.get_metadata("full") == values
    page = await catalog.list_sessions()
    assert page.sessions[0].metadata == values
    assert await catalog.delete_session("full") is True


@pytest.mark.logic
async def test_any_mapping_and_any_iterable(session):
    await session.set_metadata(MappingProxyType({"b": 2}))
    assert await session.get_metadata(key for key in ("a", "b")) == {"a": 1, "b": 2}
    assert await session.get_metadata({"b": None}.keys()) == {"b": 2}
    assert await session.get_metadata(("a",)) == {"a": 1}
    assert await session.delete_metadata({"a", "b"}) == 2


@pytest.mark.logic
async def test_an_edit_may_not_make_impossible_keys(session):
    for key in ("", "$a", "a\0", 1, None):
        with pytest.raises(InvalidMetadataError):
            await session.edit_metadata(lambda metadata, key=key: metadata.update({"b": 1, key: 1}))
    assert await session.get_metadata() == {"a": 1, "tags": ["x"]}


@pytest.mark.logic
async def test_what_an_edit_hands_out_is_no_longer_the_metadata(session):
    kept = []
    returned = await session.edit_metadata(kept.append)
    kept[0]["tags"].append("later")
    returned["tags"].append("later")
    assert await session.get_metadata() == {"a": 1, "tags": ["x"]}


async def test_moments_within_a_second(catalog, session, engine):
    await raw.set_times(engine, "chat")
    moment = (await catalog.get_session("chat")).updated_at
    little = timedelta(microseconds=1)
    for condition, count in [
        ({"$gt": moment - little}, 1),
        ({"$gte": moment - little}, 1),
        ({"$lt": moment - little}, 0),
        ({"$lte": moment - little}, 0),
        ({"$gt": moment}, 0),
        ({"$gte": moment}, 1),
        ({"$lt": moment}, 0),
        ({"$lte": moment}, 1),
        ({"$gt": moment + little}, 0),
        ({"$gte": moment + little}, 0),
        ({"$lt": moment + little}, 1),
        ({"$lte": moment + little}, 1),
        ({"$lt": moment + timedelta(milliseconds=999)}, 1),
        ({"$gte": moment - timedelta(milliseconds=999), "$lt": moment}, 0),
    ]:
        assert await catalog.count_sessions({"$updated_at": condition}) == count, condition
        text = {name: operand.isoformat() for name, operand in condition.items()}
        assert await catalog.count_sessions({"$updated_at": text}) == count, condition


async def test_moments_at_the_ends_of_the_calendar(catalog, session):
    for early in (
        datetime.min.replace(tzinfo=timezone.utc),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
        datetime(1970, 1, 1, tzinfo=timezone.utc),
    ):
        assert await catalog.count_sessions({"$created_at": {"$gt": early}}) == 1, early
        assert await catalog.count_sessions({"$created_at": {"$lte": early}}) == 0, early
    for late in (
        datetime.max.replace(tzinfo=timezone.utc),
        datetime(2038, 1, 19, 3, 14, 8, tzinfo=timezone.utc),
        datetime(2107, 1, 1, tzinfo=timezone.utc),
    ):
        assert await catalog.count_sessions({"$created_at": {"$lt": late}}) == 1, late
        assert await catalog.count_sessions({"$created_at": {"$gte": late}}) == 0, late


async def test_an_engine_in_the_place_of_a_dead_one(tmp_path):
    # An engine is no longer checked for what another was that had its address.
    for number in range(6):
        url = f"sqlite+aiosqlite:///{tmp_path}/{number}.db"
        engine = create_async_engine(url)
        session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=number % 2 == 0)
        if number % 2 == 0:
            await session.set_metadata({"a": 1})
        else:
            with pytest.raises(TablesMissingError):
                await session.get_metadata()
        await engine.dispose()
        del engine, session
        gc.collect()


@pytest.mark.logic
async def test_options_that_cannot_be(engine):
    for make in (
        lambda **options: SQLAlchemyMetadataSession("chat", engine=engine, **options),
        lambda **options: SessionCatalog(engine, **options),
    ):
        with pytest.raises(ValueError, match="on_clear"):
            make(on_clear="forget")
        with pytest.raises(TypeError):
            make(no_such_option=1)
