"""Formats that outlive a process: whoever changes one by accident fails here.

Users hold cursors, and several versions of the package derive the same ids at once. A deliberate
change raises the version of the format and is told in the changelog.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timezone
from typing import Any

import pytest

from agents_session_metadata import InvalidCursorError, SessionCatalog
from agents_session_metadata.dialects.sqltypes import SDKTime
from agents_session_metadata.query.filters import parse_filter
from agents_session_metadata.query.ordering import (
    Ordering,
    SessionPosition,
    decode_cursor,
    encode_cursor,
)
from agents_session_metadata.values import search_key

pytestmark = pytest.mark.logic

EVERY_CONDITION: dict[str, Any] = {
    "owner_id": "u1",
    "n": {"$gte": 1, "$lt": 2.5, "$ne": 2},
    "é": {"$in": ["b", None, True, [1], {"a": "b"}], "$nin": ["x" * 600]},
    "tags": {"$contains": "work", "$exists": True},
    "title": {"$prefix": "My "},
    "$session_id": {"$in": ["chat-1", "chat-2"], "$prefix": "chat"},
    "$created_at": {"$gt": datetime(2026, 1, 1, tzinfo=timezone.utc)},
    "$or": [{"a": 1}, {"b": {"$lte": 0}}],
    "$not": {"$and": [{"c": 1}]},
}
TIME = "2026-01-02 03:04:05"
CURSORS = {
    "session_id": (SessionPosition("chat-1"), "Aeajh1PZEe983x9SWek9JFtbImNoYXQtMSJd"),
    "-updated_at": (
        SessionPosition("chat-1", TIME),
        "AXL_E7f9SF_qC_EfU3sUG6pbImNoYXQtMSIsIjIwMjYtMDEtMDIgMDM6MDQ6MDUiXQ",
    ),
    "created_at": (
        SessionPosition("chat-é", TIME),
        "AWOk0neuUIlnk9xTqLAcEPNbImNoYXQtXHUwMGU5IiwiMjAyNi0wMS0wMiAwMzowNDowNSJd",
    ),
    "-title": (
        SessionPosition("chat-1", TIME, search_key("My chat")),
        "AUFpmtAvRfkCXCbw2sYwa6JbImNoYXQtMSIsIjIwMjYtMDEtMDIgMDM6MDQ6MDUiLCJRRTE1SUdOb1lYUT0iXQ",
    ),
    "title": (
        SessionPosition("chat-1", TIME),
        "AX8_y7TzozYfUBEUWBBu9TtbImNoYXQtMSIsIjIwMjYtMDEtMDIgMDM6MDQ6MDUiLG51bGxd",
    ),
}


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same filter, its keys and alternatives in another order."""
    if isinstance(value, list):
        return chance.sample([shuffled(each, chance) for each in value], len(value))
    if isinstance(value, dict):
        pairs = [(key, shuffled(each, chance)) for key, each in value.items()]
        return dict(chance.sample(pairs, len(pairs)))
    return value


@pytest.mark.parametrize("order_by", CURSORS)
def test_cursors_of_version_1(order_by):
    position, literal = CURSORS[order_by]
    ordering = Ordering.parse(order_by)
    for seed in range(5):
        condition = parse_filter(shuffled(EVERY_CONDITION, random.Random(seed)))
        assert encode_cursor(position, condition, ordering) == literal
        assert decode_cursor(literal, condition, ordering, SDKTime()) == position
    for changed in ({**EVERY_CONDITION, "owner_id": "u2"}, {"owner_id": "u1"}):
        with pytest.raises(InvalidCursorError):
            decode_cursor(literal, parse_filter(changed), ordering, SDKTime())


def test_bounds_in_another_order_are_the_same_question():
    one, other = (
        parse_filter({"n": dict(bounds)}).encoded()
        for bounds in ([("$gt", 1), ("$gte", 2), ("$lt", 5)], [("$lt", 5), ("$gte", 2), ("$gt", 1)])
    )
    assert one == other


async def test_cursors_and_ids_of_version_1_in_a_database(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    values = {"repo": "o/r", "pr": 42, "é": [1, {"a": None}], "long": "x" * 600}
    session, created = await catalog.get_or_create_session(values, metadata={"n": 1})
    assert (session.session_id, created) == ("5e3277757c60e6041ac362fc68ec4fa2", True)
    scoped = catalog.scoped({"owner_id": "u1"})
    session, _ = await scoped.get_or_create_session({"pr": 42})
    assert session.session_id == "5a0ad3fc21fb023dd1d31c9810f8ad03"
    # The id is taken, and its session has other values by now.
    await scoped.set_metadata(session.session_id, {"pr": 43})
    session, _ = await scoped.get_or_create_session({"pr": 42})
    assert session.session_id == "14c6e6219308d4ab59e0185fe41ff563"
    cursors = [
        (await each.list_sessions(where, order_by="session_id", limit=1)).next_cursor
        for each, where in ((catalog, None), (scoped, None), (scoped, {"pr": {"$gt": 1}}))
    ]
    assert cursors == [
        "AXdvQJMxSuGitzkrR5c7_JBbIjE0YzZlNjIxOTMwOGQ0YWI1OWUwMTg1ZmU0MWZmNTYzIl0",
        "AXHq5XXi3wbRhFQPIEoWCBlbIjE0YzZlNjIxOTMwOGQ0YWI1OWUwMTg1ZmU0MWZmNTYzIl0",
        "AccYHTqT1YzAbhu9Zhi9vm5bIjE0YzZlNjIxOTMwOGQ0YWI1OWUwMTg1ZmU0MWZmNTYzIl0",
    ]


async def test_an_export_record_of_format_1(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    record = {
        "format": 1,
        "session_id": "chat-é",
        "created_at": "2026-01-02T03:04:05+00:00",
        "updated_at": "2026-02-03T04:05:06+00:00",
        "metadata": {"n": 1.5, "owner_id": "u1", "tags": ["a", None, True], "é": {"b": []}},
        "items": [
            {"created_at": "2026-01-02T03:04:05+00:00", "item": {"role": "user", "content": "é"}},
            {"created_at": "2026-01-02T03:04:06+00:00", "text": "not JSON"},
        ],
    }
    await catalog.import_sessions([record])
    exported = [each async for each in catalog.export_sessions()]
    assert json.dumps(exported) == json.dumps([record])
