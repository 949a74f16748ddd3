"""The command line as hooks of an orchestrator, the last session of each agent, and replay."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from commands import run

from agents_session_metadata import SessionCatalog, SessionLifecycle


@pytest.fixture
def cli(shared_database):
    """Runs a command on the database, and checks its exit code."""

    async def call(*args, code=0, stdin=None, url=shared_database.url):
        given = json.dumps(stdin) if isinstance(stdin, dict) else stdin
        result = await asyncio.to_thread(run, *args, stdin=given, url=url)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
async def catalog(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.count_sessions()
    return catalog


async def waiting(catalog, name, agent="ai-engineer", **metadata):
    lifecycle = SessionLifecycle(catalog.session(name))
    await lifecycle.start(agent, "fix it", metadata)
    await lifecycle.enter("approval")
    return lifecycle


async def test_a_hook_before_work_is_delegated(cli, catalog):
    await waiting(catalog, "chat-1", task_id="t1")
    await waiting(catalog, "chat-2", task_id="t2")
    await waiting(catalog, "other", agent="analyst")

    async def ask(code=0, **request):
        return json.loads((await cli("resume-check", stdin=request, code=code)).stdout)

    request = {"agent_name": "@ai-engineer", "task_id": "t1", "prompt": {"text": "go"}}
    answer = await ask(**request)
    assert (answer["should_resume"], answer["reason"]) == (True, "session_resumable")
    assert answer["original_context"] == request
    about = answer["resume_metadata"]
    assert set(about) == {
        *("previous_phase", "created_at", "last_updated", "history", "session_metadata")
    }
    assert about["previous_phase"] == "approval"
    assert [move["phase"] for move in about["history"]] == ["initializing", "approval"]
    assert about["session_metadata"]["task_id"] == "t1"
    newest = await ask(agent_name="ai-engineer")
    assert newest["resume_metadata"]["session_metadata"]["task_id"] in ("t1", "t2")
    by_id = await ask(agent_id="chat-2", agent_name="analyst", task_id="t1")
    assert by_id["resume_metadata"]["session_metadata"]["task_id"] == "t2"

    for unknown in ({"agent_id": "nobody"}, {"agent_name": "ai-engineer", "task_id": "t9"}):
        answer = await ask(**unknown)
        assert (answer["should_resume"], answer["reason"]) == (False, "not_found")
        assert answer["resume_metadata"] is None
    await SessionLifecycle(catalog.session("chat-1")).enter("executing")
    assert (await ask(agent_id="chat-1"))["reason"] == "not_resumable_phase"
    for wrong in ({"agent_id": 7}, {"agent_name": ""}, {"agent_id": None}):
        assert "error" in await ask(code=2, **wrong)


async def test_the_request_and_answer_of_a_test_are_as_a_database_gives_them(cli, catalog):
    printed = (await cli("resume-check", "--test", url=None)).stdout
    request, end = json.JSONDecoder().raw_decode(printed)
    answer = json.loads(printed[end:])
    both = json.loads((await cli("resume-check", "--test", "--json", url=None)).stdout)
    assert both == {"request": request, "answer": answer}
    lifecycle = SessionLifecycle(catalog.session("chat-1"))
    await lifecycle.start("ai-engineer", "fix the build", {"task_id": "task-7"})
    await lifecycle.enter("approval")
    real = json.loads((await cli("resume-check", stdin=request)).stdout)

    def without_times(value):
        if isinstance(value, dict):
            return {key: without_times(each) for key, each in value.items()}
        if isinstance(value, list):
            return [without_times(each) for each in value]
        return "a time" if isinstance(value, str) and value[:2] == "20" else value

    assert without_times(answer) == without_times(real)


async def test_a_hook_after_work(cli, catalog):
    for name in ("chat-1", "chat-2"):
        await waiting(catalog, name)
    for name, code, outcome in (("chat-1", 0, "completed"), ("chat-2", 137, "failed")):
        request = {"agent_id": name, "exit_code": code, "more": 1}
        answer = json.loads((await cli("finish", "--hook", stdin=request)).stdout)
        assert answer == {"agent_id": name, "outcome": outcome}
        assert (await catalog.get_metadata(name))["status"] == outcome
    before = await catalog.get_metadata("chat-1")
    for name in ("chat-1", "nobody"):
        request = {"agent_id": name, "exit_code": 1}
        answer = json.loads((await cli("finish", "--hook", stdin=request)).stdout)
        assert answer["outcome"] is None
    assert await catalog.get_metadata("chat-1") == before
    assert await catalog.get_session("nobody") is None
    for wrong in ("", "{", "[]", {"agent_id": "a"}, {"agent_id": "a", "exit_code": True}, b"\xff"):
        await cli("finish", "--hook", stdin=wrong, code=2)
    await cli("finish", "chat-1", code=2)
    await cli("finish", code=2)


async def test_an_error_and_a_phase_are_one_update(cli, catalog):
    await waiting(catalog, "chat-1")
    await cli("phase", "chat-1", "planning", "--error", "disk full", "--meta", "step=2")
    stored = await catalog.get_metadata("chat-1")
    assert (stored["phase"], stored["error_count"], stored["step"]) == ("planning", 1, 2)
    await cli("phase", "chat-1", "nowhere", "--error", "lost", code=1)
    assert (await catalog.get_metadata("chat-1"))["error_count"] == 1


async def test_the_last_session_of_each_agent(cli, catalog):
    assert "no session has an agent" in (await cli("last", code=1)).stderr
    await waiting(catalog, "chat-1")
    await waiting(catalog, "report", agent="analyst")
    printed = (await cli("last")).stdout
    assert "ai-engineer" in printed
    assert "report" in printed
    found = json.loads((await cli("last", "--json")).stdout)
    assert {each["metadata"]["agent"]: each["session_id"] for each in found} == {
        "ai-engineer": "chat-1",
        "analyst": "report",
    }


AGENT = """
from agents import Agent, function_tool

@function_tool
def weather(city: str) -> str:
    raise AssertionError("no tool runs")

agent = Agent("guide", tools=[weather])
without = Agent("guide")
"""


async def test_replay(cli, catalog, tmp_path, monkeypatch):
    @function_tool
    def weather(city: str) -> str:
        return f"{city}: 18"

    steps = [
        [function_call("weather", {"city": "Oslo"}, call_id="c1")],
        [assistant_message("Cold.")],
    ]
    agent = Agent("guide", model=ScriptedModel(steps), tools=[weather])
    await Runner.run(agent, "Oslo?", session=catalog.session("chat-1"))
    (tmp_path / "replayed_agents.py").write_text(AGENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    same = await cli("replay", "chat-1", "--agent", "replayed_agents:agent")
    assert "no differences in 1 turn" in same.stdout
    other = await cli("replay", "chat-1", "--agent", "replayed_agents:without", code=1)
    assert "the agent has no tool 'weather'" in other.stdout
    found = json.loads(
        (
            await cli("replay", "chat-1", "--agent", "replayed_agents:without", "--json", code=1)
        ).stdout
    )
    assert found["ended"] == "the agent has no tool 'weather'"
    await cli("replay", "nobody", "--agent", "replayed_agents:agent", code=1)
    for wrong in ("replayed_agents", "nothing:agent", "replayed_agents:weather"):
        await cli("replay", "chat-1", "--agent", wrong, code=2)
