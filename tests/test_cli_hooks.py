"""The command line as hooks of an orchestrator, the last session of each agent, and replay."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from commands import run
from conformance import raw

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


@pytest.mark.logic
async def test_a_hook_before_work_is_delegated(cli, catalog):
    await waiting(catalog, "chat-1", task_id="t1")
    await waiting(catalog, "chat-2", task_id="t2")
    await waiting(catalog, "other", agent="analyst")

    async def ask(code=0, **request):
        return json.loads((await cli("resume-check", stdin=request, code=code)).stdout)

    request = {"agent_name": "@ai-engineer", "task_id": "t1", "prompt": {"text": "go"}}
    answer = await ask(**request)
    assert (answer["should_resume"], answer["reason"]) == (True, "session_resumable")
    assert (answer["agent_id"], answer["original_context"]) == ("chat-1", request)
    about = answer["resume_metadata"]
    assert set(about) == {
        *("previous_phase", "created_at", "last_updated", "history", "session_metadata")
    }
    assert about["previous_phase"] == "approval"
    names = ("phase", "from_phase", "to_phase")
    assert [[move[name] for name in names] for move in about["history"]] == [
        ["initializing", None, "initializing"],
        ["approval", "initializing", "approval"],
    ]
    assert all(move["timestamp"] == move["at"] for move in about["history"])
    assert about["session_metadata"]["task_id"] == "t1"
    assert (await ask(agent_name="ai-engineer"))["agent_id"] in ("chat-1", "chat-2")
    by_id = await ask(agent_id="chat-2", agent_name="analyst", task_id="t1")
    assert by_id["agent_id"] == "chat-2"

    for unknown in (
        *({"agent_id": "nobody"}, {"agent_id": "x" * 300}),
        {"agent_name": "ai-engineer", "task_id": "t9"},
    ):
        answer = await ask(**unknown)
        assert (answer["should_resume"], answer["reason"]) == (False, "not_found")
        assert (answer["agent_id"], answer["resume_metadata"]) == (None, None)
    for wrong in ({"agent_id": 7}, {"agent_name": ""}, {"agent_id": None}):
        assert "error" in await ask(code=2, **wrong)


@pytest.mark.logic
async def test_the_answer_of_a_hook_is_counted_as_resume_counts(cli, catalog):
    lifecycle = await waiting(catalog, "chat-1")
    for phase, reason, counts in (
        ("approval", "session_resumable", (1, 1)),
        ("executing", "not_resumable_phase", (1, 2)),
    ):
        await lifecycle.enter(phase)
        result = await cli("resume-check", stdin={"agent_id": "chat-1"})
        assert json.loads(result.stdout)["reason"] == reason
        stored = await catalog.get_metadata("chat-1")
        assert (stored["resumes"], stored["resume_attempts"]) == counts
    await cli("resume-check", stdin={"agent_id": "nobody"})
    assert await catalog.get_session("nobody") is None


@pytest.mark.logic
async def test_a_hook_with_corrupt_state_does_not_resume(cli, catalog):
    await waiting(catalog, "chat-1")
    await raw.execute(
        catalog.engine,
        "UPDATE agent_sessions_metadata SET value = '{' WHERE value LIKE '%initializing%'",
    )
    for request in ({"agent_id": "chat-1"}, {"agent_name": "ai-engineer"}):
        answer = json.loads((await cli("resume-check", stdin=request)).stdout)
        assert (answer["should_resume"], answer["reason"]) == (False, "corrupt_metadata")
        assert answer["agent_id"] == "chat-1"


@pytest.mark.only_on("sqlite")
async def test_hooks_before_anything_was_stored(cli, tmp_path, shared_database):
    for url in (f"sqlite:///{tmp_path}/none.db", shared_database.url):
        result = await cli("resume-check", stdin={"agent_name": "a"}, url=url)
        assert json.loads(result.stdout)["reason"] == "not_found"
        result = await cli("finish", "--hook", stdin={"agent_id": "a"}, url=url)
        assert json.loads(result.stdout)["outcome"] is None
    assert not (tmp_path / "none.db").exists()


@pytest.mark.logic
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
    metrics = {"workflow_metrics": {"exit_code": 2}}
    for name, fields, outcome in (
        ("chat-1", {"exit_code": 0, "more": 1}, "completed"),
        ("chat-2", {"exit_code": 137}, "failed"),
        ("chat-3", {}, "completed"),
        ("chat-4", metrics, "failed"),
        ("chat-5", {**metrics, "exit_code": 0}, "completed"),
        ("chat-6", {"exit_code": None, "workflow_metrics": None}, "completed"),
        ("chat-7", {"exit_code": True}, "failed"),
        ("chat-8", {**metrics, "exit_code": None}, "failed"),
    ):
        await waiting(catalog, name)
        request = {"agent_id": name, **fields}
        answer = json.loads((await cli("finish", "--hook", stdin=request)).stdout)
        assert answer == {"agent_id": name, "outcome": outcome}
        assert (await catalog.get_metadata(name))["status"] == outcome


@pytest.mark.logic
async def test_a_hook_after_work_never_blocks_the_orchestrator(cli, catalog):
    lifecycle = await waiting(catalog, "chat-1")
    await lifecycle.finish("completed")
    before = await catalog.get_metadata("chat-1")
    for request in (
        *({"agent_id": "chat-1", "exit_code": 1}, {"agent_id": "nobody"}),
        *({"exit_code": 1}, {"agent_id": None}, {"agent_id": 7}, {"agent_id": "x" * 300}, "[]"),
    ):
        answer = json.loads((await cli("finish", "--hook", stdin=request)).stdout)
        assert answer["outcome"] is None
        assert answer["unchanged"]
    assert await catalog.get_metadata("chat-1") == before
    assert await catalog.get_session("nobody") is None
    for wrong in ("", "{", b"\xff"):
        result = await cli("finish", "--hook", stdin=wrong, code=1)
        assert len(result.stderr.splitlines()) == 1
    await cli("finish", "chat-1", code=2)
    await cli("finish", code=2)


@pytest.mark.logic
async def test_an_error_and_a_phase_are_one_update(cli, catalog):
    await waiting(catalog, "chat-1")
    await cli("phase", "chat-1", "planning", "--error", "disk full", "--meta", "step=2")
    stored = await catalog.get_metadata("chat-1")
    assert (stored["phase"], stored["error_count"], stored["step"]) == ("planning", 1, 2)
    await cli("phase", "chat-1", "nowhere", "--error", "lost", code=1)
    assert (await catalog.get_metadata("chat-1"))["error_count"] == 1


@pytest.mark.logic
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


@pytest.mark.logic
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
