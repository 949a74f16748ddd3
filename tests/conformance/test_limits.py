"""Limits, and that nothing is written past them."""

from __future__ import annotations

from typing import Any

import pytest

from agents_session_metadata import (
    InvalidMetadataError,
    MetadataLimitError,
    MetadataLimits,
    SQLAlchemyMetadataSession,
)
from conformance import raw

pytestmark = pytest.mark.logic


@pytest.fixture
def session(database):
    return SQLAlchemyMetadataSession("chat", engine=database.engine(), create_tables=True)


def limited(session: SQLAlchemyMetadataSession, **limits: Any) -> SQLAlchemyMetadataSession:
    """The same session under other limits."""
    return SQLAlchemyMetadataSession(
        session.session_id,
        engine=session.engine,
        create_tables=True,
        metadata_limits=MetadataLimits(**limits),
    )


async def test_a_refused_first_write_makes_no_row(session):
    await session.get_metadata()
    for values in ({"a": b""}, {"": 1}, {"a": "x" * 65_535}, {"k" * 256: 1}):
        with pytest.raises((InvalidMetadataError, MetadataLimitError)):
            await session.set_metadata(values)
    assert await raw.count_rows(session.engine, "agent_sessions") == 0
    assert await raw.metadata_rows(session.engine) == 0


async def test_the_key_limit_counts_characters(session):
    await session.set_metadata({"👍" * 255: 1})
    with pytest.raises(MetadataLimitError) as caught:
        await session.set_metadata({"good": 1, "k" * 256: 1})
    error = caught.value
    assert (error.limit, error.key, error.size) == ("max_key_length", "k" * 256, 256)
    assert await session.get_metadata() == {"👍" * 255: 1}


async def test_a_key_limit_of_ones_own(session):
    session = limited(session, max_key_length=3)
    await session.set_metadata({"ééé": 1})
    with pytest.raises(MetadataLimitError) as caught:
        await session.set_metadata({"éééé": 1})
    assert (caught.value.limit, caught.value.size) == ("max_key_length", 4)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("x" * 65_535, 65_537),
        ("é" * 32_768, 65_538),
        ("👍" * 16_384, 65_538),
        (["x" * 65_533], 65_537),
    ],
    ids=["ascii", "two_bytes", "four_bytes", "list"],
)
async def test_the_value_limit_counts_bytes(session, value, size):
    await session.set_metadata({"old": 1})
    with pytest.raises(MetadataLimitError) as caught:
        await session.set_metadata({"good": 1, "old": value})
    error = caught.value
    assert (error.limit, error.key, error.size) == ("max_value_bytes", "old", size)
    assert all(shown in str(error) for shown in ("max_value_bytes", "old", str(size)))
    assert await session.get_metadata() == {"old": 1}


async def test_the_limit_on_keys_counts_what_would_be_stored(session):
    session = limited(session, max_keys=3)
    await session.set_metadata({"a": 1, "b": 1})
    with pytest.raises(MetadataLimitError) as caught:
        await session.set_metadata({"b": 2, "c": 1, "d": 1})
    assert (caught.value.limit, caught.value.size) == ("max_keys", 4)
    assert caught.value.key in {"c", "d"}
    assert await session.get_metadata() == {"a": 1, "b": 1}
    await session.set_metadata({"a": 2, "b": 2, "c": 2})
    await session.set_metadata({"a": 3, "b": 3, "c": 3})
    with pytest.raises(MetadataLimitError):
        await session.edit_metadata(lambda metadata: metadata.update(d=1))
    await session.edit_metadata(lambda metadata: (metadata.pop("a"), metadata.update(d=1)))
    assert await session.get_metadata() == {"b": 3, "c": 3, "d": 1}


async def test_a_hundred_keys_fit_and_no_more(session):
    await session.set_metadata({f"key {number}": number for number in range(100)})
    with pytest.raises(MetadataLimitError) as caught:
        await session.set_metadata({"one more": 1})
    assert (caught.value.limit, caught.value.key, caught.value.size) == (
        "max_keys",
        "one more",
        101,
    )
    assert len(await session.get_metadata()) == 100


async def test_larger_limits_can_be_set(session):
    session = limited(session, max_keys=300, max_value_bytes=1_000_000)
    values = {f"key {number}": number for number in range(299)} | {"long": "é" * 400_000}
    await session.set_metadata(values)
    assert await session.get_metadata() == values
    assert await session.find_sessions_by_metadata("long", "é" * 400_000) == ["chat"]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_key_length": 256},
        {"max_keys": 0},
        {"max_keys": -1},
        {"max_value_bytes": 0},
    ],
    ids=str,
)
def test_limits_that_cannot_be(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        MetadataLimits(**bad)
