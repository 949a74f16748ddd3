"""A broken record stops an import, and nothing of it is written."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import InvalidMetadataError, MetadataLimitError, SessionMetadataError
from conformance import raw

pytestmark = pytest.mark.logic

TIME = "2020-01-01T00:00:00+00:00"
MISSING: Any = object()

TIMES = [
    *[None, 5, 1.5, True, "", "yesterday", "2020-13-01T00:00:00+00:00", [TIME], {}],
    *["2020-01-01", "2020-01-01T00:00:00", MISSING],
    # Before the first year and after the last one, in UTC
    *["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
]
WRONG: dict[tuple[Any, ...], list[Any]] = {
    (): [None, 5, "record", [], [1], b"", 1.5],
    ("format",): [MISSING, None, 0, 2, 99, -1, "1", [1], {}],
    ("created_at",): TIMES,
    ("updated_at",): TIMES,
    ("metadata",): [
        *[MISSING, None, [], "a", 1, {"$a": 1}, {"": 1}, {"a\0": 1}, {"a": float("nan")}],
        *[{"a": "\ud800"}, {"a": [{"b": {1, 2}}]}, {"a": b""}, {1: 1}, {"a": {1: 1}}],
    ],
    ("items",): [MISSING, None, {}, "a", 1],
    ("items", 1): [
        *[None, 1, "a", [], {}, {"created_at": TIME}],
        {"created_at": TIME, "item": {}, "text": "{}"},
        {"item": {}},
    ],
    ("items", 1, "created_at"): TIMES,
    ("items", 1, "item"): [
        MISSING,
        float("nan"),
        {"a": float("inf")},
        {1, 2},
        b"",
        {"a": object()},
    ],
    ("note",): ["a field that no record has"],
    ("items", 1, "note"): ["a field that no record has"],
    ("items", 2, "text"): [MISSING, None, 5, [], {}, "a\0", "\ud800"],
}
IDS = [MISSING, None, 1, True, [], {}, "", "x" * 256, "a\0", "\ud800"]
CASES = [(path, value) for path, values in WRONG.items() for value in values]


def record(session_id: str) -> dict[str, Any]:
    return {
        "format": 1,
        "session_id": session_id,
        "created_at": TIME,
        "updated_at": TIME,
        "metadata": {"a": 1, "tags": ["x"]},
        "items": [
            {"created_at": TIME, "item": raw.message("one")},
            {"created_at": TIME, "item": raw.message("two")},
            {"created_at": TIME, "text": "not json"},
        ],
    }


def broken(path: tuple[Any, ...], value: Any) -> Any:
    """A record with one thing wrong."""
    if not path:
        return value
    found = copy.deepcopy(record("broken"))
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


async def check(catalog, wrong, kinds: Any = InvalidMetadataError, name: str = "broken"):
    """The records before are in, this one and those after it are not."""
    await catalog.delete_sessions({"a": {"$exists": True}})
    with pytest.raises(kinds) as caught:
        await catalog.import_sessions([record("first"), record("second"), wrong, record("last")])
    assert "record 3" in str(caught.value)
    page = await catalog.list_sessions(order_by="session_id", count_items=True)
    assert [(info.session_id, info.item_count) for info in page.sessions] == [
        ("first", 3),
        ("second", 3),
    ]
    assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == 2
    assert await raw.count_rows(catalog.engine, "agent_messages") == 6
    return caught.value


async def problem(checking) -> str | None:
    """What went wrong in a check, so that all of many are told at once."""
    try:
        await checking
    except Exception as error:  # noqa: BLE001  # it is told
        return f"{type(error).__name__}: {error}"[:200]
    return None


async def test_the_record_that_is_not_broken(catalog):
    assert await catalog.import_sessions([record("one"), record("two")]) == 2
    exported = [found async for found in catalog.export_sessions()]
    assert exported == [record("one"), record("two")]


@pytest.mark.thorough
async def test_broken_records(catalog):
    told = {}
    for path, value in CASES:
        told[path, ascii(value)] = await problem(check(catalog, broken(path, value)))
    assert {case: one for case, one in told.items() if one} == {}


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ((), 5, "the record must be an object, got 5"),
        (("format",), 2, "$.format is invalid: Input should be 1, got 2"),
        (("items", 1), "a", "$.items[1] must be an object, got str"),
        (("items",), MISSING, "$.items is invalid: Field required"),
    ],
)
async def test_messages_say_what_was_given(catalog, path, value, sentence):
    with pytest.raises(InvalidMetadataError) as caught:
        await catalog.import_sessions([broken(path, value)])
    assert str(caught.value) == f"record 1 (index 0): {sentence}"


async def test_ids_that_cannot_be(catalog):
    told = {}
    for name in IDS:
        wrong = broken(("session_id",), name)
        told[ascii(name)[:12]] = await problem(check(catalog, wrong, ValueError))
    assert {case: one for case, one in told.items() if one} == {}


async def test_limits(catalog):
    too_many = {f"key {number}": number for number in range(101)}
    error = await check(catalog, broken(("metadata",), too_many), MetadataLimitError)
    assert error.limit == "max_keys"
    error = await check(catalog, broken(("metadata",), {"a": "x" * 70_000}), MetadataLimitError)
    assert (error.limit, error.key) == ("max_value_bytes", "a")


@examples(15, 2_000)
@given(case=st.sampled_from(range(len(CASES))), other=st.sampled_from(range(len(CASES))))
async def test_two_things_wrong(catalog, case, other):
    (path, value), (other_path, other_value) = CASES[case], CASES[other]
    wrong = broken(path, value)
    if isinstance(wrong, dict) and len(other_path) == 1 and other_value is not MISSING:
        wrong = {**wrong, other_path[0]: other_value}
    await check(catalog, wrong)


async def test_a_record_that_is_broken_replaces_nothing(catalog):
    before = record("broken")
    await catalog.import_sessions([before])

    async def replace(wrong: Any) -> None:
        with pytest.raises(SessionMetadataError):
            await catalog.import_sessions([wrong], "replace")

    told = {}
    for path, value in CASES:
        told[path, ascii(value)] = await problem(replace(broken(path, value)))
        assert [found async for found in catalog.export_sessions()] == [before]
    assert {case: one for case, one in told.items() if one} == {}


@pytest.mark.parametrize("place", ["created_at", "updated_at", "items"])
@pytest.mark.parametrize(
    "time",
    [
        *["0001-01-01T00:00:00", "0001-12-31T23:59:59.999999", "0002-01-01T00:00:00"],
        *["1969-12-31T23:59:59", "1970-01-01T00:00:00", "2038-01-19T03:14:08"],
        *["9998-12-31T23:59:59.999999", "9999-01-01T00:00:00", "9999-12-31T23:59:59.999999"],
    ],
)
async def test_times_that_not_every_database_holds(catalog, place, time):
    wanted = broken(("items", 2, "created_at") if place == "items" else (place,), f"{time}+00:00")
    try:
        assert await catalog.import_sessions([wanted]) == 1
    except InvalidMetadataError:
        await check(catalog, wanted)
    else:
        [found] = [found async for found in catalog.export_sessions()]
        assert sorted(map(str, found["items"])) == sorted(map(str, wanted["items"]))
        assert {**found, "items": []} == {**wanted, "items": []}


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_times_that_local_time_cannot_express(catalog, time):
    error = await check(catalog, broken(("updated_at",), time))
    assert "$.updated_at is outside the years 2 to 9998" in str(error)


async def test_a_newer_format_is_told(catalog):
    assert "$.format" in str(await check(catalog, broken(("format",), 2)))


async def test_the_cause_of_a_stop_outside_passes_through(catalog):
    async def records():
        yield record("first")
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        await catalog.import_sessions(records())
    assert await catalog.count_sessions() == 1


async def test_an_error_of_the_database_names_the_record(catalog, engine):
    await catalog.count_sessions()
    await raw.refuse_session(engine, "chat-49")
    with pytest.raises(DBAPIError, match=r"stopped at record 50 \(index 49\); the records before"):
        await catalog.import_sessions(record(f"chat-{number}") for number in range(60))
    assert await catalog.count_sessions() == 49


@pytest.mark.only_on("mariadb", "mysql")
async def test_a_record_that_is_too_large_for_the_server(catalog, engine):
    large = record("large")
    large["items"][1]["item"] = raw.message("x" * (2 << 20))
    [[before]] = await raw.execute(engine, "SELECT @@max_allowed_packet")
    try:
        await raw.execute(engine, f"SET GLOBAL max_allowed_packet = {1 << 20}")
        await engine.dispose()  # It is read when a connection opens.
        with pytest.raises(DBAPIError, match=r"record 2 \(index 1\).*max_allowed_packet"):
            await catalog.import_sessions([record("first"), large, record("last")])
    finally:
        await raw.execute(engine, f"SET GLOBAL max_allowed_packet = {before}")
        await engine.dispose()
    assert await catalog.import_sessions([record("first"), large, record("last")], "skip") == 2


async def test_any_mapping_is_a_record(catalog):
    assert await catalog.import_sessions([MappingProxyType(record("one"))]) == 1
    assert [found async for found in catalog.export_sessions()] == [record("one")]
