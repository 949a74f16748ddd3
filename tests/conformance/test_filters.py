"""One filter language, the same answer everywhere."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from scaling import examples
from servers import ignored_warnings

from agents_session_metadata import SessionCatalog
from conformance import raw
from conformance.corpus import VALUES, Corpus, filters


async def ids(corpus: Corpus, where: Any) -> list[str]:
    return [info.session_id async for info in corpus.catalog.iter_sessions(where)]


RANGES = ("$gt", "$gte", "$lt", "$lte")


@pytest.fixture
async def corpus(engine):
    return await Corpus.create(engine)


async def test_each_value_against_each(corpus):
    for value in VALUES:
        assert await corpus.check({"v": {"$eq": value}})
        await corpus.check({"v": {"$ne": value}})
        await corpus.check({"w": {"$in": [value, "a", 10]}, "kind": {"$exists": True}})
        await corpus.check({"w": {"$nin": [value]}})
        if not (isinstance(value, dict) and "$gt" in value):
            await corpus.check({"v": value})


async def test_each_number_and_string_orders_each(corpus):
    for value in VALUES:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            for operator in RANGES:
                await corpus.check({"v": {operator: value}})
        if isinstance(value, str):
            await corpus.check({"v": {"$prefix": value}})


async def test_each_scalar_as_an_element(corpus):
    for value in VALUES:
        if not isinstance(value, list | dict):
            await corpus.check({"v": {"$contains": value}})
            await corpus.check({"$not": {"w": {"$contains": value}}})


# Filters whose meaning is easily got wrong, with the operator they stand for.
CASES: list[Any] = [
    None,
    {},
    {"v": 1},
    {"v": True},
    {"v": None},
    {"v": {"$ne": None}},
    {"missing": None},
    {"missing": {"$ne": None}},
    {"missing": {"$nin": []}},
    {"v": {"$in": []}},
    {"v": {"$nin": []}},
    {"v": {"$in": [None]}},
    {"v": {"$in": [None, True, 1, "1", [], {}]}},
    {"v": {"$nin": [1, "a"]}},
    {"v": {"$in": [1, 1.0, 1]}},
    {"v": {"$gt": 1, "$lt": 10}},
    {"v": {"$gte": 1, "$lte": 1}},
    {"v": {"$gt": 10, "$lt": 1}},
    {"v": {"$gt": -1, "$ne": 2, "$exists": True}},
    {"v": {"$gt": 0.3, "$lt": 0.30000000000000005}},
    {"v": {"$gt": 2**53, "$lt": 2**53 + 2}},
    {"v": {"$gte": 1e23, "$lte": 10**23}},
    {"v": {"$gt": ""}},
    {"v": {"$gte": ""}},
    {"v": {"$lt": "a "}},
    {"v": {"$gt": "\uffff"}},
    {"v": {"$prefix": ""}},
    {"v": {"$prefix": "100%"}},
    {"v": {"$prefix": "100_"}},
    {"v": {"$prefix": "e"}},
    {"v": {"$prefix": "z" * 599}},
    {"v": {"$prefix": "z" * 600}},
    {"v": {"$prefix": "z" * 601}},
    {"v": {"$prefix": "z" * 600 + "a"}},
    {"v": {"$prefix": "a\0"}},
    {"v": {"$contains": 1}},
    {"v": {"$contains": True}},
    {"v": {"$contains": None}},
    {"v": {"$contains": ""}},
    {"v": {"$contains": "z" * 600}},
    {"v": {"$contains": "z" * 601}},
    {"v": {"$contains": "a", "$ne": ["a", ["a"], {"a": "a"}]}},
    {"v": {"$all": [1]}},
    {"v": {"$all": [1, 1.0]}},
    {"v": {"$all": [1, True, None]}},
    {"v": {"$all": ["a", 1]}},
    {"v": {"$all": ["z" * 600, "z" * 601, "a"]}},
    {"v": {"$all": ["a", "b"], "$contains": "c"}},
    {"$not": {"v": {"$all": ["a", "b"]}}},
    {"v": {"$exists": False}},
    {"V": {"$exists": False}, "v": {"$exists": True}},
    {"v": {"$eq": {"$gt": 1}}},
    {"v": {"$in": [{"$gt": 1.0}]}},
    {"v": {"b": [0], "a": 1}},
    {"v": {}},
    {"V": 1, "v": 1},
    {"$not": {"v": 1}},
    {"$not": {"$not": {"v": 1}}},
    {"$not": {"v": {"$gt": 1}}},
    {"$not": {}},
    {"$or": [{}]},
    {"$or": [{"v": 1}, {"v": "1"}, {"missing": 1}]},
    {"$or": [{"v": 1}], "w": {"$exists": True}},
    {"$and": [{"v": {"$gt": 1}}, {"v": {"$lt": 1}}]},
    {"$and": [{"$or": [{"v": 0}, {"v": 1}]}, {"$not": {"w": {"$exists": True}}}]},
    {"$or": [{"$and": [{"v": 0}, {"v": 1}]}, {"$not": {"v": {"$exists": True}}}]},
    {"$or": [{"kind": "int"}, {"kind": "str"}], "$not": {"v": {"$gt": 1}}},
    {"$session_id": "bare"},
    {"$session_id": "BARE"},
    {"$session_id": {"$prefix": "chat 0"}},
    {"$session_id": {"$prefix": "Chat "}, "kind": "int"},
    {"$session_id": {"$prefix": ""}},
    {"$session_id": {"$prefix": "%"}},
    {"$session_id": {"$in": []}},
    {"$session_id": {"$in": ["bare", "bare", "chat 01", "nobody"]}},
    {"$session_id": {"$in": ["bare", "chat 01"], "$prefix": "b"}},
    {"$not": {"$session_id": {"$prefix": "chat"}}},
    {"$or": [{"$session_id": "bare"}, {"v": True}]},
    {"$created_at": {"$gt": "2020-01-03T00:00:00+00:00"}},
    {"$created_at": {"$gte": "2020-01-03T00:00:00+00:00", "$lt": "2020-01-05T00:00:00+00:00"}},
    {"$created_at": {"$gte": datetime(2020, 1, 3, 5, 45, tzinfo=timezone(timedelta(hours=5.75)))}},
    {"$updated_at": {"$lte": datetime(2020, 2, 3, 12, tzinfo=timezone.utc)}},
    {"$updated_at": {"$lt": "2020-02-03T14:00:00+02:00"}, "kind": "int"},
    {"$not": {"$updated_at": {"$gt": "2020-02-04T00:00:00+00:00"}}},
    {"$created_at": {"$gt": "1970-01-01T00:00:00+00:00", "$lt": "9999-12-31T23:59:59+00:00"}},
    {"100%": {"$gte": 10}},
    {"it's": {"$prefix": "1"}},
    {"a.b": {"$contains": "10"}},
    {"a": {"b": 1}},
    {"v' OR '1'='1": 1},
    {"v": "a' OR '1'='1"},
    {"v') OR 1=1 --": {"$exists": True}},
    {"v": {"$in": ["'); DROP TABLE agent_sessions; --", "%s", ":v", "?"]}},
    {"v": {"$prefix": "' OR 1=1 --"}},
    {"$session_id": {"$prefix": "' OR 1=1 --"}},
    {"%(v)s": 1, ":v": 1, "?": 1},
    {"v": "\0"},
    {"v": {"$gt": "\0"}},
]


async def test_filters_that_are_easily_got_wrong(corpus):
    for where in CASES:
        await corpus.check(where)
    assert await raw.count_rows(corpus.catalog.session("x").engine, "agent_sessions") == len(
        corpus.infos
    )


@examples(40, 10_000)
@given(where=filters())
async def test_any_filter_agrees_with_plain_python(corpus, where):
    await corpus.check(where)


@examples(10, 1_250)
@given(where=filters())
async def test_pages_agree_with_plain_python(corpus, where):
    walked = [info async for info in corpus.catalog.iter_sessions(where)]
    assert sorted(info.session_id for info in walked) == corpus.expected(where)
    found, cursor = [], None
    while True:
        page = await corpus.catalog.list_sessions(where, limit=7, cursor=cursor)
        found += page.sessions
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(info.session_id for info in found) == corpus.expected(where)
    by_id = {info.session_id: info for info in corpus.infos}
    assert all(info == by_id[info.session_id] for info in [*walked, *found])


@pytest.mark.thorough
async def test_conditions_up_to_a_hundred(corpus):
    ors = [{"v": {"$eq": number}} for number in range(100)]
    assert await corpus.check({"$or": ors})
    await corpus.check({"$and": [{"v": {"$ne": number}} for number in range(100)]})
    await corpus.check({f"missing {number}": {"$exists": False} for number in range(100)})


@pytest.mark.thorough
async def test_all_of_a_hundred_elements_is_one_condition(corpus):
    wanted = [f"tag {number}" for number in range(100)]
    await corpus.catalog.set_metadata("all", {"tags": [*wanted, "more"]})
    await corpus.catalog.set_metadata("most", {"tags": [*wanted[1:], "more"]})
    where = {"tags": {"$all": wanted}}
    assert await ids(corpus, where) == ["all"]
    every = {"$and": [where] * 100}
    assert await ids(corpus, every) == ["all"]


async def test_depth_up_to_ten(corpus):
    where: dict[str, Any] = {"v": {"$gt": 1}}
    for level in range(9):
        where = [{"$not": where}, {"$and": [where]}, {"$or": [where, {"v": 0}]}][level % 3]
    await corpus.check(where)


async def test_a_thousand_operands(corpus):
    some = [1, "a", None, "\uffff", [], {"a": 1, "b": [0]}]
    operands = [*range(100, 1_000), *some, *[f"text {number}" for number in range(94)]]
    assert len(operands) == 1_000
    assert await corpus.check({"v": {"$in": operands}}, {"v": {"$in": some}})
    assert await corpus.check({"v": {"$nin": operands}}, {"v": {"$nin": some}})
    ids = [f"nobody {number}" for number in range(999)]
    assert await corpus.check({"$session_id": {"$in": [*ids, "bare"]}}) == ["bare"]


@pytest.mark.thorough
async def test_more_operands_than_a_driver_takes_parameters(corpus):
    # asyncpg takes 32,767 a statement, SQLite may be built for 32,766, MySQL counts in 16 bits.
    many = [list(range(start, start + 999)) for start in range(1_000, 34_000, 1_000)]
    for number, value in {0: 1, 20: "a", 32: []}.items():
        many[number].append(value)
    few = [1, "a", []]
    ids = [[f"nobody {number} {one}" for one in range(999)] + ["bare"] for number in range(33)]
    where = {"$and": [{"$session_id": {"$in": some}} for some in ids]}
    with ignored_warnings():  # MySQL does not plan ranges for so many.
        assert await corpus.check(
            {"$or": [{"v": {"$in": operands}} for operands in many]}, {"v": {"$in": few}}
        )
        assert await corpus.check(
            {"$and": [{"v": {"$nin": operands}} for operands in many]}, {"v": {"$nin": few}}
        )
        assert await corpus.check(
            {f"key {number}": {"$nin": operands} for number, operands in enumerate(many)},
            {"$not": {"$or": [{"missing": 1}]}},
        )
        assert await corpus.check(where, {"$session_id": "bare"}) == ["bare"]


async def test_long_operands(corpus):
    catalog: SessionCatalog = corpus.catalog
    long = "é" * 15_000
    await catalog.create_session("long", metadata={"long": long, "tags": [long, long + "x"]})
    for where, expected in [
        ({"long": long}, ["long"]),
        ({"long": long[:-1]}, []),
        ({"long": {"$prefix": long[:-1]}}, ["long"]),
        ({"long": {"$prefix": long + "x"}}, []),
        ({"long": {"$gt": long[:-1]}}, ["long"]),
        ({"long": {"$gt": long}}, []),
        ({"long": {"$lt": long + "\0"}}, ["long"]),
        ({"long": {"$gte": long, "$lte": long}}, ["long"]),
        ({"tags": {"$contains": long + "x"}}, ["long"]),
        ({"tags": {"$contains": long + "y"}}, []),
        ({"tags": [long, long + "x"]}, ["long"]),
        ({"long": {"$in": [long, "x"]}}, ["long"]),
        ({"long": {"$eq": "x" * 1_000_000}}, []),
    ]:
        assert await catalog.session("any").find_sessions_by_metadata(where) == expected


@pytest.mark.logic
async def test_filters_are_not_changed_by_the_call(corpus):
    where = {"$or": [{"v": {"$in": [1, 2]}}, {"$not": {"kind": "int"}}]}
    await corpus.check(where)
    assert where == {"$or": [{"v": {"$in": [1, 2]}}, {"$not": {"kind": "int"}}]}


@pytest.mark.logic
async def test_the_same_filter_after_a_change(corpus):
    # A statement prepared for one filter must not answer with what was there before.
    catalog: SessionCatalog = corpus.catalog
    for number in range(8):
        await catalog.set_metadata("bare", {"number": number, "tags": [str(number)]})
        assert await catalog.count_sessions({"number": number}) == 1
        assert await catalog.count_sessions({"number": {"$lt": number}}) == 0
        assert await catalog.count_sessions({"tags": {"$contains": str(number)}}) == 1
        assert await catalog.count_sessions({"tags": {"$contains": str(number - 1)}}) == 0
