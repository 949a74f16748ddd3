"""What a filter does not mean is an error, never "all rows"."""

from __future__ import annotations

import reprlib
from datetime import date, datetime, timezone
from typing import Any

import pytest

from agents_session_metadata import (
    InvalidFilterError,
    Replay,
    SessionCatalog,
    check_filter,
    resumable_sessions,
)

pytestmark = pytest.mark.logic

NOW = datetime.now(tz=timezone.utc)


def deep(depth: int) -> dict[str, Any]:
    where: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        where = {"$not": where}
    return where


# A filter, and what the path of the error has to name, in this order.
BAD: list[tuple[Any, list[str]]] = [
    # Shape
    ([], []),
    ([{"a": 1}], []),
    ("a", []),
    ("", []),
    (1, []),
    (True, []),
    (False, []),
    (0, []),
    # Operators
    ({"$unknown": 1}, ["$unknown"]),
    ({"$gt": 1}, ["$gt"]),
    ({"$eq": 1}, ["$eq"]),
    ({"$exists": True}, ["$exists"]),
    ({"$": 1}, ["$"]),
    ({"$where": "1=1"}, ["$where"]),
    ({"$id": "chat"}, ["$id"]),
    ({"$Session_id": "chat"}, ["$Session_id"]),
    ({"a": {"$unknown": 1}}, ["a", "$unknown"]),
    ({"a": {"$GT": 1}}, ["a", "$GT"]),
    ({"a": {"$": 1}}, ["a", "$"]),
    ({"a": {"$regex": "x"}}, ["a", "$regex"]),
    ({"a": {"$not": {"$gt": 1}}}, ["a", "$not"]),
    ({"a": {"$or": [{"$gt": 1}]}}, ["a", "$or"]),
    ({"a": {"$session_id": "x"}}, ["a", "$session_id"]),
    ({"a": {"$gt": 1, "b": 2}}, ["a"]),
    ({"a": {"b": 2, "$gt": 1}}, ["a"]),
    ({"a": {"$gt": 1, "$unknown": 2}}, ["a", "$unknown"]),
    # Operands
    ({"a": {"$gt": None}}, ["a", "$gt"]),
    ({"a": {"$gt": True}}, ["a", "$gt"]),
    ({"a": {"$gte": []}}, ["a", "$gte"]),
    ({"a": {"$lt": {}}}, ["a", "$lt"]),
    ({"a": {"$lte": NOW}}, ["a", "$lte"]),
    ({"a": {"$gt": float("nan")}}, ["a", "$gt"]),
    ({"a": {"$lt": float("inf")}}, ["a", "$lt"]),
    ({"a": {"$in": "abc"}}, ["a", "$in"]),
    ({"a": {"$in": 1}}, ["a", "$in"]),
    ({"a": {"$in": None}}, ["a", "$in"]),
    ({"a": {"$in": {"b": 1}}}, ["a", "$in"]),
    ({"a": {"$in": [1, float("nan")]}}, ["a", "$in"]),
    ({"a": {"$in": [1] * 1_001}}, ["a", "$in"]),
    ({"a": {"$nin": "abc"}}, ["a", "$nin"]),
    ({"a": {"$nin": None}}, ["a", "$nin"]),
    ({"a": {"$nin": list(range(1_001))}}, ["a", "$nin"]),
    ({"a": {"$exists": 1}}, ["a", "$exists"]),
    ({"a": {"$exists": 0}}, ["a", "$exists"]),
    ({"a": {"$exists": None}}, ["a", "$exists"]),
    ({"a": {"$exists": "true"}}, ["a", "$exists"]),
    ({"a": {"$contains": []}}, ["a", "$contains"]),
    ({"a": {"$contains": ["x"]}}, ["a", "$contains"]),
    ({"a": {"$contains": {}}}, ["a", "$contains"]),
    ({"a": {"$contains": float("nan")}}, ["a", "$contains"]),
    ({"a": {"$all": "x"}}, ["a", "$all"]),
    ({"a": {"$all": []}}, ["a", "$all"]),
    ({"a": {"$all": [["x"]]}}, ["a", "$all"]),
    ({"a": {"$all": [{}]}}, ["a", "$all"]),
    ({"a": {"$all": ["x"] * 101}}, ["a", "$all"]),
    ({"a": {"$prefix": 1}}, ["a", "$prefix"]),
    ({"a": {"$prefix": None}}, ["a", "$prefix"]),
    ({"a": {"$prefix": ["x"]}}, ["a", "$prefix"]),
    ({"a": {"$prefix": b"x"}}, ["a", "$prefix"]),
    # Values that cannot be
    ({"a": float("nan")}, ["a"]),
    ({"a": float("-inf")}, ["a"]),
    ({"a": NOW}, ["a"]),
    ({"a": date(2020, 1, 1)}, ["a"]),
    ({"a": b"x"}, ["a"]),
    ({"a": {1, 2}}, ["a"]),
    ({"a": object()}, ["a"]),
    ({"a": {1: 2}}, ["a"]),
    ({"a": {"$eq": {1: 2}}}, ["a", "$eq"]),
    ({"a": {"$eq": [float("nan")]}}, ["a", "$eq"]),
    ({"a": {"$ne": b"x"}}, ["a", "$ne"]),
    ({"a": "\ud800"}, ["a"]),
    # Keys that cannot be
    ({"": 1}, []),
    ({"a\0": 1}, []),
    ({"\ud800": 1}, []),
    ({"k" * 256: 1}, []),
    ({1: 1}, []),
    ({None: 1}, []),
    ({("a",): 1}, []),
    # Combinations
    ({"$or": []}, ["$or"]),
    ({"$and": []}, ["$and"]),
    ({"$or": {"a": 1}}, ["$or"]),
    ({"$and": "a"}, ["$and"]),
    ({"$or": None}, ["$or"]),
    ({"$or": [1]}, ["$or", "0"]),
    ({"$or": [{"a": 1}, []]}, ["$or", "1"]),
    ({"$or": [{"a": 1}, {"b": {"$x": 1}}]}, ["$or", "1", "b", "$x"]),
    ({"$and": [{"$or": [{"$not": {"c": {"$in": 1}}}]}]}, ["$and", "$or", "$not", "c", "$in"]),
    ({"$not": []}, ["$not"]),
    ({"$not": [{"a": 1}]}, ["$not"]),
    ({"$not": "a"}, ["$not"]),
    ({"$not": 1}, ["$not"]),
    ({"$not": {"$unknown": 1}}, ["$not", "$unknown"]),
    ({"a": 1, "$or": []}, ["$or"]),
    # Size
    (deep(12), []),
    (deep(5_000), []),
    ({"$or": [{"a": number} for number in range(101)]}, []),
    ({f"a{number}": 1 for number in range(101)}, []),
    ({"$and": [{f"a{number}": {"$gt": 1, "$lt": 2}} for number in range(51)]}, []),
    # The session's own columns
    ({"$session_id": 1}, ["$session_id"]),
    ({"$session_id": None}, ["$session_id"]),
    ({"$session_id": ["chat"]}, ["$session_id"]),
    ({"$session_id": {"$gt": "a"}}, ["$session_id", "$gt"]),
    ({"$session_id": {"$exists": True}}, ["$session_id", "$exists"]),
    ({"$session_id": {"$contains": "a"}}, ["$session_id", "$contains"]),
    ({"$session_id": {"$in": "chat"}}, ["$session_id", "$in"]),
    ({"$session_id": {"$in": [1]}}, ["$session_id", "$in"]),
    ({"$session_id": {"$in": ["x"] * 1_001}}, ["$session_id", "$in"]),
    ({"$session_id": {"$prefix": 1}}, ["$session_id", "$prefix"]),
    ({"$session_id": {"a": 1}}, ["$session_id"]),
    ({"$created_at": {"$gt": "yesterday"}}, ["$created_at", "$gt"]),
    ({"$created_at": {"$gt": ""}}, ["$created_at", "$gt"]),
    ({"$created_at": {"$gt": 1_600_000_000}}, ["$created_at", "$gt"]),
    ({"$created_at": {"$gt": datetime(2020, 1, 1)}}, ["$created_at", "$gt"]),  # noqa: DTZ001
    ({"$created_at": {"$gt": None}}, ["$created_at", "$gt"]),
    ({"$created_at": {"$prefix": "2020"}}, ["$created_at", "$prefix"]),
    ({"$created_at": {"$contains": 1}}, ["$created_at", "$contains"]),
    ({"$created_at": {"$exists": True}}, ["$created_at", "$exists"]),
    ({"$created_at": None}, ["$created_at"]),
    ({"$created_at": {"a": 1}}, ["$created_at"]),
    ({"$updated_at": {"$lt": "2020-13-01T00:00:00+00:00"}}, ["$updated_at", "$lt"]),
    ({"$updated_at": {"$unknown": NOW}}, ["$updated_at", "$unknown"]),
]


@pytest.fixture
async def catalog(database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1, "tags": ["x"]})
    return catalog


async def test_bad_filters_name_the_place(catalog):
    for where, names in BAD:
        with pytest.raises(InvalidFilterError) as caught:
            pytest.fail(f"{reprlib.repr(where)}: {await catalog.count_sessions(where)}")
        path, place = caught.value.path, 0
        for name in names:
            place = path.find(name, place)
            assert place >= 0, f"{name} is not in {path}"
        assert path in str(caught.value)


CALLS = {
    "list": lambda catalog, where: catalog.list_sessions(where),
    "count": lambda catalog, where: catalog.count_sessions(where),
    "values": lambda catalog, where: catalog.count_values("tags", where),
    "last": lambda catalog, where: catalog.last_session(where),
    "delete": lambda catalog, where: catalog.delete_sessions(where),
    "try_delete": lambda catalog, where: catalog.delete_sessions(where, dry_run=True),
}


@pytest.mark.parametrize("call", CALLS)
async def test_every_call_refuses_a_bad_filter(catalog, call):
    for where in ({"$unknown": 1}, {"a": {"$gt": None}}, {"$or": []}, [], "a", deep(12)):
        with pytest.raises(InvalidFilterError):
            await CALLS[call](catalog, where)
    for walk in (catalog.iter_sessions, catalog.export_sessions):
        with pytest.raises(InvalidFilterError):
            async for _ in walk({"a": {"$unknown": 1}}):
                pass
    assert await catalog.count_sessions() == 1


async def test_an_error_does_not_repeat_a_long_value(catalog):
    # Whoever logs the error does not log somebody's metadata.
    with pytest.raises(InvalidFilterError) as caught:
        await catalog.list_sessions({"a": {"$gt": ["a secret of somebody"]}})
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_filter_can_be_checked_without_a_database() -> None:
    check_filter(None)
    check_filter({"tags": {"$contains": "x"}})
    with pytest.raises(InvalidFilterError, match="unknown operator"):
        check_filter({"tags": {"$has": "x"}})


async def test_errors_name_positions_in_the_filter_that_was_given(database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    bad, since = {"a": {"$x": 1}}, datetime(2026, 1, 1, tzinfo=timezone.utc)

    async def replay():
        async for _ in Replay.each(catalog, bad, lambda _: None, updated_since=since):
            pass

    for call in (resumable_sessions(catalog, bad), replay()):
        with pytest.raises(InvalidFilterError) as caught:
            await call
        assert caught.value.path == "$.a.$x"
