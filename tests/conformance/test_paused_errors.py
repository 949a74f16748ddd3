"""Resumed runs that raise or are cancelled: what is stored, and that no tool runs again."""

from __future__ import annotations

import asyncio

import pytest
from agents import RunConfig, RunHooks, function_tool
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from agents.run_config import ModelInputData
from agents.testing import assistant_message
from agents.testing.model import ModelStep
from sqlalchemy import event

from agents_session_metadata import RunClaimedError, SessionChangedError
from conformance import raw
from conformance.approving import Deployer, call, deploys, kinds, pause, pause_approved, paused_runs

pytestmark = pytest.mark.logic


async def resume_after_two_errors(paused):
    """Pause a run, and resume it until its model answers: its tool runs once."""
    deployer = Deployer()
    down = ModelStep.raise_error(RuntimeError("model down"))
    agent = deployer.agent(deploys("c1"), down, down, "Done")
    await pause_approved(paused, agent)
    for _ in range(2):
        async with paused.claim("chat", agent) as run:
            with pytest.raises(RuntimeError, match="model down"):
                await run.resume()
        failed = await paused.get("chat")
        assert (failed.pending, failed.claimed_until, failed.crashed) == ((), None, False)
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1"]


async def test_the_state_at_the_time_of_an_error_is_stored(engine):
    paused = paused_runs(engine)
    await resume_after_two_errors(paused)
    assert kinds(await paused.catalog.session("chat").get_items()) == [
        "user",
        "function_call c1",
        "function_call_output c1",
        "message",
    ]


@pytest.mark.parametrize("earlier", ["look", "deploy"])
async def test_the_id_of_a_call_is_used_again(engine, earlier):
    paused = paused_runs(engine)
    before = call(earlier, "c1", target="elsewhere").model_dump(exclude_none=True)
    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    session = await paused.catalog.create_session("chat")
    await session.add_items([raw.message("earlier"), before, output])
    await resume_after_two_errors(paused)
    added = ["user", "function_call c1", "function_call_output c1"]
    assert kinds(await session.get_items()) == [*added, *added, "message"]


async def test_a_cancelled_run_keeps_its_state(engine):
    paused, deployer = paused_runs(engine), Deployer()
    reached = asyncio.Event()

    async def wait(*_):
        reached.set()
        await asyncio.Event().wait()

    agent = deployer.agent(deploys("c1"), ModelStep.respond(wait), "Done")
    await pause_approved(paused, agent)

    async def resume():
        async with paused.claim("chat", agent) as run:
            await run.resume()

    task = asyncio.create_task(resume())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1"]


async def resumed(run, *, streamed, **arguments):
    """Resume a claimed run and give its result."""
    if not streamed:
        return await run.resume(**arguments)
    stream = run.resume_streamed(**arguments)
    async for _ in stream.stream_events():
        pass
    return stream


def last_two(data):
    return ModelInputData(data.model_data.input[-2:], data.model_data.instructions)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["plain", "filter", "handoff"])
async def test_an_error_in_a_later_turn_repeats_no_tool(engine, way, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    down = ModelStep.raise_error(RuntimeError("model down"))
    look = [call("look", "c2", target="x")], [call("look", "c3", target="y")]
    last = deployer.agent(*look, down, down, "Done", name="last")
    agent = deployer.agent(deploys("c1"), [call("transfer_to_last", "h1")], handoffs=[last])
    if way != "handoff":
        agent = deployer.agent(deploys("c1"), *look, down, down, "Done")
    config = RunConfig(call_model_input_filter=last_two) if way == "filter" else None
    await pause_approved(paused, agent)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="model down"):
            async with paused.claim("chat", agent) as run:
                await resumed(run, streamed=streamed, run_config=config)
        failed = await paused.get("chat")
        assert (failed.pending, failed.claimed_until, failed.crashed) == ((), None, False)
    async with paused.claim("chat", agent) as run:
        result = await resumed(run, streamed=streamed, run_config=config)
    assert result.final_output == "Done"
    assert deployer.calls == ["deploy c1", "look x", "look y"]
    history = kinds(await paused.catalog.session("chat").get_items())
    assert history == [
        "user",
        *(f"function_call{end} c1" for end in ("", "_output")),
        *(f"function_call{end} h1" for end in ("", "_output") if way == "handoff"),
        *(f"function_call{end} {each}" for each in ("c2", "c3") for end in ("", "_output")),
        "message",
    ]
    model = (last if way == "handoff" else agent).model
    asked = kinds(model.calls[-1].input)
    assert asked == (history[-3:-1] if way == "filter" else history[:-1])
    assert await paused.get("chat") is None


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("cancellations", [0, 1, 1_000])
async def test_an_error_after_a_tool_of_a_later_turn_keeps_its_output(
    engine, cancellations, streamed
):
    async def cancel():
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)

    class Interrupting(RunHooks):
        async def on_tool_end(self, *_):
            if not cancellations:
                raise ConnectionError
            self.cancelling = asyncio.create_task(cancel())
            await asyncio.sleep(0)

    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent([call("look", "c0", target="x")], deploys("c1"), "Done")
    await pause_approved(paused, agent)

    async def resume(hooks=None):
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed, hooks=hooks)

    task = asyncio.create_task(resume(Interrupting()))
    await asyncio.wait({task})
    assert task.cancelled() if cancellations else task.exception()
    assert (await paused.get("chat")).claimed_until is None
    await resume()
    assert deployer.calls == ["look x", "deploy c1"]
    assert kinds(await paused.catalog.session("chat").get_items()) == [
        "user",
        *(f"function_call{end} {each}" for each in ("c0", "c1") for end in ("", "_output")),
        "message",
    ]


async def failing_between_turns(paused, deployer):
    """Pause a run, and approve its call. When it is resumed, it fails once after its next turn."""
    failing = [False, False, True]

    def instructions(_context, _agent):
        if failing and failing.pop(0):
            raise ConnectionError
        return "Deploy."

    steps = deploys("c1"), [call("look", "c2", target="x")], "Done"
    agent = deployer.agent(*steps, instructions=instructions)
    await pause_approved(paused, agent)
    return agent


async def test_an_error_between_two_turns_repeats_no_tool(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = await failing_between_turns(paused, deployer)
    with pytest.raises(ConnectionError):
        async with paused.claim("chat", agent) as run:
            await run.resume()
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1", "look x"]


async def test_a_state_that_cannot_be_restored_does_not_replace_another(engine, caplog):
    paused, deployer = paused_runs(engine), Deployer()
    agent = await failing_between_turns(paused, deployer)
    with pytest.raises(ConnectionError):
        async with paused.claim("chat", agent) as run:
            # What ends a turn is not seen in a session of another class.
            await run.resume(session=SQLAlchemySession("chat", engine=engine))
    assert "could not be stored after an error" in caplog.text
    assert (await paused.get("chat")).crashed
    with pytest.raises(RunClaimedError, match="after_crash"):
        async with paused.claim("chat", agent):
            pass
    async with paused.claim("chat", agent, after_crash=True, force=True) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1", "look x", "deploy c1"]


@pytest.mark.parametrize(
    "streamed", [False, pytest.param(True, marks=pytest.mark.not_on("sqlite-memory"))]
)
async def test_a_run_that_has_answered_is_finished_although_it_is_cancelled(engine, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done", "Done again")
    await pause_approved(paused, agent)

    class Answered(RunHooks):
        async def on_agent_end(self, context, agent, output):
            # The next commit is that of the answer.
            event.listen(engine.sync_engine, "commit", cancel, once=True)

    def cancel(_connection):
        loop.call_soon(task.cancel)

    async def resume():
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed, hooks=Answered())

    loop, task = asyncio.get_running_loop(), asyncio.create_task(resume())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await paused.get("chat") is None
    assert kinds(await paused.catalog.session("chat").get_items()) == [
        "user",
        "function_call c1",
        "function_call_output c1",
        "message",
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_wrapped_session_writes_nothing_after_its_end(engine, streamed):
    deployer = Deployer()
    paused = paused_runs(engine, encrypt=lambda text: text, decrypt=lambda text: text)
    catalog = paused.catalog
    inner = catalog.session("chat")
    session = EncryptedSession("chat", inner, encryption_key="secret")

    async def take(*_):
        await catalog.delete_session("chat")
        await catalog.create_session("chat", metadata={"owner_id": "u2"})
        return [assistant_message("Done")]

    agent = deployer.agent(deploys("c1"), ModelStep.respond(take))
    await pause(paused, agent, session=session)
    await paused.decide("chat", "c1", approve=True)
    with pytest.raises(RunClaimedError):
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed, session=session)
    assert await catalog.session("chat").get_items() == []
    await inner.add_items([{"role": "user", "content": "of the new owner"}])
    assert len(await catalog.session("chat").get_items()) == 1


async def test_a_turn_that_only_a_wrapped_session_has_is_not_asked_for_again(engine):
    paused = paused_runs(engine, encrypt=lambda text: text, decrypt=lambda text: text)
    inner = paused.catalog.session("chat")
    session = EncryptedSession("chat", inner, encryption_key="secret")
    agent = Deployer().agent(deploys("c1"), deploys("c2"), "Done")
    await pause(paused, agent, session=session)
    await paused.decide("chat", "c1", approve=True)
    writes = []

    def cancel(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO agent_messages"):
            writes.append(statement)
            if len(writes) == 2:
                task.cancel()

    event.listen(engine.sync_engine, "before_cursor_execute", cancel)

    async def resume():
        async with paused.claim("chat", agent) as run:
            await run.resume(session=session)

    task = asyncio.create_task(resume())
    await asyncio.wait({task})
    assert task.cancelled()
    with pytest.raises(SessionChangedError):
        async with paused.claim("chat", agent):
            pass
    assert len(agent.model.calls) == 2


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("failing", [2, 3, 4])
@pytest.mark.usefixtures("at_once")
async def test_a_turn_that_could_not_be_stored_is_stored_at_the_end(engine, failing, streamed):
    """The second write is that of a later turn, the third hands off, the fourth is the answer."""
    paused, deployer = paused_runs(engine), Deployer()
    last = deployer.agent("Done", "Done", name="last")
    turns = [call("look", "c2", target="x")], [call("transfer_to_last", "h1")]
    agent = deployer.agent(deploys("c1"), *turns, "Not from here", handoffs=[last])
    await pause_approved(paused, agent)
    writes = []

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO agent_messages"):
            writes.append(statement)
            if failing <= len(writes) < failing + 4:
                raise ConnectionError

    event.listen(engine.sync_engine, "before_cursor_execute", fail)
    with pytest.raises(ConnectionError):
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed)
    if failing < 4:
        async with paused.claim("chat", agent) as run:
            assert (await run.resume()).final_output == "Done"
    assert await paused.get("chat") is None
    assert deployer.calls == ["deploy c1", "look x"]
    history = kinds(await paused.catalog.session("chat").get_items())
    assert history == [
        "user",
        *(f"function_call{end} {each}" for each in ("c1", "c2", "h1") for end in ("", "_output")),
        "message",
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.usefixtures("at_once")
async def test_outputs_that_cannot_be_stored_stay_in_the_state(engine, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    await pause_approved(paused, agent)
    is_full = True

    def refuse(_connection, _cursor, statement, *_):
        if is_full and statement.startswith("INSERT INTO agent_messages"):
            raise ConnectionError

    event.listen(engine.sync_engine, "before_cursor_execute", refuse)
    with pytest.raises(ConnectionError):
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed)
    is_full = False
    async with paused.claim("chat", agent) as run:
        await resumed(run, streamed=streamed)
    assert deployer.calls == ["deploy c1"]
    assert kinds(await paused.catalog.session("chat").get_items()) == [
        "user",
        "function_call c1",
        "function_call_output c1",
        "message",
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.usefixtures("at_once")
async def test_a_commit_that_raised_is_not_repeated(engine, streamed, monkeypatch):
    """Each commit of the run succeeds and raises an error; somebody else then adds an item."""
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), [call("look", "c2", target="x")], deploys("c3"), "Done")
    await pause_approved(paused, agent)
    lost, commit = [], engine.sync_engine.dialect.do_commit
    writes = (
        "INSERT INTO agent_messages",
        "UPDATE agent_sessions_metadata_paused SET state",
        "DELETE",
    )

    def lose(_connection, _cursor, statement, *_):
        if statement.startswith(writes):
            lost.append(statement)

    def commit_and_raise(connection):
        commit(connection)
        if not lost:
            return
        if lost.pop().startswith("INSERT"):
            cursor = connection.cursor()
            cursor.execute(
                "INSERT INTO agent_messages (session_id, message_data)"
                """ VALUES ('chat', '{"role": "user", "content": "beside"}')"""
            )
            cursor.close()
            commit(connection)
        raise ConnectionError

    event.listen(engine.sync_engine, "before_cursor_execute", lose)
    monkeypatch.setattr(engine.sync_engine.dialect, "do_commit", commit_and_raise)
    async with paused.claim("chat", agent) as run:
        await resumed(run, streamed=streamed)
    lost.clear()
    await paused.decide("chat", "c3", approve=True)
    async with paused.claim("chat", agent) as run:
        await resumed(run, streamed=streamed)
    monkeypatch.undo()
    assert await paused.get("chat") is None
    assert deployer.calls == ["deploy c1", "look x", "deploy c3"]
    history = kinds(await paused.catalog.session("chat").get_items())
    assert history.count("user") == 1 + 5
    assert [kind for kind in history if kind != "user"] == [
        *(f"function_call{end} {each}" for each in ("c1", "c2", "c3") for end in ("", "_output")),
        "message",
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.usefixtures("at_once")
async def test_a_lease_ends_if_the_end_of_a_run_cannot_be_stored(engine, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    await pause_approved(paused, agent)

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("DELETE FROM agent_sessions_metadata_paused"):
            raise ConnectionError

    event.listen(engine.sync_engine, "before_cursor_execute", fail)
    with pytest.raises(ConnectionError):
        async with paused.claim("chat", agent) as run:
            await resumed(run, streamed=streamed)
    assert (await paused.get("chat")).crashed


async def test_a_run_that_stores_its_next_pause_pauses_although_it_is_cancelled(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), [call("look", "c2", target="x"), *deploys("c3")], "Done")
    await pause_approved(paused, agent)
    writes = []

    def cancel(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO agent_messages"):
            writes.append(statement)
            if len(writes) == 2:
                loop.call_soon_threadsafe(task.cancel)

    async def resume():
        async with paused.claim("chat", agent) as run:
            await run.resume()

    event.listen(engine.sync_engine, "before_cursor_execute", cancel)
    loop, task = asyncio.get_running_loop(), asyncio.create_task(resume())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.call_id for each in (await paused.get("chat")).pending] == ["c3"]
    await paused.decide("chat", "c3", approve=True)
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
    assert deployer.calls == ["deploy c1", "look x", "deploy c3"]


async def test_a_claim_that_is_cancelled_while_the_state_is_restored(engine):
    """An anyio scope, such as one of Starlette, knows its own cancellation by the message."""
    paused, deployer = paused_runs(engine), Deployer()
    await pause_approved(paused, deployer.agent(deploys("c1")))
    restoring, calls = asyncio.Event(), []

    async def is_enabled(*_):
        restoring.set()
        calls.append("asked")
        await asyncio.sleep(60)
        return True

    @function_tool(is_enabled=is_enabled)
    def slow() -> str:
        return "done"

    async def claim():
        async with paused.claim("chat", deployer.agent("Done", tools=[slow])):
            pytest.fail("it was claimed")

    task = asyncio.create_task(claim())
    await restoring.wait()
    task.cancel("by this scope")
    with pytest.raises(asyncio.CancelledError, match="by this scope"):
        await task
    assert calls == ["asked"]
    agent = deployer.agent("Done")
    async with paused.claim("chat", agent) as run:
        assert (await run.resume()).final_output == "Done"
