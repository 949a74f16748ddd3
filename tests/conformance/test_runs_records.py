"""What a run records: at once, whatever works beside it, and without hiding a database error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    RunHooks,
    ToolGuardrailFunctionOutput,
    function_tool,
    tool_output_guardrail,
)
from agents.exceptions import UserError
from processes import Script
from proxy import proxy_to
from servers import SHARED_DATABASES
from sqlalchemy import event, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance import raw
from conformance.failing import (
    RUNS_TABLE,
    Till,
    Turns,
    expire,
    ids_of_calls,
    locked,
    once,
    status,
)


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


# ---- an output is recorded when the tool's function has returned ----


@pytest.mark.dialect
@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_a_slow_record_of_an_output_is_waited_for_when_the_run_ends(catalog, runs, till, end):
    """The SDK itself waits for a quarter of a second at most."""
    writing = asyncio.Event()

    def delay(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO agent_sessions_metadata_run_steps") and till.charged:
            writing.set()
            await_only(asyncio.sleep(0.8))

    event.listen(catalog.engine.sync_engine, "before_cursor_execute", delay)

    async def fail() -> None:
        await writing.wait()
        raise RuntimeError("one of two tools")

    calls = ["charge", "other"] if end == "failed" else ["charge"]
    agent = till.agent(calls, "Done")
    if end == "failed":
        till.on_other = fail
    task = asyncio.create_task(runs.run("chat", agent, "Hi", key="one"))
    await asyncio.wait_for(writing.wait(), 20)
    if end == "cancelled":
        task.cancel()
    await asyncio.wait({task})
    event.remove(catalog.engine.sync_engine, "before_cursor_execute", delay)
    till.on_other = lambda: None

    run = await runs.run("chat", agent, "Hi", key="one")
    assert run.final_output == "Done"
    assert len(till.charged) == 1


KILLED = """
import asyncio, sys, time
from agents import *
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction
from agents_session_metadata import *
set_tracing_disabled(True)
url, log, what, is_first = sys.argv[1:5]

async def block():
    if is_first == "True":
        await asyncio.sleep(60)

@tool_output_guardrail
async def guard(data):
    await block()
    return ToolGuardrailFunctionOutput.allow()

@function_tool(tool_output_guardrails=[guard] if what == "guardrail" else None)
async def charge(context: ToolContext) -> str:
    with open(log, "a") as file:
        file.write(context.tool_call_id + "\\n")
    emit("charged")
    return "charged"

async def shell(request):
    await block()
    return "done"

async def behavior(context, results):
    await block()
    return ToolsToFinalOutputResult(is_final_output=False)

async def handed(context):
    await block()

@function_tool
async def slow() -> str:
    await block()
    return "done"

class Hooks(RunHooks):
    async def on_tool_end(self, context, agent, tool, result):
        if what == "hook":
            await block()

calls = [function_call("charge", {}, call_id="c1")]
tools, options, handoffs = [charge], {}, []
second = Agent("second", model=ScriptedModel([[assistant_message("Done")]]))
if what == "sibling":
    calls.append(function_call("slow", {}, call_id="c2"))
    tools.append(slow)
elif what == "shell":
    action = LocalShellCallAction(command=["true"], env={}, type="exec")
    calls.append(LocalShellCall(
        id="s1", action=action, call_id="s1", status="completed", type="local_shell_call"))
    tools.append(LocalShellTool(executor=shell))
elif what == "behavior":
    options["tool_use_behavior"] = behavior
elif what == "handoff":
    calls.append(function_call("transfer_to_second", {}, call_id="h1"))
    handoffs = [handoff(second, on_handoff=handed)]
steps = [calls] if is_first == "True" else []
model = ScriptedModel([*steps, [assistant_message("Done")]])
agent = Agent("first", model=model, tools=tools, handoffs=handoffs, **options)

async def main():
    runs = SessionRuns(SessionCatalog.from_url(url, create_tables=True))
    hooks = Hooks() if what == "hook" else None
    run = await runs.run("chat", agent, "Hi", hooks=hooks, key="k")
    emit(run.final_output)
    await runs.catalog.engine.dispose()

asyncio.run(main())
"""


@pytest.mark.thorough
@pytest.mark.logic
@pytest.mark.parametrize("what", ["sibling", "shell", "behavior", "guardrail", "handoff", "hook"])
async def test_a_returned_tool_does_not_run_again_after_a_kill_whatever_works_beside_it(
    shared_database, tmp_path, what
) -> None:
    log = tmp_path / "log"

    def run(*, is_first: bool) -> Any:
        child = Script(KILLED, [shared_database.url, log, what, is_first])
        try:
            answer = child.receive()
            if is_first:
                time.sleep(1.5)  # Long enough to record the output, if it is recorded at once.
                assert child.running
            return answer
        finally:
            child.kill()

    assert await asyncio.to_thread(run, is_first=True) == "charged"
    engine = shared_database.engine()
    await expire(engine)
    assert await status(SessionRuns(SessionCatalog(engine))) == "interrupted"
    assert await asyncio.to_thread(run, is_first=False) == "Done"
    assert log.read_text().split() == ["c1"]


@pytest.mark.logic
async def test_a_guardrail_that_raises_does_not_make_a_tool_run_again(runs) -> None:
    charged: list[str] = []
    fail = once(RuntimeError("no moderation"))

    @tool_output_guardrail
    async def guard(data: Any) -> ToolGuardrailFunctionOutput:
        fail()
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_output_guardrails=[guard])
    async def charge() -> str:
        charged.append("charge")
        return "charged"

    agent = Agent("till", model=Turns(["charge"], "Done"), tools=[charge])
    with pytest.raises(Exception, match="no moderation"):
        await runs.run("chat", agent, "Hi")
    assert await status(runs) == "failed"
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert charged == ["charge"]
    assert len(await ids_of_calls(runs)) == 1


@pytest.mark.logic
async def test_a_guardrail_that_refuses_an_output_hides_it_from_the_model(runs) -> None:
    @tool_output_guardrail
    async def guard(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("hidden")

    @function_tool(tool_output_guardrails=[guard])
    async def charge() -> str:
        return "the secret"

    agent = Agent("till", model=Turns(["charge"], RuntimeError("429"), "Done"), tools=[charge])
    with pytest.raises(RuntimeError, match="429"):
        await runs.run("chat", agent, "Hi")
    assert (await runs.resume("chat", agent)).final_output == "Done"
    items = await runs.catalog.session("chat").get_items()
    assert [item["output"] for item in items if "output" in item] == ["hidden"]


@pytest.mark.logic
async def test_a_hook_of_an_agent_that_raises_fails_the_run_at_once(runs, till) -> None:
    fail = once(RuntimeError("no audit log"))

    class Auditing(AgentHooks[Any]):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            fail()

    agent = till.agent(["charge", "other"], "Done", hooks=Auditing())
    with pytest.raises(UserError, match="no audit log"):
        await runs.run("chat", agent, "Hi")
    assert await status(runs) == "failed"
    assert "no audit log" in (await runs.get("chat")).error
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert len(till.charged) == 1
    assert len(await ids_of_calls(runs)) == 2


# ---- errors of the database ----


def shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("fault", ["full disk", "read only"])
@pytest.mark.parametrize("what", ["output", "output, no handler", "answer"])
async def test_a_database_error_while_something_is_recorded_is_raised_as_such(
    database, fault, what
) -> None:
    engine = database.engine()
    runs = SessionRuns(SessionCatalog(engine, create_tables=True))
    await runs.run("chat", Agent("till", model=Turns("Before")), "Hi")
    statements: list[str] = []

    @event.listens_for(engine.sync_engine, "connect")
    def limit_new(connection: Any, _: Any) -> None:
        for statement in statements:
            connection.execute(statement)

    async def limit(statement: str) -> None:
        statements[:] = [statement]
        await raw.execute(engine, statement)

    pages = (await raw.execute(engine, "PRAGMA page_count"))[0][0]
    if fault == "full disk":
        broken, sound = f"PRAGMA max_page_count = {pages + 8}", "PRAGMA max_page_count = 100000"
    else:
        broken, sound = "PRAGMA query_only = 1", "PRAGMA query_only = 0"
    charged: list[str] = []
    answers: list[str] = []
    handling = {"failure_error_function": None} if what == "output, no handler" else {}

    @function_tool(**handling)
    async def charge() -> str:
        charged.append("charge")
        await limit(broken if what != "answer" and len(charged) == 1 else sound)
        return "x" * 500_000

    async def answer() -> str:
        answers.append("answer")
        await limit(broken if what == "answer" and len(answers) == 1 else sound)
        return "y" * 500_000

    agent = Agent("till", model=Turns(["charge"], answer), tools=[charge])
    with pytest.raises(OperationalError, match=r"full|readonly"):
        await runs.run("chat", agent, "Hi", key="k", hooks=RunHooks())
    await limit(sound)
    await expire(engine)
    run = await runs.run("chat", agent, "Hi", key="k")
    assert len(run.final_output) == 500_000
    assert len(charged) == (1 if what == "answer" else 2)
    assert len(await ids_of_calls(runs)) == 1


@pytest.mark.dialect
@pytest.mark.parametrize(
    "database", [n for n in SHARED_DATABASES if not n.startswith("sqlite")], indirect=True
)
@pytest.mark.parametrize("default_handler", [True, False])
@pytest.mark.thorough
async def test_a_lost_server_while_an_output_is_recorded_is_raised_as_such(
    database, default_handler
) -> None:
    handling = {} if default_handler else {"failure_error_function": None}
    charged: list[str] = []
    async with proxy_to(make_url(database.url)) as proxy:
        engine = create_async_engine(proxy.url)
        runs = SessionRuns(SessionCatalog(engine, create_tables=True))

        @function_tool(**handling)
        async def charge() -> str:
            charged.append("charge")
            if len(charged) == 1:
                await proxy.refuse()
            return "charged"

        agent = Agent("till", model=Turns(["charge"], "Done"), tools=[charge])
        with pytest.raises((SQLAlchemyError, OSError)) as caught:
            await runs.run("chat", agent, "Hi", key="k", hooks=RunHooks())
        assert not isinstance(caught.value, UserError), shown(caught.value)
        await engine.dispose()
    runs = SessionRuns(SessionCatalog(database.engine()))
    await expire(database.engine())
    assert (await runs.run("chat", agent, "Hi", key="k")).final_output == "Done"
    assert len(charged) == 2
    assert len(await ids_of_calls(runs)) == 1


@pytest.mark.dialect
async def test_a_slow_database_does_not_count_against_the_timeout_of_a_tool(
    shared_database,
) -> None:
    runs = SessionRuns(SessionCatalog(shared_database.engine(), create_tables=True))
    is_locked, is_free = asyncio.Event(), asyncio.Event()
    charged: list[str] = []

    @function_tool(timeout=0.7)
    async def charge() -> str:
        charged.append("charge")
        is_free.set()
        await is_locked.wait()
        return "charged"

    agent = Agent("till", model=Turns(["charge"], "Done"), tools=[charge])
    task = asyncio.create_task(runs.run("chat", agent, "Hi"))
    await asyncio.wait({task, asyncio.ensure_future(is_free.wait())}, return_when="FIRST_COMPLETED")
    async with locked(shared_database, RUNS_TABLE):
        is_locked.set()
        await asyncio.sleep(1.5)
    assert (await task).final_output == "Done"
    items = await runs.catalog.session("chat").get_items()
    assert [item["output"] for item in items if "output" in item] == ["charged"]
    assert charged == ["charge"]
