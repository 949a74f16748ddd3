"""A user's answers do not depend on other users.

One user's calls run twice: alone, and in other tables beside a user who at the same time makes the
same kinds of calls, also with the first one's ids. Both times, every answer and error is the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from agents import Runner
from chatkit.types import ThreadMetadata
from pydantic import BaseModel
from scaling import scale

from agents_session_metadata import (
    SessionCatalog,
    SessionLifecycle,
    SessionRuns,
    SessionTracker,
    SQLAlchemyMetadataSession,
)
from agents_session_metadata.chatkit import CatalogStore
from conformance import raw
from conformance.approving import Deployer, deploys
from conformance.running import agent
from conformance.thread_items import NOW, assistant_item, user_item

WORDS = ("Lisbon", "tram 28", "castle", "リスボン")
LONG_AGO = "2024-01-01T00:00:00+00:00"
ITEMS = ("i1", "i2", "m", "t")
FILTERS: tuple[Any, ...] = (
    None,
    {"owner_id": "theirs"},
    {"owner_id": {"$ne": "theirs"}},
    {"owner_id": {"$exists": False}},
    {"owner_id": {"$in": ["mine", "theirs", None]}},
    {"$not": {"owner_id": "mine"}},
    {"$not": {"tags": {"$contains": "all"}}},
    {"$or": [{"owner_id": "theirs"}, {"n": {"$nin": [1, 2]}}]},
    {"$session_id": {"$in": ["m0", "t0", "t1", "m1 "]}},
    {"$session_id": {"$gte": "t"}},
    {"$updated_at": {"$gt": "2024-06-01T00:00:00+00:00"}, "title": {"$gte": "a"}},
    {"$not": {"$created_at": {"$lte": "2024-01-01T00:00:00+00:00"}}},
)
ORDERS = ("session_id", "-updated_at", "created_at", "-n", "title")


@dataclasses.dataclass
class Call:
    """What one call works on: the user's catalog, any user's id, an own one, and numbers.

    The user of ChatKit's store is its context.
    """

    catalog: SessionCatalog
    threads: CatalogStore
    user: str
    target: str
    own: str
    dice: random.Random

    @property
    def word(self) -> str:
        return self.dice.choice(WORDS)

    @property
    def values(self) -> dict[str, Any]:
        return {"tags": [self.word, "all"], "title": self.word, "n": self.dice.randrange(4)}

    @property
    def message(self) -> Any:
        return raw.message(f"{self.word} {self.word}")

    @property
    def where(self) -> Any:
        return self.dice.choice(FILTERS)

    @property
    def existing(self) -> SQLAlchemyMetadataSession:
        return self.catalog.session(self.target, must_exist=True)

    @property
    def runs(self) -> SessionRuns:
        return SessionRuns(self.catalog)

    async def pages(self, where: Any = None) -> Any:
        # What is equal in the order may come in any: the clock decides.
        order, found, cursor = self.dice.choice(ORDERS), [], None
        while not found or cursor:
            page = await self.catalog.list_sessions(
                where, order_by=order, limit=2, cursor=cursor, preview=True, count_items=True
            )
            found, cursor = [*found, *page.sessions, None], page.next_cursor
        return sorted(filter(None, found), key=lambda info: info.session_id)

    async def last(self) -> Any:
        # Which one it is, the clock decides: sessions without messages have times in whole seconds.
        found = await self.catalog.last_session({"tags": {"$contains": "all"}})
        return found and found.metadata["owner_id"]

    async def hits(self, query: str, where: Any = None) -> Any:
        found, cursor = [], None
        while not found or cursor:
            page = await self.catalog.search(query, where, limit=2, cursor=cursor)
            found, cursor = [*found, *page.hits, None], page.next_cursor
        return sorted(repr((hit.session_id, hit.role, hit.snippet)) for hit in filter(None, found))

    async def pause(self) -> None:
        deployer = Deployer().agent(deploys(f"call-{self.dice.randrange(2)}"))
        await self.runs.run(self.own, deployer, self.word)  # It creates the session.

    async def resume(self) -> Any:
        return (await self.runs.resume(self.target, Deployer().agent("deployed"))).final_output

    async def tracked(self) -> None:
        async with SessionTracker(self.existing) as hooks:
            await Runner.run(agent("a", self.word), self.word, session=self.existing, hooks=hooks)

    async def imported(self, owner: str) -> int:
        record: dict[str, Any] = {"format": 1, "session_id": self.own, "items": []}
        record |= {"created_at": LONG_AGO, "updated_at": LONG_AGO}
        record["metadata"] = {**self.values, "owner_id": owner}
        conflict = self.dice.choice(("skip", "replace"))
        return await self.catalog.import_sessions([record], on_conflict=conflict)

    async def exported(self) -> Any:
        return [record async for record in self.catalog.export_sessions(self.where)]

    async def iterated(self) -> Any:
        found = self.catalog.iter_sessions(self.where, count_items=True)
        return sorted([info async for info in found], key=lambda info: info.session_id)

    async def found(self) -> list[str]:
        return sorted(await self.existing.find_sessions_by_metadata(self.where or {}))

    def thread(self, thread_id: str) -> ThreadMetadata:
        return ThreadMetadata(id=thread_id, created_at=NOW, title=self.word, metadata={"n": 1})

    async def retitled(self) -> None:
        thread = await self.threads.load_thread(self.target, self.user)
        thread.title = self.word
        await self.threads.save_thread(thread, self.user)

    def item(self) -> Any:
        make = self.dice.choice((user_item, assistant_item))
        return make(self.target, self.dice.choice(ITEMS), self.word)

    async def listed_threads(self) -> Any:
        found, after, more = [], None, True
        while more:
            page = await self.threads.load_threads(2, after, "desc", self.user)
            found, after, more = [*found, *page.data], page.after, page.has_more
        return sorted((each.model_dump() for each in found), key=lambda each: each["id"])

    async def thread_items(self) -> Any:
        page = await self.threads.load_thread_items(self.target, None, 3, "asc", self.user)
        return page.data, page.has_more


CALLS: list[Callable[[Call], Any]] = [
    lambda c: c.catalog.create_session(c.own, metadata=c.values),
    lambda c: c.catalog.set_metadata(c.target, c.values, must_exist=True),
    lambda c: c.catalog.set_metadata(c.target, {"owner_id": "theirs"}, must_exist=True),
    lambda c: c.catalog.edit_metadata(c.target, lambda m: m.update(edited=1), must_exist=True),
    lambda c: c.catalog.delete_metadata(c.own, ["n"]),
    lambda c: c.catalog.get_metadata(c.target),
    lambda c: c.catalog.get_session(c.target, count_items=True, preview=True),
    lambda c: c.catalog.session(c.own).add_items([c.message, c.message]),
    lambda c: c.existing.add_items([c.message]),
    lambda c: c.catalog.session(c.target).get_items(),
    lambda c: c.catalog.list_items(c.target, limit=3),
    lambda c: c.catalog.session(c.target).pop_item(),
    lambda c: c.catalog.session(c.target).clear_session(),
    lambda c: c.catalog.delete_session(c.target),
    lambda c: c.catalog.rewind_session(c.target, turns=1),
    lambda c: c.catalog.fork_session(c.target, f"{c.own} fork"),
    lambda c: c.pages(),
    lambda c: c.pages({"tags": {"$contains": c.word}}),
    lambda c: c.pages({"$or": [{"owner_id": "theirs"}, {"$session_id": {"$prefix": "t"}}]}),
    lambda c: c.catalog.count_sessions({"n": {"$gte": 1}}),
    lambda c: c.catalog.count_values(c.dice.choice(("tags", "owner_id", "n"))),
    lambda c: c.last(),
    lambda c: c.catalog.statistics(c.where),
    lambda c: c.catalog.usage(by=("owner_id", "session_id")),
    lambda c: c.catalog.usage(owner_id="theirs"),
    lambda c: c.catalog.usage(session_id=c.target, by=("agent",)),
    lambda c: c.pages(c.where),
    lambda c: c.iterated(),
    lambda c: c.hits(c.word, c.where),
    lambda c: c.catalog.count_sessions(c.where),
    lambda c: c.catalog.count_values(c.dice.choice(("tags", "owner_id")), c.where),
    lambda c: c.found(),
    lambda c: c.catalog.delete_sessions(c.where, dry_run=True),
    lambda c: c.catalog.delete_sessions(c.where, inactive_for=timedelta(days=1)),
    lambda c: c.catalog.rewind_session(c.target, before=10**9),
    lambda c: c.threads.save_thread(c.thread(c.own), c.user),
    lambda c: c.retitled(),
    lambda c: c.threads.load_thread(c.target, c.user),
    lambda c: c.threads.delete_thread(c.target, c.user),
    lambda c: c.threads.add_thread_item(c.target, c.item(), c.user),
    lambda c: c.threads.save_item(c.target, c.item(), c.user),
    lambda c: c.threads.load_item(c.target, c.dice.choice(ITEMS), c.user),
    lambda c: c.threads.delete_thread_item(c.target, c.dice.choice(ITEMS), c.user),
    lambda c: c.listed_threads(),
    lambda c: c.thread_items(),
    lambda c: c.hits(c.word),
    lambda c: c.hits(f"{c.word} -{c.word.split()[0]}"),
    lambda c: c.hits(c.word, {"$updated_at": {"$gt": LONG_AGO}}),
    lambda c: c.hits(c.word, {"$created_at": {"$lte": LONG_AGO}}),
    lambda c: c.pages({"$created_at": {"$lte": LONG_AGO}}),
    lambda c: c.runs.list(None, {"$updated_at": {"$gt": LONG_AGO}}),
    lambda c: c.catalog.get_or_create_session({"project": c.word}),
    lambda c: c.catalog.delete_sessions({"n": c.dice.randrange(4)}),
    lambda c: c.exported(),
    lambda c: c.imported("mine"),
    lambda c: c.imported("theirs"),
    lambda c: c.pause(),
    lambda c: c.resume(),
    lambda c: c.runs.list(),
    lambda c: c.runs.get(c.target),
    lambda c: c.runs.decide(c.target, f"call-{c.dice.randrange(2)}", approve=True, by="x"),
    lambda c: c.runs.discard(c.target),
    lambda c: c.tracked(),
    lambda c: SessionLifecycle(c.existing).start("agent"),
    lambda c: SessionLifecycle(c.catalog.session(c.target)).resume_decision(),
]


class User:
    """Makes calls, and puts answers into a form without times and ids of rows."""

    def __init__(
        self,
        threads: CatalogStore,
        catalog: SessionCatalog,
        name: str,
        ids: list[str],
        targets: list[str],
    ) -> None:
        self._threads = threads
        self._name = name
        self._catalog = catalog.scoped({"owner_id": name})
        self._ids = ids
        self._targets = targets
        self._rows: dict[int, str] = {}

    async def call(self, seed: str) -> Any:
        """Answer or error of a call that follows from a seed, with the number of the call."""
        dice = random.Random(seed)
        number = dice.randrange(len(CALLS))
        target, own = dice.choice(self._targets), dice.choice(self._ids)
        call = Call(self._catalog, self._threads, self._name, target, own, dice)
        try:
            return number, self._plain(await CALLS[number](call))
        except (AssertionError, AttributeError, NameError, TypeError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be the same
            return number, type(error).__name__, self._plain(str(error))

    def _plain(self, answer: Any, name: str = "") -> Any:
        if dataclasses.is_dataclass(answer):
            fields = dataclasses.fields(answer)
            return {
                each.name: self._plain(getattr(answer, each.name), each.name) for each in fields
            }
        if isinstance(answer, BaseModel):
            return self._plain(answer.model_dump())
        if isinstance(answer, dict):
            return {key: self._plain(value, key) for key, value in answer.items()}
        if isinstance(answer, (list, tuple)):
            return [self._plain(each) for each in answer]
        if isinstance(answer, SQLAlchemyMetadataSession):
            return answer.session_id
        if name in ("item_id", "forked_before") and answer is not None:
            return self._rows.setdefault(answer, f"item {len(self._rows)}")
        if name == "next_cursor":
            return answer is None
        if isinstance(answer, (datetime, timedelta)) or name.endswith(("_at", "_ms")):
            return "time"
        if isinstance(answer, str):
            return re.sub(r"trace_\w+|\d{4}-\d\d-\d\dT[\d:.+]*", "mark", answer)
        return answer


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scale(1, 12)))
async def test_answers_do_not_depend_on_others(shared_database, seed):
    engine = shared_database.engine()
    alone, both = (
        SessionCatalog(
            engine,
            create_tables=True,
            sessions_table=f"{name}_sessions",
            messages_table=f"{name}_messages",
        )
        for name in ("alone", "both")
    )
    for catalog in (alone, both):
        await catalog.create_index("$text")
    mine, theirs = (
        [f"{owner}{number}" for number in ("0", "1", "2", "1 ")] for owner in ("m", "t")
    )
    forks = [f"{each} fork" for each in mine]
    targets = mine + theirs + forks
    threads = [CatalogStore(each, scope=lambda user: {"owner_id": user}) for each in (alone, both)]
    one = User(threads[0], alone, "mine", mine, targets)
    same = User(threads[1], both, "mine", mine, targets)
    other = User(threads[1], both, "theirs", theirs, targets)

    async def make_calls() -> None:
        number = 0
        while not done.is_set():
            await other.call(f"theirs {seed} {number}")
            number += 1

    done = asyncio.Event()
    beside = asyncio.create_task(make_calls())
    try:
        for number in range(scale(60, 1_000)):
            expected = await one.call(f"mine {seed} {number}")
            assert await same.call(f"mine {seed} {number}") == expected, number
    finally:
        done.set()
        await beside
    assert await alone.count_sessions() > 1
    assert await both.count_sessions({"owner_id": "mine"}) == await alone.count_sessions()
