"""Statements are built once per shape, and cursors are checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from conformance.oracle import matches
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples
from sqlalchemy import Select, TextClause, literal, select

from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.tables import query_tables
from agents_session_metadata.dialects._sqlite import SQLite
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.query.details import Details
from agents_session_metadata.query.filters import parse_filter
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import Ordering, seal, unseal
from agents_session_metadata.query.pages import BoundStatement, Queries, Reader
from agents_session_metadata.query.statements import Builder

PARTS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from([{}, {}, {"a": 1}, {"a": {"$in": []}}, {"a": {"$nin": []}}]),
    lambda inner: (
        st.builds(
            lambda name, parts: {name: parts},
            st.sampled_from(["$and", "$or"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | inner.map(lambda part: {"$not": part})
        | st.builds(lambda one, other: {**one, "$not": other}, inner, inner)
    ),
    max_leaves=5,
)
"""Filters with at most one condition that a session can fulfill or not."""


def queries() -> Queries:
    return Queries(SQLite(), query_tables(table_names()), native_ids=True)


def count(asked: Queries, condition: Condition) -> BoundStatement:
    return asked.query(Builder.count, condition, {})


def test_values_and_limits_do_not_change_a_statement():
    database: Any = SimpleNamespace(
        dialect=SQLite(), tables=query_tables(table_names()), native_ids=True, notes={}
    )

    def pages(value: str, key: str, limit: int) -> list[object]:
        connection = MagicMock()
        connection.execute().all.return_value = []
        connection.execute().first.return_value = None  # There is no index.
        connection.reset_mock()
        reader = Reader(database, connection)
        where = parse_filter({"a": value, "$or": [{key: {"$gte": limit}}, {"b": value}]})
        for order in ("-updated_at", key):
            reader.page(where, Ordering.parse(order), limit=limit, details=Details((key, value)))
        reader.ids(where, limit)
        reader.count_values(key, where, limit)
        connection.scalars(*reader.queries.ids(where, after=None, limit=limit))
        calls = [*connection.execute.call_args_list, *connection.scalars.call_args_list]
        sent = [call.args[0] for call in calls]
        pages = [each for each in sent if not isinstance(each, TextClause)]
        assert len(pages) == 5
        return pages

    first = pages("x", "c", 1)
    for others in (pages("y", "d", 2), pages("z", "e", 1_000)):
        assert [id(each) for each in others] == [id(each) for each in first]


def test_a_condition_in_two_places_has_parameters_of_each_place():
    one, other = parse_filter({"a": 1}), parse_filter({"a": 2})
    asked = queries()
    both = parse_filter({"$or": [{"a": 1}, {"a": 1}]})
    assert len(count(asked, type(both)((one, one))).parameters) == 4
    statement, parameters = count(asked, type(both)((one, other)))
    values = {name: value for name, value in parameters.items() if not name.endswith("_key")}
    assert len(set(values.values())) == 2
    assert statement is count(asked, type(both)((one, one))).statement


def test_the_cache_evicts_the_oldest_statement():
    asked, where, most = queries(), parse_filter({"a": 1}), Queries._CACHED

    def build(_: Builder, number: int) -> Select[tuple[int]]:
        return select(literal(number))

    def ask(number: int) -> object:
        return asked.query(build, where, {}, number=number).statement

    kept = [ask(number) for number in range(most)]
    ask(most)
    assert [ask(most - 1) is kept[-1], ask(1) is kept[1], ask(0) is kept[0]] == [True, True, False]


@examples(200, 20_000)
@given(PARTS)
def test_a_condition_is_constant_if_no_session_makes_a_difference(where):
    answers = {matches(where, metadata) for metadata in ({}, {"a": 1}, {"a": 2})}
    constant = parse_filter(where).constant
    assert constant is None or answers == {constant}
    if "'a': 1" not in str(where):
        assert answers == {constant}


@pytest.mark.parametrize("position", [["a", "a"], [True, "a"], [1], [1, "a", 1], {"1": "a"}, None])
def test_a_cursor_whose_position_has_other_types_is_refused(position) -> None:
    assert unseal(seal([1, "a"], "question"), "question", int, str) == [1, "a"]
    with pytest.raises(InvalidCursorError):
        unseal(seal(position, "question"), "question", int, str)
