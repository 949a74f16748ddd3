"""Whatever comes in: it is understood, or refused by its own error, and nothing is half done."""

from __future__ import annotations

import base64
import hashlib
import json as json_text
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata import (
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    MetadataLimitError,
    SessionCatalog,
)
from conformance import corpus, junk, raw, strategies
from conformance.corpus import NAMES, Corpus
from conformance.junk import attempt

RECORD = {
    "format": 1,
    "session_id": "broken",
    "created_at": "2020-01-01T00:00:00+00:00",
    "updated_at": "2020-01-01T00:00:00+00:00",
    "metadata": {"owner_id": "u1", "tags": ["x", None, 1.5], "nested": {"a": [1]}},
    "items": [
        {"created_at": "2020-01-01T00:00:00+00:00", "item": raw.message("one")},
        {"created_at": "2020-01-01T00:00:00+00:00", "text": "not json"},
    ],
}
COLUMNS = ["updated_at", "-updated_at", "created_at", "-created_at", "session_id", "-session_id"]
ORDERS = [*COLUMNS, "v", "-v", "missing"]
SCOPES: list[dict[str, Any] | None] = [None, {"kind": "str"}, {"kind": "int"}]
FILTERS: list[dict[str, Any] | None] = [None, {"v": {"$exists": True}}, {"w": {"$exists": False}}]


@pytest.fixture
async def everything(engine):
    return await Corpus.create(engine)


@examples(20, 2_000)
@given(where=junk.filters(NAMES) | junk.spoiled(corpus.filters(), junk.anything))
async def test_a_filter_is_answered_rightly_or_refused(everything, where):
    catalog = everything.catalog
    count, error = await attempt(catalog.count_sessions(where), InvalidFilterError)
    if error is None:
        found = await catalog.session("x").find_sessions_by_metadata(where)
        assert sorted(found) == everything.expected(where)
        assert count == len(found)
    else:
        assert error.path.startswith("$")
        assert error.path in str(error)


@examples(12, 1_250)
@given(values=junk.spoiled(strategies.metadata, junk.anything), name=junk.texts)
async def test_metadata_is_stored_as_it_is_or_not_at_all(engine, values, name):
    catalog = SessionCatalog(engine, create_tables=True)
    before = await catalog.count_sessions()
    _, error = await attempt(catalog.set_metadata(name, values), ValueError, TypeError)
    if error is None:
        assert await catalog.get_metadata(name, list(values)) == values
        await catalog.delete_session(name)
        return
    assert await catalog.count_sessions() == before
    if isinstance(error, TypeError):
        assert not isinstance(values, dict)
    elif not isinstance(error, InvalidMetadataError | MetadataLimitError):
        assert str(error).startswith("session id")


cursors = (
    junk.texts
    | st.text("ABCwxyz019-_=+/", max_size=80)
    | st.binary(max_size=80).map(lambda some: base64.urlsafe_b64encode(some).decode())
    | junk.no_json
)


@pytest.mark.logic
@examples(20, 2_000)
@given(cursor=cursors, order_by=st.sampled_from(ORDERS), scope=st.sampled_from(SCOPES))
async def test_what_is_no_cursor_is_refused(everything, cursor, order_by, scope):
    catalog = everything.catalog.scoped(scope) if scope else everything.catalog
    with pytest.raises(InvalidCursorError):
        await catalog.list_sessions(order_by=order_by, cursor=cursor)


questions = st.tuples(st.sampled_from(ORDERS), st.sampled_from(SCOPES), st.sampled_from(FILTERS))


@pytest.mark.logic
@examples(10, 1_000)
@given(
    of=questions,
    asked=questions,
    bit=st.integers(min_value=0, max_value=10_000),
    flip=st.booleans(),
)
async def test_a_cursor_is_good_for_its_own_question_only(everything, of, asked, bit, flip):
    def page(question: Any, **arguments: Any) -> Any:
        order_by, scope, where = question
        catalog = everything.catalog.scoped(scope) if scope else everything.catalog
        return catalog.list_sessions(where, order_by=order_by, limit=3, **arguments)

    first = await page(of)
    cursor = first.next_cursor
    if flip:
        token = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        token[bit // 8 % len(token)] ^= 1 << bit % 8
        cursor = base64.urlsafe_b64encode(token).decode().rstrip("=")
    if not flip and of == asked:
        second = await page(asked, cursor=cursor)
        assert second.sessions
        assert not {info.session_id for info in first.sessions} & {
            info.session_id for info in second.sessions
        }
    else:
        with pytest.raises(InvalidCursorError):
            await page(asked, cursor=cursor)


times = st.none() | junk.texts | st.sampled_from([*junk.TIMES, "2020-01-01 00:00:00", "1e9", "NaN"])
values = st.none() | junk.texts | st.binary().map(lambda some: base64.b64encode(some).decode())
positions = st.tuples(junk.texts, times, values).flatmap(
    lambda whole: st.integers(0, 3).map(lambda count: list(whole)[:count])
)


@pytest.mark.logic
@examples(12, 1_250)
@given(order_by=st.sampled_from(ORDERS), body=positions | junk.json, scope=st.sampled_from(SCOPES))
async def test_a_cursor_made_by_hand_stays_in_its_scope(everything, order_by, body, scope):
    # As somebody makes it who has read the source: the digest has no secret in it.
    catalog = everything.catalog.scoped(scope) if scope else everything.catalog
    first = await catalog.list_sessions(order_by=order_by, limit=1)
    cursor = forged(catalog, order_by, json_text.dumps(body).encode())
    inside = {info.session_id async for info in catalog.iter_sessions()}
    assert first.sessions[0].session_id in inside
    work = catalog.list_sessions(order_by=order_by, cursor=cursor)
    page, error = await attempt(work, Exception)
    assert error or {info.session_id for info in page.sessions} <= inside


def forged(catalog: SessionCatalog, order_by: str, body: bytes) -> str:
    from agents_session_metadata.query.filters import parse_filter
    from agents_session_metadata.query.ordering import Ordering

    condition = catalog._store.scope.restrict(parse_filter(None))
    question = json_text.dumps(
        [condition.encoded(), repr(Ordering.parse(order_by))], separators=(",", ":")
    )
    digest = hashlib.sha256(hashlib.sha256(question.encode()).digest() + body).digest()[:16]
    return base64.urlsafe_b64encode(b"\x01" + digest + body).decode().rstrip("=")


@pytest.mark.parametrize("scope", [None, {"owner_id": "u1"}], ids=["open", "scoped"])
@examples(10, 1_000)
@given(
    record=junk.spoiled(st.just(RECORD), junk.anything) | junk.anything,
    on_conflict=st.sampled_from(["error", "skip", "replace"]),
)
async def test_a_record_is_taken_whole_or_refused(engine, scope, record, on_conflict):
    catalog = SessionCatalog(engine, create_tables=True)
    bound = catalog.scoped(scope) if scope else catalog
    await catalog.delete_sessions({"$not": {"$session_id": ""}})
    fine = {**RECORD, "session_id": "fine"}
    work = bound.import_sessions([fine, record], on_conflict)
    written, error = await attempt(work, ValueError)
    if error is not None:
        assert str(error).startswith("record 2 (index 1): ")
        assert [info.session_id async for info in catalog.iter_sessions()] == ["fine"]
        assert await raw.count_rows(engine, "agent_messages") == 2
        return
    assert written == 2
    assert await bound.count_sessions() == 2
    (found,) = [
        one async for one in bound.export_sessions({"$session_id": str(record["session_id"])})
    ]
    assert found["metadata"] == {**record["metadata"], **(scope or {})}
    assert len(found["items"]) == len(record["items"])
