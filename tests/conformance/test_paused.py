"""Runs that are paused for an approval: stored, decided, claimed and resumed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from agents import Agent, HostedMCPTool, RunContextWrapper, Runner, function_tool
from agents.exceptions import ModelBehaviorError, UserError
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message
from agents.testing.model import ModelStep
from cryptography.fernet import Fernet, InvalidToken
from openai.types.responses.response_output_item import McpApprovalRequest
from scaling import scale
from sqlalchemy import event

from agents_session_metadata import (
    InvalidCursorError,
    InvalidFilterError,
    PausedRuns,
    RunClaimedError,
    SessionCatalog,
    SessionChangedError,
    SessionLifecycle,
    SessionNotFoundError,
    StateVersionError,
    TablesMissingError,
)
from conformance import raw
from conformance.approving import Deployer, call, deploys, kinds, pause, paused_runs

PAUSED = "agent_sessions_metadata_paused"


async def test_a_run_is_paused_decided_and_resumed(engine):
    paused, deployer = paused_runs(engine), Deployer()
    catalog = paused.catalog
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await catalog.create_session("other", metadata={"owner_id": "u2"})
    agent = deployer.agent([*deploys("c1", "c2"), call("look", "c3", target="x")], "Done")
    before = datetime.now(timezone.utc)
    run = await pause(paused, agent)
    assert deployer.calls == ["look x"]
    assert [(each.call_id, each.tool, each.agent) for each in run.pending] == [
        ("c1", "deploy", "deployer"),
        ("c2", "deploy", "deployer"),
    ]
    assert run.pending[0].arguments == '{"target":"c1"}'
    assert run.undecided == run.pending
    assert (run.session_id, run.agent, run.claimed_until, run.crashed) == (
        "chat",
        "deployer",
        None,
        False,
    )
    assert abs(run.paused_at - before) < timedelta(minutes=1)
    assert run.paused_at.utcoffset() == timedelta(0)
    assert await paused.get("chat") == run
    assert (await paused.list({"owner_id": "u1"})).runs == [run]
    assert (await paused.list({"owner_id": "u2"})).runs == []

    # Another process, which does not have the agent. The last decision counts.
    elsewhere = paused_runs(engine)
    await elsewhere.decide("chat", "c1", approve=False, message="No", by="u8")
    await elsewhere.decide("chat", "c1", approve=True, by="u9")
    decided = await elsewhere.decide("chat", "c2", approve=False, message="Not on Friday")
    assert decided.undecided == ()
    assert [
        (each.decision.approve, each.decision.message, each.decision.by) for each in decided.pending
    ] == [(True, None, "u9"), (False, "Not on Friday", None)]
    assert decided.pending[0].decision.at >= run.paused_at

    async with elsewhere.claim("chat", agent) as claimed:
        assert claimed.undecided == ()
        held = await elsewhere.get("chat")
        assert held.claimed_until > held.paused_at + timedelta(minutes=10)
        result = await claimed.resume()
        assert await elsewhere.get("chat") is None
        with pytest.raises(RuntimeError, match="once"):
            await claimed.resume()
    assert result.final_output == "Done"
    assert deployer.calls == ["look x", "deploy c1"]
    items = await catalog.session("chat").get_items()
    assert kinds(items) == [
        "user",
        *(f"function_call {each}" for each in ("c1", "c2", "c3")),
        *(f"function_call_output {each}" for each in ("c3", "c1", "c2")),
        "message",
    ]
    assert [each["output"] for each in items if "output" in each] == [
        "looked at x",
        "deployed c1",
        "Not on Friday",
    ]
    assert await catalog.get_metadata("chat") == {"owner_id": "u1"}
    with pytest.raises(LookupError, match="no paused run"):
        await claimed_by(elsewhere, agent)
    with pytest.raises(LookupError, match="no paused run"):
        await elsewhere.decide("chat", "c1", approve=True)


async def test_a_decision_about_a_run_that_was_read_earlier(engine):
    paused, deployer = paused_runs(engine), Deployer()
    earlier = await pause(paused, deployer.agent(deploys("c1")))
    later = await pause(paused, deployer.agent(deploys("c1")))
    assert later.paused_at > earlier.paused_at
    with pytest.raises(LookupError, match="is not paused any more; another one has been since"):
        await paused.decide("chat", "c1", approve=True, paused_at=earlier.paused_at)
    with pytest.raises(TypeError, match="paused_at must be a datetime, got str"):
        await paused.decide("chat", "c1", approve=True, paused_at=str(later.paused_at))
    assert await paused.get("chat") == later
    decided = await paused.decide("chat", "c1", approve=True, paused_at=later.paused_at)
    assert decided.undecided == ()


async def claimed_by(paused, agent, session_id="chat", **arguments):
    async with paused.claim(session_id, agent, **arguments) as run:
        return run.undecided


async def test_undecided_calls_pause_the_run_again(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1", "c2"), "Done")
    await pause(paused, agent)
    await paused.decide("chat", "c2", approve=True)
    async with paused.claim("chat", agent) as run:
        assert [each.call_id for each in run.undecided] == ["c1"]
        result = await run.resume()
    assert deployer.calls == ["deploy c2"]
    assert [each.call_id for each in result.interruptions] == ["c1"]
    again = await paused.get("chat")
    assert [(each.call_id, each.decision) for each in again.pending] == [("c1", None)]
    assert again.claimed_until is None
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c2", "deploy c1"]


# Leaving a stream makes the SDK cancel a statement, which ends a database in memory.
left = pytest.param("left", marks=pytest.mark.not_on("sqlite-memory"))


@pytest.mark.parametrize("ending", ["finished", "again", "error", left, "stopped"])
async def test_streams(engine, ending):
    paused, deployer = paused_runs(engine), Deployer()
    session = paused.catalog.session("chat")
    steps = {
        "again": [deploys("c2"), "Done"],
        "error": [ModelStep.raise_error(RuntimeError("model down")), "Done"],
        "stopped": ["Done"],
    }.get(ending, ["Done", "Done"])
    agent = deployer.agent(deploys("c1"), *steps)
    stream = Runner.run_streamed(agent, "Apply the plan", session=session)
    with pytest.raises(ValueError, match="not interrupted"):
        await paused.pause(session, stream)
    with pytest.raises(TypeError, match="session must be the session of the run, got str"):
        await paused.pause("chat", stream)
    async for _ in stream.stream_events():
        pass
    await paused.pause(session, stream)
    await paused.decide("chat", "c1", approve=True)

    async def read():
        async with paused.claim("chat", agent) as run:
            stream = run.resume_streamed()
            async for event in stream.stream_events():
                if ending == "left" and event.type == "run_item_stream_event":
                    break
                if ending == "stopped":
                    stream.cancel("after_turn")

    if ending == "error":
        with pytest.raises(RuntimeError, match="model down"):
            await read()
    else:
        await read()
    assert deployer.calls == ["deploy c1"]
    left = await paused.get("chat")
    if ending == "finished":
        assert left is None
        return
    assert left.claimed_until is None
    assert [each.call_id for each in left.pending] == (["c2"] if ending == "again" else [])
    if ending == "again":
        await paused.decide("chat", "c2", approve=False)
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1"]


async def test_nested_agents_and_handoffs(engine):
    paused, deployer = paused_runs(engine), Deployer()
    inner = deployer.agent(deploys("i1", "i2"), "inner done", name="inner")
    last = deployer.agent(deploys("h1"), "all done", name="last")
    outer = Agent(
        name="outer",
        model=ScriptedModel(
            [
                [call("ask_inner", "o1", input="go")],
                [call("transfer_to_last", "o2")],
                [assistant_message("never")],
            ]
        ),
        tools=[inner.as_tool("ask_inner", "Asks the inner agent.")],
        handoffs=[last],
    )
    run = await pause(paused, outer)
    assert [(each.call_id, each.agent) for each in run.pending] == [
        ("i1", "inner"),
        ("i2", "inner"),
    ]
    await paused.decide("chat", "i1", approve=True)
    await paused.decide("chat", "i2", approve=False, message="No")
    async with paused.claim("chat", outer) as claimed:
        await claimed.resume()
    assert deployer.calls == ["deploy i1"]
    run = await paused.get("chat")
    assert (run.agent, [(each.call_id, each.agent) for each in run.pending]) == (
        "last",
        [("h1", "last")],
    )
    await paused.decide("chat", "h1", approve=True)
    async with paused.claim("chat", outer) as claimed:
        assert (await claimed.resume()).final_output == "all done"
    assert deployer.calls == ["deploy i1", "deploy h1"]
    assert await paused.get("chat") is None


async def test_a_nested_agent_that_fails_repeats_no_tool(engine):
    paused, deployer = paused_runs(engine), Deployer()
    down = ModelStep.raise_error(RuntimeError("model down"))
    inner = deployer.agent(deploys("i1"), down, "inner done", name="inner")
    ask = inner.as_tool("ask", "Asks.", failure_error_function=None)
    outer = Agent(
        name="outer",
        model=ScriptedModel([[call("ask", "o1", input="go")], [assistant_message("Done")]]),
        tools=[ask],
    )
    await pause(paused, outer)
    await paused.decide("chat", "i1", approve=True)
    for error, message in ((UserError, "model down"), (ModelBehaviorError, "already executed")):
        with pytest.raises(error, match=message):
            async with paused.claim("chat", outer) as run:
                await run.resume()
        assert deployer.calls == ["deploy i1"]
        assert (await paused.get("chat")).claimed_until is None


async def test_decisions_made_at_once_are_all_stored(engine):
    paused, deployer = paused_runs(engine), Deployer()
    call_ids = [f"c{number}" for number in range(scale(12, 50))]
    await pause(paused, deployer.agent(deploys(*call_ids)))
    await asyncio.gather(
        *(paused.decide("chat", each, approve=True, by=f"by {each}") for each in call_ids)
    )
    decided = (await paused.get("chat")).pending
    assert [each.decision.by for each in decided] == [f"by {each}" for each in call_ids]


ZONES = {
    "postgresql": ("SET TIME ZONE 'Etc/GMT+12'", "SET TIME ZONE 'Etc/GMT-14'"),
    "mysql": ("SET time_zone = '-12:00'", "SET time_zone = '+13:00'"),
}


def in_zone(engine, statement):
    """The engine, with connections in another time zone."""

    @event.listens_for(engine.sync_engine, "connect")
    def connect(connection, _):
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()

    return engine


async def test_leases_do_not_depend_on_time_zones(shared_database):
    """The connections of two claimers are a day apart."""
    zones = ZONES.get(shared_database.kind, ("SELECT 1", "SELECT 1"))
    engines = [in_zone(shared_database.engine(), zone) for zone in zones]
    west, east = map(paused_runs, engines)
    agent = Deployer().agent(deploys("c1"), "Done")
    run = await pause(west, agent)
    assert abs(run.paused_at - datetime.now(timezone.utc)) < timedelta(minutes=5)
    for holder, other in ((west, east), (east, west)):
        async with holder.claim("chat", agent):
            with pytest.raises(RunClaimedError) as caught:
                await claimed_by(other, agent, after_crash=True)
            assert not caught.value.crashed
        # The same lease, a second after its end, as if the holder had died.
        await raw.execute(
            engines[0],
            f"UPDATE {PAUSED} SET token = 'gone', claimed_until = paused_at - 1000000",
        )
        assert (await other.get("chat")).crashed
        await raw.execute(engines[0], f"UPDATE {PAUSED} SET token = NULL, claimed_until = NULL")


async def test_one_of_many_claims(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)
    taken = asyncio.Event()
    rivals = scale(7, 49)

    async def claim():
        nonlocal rivals
        try:
            async with paused.claim("chat", agent) as run:
                await taken.wait()
                return await run.resume()
        except RunClaimedError:
            rivals -= 1
            if not rivals:
                taken.set()
            return None

    results = await asyncio.gather(*(claim() for _ in range(rivals + 1)))
    assert [each.final_output for each in results if each] == ["Done"]
    assert deployer.calls == ["deploy c1"]


async def test_claims_that_are_not_used_change_nothing(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    before = await pause(paused, agent)
    async with paused.claim("chat", agent) as run:
        with pytest.raises(RunClaimedError) as caught:
            await claimed_by(paused, agent)
        assert not caught.value.crashed
        with pytest.raises(RunClaimedError):
            await claimed_by(paused, agent, after_crash=True)
        for refused in (
            paused.decide("chat", "c1", approve=True),
            paused.discard("chat"),
        ):
            with pytest.raises(RunClaimedError):
                await refused
        assert run.state.get_interruptions()
        with pytest.raises(ValueError, match="'other'"):
            await run.resume(session=paused.catalog.session("other"))
    assert await paused.get("chat") == before
    assert deployer.calls == []
    for arguments, error in (
        ({"lease": 5}, TypeError),
        ({"lease": timedelta(0)}, ValueError),
    ):
        with pytest.raises(error, match="lease"):
            await claimed_by(paused, agent, **arguments)
    with pytest.raises(UserError):
        await claimed_by(paused, deployer.agent(name="somebody else"))
    await raw.execute(engine, f"UPDATE {PAUSED} SET state = :state", state='{"$schemaVersion":"9"}')
    with pytest.raises(StateVersionError) as caught:
        await claimed_by(paused, agent)
    assert (caught.value.session_id, caught.value.version) == ("chat", "9")
    assert await paused.get("chat") == before
    assert await paused.discard("chat")
    assert not await paused.discard("chat")
    assert await raw.count_rows(engine, PAUSED) == 0


async def test_a_cancelled_claim_is_given_back(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    before = await pause(paused, agent)
    claiming = asyncio.ensure_future(claimed_by(paused, agent))
    sent: list[str] = []

    def cancel(*arguments) -> None:
        if PAUSED in arguments[2] and arguments[2].startswith("UPDATE"):
            sent.append(arguments[2])
            claiming.cancel()

    event.listen(engine.sync_engine, "before_cursor_execute", cancel)
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert sent
    assert await paused.get("chat") == before
    assert await claimed_by(paused, agent) == before.pending


@pytest.mark.parametrize("when", ["claiming", "claimed"])
async def test_a_cancelled_claim_that_cannot_be_given_back(engine, caplog, when):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    await pause(paused, agent)
    entered, sent = asyncio.Event(), []

    async def claim():
        async with paused.claim("chat", agent):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(claim())

    def fail(connection, _, statement, *arguments) -> None:
        if PAUSED in statement and statement.startswith("UPDATE"):
            sent.append(statement)
            if len(sent) > 1:
                connection.exec_driver_sql("SELECT * FROM nowhere")
            if when == "claiming":
                task.cancel()

    event.listen(engine.sync_engine, "before_cursor_execute", fail)
    if when == "claimed":
        await entered.wait()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(sent) == 2
    assert "could not be ended after a cancellation" in caplog.text
    assert "nowhere" in caplog.text
    # The lease ends by itself.
    assert (await paused.get("chat")).claimed_until is not None


async def approved_run_that_waits(engine):
    """A paused run whose call is approved, its agent, and what is set when it waits for ever."""
    paused, reached = paused_runs(engine), asyncio.Event()

    async def wait(*_):
        reached.set()
        await asyncio.Event().wait()

    agent = Deployer().agent(deploys("c1"), ModelStep.respond(wait))
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)
    return paused, agent, reached


async def test_a_cancelled_run_that_has_lost_its_lease(engine):
    paused, agent, reached = await approved_run_that_waits(engine)

    async def resume():
        async with paused.claim("chat", agent) as run:
            await run.resume()

    task = asyncio.create_task(resume())
    await reached.wait()
    await raw.execute(engine, f"UPDATE {PAUSED} SET claimed_until = 5, token = 'other'")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await paused.get("chat")).crashed


async def test_leases(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done", "Done")
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", agent, lease=timedelta(seconds=1)) as run:
        first = await paused.get("chat")
        # Renewed while the block runs.
        while (await paused.get("chat")).claimed_until <= first.claimed_until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        # Somebody else has it, as after a pause of the whole process.
        await raw.execute(engine, f"UPDATE {PAUSED} SET claimed_until = 5, token = 'other'")
        with pytest.raises(RunClaimedError):
            await run.resume()
    assert kinds(await paused.catalog.session("chat").get_items()) == ["user", "function_call c1"]
    crashed = await paused.get("chat")
    assert crashed.crashed
    assert crashed.claimed_until == datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=timezone.utc)
    with pytest.raises(RunClaimedError) as caught:
        await claimed_by(paused, agent)
    assert caught.value.crashed
    # Looking at it does not make it safe, and a decision may be changed.
    assert await claimed_by(paused, agent, after_crash=True) == ()
    assert (await paused.get("chat")).crashed
    await paused.decide("chat", "c1", approve=False)
    calls = list(deployer.calls)
    async with paused.claim("chat", agent, after_crash=True) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == calls


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_that_has_lost_its_lease_is_cancelled(engine, streamed):
    paused, agent, reached = await approved_run_that_waits(engine)

    async def lose():
        await reached.wait()
        await raw.execute(engine, f"UPDATE {PAUSED} SET claimed_until = 5, token = 'other'")

    async def resume():
        async with paused.claim("chat", agent, lease=timedelta(seconds=0.5)) as run:
            if not streamed:
                await run.resume()
            async for _ in run.resume_streamed().stream_events():
                pass

    with pytest.raises(RunClaimedError):
        await asyncio.gather(resume(), lose())
    stored = await paused.get("chat")
    assert stored.crashed
    # As it was before the claim.
    assert [each.decision.approve for each in stored.pending] == [True]


@pytest.mark.parametrize("approve", [True, False])
async def test_approvals_of_a_hosted_server(engine, approve):
    paused = paused_runs(engine)
    config = {"type": "mcp", "server_label": "files", "require_approval": "always"}
    request = McpApprovalRequest(
        id="mcpr_1",
        arguments='{"path": "/x"}',
        name="delete",
        server_label="files",
        type="mcp_approval_request",
    )
    agent = Agent(
        name="hosted",
        model=ScriptedModel([[request], [assistant_message("Done")]]),
        tools=[HostedMCPTool(tool_config={**config, "server_url": "http://127.0.0.1:1/"})],
    )
    run = await pause(paused, agent)
    [waiting] = run.pending
    assert (waiting.call_id, waiting.tool, waiting.arguments) == (
        "mcpr_1",
        "delete",
        '{"path": "/x"}',
    )
    await paused.decide("chat", "mcpr_1", approve=approve)
    async with paused.claim("chat", agent) as claimed:
        assert (await claimed.resume()).final_output == "Done"
    items = await paused.catalog.session("chat").get_items()
    [answer] = [each for each in items if each.get("type") == "mcp_approval_response"]
    assert (answer["approval_request_id"], answer["approve"]) == ("mcpr_1", approve)


async def test_the_history_must_not_have_moved(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    session = paused.catalog.session("chat")
    await pause(paused, agent)
    await session.add_items([raw.message("Wait")])
    with pytest.raises(SessionChangedError) as caught:
        await claimed_by(paused, agent)
    assert caught.value.session_id == "chat"
    assert await session.pop_item() == raw.message("Wait")
    assert len(await claimed_by(paused, agent)) == 1
    await session.add_items([await session.pop_item()])
    with pytest.raises(SessionChangedError):
        await claimed_by(paused, agent)
    assert len(await claimed_by(paused, agent, force=True)) == 1


class User:
    def __init__(self, name):
        self.name = name


class Kept(dict):
    pass


async def test_contexts(engine):
    paused, seen = paused_runs(engine), []

    @function_tool(needs_approval=True)
    async def whoami(context: RunContextWrapper) -> str:
        seen.append(context.context)
        return "you"

    agent = Agent(
        name="a",
        model=ScriptedModel(
            [[call("whoami", f"w{n}")] for n in range(3)] + [[assistant_message("Done")]]
        ),
        tools=[whoami],
    )
    session = paused.catalog.session("chat")
    for context in (User("Ann"), Kept(a=1), {"a": (1, 2)}, {"a": {1}}, {1: "a"}):
        result = await Runner.run(
            Agent(name="a", model=ScriptedModel([[call("whoami", "w")]]), tools=[whoami]),
            "Who am I?",
            context=context,
        )
        with pytest.raises(UserError):
            await paused.pause(session, result)
    await paused.catalog.create_session("chat")
    await paused.pause(session, result, strict_context=False)
    await paused.discard("chat")

    result = await Runner.run(agent, "Who am I?", session=session, context=User("Ann"))
    await paused.pause(session, result, context_serializer=vars)
    with pytest.raises(UserError):
        await claimed_by(paused, agent)
    await paused.decide("chat", "w0", approve=True)
    restore = lambda stored: User(**stored)  # noqa: E731
    async with paused.claim(
        "chat", agent, context_serializer=vars, context_deserializer=restore
    ) as run:
        await run.resume()
    await paused.decide("chat", "w1", approve=True)
    async with paused.claim("chat", agent, context=User("Bob")) as run:
        await run.resume()
    # An object given without a serializer is not stored in place of the other one.
    await paused.decide("chat", "w2", approve=True)
    async with paused.claim("chat", agent, context_deserializer=restore) as run:
        assert (await run.resume()).final_output == "Done"
    assert [each.name for each in seen] == ["Ann", "Bob", "Ann"]


async def test_encrypted_sessions(engine):
    fernet, deployer = Fernet(Fernet.generate_key()), Deployer()
    paused = paused_runs(engine, encrypt=fernet.encrypt, decrypt=fernet.decrypt)
    blind = paused_runs(engine)
    session = EncryptedSession("chat", paused.catalog.session("chat"), encryption_key="secret")
    agent = deployer.agent([call("deploy", "c1", target="the vault")], deploys("c2"), "Done")
    result = await Runner.run(agent, "Apply the plan", session=session)
    with pytest.raises(ValueError, match="encrypt="):
        await blind.pause(session, result)
    await paused.pause(session, result)
    assert "vault" not in str(await raw.execute(engine, f"SELECT * FROM {PAUSED}"))
    [call_seen] = (await paused.get("chat")).pending
    assert call_seen.arguments == '{"target":"the vault"}'
    [call_seen] = (await blind.list()).runs[0].pending
    assert (call_seen.tool, call_seen.arguments) == ("deploy", None)
    await blind.decide("chat", "c1", approve=True)
    with pytest.raises(ValueError, match="decrypt="):
        await claimed_by(blind, agent)
    with pytest.raises(ValueError, match=" encrypt="):
        await claimed_by(paused_runs(engine, decrypt=fernet.decrypt), agent)
    async with paused.claim("chat", agent) as run:
        with pytest.raises(ValueError, match="EncryptedSession"):
            await run.resume()
        assert deployer.calls == []
        await run.resume(session=session)
    await paused.decide("chat", "c2", approve=True)
    assert 'c2"' not in (await raw.execute(engine, f"SELECT state FROM {PAUSED}"))[0][0]
    async with paused.claim("chat", agent) as run:
        assert (await run.resume(session=session)).final_output == "Done"
    assert deployer.calls == ["deploy the vault", "deploy c2"]


async def test_a_run_under_another_key(engine, caplog):
    right, wrong = (Fernet(Fernet.generate_key()) for _ in range(2))
    deployer = Deployer()
    paused = paused_runs(engine, encrypt=right.encrypt, decrypt=right.decrypt)
    other = paused_runs(engine, encrypt=wrong.encrypt, decrypt=wrong.decrypt)
    agent = deployer.agent(deploys("c1"), deploys("c1"), deploys("c1"))
    before = await pause(paused, agent)
    await pause(other, agent, "readable")
    [readable, unreadable] = (await other.list()).runs
    assert (readable.session_id, unreadable.session_id) == ("readable", "chat")
    assert readable.pending[0].arguments == '{"target":"c1"}'
    assert unreadable == replace(before, pending=(replace(before.pending[0], arguments=None),))
    assert "paused run of session 'chat' could not be decrypted" in caplog.text
    for refused in (
        other.get("chat"),
        other.decide("chat", "c1", approve=True),
        claimed_by(other, agent),
        # It could not say what it has stored.
        pause(paused_runs(engine, encrypt=wrong.encrypt, decrypt=right.decrypt), agent),
    ):
        with pytest.raises(InvalidToken):
            await refused
    assert await paused.get("chat") == before


async def test_phases(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(*[deploys("c1"), deploys("c2"), "Done"] * 3)
    session = paused.catalog.session("chat")
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@deployer")
    await lifecycle.enter("executing")

    async def resume():
        async with paused.claim("chat", agent) as run:
            await run.resume()
        return await session.get_metadata()

    async def stored():
        metadata = await session.get_metadata()
        return metadata["phase"], metadata["status"]

    await pause(paused, agent)
    assert await stored() == ("approval", "active")
    await paused.decide("chat", "c1", approve=True)
    await resume()
    assert await stored() == ("approval", "active")
    await paused.decide("chat", "c2", approve=False)
    metadata = await resume()
    assert await stored() == ("executing", "active")
    moves = [move["phase"] for move in metadata["phase_history"]]
    assert moves == ["initializing", "executing", "approval", "executing"]

    # A phase that somebody else has entered in the meantime stays.
    await pause(paused, agent)
    await lifecycle.enter("validating")
    await paused.discard("chat")
    assert await stored() == ("validating", "active")
    await lifecycle.finish("completed")
    ended = await session.get_metadata()
    await pause(paused, deployer.agent(deploys("c9")))
    assert await session.get_metadata() == ended


@pytest.mark.parametrize("new_phase", ["planning", "approval"])
async def test_work_that_was_begun_after_the_pause_keeps_its_phase(engine, new_phase):
    paused, deployer = paused_runs(engine), Deployer()
    session = paused.catalog.session("chat")
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@deployer")
    await lifecycle.enter("executing")
    await pause(paused, deployer.agent(deploys("c1")))
    await lifecycle.finish("abandoned")
    await lifecycle.start("@planner")
    for phase in dict.fromkeys(["planning", new_phase]):
        await lifecycle.enter(phase)
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", deployer.agent("Done")) as run:
        assert (await run.resume()).final_output == "Done"
    assert (await session.get_metadata())["phase"] == new_phase


async def test_pages_and_scopes(engine):
    paused, deployer = paused_runs(engine), Deployer()
    catalog = paused.catalog
    for number in range(5):
        owner = f"u{number % 2}"
        await catalog.create_session(f"s{number}", metadata={"owner_id": owner})
        await pause(paused, deployer.agent(deploys("c1")), f"s{number}")
    walked, cursor = [], None
    while True:
        page = await paused.list(limit=2, cursor=cursor)
        walked += [run.session_id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert walked == ["s4", "s3", "s2", "s1", "s0"]
    cursor = (await paused.list(limit=2)).next_cursor
    for wrong in ("x", cursor[:-2], cursor + "A"):
        with pytest.raises(InvalidCursorError):
            await paused.list(limit=2, cursor=wrong)
    with pytest.raises(InvalidCursorError):
        await paused.list({"owner_id": "u1"}, cursor=cursor)
    with pytest.raises(InvalidFilterError):
        await paused.list({"owner_id": {"$foo": 1}})
    for limit in (0, 1001, True):
        with pytest.raises(ValueError, match="limit"):
            await paused.list(limit=limit)

    mine = PausedRuns(catalog.scoped({"owner_id": "u1"}))
    assert [run.session_id for run in (await mine.list()).runs] == ["s3", "s1"]
    old = {"$created_at": {"$lt": "2021-01-01T00:00:00Z"}}
    assert (await mine.list(old)).runs == []
    change = "UPDATE agent_sessions SET created_at = '2020-01-01 00:00:00' WHERE session_id IN"
    await raw.execute(engine, f"{change} ('s0', 's1')")
    assert [run.session_id for run in (await mine.list(old)).runs] == ["s1"]
    assert [run.session_id for run in (await paused.list(old)).runs] == ["s1", "s0"]
    assert await mine.get("s0") is None
    assert not await mine.discard("s0")
    agent = deployer.agent(deploys("c1"), "Done")
    with pytest.raises(LookupError):
        await mine.decide("s0", "c1", approve=True)
    with pytest.raises(LookupError):
        await claimed_by(mine, agent, "s0")
    result = await Runner.run(agent, "Apply the plan")
    with pytest.raises(SessionNotFoundError):
        await mine.pause(catalog.session("s0"), result)
    await mine.decide("s1", "c1", approve=False)
    assert (await paused.get("s1")).undecided == ()


async def test_wrong_arguments(engine):
    paused, deployer = paused_runs(engine), Deployer()
    with pytest.raises(TypeError, match="SessionCatalog"):
        PausedRuns(engine)
    session = paused.catalog.session("chat")
    done = await Runner.run(deployer.agent("Done"), "Hello")
    with pytest.raises(ValueError, match="not interrupted"):
        await paused.pause(session, done)
    inner = deployer.agent(deploys("c1"), deploys("c1"), name="inner")
    outer = deployer.agent(
        [call("ask", "o1", input="go"), call("ask", "o2", input="go")],
        tools=[inner.as_tool("ask", "Asks.")],
    )
    waiting = await Runner.run(outer, "Go")
    for unknown in (session, paused.catalog.session("x" * 300)):
        with pytest.raises(SessionNotFoundError):
            await paused.pause(unknown, waiting)
    await paused.catalog.create_session("chat")
    await paused.pause(session, waiting)
    with pytest.raises(ValueError, match="several"):
        await paused.decide("chat", "c1", approve=True)
    with pytest.raises(LookupError, match=r"'c9'.*'c1'"):
        await paused.decide("chat", "c9", approve=True)
    with pytest.raises(ValueError, match="message"):
        await paused.decide("chat", "c1", approve=True, message="Yes")
    for wrong in ({"approve": 1}, {"approve": False, "by": 7}, {"approve": False, "message": 7}):
        with pytest.raises(TypeError):
            await paused.decide("chat", "c1", **wrong)
    with pytest.raises(TypeError, match="session_id"):
        await paused.get(7)
    for never in ("", "\x00", "x" * 300):
        assert await paused.get(never) is None
        assert not await paused.discard(never)


async def test_tables_that_are_missing(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat")
    paused = PausedRuns(SessionCatalog(engine))
    for refused in (paused.list(), paused.get("chat"), paused.decide("chat", "c", approve=True)):
        with pytest.raises(TablesMissingError) as caught:
            await refused
        assert PAUSED in caught.value.tables


async def test_a_claim_notices_that_another_run_has_taken_the_place(shared_database):
    """As often decided, and paused while the claim reads the run before it."""
    deployer, claimed = Deployer(), []
    paused = paused_runs(shared_database.engine())
    await pause(paused, deployer.agent(deploys("c1")), context={"run": 1})
    await paused.decide("chat", "c1", approve=True)

    async def pause_another() -> None:
        others = paused_runs(shared_database.engine())
        await others.discard("chat")
        await others.catalog.session("chat").rewind(turns=1)
        await pause(others, deployer.agent(deploys("c2")), context={"run": 2})
        await others.decide("chat", "c2", approve=False)
        await others.catalog.engine.dispose()

    def deserialize(context):
        if not claimed:
            thread = threading.Thread(target=asyncio.run, args=[pause_another()])
            thread.start()
            thread.join()
        claimed.append(context)
        return dict(context)

    agent = deployer.agent("done")
    async with paused.claim("chat", agent, context_deserializer=deserialize) as run:
        assert [each.call_id for each in run.pending] == ["c2"]
        await run.resume()
    assert claimed == [{"run": 1}, {"run": 2}]
    assert deployer.calls == []
