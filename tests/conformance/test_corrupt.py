"""A stored value that is not valid JSON has its own error, and does not block other sessions."""

from __future__ import annotations

import pickle

import pytest
from servers import ignored_warnings
from sqlalchemy import text

from agents_session_metadata import CorruptMetadataError, SessionCatalog, SessionMetadataError
from conformance.junk import attempt

pytestmark = pytest.mark.logic

BAD = ["{bad", "", " ", "nope", "NaN", "[1,]", "1 2", "'a'", "[" * 100_000]


async def damage(engine, session_id: str, key: str, value: str) -> None:
    """Write what no writer of the package writes."""
    name = engine.dialect.identifier_preparer.quote("key")
    statement = (
        "UPDATE agent_sessions_metadata SET value = :value"
        f" WHERE session_id = :id AND {name} = :key"
    )
    async with engine.begin() as connection:
        await connection.execute(text(statement), {"value": value, "id": session_id, "key": key})


async def every_page(catalog, order_by: str, limit: int) -> tuple[list, list]:
    """All nine sessions, a page at a time, and the errors of what cannot be read."""
    infos, errors, cursor = [], [], None
    while True:
        page = await catalog.list_sessions(
            order_by=order_by, limit=limit, cursor=cursor, on_corrupt=errors.append
        )
        infos += page.sessions
        cursor = page.next_cursor
        if cursor is None or len(infos) > 9:
            return infos, errors


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(9):
        await catalog.create_session(
            f"s{number}", metadata={"owner_id": "u1", "title": f"t{number}", "n": number}
        )
    return catalog


def is_error_of(error: object, session_id: str, key: str) -> bool:
    assert isinstance(error, CorruptMetadataError)
    assert isinstance(error, SessionMetadataError)
    assert isinstance(error, ValueError)
    assert (error.session_id, error.key) == (session_id, key)
    assert session_id in str(error)
    assert key in str(error)
    return True


async def test_every_kind_of_bad_value(catalog, engine):
    for value in BAD:
        await damage(engine, "s3", "title", value)
        with pytest.raises(CorruptMetadataError) as caught:
            pytest.fail(f"{value!r}: {await catalog.get_session('s3')}")
        assert is_error_of(caught.value, "s3", "title")
        assert is_error_of(pickle.loads(pickle.dumps(caught.value)), "s3", "title")  # noqa: S301
        found = []
        info = await catalog.get_session("s3", on_corrupt=found.append)
        assert info.metadata == {"owner_id": "u1", "n": 3}
        assert is_error_of(*found, "s3", "title")
    for work in (
        catalog.list_sessions(),
        catalog.last_session({"n": 3}),
        catalog.get_metadata("s3"),
        catalog.get_metadata("s3", ["n", "title"]),
        catalog.session("s3").get_metadata(),
        catalog.edit_metadata("s3", lambda metadata: metadata.update(n=4)),
        anext(catalog.iter_sessions({"n": 3})),
        anext(catalog.export_sessions({"n": 3})),
    ):
        with pytest.raises(CorruptMetadataError) as caught:
            await work
        assert is_error_of(caught.value, "s3", "title")
    await catalog.set_metadata("s4", {"status": "active"})
    await damage(engine, "s4", "status", "{bad")
    with pytest.raises(CorruptMetadataError) as caught:
        await catalog.statistics({"owner_id": "u1"})
    assert is_error_of(caught.value, "s4", "status")
    await catalog.delete_metadata("s4", ["status"])
    # What does not read the value is not concerned.
    assert await catalog.get_metadata("s3", ["n"]) == {"n": 3}
    assert await catalog.count_sessions({"title": "t3"}) == 1
    assert (await catalog.get_or_create_session({"n": 3}))[0].session_id == "s3"
    assert len((await catalog.list_sessions(keys=["n"])).sessions) == 9
    # Writing the key again repairs it.
    await catalog.set_metadata("s3", {"title": "t3"})
    assert (await catalog.get_session("s3")).metadata["title"] == "t3"


async def test_pages_and_walks_go_past_bad_values(catalog, engine):
    whole = {info.session_id: info.metadata async for info in catalog.iter_sessions()}
    bad = [("s2", "title"), ("s3", "n"), ("s3", "title"), ("s8", "owner_id")]
    for number, (session_id, key) in enumerate(bad):
        await damage(engine, session_id, key, BAD[-number])
        del whole[session_id][key]
    for order_by in ("session_id", "-updated_at", "title", "-n"):
        for limit in (1, 2, 3, 20):
            infos, errors = await every_page(catalog, order_by, limit)
            assert {info.session_id: info.metadata for info in infos} == whole
            assert sorted((error.session_id, error.key) for error in errors) == bad
    # A page does not raise for the session after its last one.
    page = await catalog.list_sessions(order_by="session_id", limit=2)
    assert [info.session_id for info in page.sessions] == ["s0", "s1"]
    errors = []
    walked = [info async for info in catalog.iter_sessions(on_corrupt=errors.append)]
    assert {info.session_id: info.metadata for info in walked} == whole
    assert sorted((error.session_id, error.key) for error in errors) == bad
    errors.clear()
    records = [one async for one in catalog.export_sessions(on_corrupt=errors.append)]
    assert [record["session_id"] for record in records] == ["s0", "s1", "s4", "s5", "s6", "s7"]
    assert sorted((error.session_id, error.key) for error in errors) == bad

    def give_up(error: CorruptMetadataError) -> None:
        raise KeyError(error.key)

    with pytest.raises(KeyError):
        await catalog.list_sessions(on_corrupt=give_up)


@pytest.mark.parametrize(
    ("key", "value", "bad"),
    [
        *[("cost", 0.5, each) for each in ("1e999", "{bad", "")],
        ("runs", 1, "x"),
        *[("tool_calls", [["look", 1, 2]], each) for each in ("[bad", '{"a": 1', "x")],
    ],
)
async def test_statistics_of_a_bad_value(engine, key, value, bad):
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("bad", "good"):
        await catalog.create_session(name, metadata={key: value, "owner_id": name})
    await damage(engine, "bad", key, bad)
    with ignored_warnings():  # MySQL converts a value that is no number, before it is left out.
        assert (await catalog.statistics({"owner_id": "good"})).sessions == 1
        found, error = await attempt(catalog.statistics(), CorruptMetadataError)
    # Databases differ in what they refuse.
    assert is_error_of(error, "bad", key) if error else found.sessions == 2
    with pytest.raises(CorruptMetadataError):
        await catalog.get_session("bad")
