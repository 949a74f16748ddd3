"""A scoped catalog, and that nothing leads out of it."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from datetime import date, timedelta
from functools import cached_property
from typing import Any

import pytest
from agents import Runner

from agents_session_metadata import (
    InvalidFilterError,
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionMetadataError,
    SessionNotFoundError,
    SessionRuns,
    SessionTracker,
)
from agents_session_metadata.threads.transactions import add_feedback
from conformance import raw
from conformance.running import agent

ANYBODY = {"owner_id": {"$ne": "nobody"}}


async def everything_of(catalog: SessionCatalog, where) -> list:
    return [record async for record in catalog.export_sessions(where)]


def change_title(metadata) -> None:
    metadata["title"] = "changed"


# --- What each method of the catalog does inside, and to a session outside. ---


async def check_create_session(everyone, mine):
    session = await mine.create_session("new", metadata={"title": "new"})
    assert await everyone.get_metadata("new") == {"owner_id": "mine", "title": "new"}
    assert await session.get_metadata() == {"owner_id": "mine", "title": "new"}
    made = await mine.create_session(metadata={"owner_id": "mine"})
    assert await everyone.get_metadata(made.session_id) == {"owner_id": "mine"}
    for bad in ("theirs", None, ["mine"], {"mine": 1}):
        with pytest.raises(ScopeError) as caught:
            await mine.create_session("bad", metadata={"owner_id": bad})
        assert caught.value.key == "owner_id"
    assert await everyone.get_session("bad") is None
    with pytest.raises(SessionExistsError):
        await mine.create_session("theirs-0")


async def check_session(everyone, mine):
    assert await mine.session("mine-0").get_items() == [raw.message("mine 0")]
    assert await mine.session("theirs-0").get_items() == []


async def check_get_session(everyone, mine):
    info = await mine.get_session("mine-0", count_items=True)
    assert (info.metadata["title"], info.item_count) == ("mine 0", 1)
    assert await mine.get_session("theirs-0") is None
    assert await mine.get_session("theirs-0", keys=["title"], count_items=True) is None


async def check_list_sessions(everyone, mine):
    for where in (None, {}, ANYBODY, {"tags": {"$contains": "x"}}, {"shared": [1]}):
        page = await mine.list_sessions(where)
        assert {info.session_id for info in page.sessions} == {"mine-0", "mine-1"}
    for where in (
        {"owner_id": "theirs"},
        {"$session_id": "theirs-0"},
        {"tags": {"$contains": "theirs"}},
        {"$or": [{"owner_id": "theirs"}, {"title": "theirs 0"}]},
        {"$not": {"owner_id": "mine"}},
    ):
        assert (await mine.list_sessions(where)).sessions == []
    page = await mine.list_sessions(keys=["title"], limit=1)
    page = await mine.list_sessions(keys=["title"], limit=1, cursor=page.next_cursor)
    assert page.next_cursor is None


async def check_iter_sessions(everyone, mine):
    ids = [info.session_id async for info in mine.iter_sessions()]
    assert ids == ["mine-0", "mine-1"]
    assert [info async for info in mine.iter_sessions({"$session_id": "theirs-0"})] == []


async def check_count_sessions(everyone, mine):
    assert await mine.count_sessions() == 2
    assert await mine.count_sessions(ANYBODY) == 2
    assert await mine.count_sessions({"$or": [{"owner_id": "theirs"}, {"shared": [1]}]}) == 2
    assert await mine.count_sessions({"owner_id": "theirs"}) == 0


async def check_count_values(everyone, mine):
    assert [(one.value, one.count) for one in await mine.count_values("tags")] == [
        ("mine", 2),
        ("x", 2),
    ]
    assert [one.value for one in await mine.count_values("owner_id", ANYBODY)] == ["mine"]


async def check_last_session(everyone, mine):
    await everyone.session("theirs-0").get_items()
    assert (await mine.last_session({})).metadata["owner_id"] == "mine"
    assert await mine.last_session({"title": "theirs 0"}) is None


async def check_get_metadata(everyone, mine):
    assert (await mine.get_metadata("mine-0"))["title"] == "mine 0"
    assert await mine.get_metadata("theirs-0") == {}
    assert await mine.get_metadata("theirs-0", ["title"]) == {"title": None}


async def check_set_metadata(everyone, mine):
    await mine.set_metadata("mine-0", {"title": "changed", "owner_id": "mine"})
    assert (await everyone.get_metadata("mine-0"))["title"] == "changed"
    with pytest.raises(SessionNotFoundError) as caught:
        await mine.set_metadata("theirs-0", {"title": "changed"})
    assert caught.value.session_id == "theirs-0"
    with pytest.raises((ScopeError, SessionNotFoundError)):
        await mine.set_metadata("theirs-0", {"owner_id": "theirs"})
    for bad in ("theirs", None, "mine ", ["mine"]):
        with pytest.raises(ScopeError):
            await mine.set_metadata("mine-0", {"title": "bad", "owner_id": bad})
    assert (await everyone.get_metadata("mine-0"))["title"] == "changed"


async def check_edit_metadata(everyone, mine):
    assert (await mine.edit_metadata("mine-0", change_title))["title"] == "changed"
    seen = []

    def spy(metadata):
        seen.append(dict(metadata))
        change_title(metadata)

    with pytest.raises(SessionNotFoundError):
        await mine.edit_metadata("theirs-0", spy)
    assert "theirs" not in str(seen)
    for change in (
        lambda metadata: metadata.update(owner_id="theirs", title="bad"),
        lambda metadata: metadata.pop("owner_id"),
        lambda metadata: metadata.clear(),
    ):
        with pytest.raises(ScopeError):
            await mine.edit_metadata("mine-0", change)
    stored = await everyone.get_metadata("mine-0")
    assert (stored["owner_id"], stored["title"]) == ("mine", "changed")


async def check_delete_metadata(everyone, mine):
    with pytest.raises(ScopeError):
        await mine.delete_metadata("mine-0", ["title", "owner_id"])
    assert (await everyone.get_metadata("mine-0"))["title"] == "mine 0"
    assert await mine.delete_metadata("mine-0", ["title"]) == 1
    assert await mine.delete_metadata("mine-0") == 2
    assert await everyone.get_metadata("mine-0") == {"owner_id": "mine"}
    assert await mine.get_session("mine-0") is not None
    for keys in (["title"], None):
        with pytest.raises(SessionNotFoundError):
            await mine.delete_metadata("theirs-0", keys)
        assert await mine.delete_metadata("nobody's", keys) == 0


async def check_delete_session(everyone, mine):
    assert await mine.delete_session("theirs-0") is False
    assert await mine.delete_session("mine-0") is True
    assert await mine.count_sessions() == 1


async def check_delete_sessions(everyone, mine):
    await everyone.create_session("outside", metadata={"owner_id": "somebody"})
    for session_id in ("mine-0", "outside"):
        await raw.set_times(everyone.engine, session_id)
    day = timedelta(days=1)
    assert await mine.delete_sessions({"owner_id": "somebody"}) == 0
    assert await mine.delete_sessions(None, inactive_for=day, dry_run=True) == 1
    assert await mine.delete_sessions(None, inactive_for=day) == 1
    assert await mine.delete_sessions(ANYBODY) == 1
    assert await everyone.get_session("outside") is not None


async def check_get_or_create_session(everyone, mine):
    found, created = await mine.get_or_create_session({"title": "theirs 0"})
    assert created is True
    assert await everyone.get_metadata(found.session_id) == {
        "owner_id": "mine",
        "title": "theirs 0",
    }
    same, created = await mine.get_or_create_session({"title": "theirs 0"})
    assert (same.session_id, created) == (found.session_id, False)
    for values in ({"title": "a"}, {"title": "a", "owner_id": "yours"}):
        await everyone.scoped({"owner_id": "yours"}).get_or_create_session(values)
    other, created = await mine.get_or_create_session({"title": "a"})
    assert created is True
    assert (await everyone.get_metadata(other.session_id))["owner_id"] == "mine"
    with pytest.raises(ScopeError):
        await mine.get_or_create_session({"title": "b", "owner_id": "theirs"})
    with pytest.raises(ScopeError):
        await mine.get_or_create_session({"title": "b"}, metadata={"owner_id": "theirs"})


async def check_fork_session(everyone, mine):
    fork = await mine.fork_session("mine-0", "fork", metadata={"title": "fork"})
    assert (await everyone.get_metadata("fork"))["owner_id"] == "mine"
    assert await fork.get_items() == [raw.message("mine 0")]
    for before in (None, 1):
        with pytest.raises(SessionNotFoundError):
            await mine.fork_session("theirs-0", "stolen", before=before)
    with pytest.raises(ScopeError):
        await mine.fork_session("mine-0", "given", metadata={"owner_id": "theirs"})
    with pytest.raises(SessionExistsError):
        await mine.fork_session("mine-0", "theirs-0")
    assert await everyone.count_sessions() == 5


async def check_list_items(everyone, mine):
    (item,) = (await mine.list_items("mine-0")).items
    assert item.item == raw.message("mine 0")
    assert (await mine.list_items("theirs-0")).items == []


async def check_rewind_session(everyone, mine):
    newest = (await everyone.list_items("theirs-0")).items[-1].item_id
    for cut in ({"turns": 1}, {"before": newest}, {"turns": 1, "expect_last": 0}):
        for session_id in ("theirs-0", "nobody's"):
            with pytest.raises(SessionNotFoundError):
                await mine.rewind_session(session_id, **cut)
    with pytest.raises(ValueError, match="no item"):
        await mine.rewind_session("mine-0", before=newest)
    (removed,) = await mine.rewind_session("mine-0", turns=1)
    assert removed.item == raw.message("mine 0")


async def check_export_sessions(everyone, mine):
    for where in (None, ANYBODY, {"shared": [1]}):
        records = [record async for record in mine.export_sessions(where)]
        assert len(records) == 2
        assert "theirs" not in str(records)
    assert [one async for one in mine.export_sessions({"owner_id": "theirs"})] == []


async def check_import_sessions(everyone, mine):
    records = await everything_of(mine, None)
    theirs = await everything_of(everyone, {"owner_id": "theirs"})
    for session_id in ("mine-0", "mine-1"):
        await mine.delete_session(session_id)
    await mine.import_sessions(records)
    assert await everything_of(mine, None) == records
    # An id of somebody else is taken, whatever is to become of conflicts.
    for on_conflict in ("error", "replace"):
        with pytest.raises(SessionMetadataError):
            await mine.import_sessions(theirs, on_conflict=on_conflict)
    # What was somebody else's comes in as one's own or not at all.
    for session_id in ("theirs-0", "theirs-1"):
        await everyone.delete_session(session_id)
    try:
        await mine.import_sessions(theirs)
    except SessionMetadataError:
        assert await everyone.count_sessions() == 2
    else:
        assert await mine.count_sessions() == 4
    for session_id in ("theirs-0", "theirs-1"):
        await everyone.delete_session(session_id)
    await everyone.import_sessions(theirs)


async def check_statistics(everyone, mine):
    for session_id in ("mine-0", "theirs-0", "theirs-1"):
        await everyone.set_metadata(session_id, {"status": "active"})
    assert await mine.statistics() == await everyone.statistics({"owner_id": "mine"})
    assert await mine.statistics() != await everyone.statistics()
    for session_id in ("theirs-0", "theirs-1"):
        await everyone.delete_metadata(session_id, ["status"])


async def check_scoped(everyone, mine):
    narrow = mine.scoped({"title": "mine 0"})
    assert [info.session_id async for info in narrow.iter_sessions()] == ["mine-0"]
    assert await narrow.get_session("mine-1") is None
    await narrow.create_session("new")
    assert await everyone.get_metadata("new") == {"owner_id": "mine", "title": "mine 0"}
    for key in ("owner_id", "title"):
        with pytest.raises(ScopeError):
            await narrow.set_metadata("new", {key: "other"})
    try:
        wide = mine.scoped({"owner_id": "theirs"})
    except ValueError:
        return
    assert await wide.count_sessions() == 0


async def check_create_index(everyone, mine):
    with pytest.raises(ScopeError):
        await mine.create_index("$text")
    assert [each.key for each in await everyone.list_indexes()] == ["$updated_at"]


async def check_drop_index(everyone, mine):
    with pytest.raises(ScopeError):
        await mine.drop_index("$updated_at")
    assert [each.key for each in await everyone.list_indexes()] == ["$updated_at"]


async def check_list_indexes(everyone, mine):
    with pytest.raises(ScopeError):
        await mine.list_indexes()


async def check_refresh_index(everyone, mine):
    await everyone.create_index("$text")
    with pytest.raises(ScopeError):
        await mine.refresh_index("$text")


async def check_search(everyone, mine):
    await everyone.create_index("$text")
    for query in ({}, {"by_session": True}):
        hits = (await mine.search("mine", **query)).hits
        assert {hit.session_id for hit in hits} == {"mine-0", "mine-1"}
        assert (await mine.search("theirs", **query)).hits == []
        assert len((await everyone.search("theirs", **query)).hits) > 0


async def check_storage(everyone, mine):
    with pytest.raises(ScopeError):
        await mine.storage()
    assert await everyone.storage() != []


async def check_last_sessions(everyone, mine):
    assert {info.session_id for info in await mine.last_sessions("owner_id")} <= {
        "mine-0",
        "mine-1",
    }
    assert len(await everyone.last_sessions("owner_id")) > 1


async def check_watch(everyone, mine):
    async with aclosing(mine.watch(initial=True, interval=0.01)) as changes:
        found = {(await anext(changes)).session.session_id for _ in range(2)}
        assert found == {"mine-0", "mine-1"}
        await everyone.set_metadata("mine-0", {"title": "new"})
        assert (await anext(changes)).session.session_id == "mine-0"


async def check_feedback(everyone, mine):
    for name in ("mine-0", "theirs-0"):
        await add_feedback(everyone, name, ["item"], "positive")
    assert [vote.item_id for vote in await mine.feedback("mine-0")] == ["item"]
    assert await mine.feedback("theirs-0") == []


async def check_usage(everyone, mine):
    await everyone.create_session("other", metadata={"owner_id": "other"})
    for name in ("mine-0", "other"):
        async with SessionTracker(everyone.session(name)) as hooks:
            await Runner.run(agent("engineer", "done"), "hello", hooks=hooks)
    assert [row.session_id for row in await mine.usage(by=["session_id"])] == ["mine-0"]
    assert await mine.usage(session_id="other") == []


async def check_delete_usage(everyone, mine):
    await check_usage(everyone, mine)
    await mine.delete_usage(before=date.today() + timedelta(days=2))  # noqa: DTZ011  # later
    assert [row.session_id for row in await everyone.usage(by=["session_id"])] == ["other"]


async def check_statuses(everyone, mine):
    await everyone.create_session("other", metadata={"owner_id": "other", "status": "active"})
    await mine.set_metadata("mine-0", {"status": "active"})
    assert await mine.statuses(await mine.list_sessions()) == {"mine-0": "active"}


async def check_status_filter(everyone, mine):
    await check_statuses(everyone, mine)
    where = await mine.status_filter("active")
    assert [info.session_id for info in await mine.list_sessions(where)] == ["mine-0"]


async def check_scope(everyone, mine):
    assert (mine.scope, everyone.scope) == ({"owner_id": "mine"}, {})


async def check_erase(everyone, mine):
    assert (await mine.erase({"$session_id": {"$prefix": "theirs"}})).sessions == 0
    assert (await mine.erase()).sessions == 2
    assert await everyone.count_sessions() == 2


async def check_readable(everyone, mine):
    shared = mine.readable({"title": {"$prefix": "t"}})
    assert await shared.count_sessions() == 0
    assert await mine.readable({}).get_metadata("theirs-0") == {}
    assert not everyone.read_only


async def check_add_items(everyone, mine):
    with pytest.raises(SessionNotFoundError):
        await mine.add_items("theirs-0", [raw.message("new")])
    [info] = await mine.add_items("mine-0", [raw.message("new")])
    assert info.item == raw.message("new")


async def check_get_item(everyone, mine):
    for name in ("mine-0", "theirs-0"):
        [info] = (await everyone.list_items(name)).items
        if name == "mine-0":
            assert await mine.get_item(name, info.item_id) == info
            continue
        with pytest.raises(SessionNotFoundError):
            await mine.get_item(name, info.item_id)


async def check_delete_item(everyone, mine):
    [info] = (await everyone.list_items("theirs-0")).items
    with pytest.raises(SessionNotFoundError):
        await mine.delete_item("theirs-0", info.item_id)
    [info] = (await everyone.list_items("mine-0")).items
    await mine.delete_item("mine-0", info.item_id)
    assert await everyone.session("mine-0").get_items() == []


async def check_daily_statistics(everyone, mine):
    since = date.today() - timedelta(days=2)  # noqa: DTZ011  # earlier
    assert (await mine.daily_statistics(since=since)).total.sessions == 2
    assert (await everyone.daily_statistics(since=since)).total.sessions == 4


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
# These checks leave the database as it is: one test makes them all.
READING = [
    *["session", "get_session", "list_sessions", "iter_sessions", "count_sessions"],
    *["count_values", "get_metadata", "list_items", "export_sessions"],
    *["create_index", "list_indexes"],
]
# These neither read nor write sessions.
OF_NO_SESSION = {"engine", "from_url", "read_only"}


def test_every_method_of_the_catalog_is_checked():
    methods = {name for name, _ in inspect.getmembers(SessionCatalog) if not name.startswith("_")}
    assert methods - OF_NO_SESSION == set(CHECKS)


@pytest.mark.parametrize("method", [name for name in CHECKS if name not in READING])
async def test_within_a_scope(everyone, mine, method):
    await CHECKS[method](everyone, mine)


async def test_reading_within_a_scope(everyone, mine):
    for method in READING:
        await CHECKS[method](everyone, mine)


@pytest.mark.logic
async def test_scopes_that_cannot_be(everyone):
    for scope in ({}, {"owner_id": None}, {"owner_id": "mine", "a": None}):
        with pytest.raises(ValueError, match="scope"):
            everyone.scoped(scope)
    for scope in ({"": 1}, {"$or": [{"a": 1}]}, {"a": float("nan")}, {"a\0": 1}):
        with pytest.raises(SessionMetadataError):
            everyone.scoped(scope)


async def test_a_scope_is_plain_equality(everyone):
    values = ["x ", "X ", "x", True, 1, 1.5, "1", ["a"], ["A"], {"a": 1}, "", "z" * 2_000]
    for number, value in enumerate(values):
        await everyone.create_session(f"same {number}", metadata={"key": value})
    for number, value in enumerate(values):
        scoped = everyone.scoped({"key": value})
        assert [info.session_id async for info in scoped.iter_sessions()] == [f"same {number}"]
        await scoped.create_session(f"new {number}")
        assert await everyone.get_metadata(f"new {number}") == {"key": value}
        with pytest.raises(ScopeError):
            await scoped.set_metadata(f"new {number}", {"key": values[number - 1]})


async def test_a_scope_of_two_keys_needs_both(everyone):
    scoped = everyone.scoped({"owner_id": "mine", "title": "mine 1"})
    assert await scoped.count_sessions() == 1
    assert await scoped.session("mine-0").get_items() == []
    await scoped.create_session("new")
    assert await everyone.get_metadata("new") == {"owner_id": "mine", "title": "mine 1"}


async def test_a_filter_cannot_break_out(mine):
    for where in (
        {"owner_id') OR 1=1 --": {"$exists": False}},
        {"title": {"$prefix": "' OR 1=1 --"}},
        {"$or": [{"owner_id": {"$exists": True}}, {"owner_id": {"$exists": False}}]},
        {"$not": {"$and": [{"owner_id": "mine"}, {"owner_id": "theirs"}]}},
    ):
        page = await mine.list_sessions(where)
        assert "theirs" not in str(page)
    with pytest.raises(InvalidFilterError):
        await mine.list_sessions({"$scope": {}})


class OwnCatalog(SessionCatalog):
    """A catalog of an application, with a constructor of its own."""

    def __init__(self, engine: Any, *, tenant: str, **arguments: Any) -> None:
        super().__init__(engine, **arguments)
        self.tenant = tenant

    @cached_property
    def runs(self) -> SessionRuns:
        return SessionRuns(self)


@pytest.mark.logic
async def test_a_scoped_subclass_keeps_its_attributes(engine):
    catalog = OwnCatalog(engine, tenant="t", create_tables=True)
    await catalog.create_session("theirs", metadata={"owner_id": "u2"})
    assert await catalog.runs.get("theirs") is None
    mine = catalog.scoped({"owner_id": "u1"})
    assert (type(mine), mine.tenant) == (OwnCatalog, "t")
    # What was computed without the scope is computed again.
    assert mine.runs is not catalog.runs
    narrower = mine.scoped({"team": "x"})
    assert (narrower.tenant, narrower._store.scope.values) == ("t", {"team": "x", "owner_id": "u1"})
    await narrower.create_session("mine")
    assert await catalog.get_metadata("mine") == {"owner_id": "u1", "team": "x"}
    assert await mine.get_session("theirs") is None
    assert await catalog.get_session("theirs") is not None
    assert catalog.session("mine").catalog.engine is engine
