"""Stored sessions as tests, from the command line: replays, JUnit and evals."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from xml.etree import ElementTree

import pytest
from agents.extensions.memory import EncryptedSession
from commands import run, said

from agents_session_metadata import SessionCatalog
from agents_session_metadata.cli.options import moment
from agents_session_metadata.threads.transactions import add_feedback

AGENTS = """
from agents import Agent, function_tool

@function_tool
def weather(city: str) -> str:
    raise AssertionError("no tool runs")

agent = Agent("guide", tools=[weather])
without = Agent("guide")
number = 7

def by_owner(info):
    return {"u1": agent, "u2": without}.get(info.metadata.get("owner_id"))

async def later(info):
    return agent
"""
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather"}
TURN = [
    {"role": "user", "content": "Oslo?"},
    {**CALL, "arguments": '{"city":"Oslo"}', "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": "3 degrees"},
    {"role": "assistant", "content": "Cold."},
]


@pytest.fixture
async def catalog(tmp_path, monkeypatch):
    (tmp_path / "suite_agents.py").write_text(AGENTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    async with SessionCatalog.from_url("sqlite:///chat.db", create_tables=True) as catalog:
        yield catalog


@pytest.fixture
async def filled(catalog):
    """A session for each owner, and one without."""
    for name, metadata in [("a", {"owner_id": "u1"}), ("b", {"owner_id": "u2"}), ("c", {})]:
        session = await catalog.create_session(name, metadata=metadata)
        await session.add_items(TURN)
    return catalog


@pytest.fixture
def cli(catalog):
    async def call(*args, code=0):
        result = await asyncio.to_thread(run, *args, url="sqlite:///chat.db")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


OSLO = 'weather({"city":"Oslo"})'
REPLAY = ("replay", "--agent", "suite_agents:by_owner")


async def test_a_suite_prints_a_line_per_session_and_a_summary(cli, filled):
    result = await cli(*REPLAY, "--where", "{}", code=1)
    assert sorted(result.stdout.splitlines()) == [
        "different  b  turn 1: the agent has no tool 'weather'; recorded: " + OSLO,
        "equal      a",
        "skipped    c  the function returned no agent",
    ]
    assert result.stderr == "replayed 3 sessions: 1 equal, 1 different, 1 skipped\n"


async def test_a_line_has_the_first_difference_and_their_number(cli, catalog, tmp_path):
    await (await catalog.create_session("a")).add_items([*TURN, *TURN])
    source = AGENTS.replace("city: str", "town: str")
    (tmp_path / "other_agents.py").write_text(source, encoding="utf-8")
    result = await cli("replay", "--agent", "other_agents:agent", "--where", "{}", code=1)
    assert result.stdout == (
        "different  a  turn 1: the tool 'weather' has no parameter 'city'; "
        f"recorded: {OSLO} (and 1 more)\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "summary"),
    [
        (["--owner", "u1"], 0, "1 equal, 0 different, 0 skipped"),
        (["--meta", "owner_id=u2"], 1, "0 equal, 1 different, 0 skipped"),
        (["--where", '{"owner_id": {"$ne": "u2"}}'], 0, "1 equal, 0 different, 1 skipped"),
        (["--where", '{"owner_id": {"$exists": false}}'], 1, "0 equal, 0 different, 1 skipped"),
        (["--owner", "nobody"], 1, "no session matches"),
        (["--feedback", "negative"], 0, "1 equal, 0 different, 0 skipped"),
        (["--feedback", "positive"], 1, "no session matches"),
        (["--since", "yesterday", "--owner", "u1"], 0, "1 equal, 0 different, 0 skipped"),
        (["--since", "2100-01-01"], 1, "no session matches"),
    ],
)
async def test_selection_and_exit_codes(cli, filled, options, code, summary):
    await add_feedback(filled, "a", ["i1"], "negative")
    assert summary in (await cli(*REPLAY, *options, code=code)).stderr


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["a", "--where", "{}"],
        ["a", "--junit", "results.xml"],
        ["--since", "soon"],
        ["--feedback", "bad"],
        ["--where", "{"],
        ["--where", "{}", "--agent", "suite_agents:number"],
        ["--where", "{}", "--agent", "suite_agents:nothing"],
    ],
)
async def test_usage_errors(cli, filled, options):
    agent = () if "--agent" in options else REPLAY[1:]
    await cli("replay", *agent, *options, code=2)


async def test_an_agent_may_be_a_function_of_the_session(cli, filled):
    await cli("replay", "--agent", "suite_agents:later", "--where", "{}")
    await cli("replay", "a", "--agent", "suite_agents:by_owner")
    await cli("replay", "b", "--agent", "suite_agents:by_owner", code=1)


async def test_a_suite_as_json(cli, filled):
    found = json.loads((await cli(*REPLAY, "--where", "{}", "--json", code=1)).stdout)
    by_id = {each["session_id"]: each for each in found}
    assert by_id["a"]["differences"] == []
    assert by_id["b"]["differences"][0]["problem"] == "the agent has no tool 'weather'"
    assert by_id["c"]["skipped"] == "the function returned no agent"
    assert json.loads((await cli(*REPLAY, "--owner", "x", "--json", code=1)).stdout) == []


async def test_junit_has_a_test_per_session(cli, filled, tmp_path):
    await cli(*REPLAY, "--where", "{}", "--junit", "results.xml", code=1)
    root = ElementTree.parse(tmp_path / "results.xml").getroot()  # noqa: S314  # we wrote it
    [suite] = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    totals = {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    assert suite.attrib == {"name": "agent-sessions replay", **totals}
    cases = {case.attrib["name"]: case for case in suite}
    assert {case.attrib["classname"] for case in suite} == {"suite_agents:by_owner"}
    assert list(cases["a"]) == []
    [failure], [skipped] = cases["b"], cases["c"]
    line = 'turn 1: the agent has no tool \'weather\'; recorded: weather({"city":"Oslo"})'
    assert (failure.tag, failure.text, failure.attrib["message"]) == ("failure", line, line)
    assert (skipped.tag, skipped.text) == ("skipped", "the function returned no agent")


async def test_junit_is_xml_whatever_is_stored(cli, catalog, tmp_path):
    name = "<&\"'>]]>\x00\x1b[31m\ud7ff\uffff 聊天 🌍".replace("\x00", "")
    call = {**TURN[1], "name": "we<a>&\x07ther\ufffe"}
    await (await catalog.create_session(name)).add_items([TURN[0], call, *TURN[2:]])
    await cli(
        "replay", "--agent", "suite_agents:agent", "--where", "{}", "--junit", "r.xml", code=1
    )
    [[case]] = ElementTree.parse(tmp_path / "r.xml").getroot()  # noqa: S314  # we wrote it
    assert case.attrib["name"] == name.replace("\x1b", "").replace("\uffff", "")
    assert "we<a>&" in case[0].attrib["message"]


async def test_a_suite_does_not_change_the_database_file(cli, filled, tmp_path):
    before = (tmp_path / "chat.db").read_bytes()
    await cli(*REPLAY, "--where", "{}", code=1)
    assert (tmp_path / "chat.db").read_bytes() == before


def test_times_of_options():
    now = datetime.now(timezone.utc)
    # The beginning of the day or hour: the filter, and with it the cursor, stays the same.
    assert timedelta(days=7) <= now - moment("7d") <= timedelta(days=8, minutes=1)
    assert timedelta(hours=12) <= now - moment("12h") <= timedelta(hours=13, minutes=1)
    assert (moment("7d").hour, moment("7d").minute, moment("12h").minute) == (0, 0, 0)
    yesterday = moment("yesterday")
    assert timedelta(hours=23) < now - yesterday <= timedelta(hours=48, minutes=1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT00:00:00\+00:00", yesterday.isoformat())
    assert moment("2026-01-02") == datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert moment("2026-01-02T03:00:00+02:00") == datetime(2026, 1, 2, 1, tzinfo=timezone.utc)


# ---- evals ----


async def test_evals_have_a_line_per_turn(cli, catalog):
    later = [{**item, "call_id": "c2"} if "call_id" in item else item for item in TURN]
    later[0] = {"role": "user", "content": [{"type": "input_text", "text": "And Rome?"}]}
    both = [*TURN, *later[:2], {**TURN[1], "id": "fc_3", "call_id": "c3"}]
    outputs = [{**TURN[2], "call_id": name, "output": name} for name in ("c2", "c3")]
    unanswered = [{"role": "user", "content": "Still there?"}]
    items = [*both, *outputs, {"role": "assistant", "content": "Warm."}, *unanswered]
    await (await catalog.create_session("a")).add_items(items)
    await EncryptedSession("secret", catalog.session("secret"), "key").add_items(TURN)
    result = await cli("export", "--as", "evals")
    first, second = map(json.loads, result.stdout.splitlines())

    def call(name):
        function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
        return {"id": name, "type": "function", "function": function}

    asked = [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "3 degrees"},
    ]
    assert first == {"input": asked, "ideal": "Cold.", "session_id": "a", "turn": 1}
    assert second["input"] == [
        *asked,
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "And Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call("c2"), call("c3")]},
        {"role": "tool", "tool_call_id": "c2", "content": "c2"},
        {"role": "tool", "tool_call_id": "c3", "content": "c3"},
    ]
    assert (second["ideal"], second["turn"]) == ("Warm.", 2)
    assert "exported 2 turns of 2 sessions" in result.stderr
    assert "left out 1 turn without a final text" in result.stderr
    assert "left out session secret: the history is encrypted" in said(result.stderr)
    listed = await cli("export", "--as", "evals", "--json")
    assert json.loads(listed.stdout) == [first, second]
    await cli("export", "--as", "lines", code=2)
    await cli("export", "--as", "evals", "--owner", "nobody", code=1)
