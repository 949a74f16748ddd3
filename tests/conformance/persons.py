"""People who use everything, and what the tables contain of them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from agents import Runner
from agents.testing import ModelStep
from chatkit.types import FileAttachment, ThreadMetadata
from sqlalchemy import inspect, select, table
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import (
    Budget,
    ModelPrice,
    SessionCatalog,
    SessionLifecycle,
    SessionRuns,
    SessionTracker,
)
from agents_session_metadata.chatkit import CatalogStore
from conformance import raw
from conformance.approving import Deployer, deploys
from conformance.running import agent
from conformance.thread_items import NOW, assistant_item, user_item


async def use_everything(catalog: SessionCatalog, owner: str, *, members: list[str]) -> None:
    """Writes rows to every table. Each text that a person could recognize contains the owner."""
    mine = catalog.scoped({"owner_id": owner})
    own = {"members": members, "tags": [owner, "x"], "title": f"{owner} title"}
    chat = await mine.create_session(f"{owner}-chat", metadata=own)
    await SessionLifecycle(chat).start(f"{owner}agent", purpose=f"{owner} purpose")
    await chat.add_items(
        [raw.message(f"{owner} words"), raw.message(f"{owner} reply", "assistant")]
    )
    await mine.add_items(chat.session_id, [raw.message(f"{owner} item")], key=f"{owner}-key")

    runs = SessionRuns(mine, lease=timedelta(seconds=30))
    for name in ("waiting", "decided", "gone"):
        session_id, deployer = f"{owner}-{name}", Deployer()
        await mine.create_session(session_id, metadata=own)
        asks = deployer.agent(deploys(f"{owner}-call"), f"{owner} done", name=f"{owner}agent")
        await runs.run(session_id, asks, f"{owner} input")
        await runs.decide(
            session_id, f"{owner}-call", approve=False, message=f"{owner} no", by=f"{owner}@x"
        )
    done = Deployer().agent(f"{owner} done", name=f"{owner}agent")
    await runs.resume(f"{owner}-decided", done)

    tracked = await mine.create_session(f"{owner}-tracked", metadata=own)
    prices = {"gpt": ModelPrice(input=1, output=1)}
    for session_id in (tracked.session_id, f"{owner}-spent"):
        session = mine.session(session_id)
        tracker = SessionTracker(session, prices=prices, model=f"{owner}model")
        async with tracker as hooks:
            answers = agent(f"{owner}agent", f"{owner} answer")
            await Runner.run(answers, f"{owner} question", session=session, hooks=hooks)
    await Budget(tokens=10**6, per="owner_id").remaining(tracked)
    answers = agent(f"{owner}agent", f"{owner} answer")
    await runs.run(tracked.session_id, answers, f"{owner} keyed", key=f"{owner}-run")
    fails = agent(f"{owner}agent", ModelStep.raise_error(RuntimeError(f"{owner} failure")))
    with suppress(RuntimeError):
        await runs.run(chat.session_id, fails, f"{owner} failing", key=f"{owner}-failing")

    threads = CatalogStore(mine, scope=None)
    thread = ThreadMetadata(id=f"{owner}-thread", created_at=NOW, title=f"{owner} thread")
    await threads.save_thread(thread, None)
    await mine.set_metadata(thread.id, {"members": members})
    for item in (
        user_item(thread.id, f"{owner}-u", owner),
        assistant_item(thread.id, f"{owner}-a"),
    ):
        await threads.add_thread_item(thread.id, item, None)
    await threads.add_feedback(thread.id, [f"{owner}-a"], "positive", None)
    for name, fields in (("sent", {"thread_id": thread.id}), ("unsent", {})):
        file = FileAttachment(id=f"{owner}-{name}", name=f"{owner}.txt", mime_type="a/b", **fields)
        await threads.save_attachment(file, None)

    # What outlives its session: a decision, and rows of the ledger.
    await mine.delete_session(f"{owner}-gone")
    await mine.delete_session(f"{owner}-spent")


async def all_rows(engine: AsyncEngine) -> dict[str, list[str]]:
    """The rows of every table as text, sorted; the native index is left out."""

    def read(connection: Any) -> dict[str, list[str]]:
        names = [name for name in inspect(connection).get_table_names() if "_fts" not in name]
        # Columns that are reflected take most of the time of a test.
        every = {name: connection.execute(select("*").select_from(table(name))) for name in names}
        return {
            name: sorted(repr([_plain(value) for value in row]) for row in rows)
            for name, rows in every.items()
        }

    async with engine.connect() as connection:
        return await connection.run_sync(read)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def rows_with(found: dict[str, list[str]], word: str) -> dict[str, list[str]]:
    """The rows that contain a word, also in the hexadecimal of a search key, by table."""
    return {
        table: rows
        for table in found
        if (rows := [row for row in found[table] if word.lower() in row.lower()])
    }
