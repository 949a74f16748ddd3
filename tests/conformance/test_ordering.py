"""Pages in the order of a metadata key: the same order on every database as in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata import SessionCatalog, SessionInfo
from agents_session_metadata.values import SEARCH_KEY_BYTES, STRING
from conformance import raw, strategies
from conformance.corpus import Corpus
from conformance.oracle import decimal, is_number

LONG = ["z" * 3_000 + end for end in ("", "a", "é", "\U00010000", "\uffff", "b" * 2_000)]


def sort_key(value: Any) -> tuple[Any, ...]:
    """None, False, True, numbers, strings, then lists and objects."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return (1, value)
    if is_number(value):
        return (2, decimal(value))
    return (3, value) if isinstance(value, str) else (4,)


def expected(infos: list[SessionInfo], order_by: str) -> list[str]:
    """Ids in order; lists and objects, which have none, are left out."""
    key, reverse = order_by.removeprefix("-"), order_by.startswith("-")
    infos = [info for info in infos if not isinstance(info.metadata.get(key), list | dict)]
    infos = sorted(infos, key=lambda info: info.session_id)
    infos.sort(key=lambda info: info.updated_at, reverse=True)
    having = [info for info in infos if key in info.metadata]
    having.sort(key=lambda info: sort_key(info.metadata[key]), reverse=reverse)
    return [info.session_id for info in [*having, *(i for i in infos if key not in i.metadata)]]


async def walk(catalog: SessionCatalog, where: Any, order_by: str, limit: int) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    cursor = None
    while True:
        page = await catalog.list_sessions(where, order_by=order_by, limit=limit, cursor=cursor)
        found += page.sessions
        if page.next_cursor is None:
            return found
        assert len(page.sessions) == limit
        cursor = page.next_cursor


async def check(catalog: SessionCatalog, where: Any, order_by: str, limit: int) -> None:
    infos = [info async for info in catalog.iter_sessions(where)]
    found = await walk(catalog, where, order_by, limit)
    assert {info.session_id: info for info in found} == {info.session_id: info for info in infos}
    assert len(found) == len(infos)
    assert expected(found, order_by) == expected(infos, order_by)
    key = order_by.removeprefix("-")
    ordered = [info for info in found if not isinstance(info.metadata.get(key), list | dict)]
    assert [info.session_id for info in ordered] == expected(infos, order_by)
    kinds = [sort_key(info.metadata[key])[0] for info in found if key in info.metadata]
    assert kinds == sorted(kinds, reverse=order_by.startswith("-"))


async def test_pages_by_a_metadata_key(engine):
    corpus = await Corpus.create(engine)
    for number, text in enumerate(LONG):
        await corpus.catalog.create_session(f"long {number}", metadata={"v": text, "kind": "long"})
    for order_by in ("v", "-v", "w", "-kind", "100%", "missing", "it's"):
        await check(corpus.catalog, None, order_by, 7)
    await check(corpus.catalog, {"kind": {"$in": ["str", "long"]}}, "v", 2)
    await check(corpus.catalog, {"v": {"$exists": True}}, "-v", 1)
    await check(corpus.catalog, {"$session_id": {"$prefix": "long"}}, "v", 2)
    await check(corpus.catalog.scoped({"kind": "long"}), None, "-v", 3)
    names = [info.session_id for info in await walk(corpus.catalog, {"kind": "long"}, "v", 4)]
    assert names == [f"long {LONG.index(text)}" for text in sorted(LONG)]
    page = await corpus.catalog.list_sessions(order_by="v", limit=3, keys=[], count_items=True)
    assert [info.metadata for info in page.sessions] == [{}] * 3
    assert [info.item_count for info in page.sessions] == [0] * 3


@examples(8, 750)
@given(
    values=st.lists(
        st.none() | strategies.json_values | st.sampled_from([*LONG, 0, -0.0, 1, True, "é"]),
        max_size=12,
    ),
    descending=st.booleans(),
    limit=st.integers(1, 4),
)
async def test_any_values_are_in_order(engine, values, descending, limit):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.delete_sessions({"$not": {"$session_id": ""}})
    for number, value in enumerate(values):
        await catalog.create_session(f"s{number}", metadata={"v": value} if number % 5 else {})
    await check(catalog, None, "-v" if descending else "v", limit)


@pytest.mark.parametrize("descending", [False, True])
async def test_long_values_beside_equal_ones(engine, descending):
    """MariaDB sorts by the first 1,024 bytes, and then by length."""
    catalog = SessionCatalog(engine, create_tables=True)
    same = "z" * (SEARCH_KEY_BYTES - len(STRING) - 1)
    for group, (length, equal, other) in enumerate(
        ((1_500, "b" * 500, "é"), (1_500, "b", "a" * 500), (2_000, "", "b"), (3_000, "", "b" * 9))
    ):
        for number, end in enumerate((equal, equal, other)):
            value = f"{group}{same}{'z' * length}{end}"
            await catalog.create_session(f"{group} {number}", metadata={"v": value})
    for limit in (1, 2, 3):
        await check(catalog, None, "-v" if descending else "v", limit)


async def test_pinned_sessions_come_first_and_each_group_newest_first(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number, session_id in enumerate("abcdef"):
        metadata = {"pinned": True} if session_id in "bd" else {}
        await catalog.create_session(session_id, metadata=metadata)
        await raw.set_times(engine, session_id, updated_at=f"2026-01-0{number // 2 + 1} 00:00:00")
    page = await catalog.list_sessions(order_by="-pinned")
    assert "".join(info.session_id for info in page.sessions) == "dbefca"
    # Names of columns mean the columns.
    await catalog.set_metadata("f", {"session_id": "", "created_at": 1})
    page = await catalog.list_sessions(order_by="session_id")
    assert "".join(info.session_id for info in page.sessions) == "abcdef"
