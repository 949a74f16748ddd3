"""What else may be done to a session while a run of it is paused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from agents import Runner
from agents.extensions.memory import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import assistant_message
from agents.testing.model import ModelStep

from agents_session_metadata import SessionCatalog, SessionNotFoundError, SessionPausedError
from conformance import raw
from conformance.approving import Deployer, deploys, kinds, paused_runs
from conformance.compaction import Client

pytestmark = pytest.mark.logic

PAUSED = "agent_sessions_metadata_paused"
CALLED = ["user", "function_call c1"]


@pytest.fixture
async def paused(engine):
    """A paused run of the session `chat`, beside a session `other` without one."""
    paused = paused_runs(engine)
    await paused.catalog.session("other").add_items([raw.message("Hello")])
    await pause(paused)
    return paused


async def pause(paused, session_id="chat"):
    session = paused.catalog.session(session_id)
    result = await Runner.run(Deployer().agent(deploys("c1")), "Go", session=session)
    await paused.pause(session, result)


async def test_the_history_stays(paused):
    catalog, session = paused.catalog, paused.catalog.session("chat")
    for refused in (
        catalog.fork_session("chat"),
        catalog.fork_session("chat", "copy", before=2),
        session.rewind(turns=1),
        catalog.rewind_session("chat", before=1),
        session._atomic_replace_items([raw.message("Shorter")]),
    ):
        with pytest.raises(SessionPausedError) as caught:
            await refused
        assert caught.value.session_id == "chat"
    assert kinds(await session.get_items()) == CALLED
    assert await catalog.count_sessions() == 2
    assert len(await (await catalog.fork_session("other")).get_items()) == 1
    assert len(await catalog.session("other").rewind(turns=1)) == 1
    assert await catalog.session("other")._atomic_replace_items([raw.message("Shorter")])
    assert await paused.discard("chat")
    assert len(await session.rewind(turns=1)) == 2


async def test_compaction_waits(engine):
    paused, deployer = paused_runs(engine), Deployer()
    client = Client([raw.message("All of it, in short", "assistant")])
    ours = paused.catalog.session("chat")

    def compacting(session):
        return OpenAIResponsesCompactionSession(
            "chat", session, client=client, should_trigger_compaction=lambda _: True
        )

    session = compacting(ours)
    agent = deployer.agent(deploys("c1"), "Done", "And more")
    result = await Runner.run(agent, "Go", session=session)
    await paused.pause(session, result)
    with pytest.raises(SessionPausedError):
        await session.run_compaction({"force": True, "compaction_mode": "input"})
    compactions = len(client.requests)
    # Automatic compaction, after a run of its own.
    other = deployer.agent("Hello")
    await Runner.run(other, "Hello", session=session)
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", agent, force=True) as run:
        assert (await run.resume(session=session)).final_output == "Done"
    assert len(client.requests) == compactions
    assert len(await ours.get_items()) > 4
    # Once the run has finished, the next turn is compacted.
    await Runner.run(agent, "Go on", session=session)
    assert len(client.requests) == compactions + 1
    assert kinds(await ours.get_items()) == ["assistant"]


@pytest.mark.parametrize("ending", ["clear", "keep", "delete", "sdk", "replace"])
async def test_it_ends_with_the_history(paused, engine, ending):
    catalog = paused.catalog
    if ending == "clear":
        await catalog.session("chat").clear_session()
    elif ending == "keep":
        await catalog.session("chat", must_exist=True).clear_session()
        assert await catalog.get_session("chat")
    elif ending == "delete":
        await catalog.delete_session("chat")
    elif ending == "sdk":
        if engine.dialect.name != "sqlite":
            await raw.execute(engine, "DELETE FROM agent_messages WHERE session_id = 'chat'")
        await SQLAlchemySession("chat", engine=engine).clear_session()
    else:
        records = [record async for record in catalog.export_sessions()]
        assert "state" not in str(records)
        assert await catalog.import_sessions(records, on_conflict="replace") == 2
        assert kinds(await catalog.session("chat").get_items()) == CALLED
    assert await raw.count_rows(engine, PAUSED) == 0
    assert await paused.get("chat") is None


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ending", ["clear", "delete"])
async def test_it_ends_with_the_history_while_it_is_resumed(engine, ending, streamed, caplog):
    paused, deployer = paused_runs(engine), Deployer()
    catalog = paused.catalog

    async def end(*_):
        if ending == "clear":
            await catalog.session("chat").clear_session()
        else:
            await catalog.delete_session("chat")
        return [assistant_message("Done")]

    async def resume():
        async with paused.claim("chat", deployer.agent(ModelStep.respond(end))) as run:
            if not streamed:
                await run.resume()
            async for _ in run.resume_streamed().stream_events():
                pass

    await pause(paused)
    await paused.decide("chat", "c1", approve=True)
    with pytest.raises(SessionNotFoundError):
        await resume()
    assert deployer.calls == ["deploy c1"]
    assert await catalog.get_session("chat") is None
    assert await raw.count_rows(engine, PAUSED) == 0
    assert caplog.records == []


async def test_retention_spares_it(paused, engine):
    catalog = paused.catalog
    await pause(paused, "old")
    day = 86_400_000_000
    await raw.execute(
        engine, f"UPDATE {PAUSED} SET paused_at = paused_at - {91 * day} WHERE session_id = 'old'"
    )
    everything = {"inactive_for": timedelta(0)}
    await paused.decide("old", "c1", approve=True)
    async with paused.claim("old", Deployer().agent("Done")):
        assert await catalog.delete_sessions(**everything, dry_run=True) == 1
    assert await catalog.delete_sessions(**everything, dry_run=True) == 2
    assert await catalog.delete_sessions(**everything, paused_for=timedelta(days=92)) == 1
    assert await catalog.delete_sessions({"owner_id": {"$exists": False}}) == 1
    assert [run.session_id for run in (await paused.list()).runs] == ["chat"]
    assert await catalog.delete_sessions(**everything, paused_for=timedelta.max) == 0
    for wrong, error in ((5, TypeError), (-timedelta(1), ValueError)):
        with pytest.raises(error, match="paused_for"):
            await catalog.delete_sessions(**everything, paused_for=wrong)
    assert await catalog.delete_sessions(**everything, paused_for=timedelta(0)) == 1
    assert await raw.count_rows(engine, PAUSED) == 0


async def test_nothing_needs_the_table(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = catalog.session("chat")
    await session.add_items([raw.message("Hello"), raw.message("Hello again")])
    assert await session._atomic_replace_items([raw.message("Shorter")])
    await catalog.fork_session("chat", "copy")
    assert len(await session.rewind(turns=1)) == 1
    await catalog.session("chat", must_exist=True).clear_session()
    assert await catalog.delete_sessions(inactive_for=timedelta(0)) == 2
    assert PAUSED not in await raw.table_names(engine)
