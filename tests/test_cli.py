"""The command line: every command on every database."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from decimal import Decimal

import pytest
from agents import Runner
from commands import run, said
from conformance import key_indexes, raw
from conformance.approving import Deployer, deploys
from conformance.following import speaking, until
from conformance.running import agent as scripted

from agents_session_metadata import ModelPrice, SessionCatalog, SessionRuns, SessionTracker
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.schema import create_statements, drop_statements


@pytest.fixture
def cli(shared_database):
    """Runs a command on the database, and checks its exit code."""

    async def call(*args, code=0, stdin=None, url=shared_database.url):
        result = await asyncio.to_thread(run, *args, stdin=stdin, url=url)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return call


@pytest.fixture
async def catalog(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.count_sessions()
    return catalog


@pytest.fixture
async def filled(catalog):
    """Three sessions of two owners; the newest is c."""
    for name, owner in (("a", "u1"), ("b", "u1"), ("c", "u2")):
        metadata = {"owner_id": owner, "title": f"Chat {name}", "tags": ["work", name]}
        session = await catalog.create_session(name, metadata=metadata)
        await session.add_items([raw.message("hello")])
    for day, name in enumerate("abc", 1):
        time = f"2020-01-0{day} 00:00:00"
        await raw.set_times(catalog.engine, name, created_at=time, updated_at=time)
    return catalog


def document(result):
    return json.loads(result.stdout)


# ---- indexes ----


@pytest.mark.logic
async def test_index(cli, filled):
    assert "dropped" in (await cli("index", "drop", "$updated_at")).stderr
    await cli("index", "drop", "$updated_at", code=1)
    assert document(await cli("index", "list", "--json")) == []
    assert document(await cli("index", "create", "$updated_at", "--json")) == {
        "key": "$updated_at",
        "created": True,
    }
    assert "already exists" in (await cli("index", "create", "$updated_at")).stderr
    assert "need no index" in said((await cli("index", "create", "owner_id", code=2)).stderr)
    await key_indexes.create(filled.engine, "owner_id")
    listed = document(await cli("index", "list", "--count", "--json"))
    assert [(each["key"], each["entries"], each["obsolete"]) for each in listed] == [
        ("$updated_at", 3, False),
        ("owner_id", None, True),
    ]
    shown = (await cli("index", "list", "--count")).stdout
    assert "$updated_at   yes        3" in shown
    assert "owner_id      obsolete   -" in shown
    assert "scope" in (await cli("index", "list", "--scope", "owner_id=u1", code=1)).stderr
    assert "dropped" in (await cli("index", "drop", "owner_id")).stderr
    await cli("index", "drop", "$nothing", code=1)
    assert [each.key for each in await filled.list_indexes()] == ["$updated_at"]


# ---- histories ----


@pytest.mark.logic
async def test_search(cli, catalog):
    assert "index create" in said((await cli("search", "tram", code=1)).stderr)
    await cli("index", "create", "$text")
    await catalog.session("a").add_items(
        [{"role": "user", "content": f"tram {n}"} for n in range(3)]
    )
    await catalog.set_metadata("b", {"title": "The tram"})
    shown = (await cli("search", "tram", "--limit", "2")).stdout
    assert len(shown.splitlines()) == 4
    assert "[tram]" in shown
    found = json.loads((await cli("search", "tram", "--all", "--json")).stdout)
    assert len(found["hits"]) == 4
    found = json.loads((await cli("search", "tram", "--by-session", "--json")).stdout)
    assert {hit["session_id"] for hit in found["hits"]} == {"a", "b"}
    assert "no message matches" in said((await cli("search", "bus", code=1)).stderr)
    assert "not excluded" in said((await cli("search", "--", "-bus", code=2)).stderr)
    assert "added 0 messages" in (await cli("index", "refresh", "$text")).stdout
    await cli("index", "drop", "$text")


@pytest.mark.logic
async def test_history(cli, catalog):
    session = catalog.session("a")
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'}
    output = {"type": "function_call_output", "call_id": "c", "output": "done\x1b[2J"}
    answer = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "two\n\tlines"}, {"type": "refusal"}],
    }
    await session.add_items([raw.message("hé\u202e!"), call, output, answer, {"__enc__": 1}])
    ids = [each.item_id for each in (await catalog.list_items("a")).items]
    result = await cli("history", "a")
    lines = result.stdout.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [(int(each.split()[0]), each.split()[3]) for each in heads] == [
        (ids[0], "user"),
        (ids[1], "function_call"),
        (ids[2], "function_call_output"),
        (ids[3], "assistant"),
        (ids[4], "encrypted"),
    ]
    rest = [line.strip() for line in lines if line.startswith(" ")]
    assert rest == [
        "hé\\u202e!",
        "call_id: c",
        "name: f",
        'arguments: {"x": 1}',
        "call_id: c",
        "output: done\\x1b[2J",
        "two",
        "lines",
        "(refusal)",
    ]
    found = document(await cli("history", "a", "--json", "--limit", "2", "--newest-first"))
    assert [each["item_id"] for each in found["items"]] == [ids[4], ids[3]]
    assert found["items"][1]["item"] == answer
    more = ("--newest-first", "--cursor", found["next_cursor"])
    lines = (await cli("history", "a", "--jsonl", *more)).stdout.splitlines()
    assert [json.loads(line)["item_id"] for line in lines] == ids[2::-1]
    result = await cli("history", "a", "--limit", "1")
    assert "there are more items; continue with --cursor" in result.stderr
    every = document(await cli("history", "a", "--limit", "2", "--all", "--json"))
    assert ([each["item_id"] for each in every["items"]], every["next_cursor"]) == (ids, None)
    assert "session nobody does not exist" in (await cli("history", "nobody", code=1)).stderr
    await cli("history", "a", "--cursor", "x", code=2)


async def test_errors_about_runs_give_advice_for_a_shell(cli, catalog):
    async with SessionRuns(catalog).stream("chat-1", scripted("guide", "Hello"), "Hi"):
        pass  # Leaving it early interrupts the run.
    for line, advice in (
        ("approve chat-1 c1", "resume it, or run `agent-sessions discard`"),
        ("rewind chat-1 --turns 1 --yes", "or end it with `agent-sessions stop`"),
        ("search tram", "create it once with `agent-sessions index create '$text'`"),
    ):
        result = await cli(*line.split(), code=1)
        assert result.stderr.endswith(f"{advice}\n")


@pytest.mark.logic
async def test_rewind_and_fork(cli, catalog):
    session = await catalog.create_session("a", metadata={"title": "x"})
    await session.add_items([raw.message("1"), raw.message("2", "assistant"), raw.message("3")])
    first, second, third = [each.item_id for each in (await catalog.list_items("a")).items]
    result = await cli("fork", "a", "b", "--before", str(third), "--meta", "title=y")
    assert result.stdout == "b\n"
    assert await catalog.get_metadata("b") == {
        "title": "y",
        "forked_from": "a",
        "forked_before": third,
    }
    copy = document(await cli("fork", "a", "--json"))
    assert copy["metadata"] == {"title": "x", "forked_from": "a"}
    assert await catalog.session(copy["session_id"]).get_items() == await session.get_items()
    result = await cli("rewind", "a", "--turns", "1", "--expect-last", str(first), "--yes", code=1)
    assert "newest item" in said(result.stderr)
    result = await cli("rewind", "a", "--turns", "1", "--yes")
    assert (result.stdout, result.stderr) == ("", "removed 1 item\n")
    removed = document(await cli("rewind", "a", "--before", str(second), "--yes", "--json"))
    assert [each["item"]["content"] for each in removed["removed"]] == ["2"]
    assert await session.get_items() == [raw.message("1")]
    for arguments in ((), ("--turns", "1", "--before", "1"), ("--turns", "0")):
        await cli("rewind", "a", *arguments, "--yes", code=2)
    assert "pass --yes" in said((await cli("rewind", "a", "--turns", "1", code=2)).stderr)
    await cli("rewind", "nobody", "--turns", "1", "--yes", code=1)
    await cli("rewind", "a", "--before", str(third), "--yes", code=1)
    await cli("fork", "a", "b", code=1)
    await cli("fork", "nobody", code=1)
    await cli("fork", "a", "", code=2)
    assert await session.get_items() == [raw.message("1")]


# ---- reading ----


async def test_list(cli, filled):
    result = await cli("list")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["c", "b", "a"]
    assert "2020-01-03" in lines[2]
    assert "Chat c" in lines[2]
    assert '["work", "c"]' in lines[2]
    assert result.stderr == ""


@pytest.mark.logic
async def test_list_as_json(cli, filled):
    found = document(await cli("list", "--json", "--count-items", "--meta", "owner_id=u1"))
    assert found == {
        "sessions": [
            {
                "session_id": name,
                "created_at": f"2020-01-0{day}T00:00:00+00:00",
                "updated_at": f"2020-01-0{day}T00:00:00+00:00",
                "metadata": {"owner_id": "u1", "title": f"Chat {name}", "tags": ["work", name]},
                "item_count": 1,
            }
            for name, day in (("b", 2), ("a", 1))
        ],
        "next_cursor": None,
    }


@pytest.mark.logic
async def test_list_filters_orders_and_pages(cli, filled):
    where = '{"tags": {"$contains": "work"}}'
    args = ["list", "--where", where, "--meta", "owner_id=u1", "--order-by", "session_id"]
    first = document(await cli(*args, "--limit", "1", "--json", "--key", "title"))
    assert [(s["session_id"], s["metadata"]) for s in first["sessions"]] == [
        ("a", {"title": "Chat a"})
    ]
    second = await cli(*args, "--limit", "1", "--json", "--cursor", first["next_cursor"])
    assert [s["session_id"] for s in document(second)["sessions"]] == ["b"]
    result = await cli(*args, "--limit", "1")
    assert f"continue with --cursor {first['next_cursor']}" in result.stderr
    every = await cli("list", "--limit", "1", "--all", "--jsonl")
    assert [json.loads(line)["session_id"] for line in every.stdout.splitlines()] == ["c", "b", "a"]
    every = document(await cli("list", "--limit", "1", "--all", "--json"))
    assert len(every["sessions"]) == 3
    wrong = await cli("list", "--cursor", first["next_cursor"], code=2)
    assert "cursor" in wrong.stderr


@pytest.mark.logic
async def test_nothing_found(cli, filled):
    result = await cli("list", "--meta", "owner_id=u9", code=1)
    assert (result.stdout, result.stderr) == ("", "no session matches\n")
    result = await cli("list", "--meta", "owner_id=u9", "--json", code=1)
    assert document(result) == {"sessions": [], "next_cursor": None}
    for args in (
        ["show", "nope"],
        ["get", "nope"],
        ["get", "a", "nope"],
        ["unset", "a", "nope"],
        ["values", "nope"],
        ["last", "--agent", "@nobody"],
        ["delete", "nope", "--yes"],
        ["export", "--meta", "owner_id=u9"],
        ["phase", "nope", "planning"],
        ["finish", "nope", "completed"],
    ):
        result = await cli(*args, code=1)
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1, result.stderr
    assert await filled.count_sessions() == 3
    for args, found in (
        (["show", "nope"], None),
        (["get", "nope"], {}),
        (["get", "a", "nope"], {"nope": None}),
        (["values", "nope"], []),
        (["last", "--agent", "@nobody"], None),
        (["last", "--meta", "owner_id=u9"], None),
        (["export", "--meta", "owner_id=u9"], []),
        (["phase", "nope"], None),
        (["phase", "nope", "planning"], None),
        (["phase", "nope", "--error", "oops"], None),
        (["finish", "nope", "completed"], None),
    ):
        result = await cli(*args, "--json", code=1)
        assert document(result) == found, args
        assert len(result.stderr.splitlines()) == 1, result.stderr
    result = await cli("phase", "a", "--json", code=1)
    assert document(result) == {"session_id": "a", "metadata": await filled.get_metadata("a")}
    assert result.stderr == "session a has no phase\n"
    assert (
        "agent @nobody has no session" in (await cli("last", "--agent", "@nobody", code=1)).stderr
    )


@pytest.mark.logic
async def test_show(cli, filled):
    result = await cli("show", "a")
    assert "session  a\n" in result.stdout
    assert "created  2020-01-01 00:00:00 UTC (2020-01-01)" in result.stdout
    assert "items    1" in result.stdout
    assert "Chat a" in result.stdout
    assert document(await cli("show", "a", "--json"))["item_count"] == 1


@pytest.mark.logic
async def test_get(cli, filled):
    assert (await cli("get", "a", "title")).stdout == "Chat a\n"
    missing = await cli("get", "a", "nope", code=1)
    assert missing.stderr == "session a has no value for nope\n"
    assert (await cli("get", "a", "tags")).stdout == '["work", "a"]\n'
    assert document(await cli("get", "a", "title", "nope", "--json")) == {
        "title": "Chat a",
        "nope": None,
    }
    assert document(await cli("get", "a", "--json")) == await filled.get_metadata("a")
    assert "owner_id" in (await cli("get", "a")).stdout


@pytest.mark.logic
async def test_count_and_values(cli, filled):
    assert (await cli("count", "--meta", "owner_id=u1")).stdout == "2\n"
    assert (await cli("count", "--meta", "owner_id=u9")).stdout == "0\n"
    assert document(await cli("count", "--json")) == {"count": 3}
    assert document(await cli("values", "tags", "--limit", "2", "--json")) == [
        {"value": "work", "count": 3},
        {"value": "a", "count": 1},
    ]
    lines = (await cli("values", "tags", "--meta", "owner_id=u1")).stdout.splitlines()
    assert lines[2].split() == ["work", "2"]


@pytest.mark.logic
async def test_the_last_session_of_an_agent(cli, filled):
    await filled.set_metadata("b", {"agent": "ai-engineer"})
    for agent in ("ai-engineer", "@ai-engineer", " @ai-engineer "):
        found = document(await cli("last", "--agent", agent, "--json"))
        assert (found["session_id"], found["item_count"]) == ("b", 1)
    [last] = document(await cli("last", "--json"))
    assert (last["session_id"], last["metadata"]["agent"]) == ("b", "ai-engineer")
    assert document(await cli("last", "--where", "{}", "--json"))["session_id"] == "c"
    await cli("last", "--agent", "ai-engineer", "--meta", "owner_id=u2", code=1)


# ---- writing ----


@pytest.mark.logic
async def test_set_and_unset(cli, catalog):
    refused = await cli("set", "new", "a=1", code=1)
    assert "session new does not exist; pass --create to create it" in said(refused.stderr)
    assert await catalog.get_session("new") is None
    await cli(
        "set",
        "new",
        "--create",
        "a=1",
        "b=text",
        'c={"x": [null, 1.0]}',
        "--meta",
        "d=a=b",
        'e="7"',
    )
    stored = await catalog.get_metadata("new")
    assert stored == {"a": 1, "b": "text", "c": {"x": [None, 1.0]}, "d": "a=b", "e": "7"}
    assert (await cli("unset", "new", "a", "b")).stderr == "removed 2 keys\n"
    assert (await cli("unset", "new", "--all")).stderr == "removed 3 keys\n"
    assert await catalog.get_metadata("new") == {}


@pytest.mark.logic
async def test_delete(cli, filled):
    refused = await cli("delete", "a", code=2)
    assert "--yes" in refused.stderr
    result = await cli("delete", "a", "nope", "--yes")
    assert "session nope does not exist" in result.stderr
    assert "deleted 1 session" in result.stderr
    assert await filled.get_session("a") is None


@pytest.mark.logic
async def test_a_scope_binds_every_command(cli, filled):
    mine = ["--scope", "owner_id=u1"]
    assert (await cli("count", *mine)).stdout == "2\n"
    for args in (["show", "c"], ["get", "c"], ["unset", "c", "title"], ["delete", "c", "--yes"]):
        await cli(*args, *mine, code=1)
    for args in (["set", "c", "a=1"], ["start", "c", "--agent", "x"], ["set", "a", "owner_id=u2"]):
        await cli(*args, *mine, code=1)
    await cli("resume-check", "c", *mine, code=1)
    for args in (["unset", "title"], ["unset", "--all", "--json"], ["set", "a=1"], ["get"]):
        answers = [
            await cli(args[0], session, *args[1:], *mine, code=1) for session in ("c", "free")
        ]
        theirs, missing = ((each.stdout, each.stderr) for each in answers)
        assert theirs == tuple(each.replace("free", "c") for each in missing)
    assert "c" not in (await cli("list", "--jsonl", *mine)).stdout.replace("Chat", "").split('"')
    assert len((await cli("export", *mine)).stdout.splitlines()) == 2
    await cli("cleanup", "--days", "1", "--yes", *mine)
    assert await filled.count_sessions() == 1
    await cli("start", "d", "--agent", "x", *mine)
    assert (await filled.get_metadata("d"))["owner_id"] == "u1"
    assert "a scope needs a value" in said(
        (await cli("count", "--scope", "owner_id=null", code=2)).stderr
    )


@pytest.mark.logic
async def test_other_names_of_tables(cli, shared_database):
    tables = [
        "--sessions-table=talks",
        "--messages-table=entries",
        "--metadata-table=facts",
    ]
    await cli("set", "a", "n=1", "--create", *tables, "--create-tables")
    assert (await cli("get", "a", "n", *tables)).stdout == "1\n"
    assert (await cli("doctor", *tables)).stderr == "healthy\n"
    assert {"talks", "entries", "facts"} <= await raw.table_names(shared_database.engine())
    missing = await cli("list", code=1)
    assert "agent_sessions_metadata" in missing.stderr
    assert "--create-tables" in missing.stderr
    assert "run the SQL of `agent-sessions ddl --upgrade`" in missing.stderr


async def test_a_database_of_the_sdk_alone(cli, shared_database):
    await raw.create_sdk_tables(shared_database.engine())
    for command in ("runs", "usage"):
        await cli(command)
    found = await cli("history", "nobody", code=1)
    assert found.stderr == "session nobody has no items\n"


# ---- approvals ----


@pytest.mark.logic
async def test_approvals(cli, shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.count_sessions()
    # Nothing ever ran or was recorded: there is no table.
    for command, words in (("runs", "no runs found"), ("usage", "no usage is recorded")):
        assert words in (await cli(command)).stderr
    nobody = await cli("discard", "u1", "--yes", code=1)
    assert "session u1 does not exist" in nobody.stderr
    for command in (("runs",), ("values", "role")):
        code = 0 if command == ("runs",) else 1
        hinted = await cli(*command, "--where", '{"title": {"prefix": "t"}}', code=code)
        assert "write $prefix instead of prefix" in hinted.stderr
    runs = SessionRuns(catalog)
    for owner in ("u1", "u2"):
        await catalog.create_session(owner, metadata={"owner_id": owner})
        await runs.run(owner, Deployer().agent(deploys("c1", "c2", "c3")), "Go")
    assert "no run is failed" in (await cli("runs", "--status", "failed")).stderr
    shown = await cli("runs", "--status", "waiting", "--meta", "owner_id=u1")
    lines = shown.stdout.splitlines()
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["u1", f"c{number}", "deploy"] for number in (1, 2, 3)
    ]
    assert '{"target":"c1"}' in shown.stdout
    page = document(await cli("runs", "--limit", "1", "--json"))
    assert [run["session_id"] for run in page["runs"]] == ["u2"]
    first = await cli("runs", "--limit", "1")
    assert f"--cursor {page['next_cursor']}" in first.stderr
    page = document(await cli("runs", "--cursor", page["next_cursor"], "--json"))
    [run] = page["runs"]
    assert (run["session_id"], run["agent"], run["status"]) == ("u1", "deployer", "waiting")
    assert [call["decision"] for call in run["pending"]] == [None] * 3

    assert (
        "2 without a decision"
        in (await cli("approve", "u1", "c1", "--as", "me", "--by", "owner_id")).stderr
    )
    assert "rejected 2 calls" in (await cli("reject", "u1", "--all", "--message", "No")).stderr
    assert "every call" in (await cli("approve", "u1", "--all", code=1)).stderr
    run = document(await cli("approve", "u1", "c3", "--json"))
    decisions = [call["decision"] for call in run["pending"]]
    assert [(each["approve"], each["message"], each["by"]) for each in decisions] == [
        (True, None, "me"),
        (False, "No", None),
        (True, None, None),
    ]
    assert (await runs.get("u1")).undecided == ()
    for args, code, words in (
        (["approve", "u1"], 2, "--all"),
        (["approve", "u1", "c1", "--all"], 2, "--all"),
        (["approve", "u1", "c9"], 1, "'c9'"),
        (["reject", "nobody", "c1"], 1, "session nobody does not exist"),
        (["reject", "u2", "c1", "--scope", "owner_id=u1"], 1, "session u2 does not exist"),
        (["runs", "--cursor", "x"], 2, "cursor"),
        (["runs", "--limit", "0"], 2, "limit"),
        (["runs", "--status", "paused"], 2, "interrupted"),
        (["runs", "--follow", "nobody"], 1, "session nobody does not exist"),
        (["runs", "--follow", "u1", "--json"], 2, "--jsonl"),
        (["runs", "--follow", "u1", "--status", "failed"], 2, "filter"),
    ):
        assert words in said((await cli(*args, code=code)).stderr)
    followed = await cli("runs", "--follow", "u2")
    assert followed.stdout.splitlines() == [
        "user: Go",
        *(f'deploy: {{"target":"c{number}"}}' for number in (1, 2, 3)),
        *(f'waits for deploy c{number}: {{"target":"c{number}"}}' for number in (1, 2, 3)),
        "waiting",
    ]
    events = (await cli("runs", "--follow", "u2", "--jsonl")).stdout.splitlines()
    assert [json.loads(line)["type"] for line in events] == ["snapshot", "status"]
    stopped = await cli("stop", "u1")
    assert "stopped the run" in stopped.stderr
    assert await runs.get("u1") is None
    discarded = await cli("discard", "u2", "--yes")
    assert "discarded the run" in discarded.stderr
    assert await runs.get("u2") is None


@pytest.mark.logic
async def test_a_run_is_shown_while_its_answer_is_written(cli, shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    agent = speaking(["one two three"])
    gate = agent.model.gates["three"] = asyncio.Event()
    async with SessionRuns(catalog) as runs:
        await runs.start("chat", agent, "Count")
        await until(lambda: agent.model.spoken == ["one", "two"])
        asyncio.get_running_loop().call_later(1, gate.set)
        shown = await cli("runs", "--follow", "chat")
    assert shown.stdout.splitlines() == ["user: Count", "assistant: one two three", "finished"]


# ---- lifecycle ----


@pytest.mark.logic
async def test_an_approval_pause(cli, catalog):
    assert (await cli("start", "run", "--agent", "@planner", "--meta", "pr=42")).stdout == "run\n"
    await cli("phase", "run", "investigating")
    await cli("phase", "run", "approval", "--meta", "plan=ready")
    assert (await cli("phase", "run")).stdout == "approval\n"
    result = await cli("resume-check", "run")
    assert result.stdout == "resume run: all conditions hold (resumable)\n"
    assert "initializing > investigating > approval" in result.stderr
    decision = document(await cli("resume-check", "run", "--json"))
    assert decision["should_resume"] is True
    assert decision["metadata"]["pr"] == 42
    assert [move["phase"] for move in decision["history"]][-1] == "approval"
    again = await cli("start", "run", "--agent", "x", code=1)
    assert "is active" in again.stderr
    assert "unknown phase 'thinking'" in (await cli("phase", "run", "thinking", code=1)).stderr
    for number in range(3):
        await cli("phase", "run", "--error", f"oops {number}")
    assert "(too_many_errors)" in (await cli("resume-check", "run", code=1)).stdout
    await cli("resume-check", "run", "--max-errors", "4")
    result = await cli("resume-check", "run", "--max-errors", "4", "--phase", "planning", code=1)
    assert "(not_resumable_phase)" in result.stdout
    result = await cli("resume-check", "run", "--max-idle-minutes", "0", code=1)
    assert "(too_old)" in result.stdout
    assert document(await cli("list", "--active", "--json"))["sessions"][0]["session_id"] == "run"
    await cli("finish", "run", "completed", "--summary", "done")
    await cli("list", "--active", code=1)
    assert (await catalog.get_metadata("run"))["summary"] == "done"
    assert "is finished" in (await cli("finish", "run", "failed", code=1)).stderr
    for blank in ("", "   ", "@", " @ "):
        result = await cli("start", "new", "--agent", blank, code=2)
        assert f"--agent must be the name of an agent, got {blank!r}" in result.stderr
    assert await catalog.get_session("new") is None
    made = (await cli("start", "--agent", "planner")).stdout.strip()
    assert (await catalog.get_metadata(made))["phase"] == "initializing"


@pytest.mark.logic
async def test_resume_check_of_an_agent(cli, catalog):
    await cli("start", "run", "--agent", "planner")
    await cli("phase", "run", "planning")
    result = await cli("resume-check", "--agent", "@planner")
    assert result.stdout == "resume run: all conditions hold (resumable)\n"
    context = {"b": [1, {"a": "é"}], "a": None}
    request = {"agent": " @planner", "context": context}
    answer = document(await cli("resume-check", stdin=json.dumps(request)))
    assert (answer["session_id"], answer["should_resume"]) == ("run", True)
    assert json.dumps(answer["context"]) == json.dumps(context)
    request["agent"] = "nobody"
    answer = document(await cli("resume-check", stdin=json.dumps(request), code=1))
    found = (answer["session_id"], answer["reason"], answer["context"])
    assert found == (None, "not_found", context)
    assert "not_found" in (await cli("resume-check", "--agent", "nobody", code=1)).stdout
    assert "context" not in document(await cli("resume-check", "run", "--json"))


@pytest.mark.logic
async def test_usage(cli, catalog):
    assert "no usage is recorded" in (await cli("usage", "--create-tables")).stderr
    assert document(await cli("usage", "--owner", "u1", "--json")) == []
    prices = {"big": ModelPrice(input=Decimal(10), output=Decimal(100))}
    for name, owner, model in (("a", "u1", "big"), ("b", 7, "small"), ("c", 7, None)):
        session = await catalog.create_session(name, metadata={"owner_id": owner})
        async with SessionTracker(session, prices=prices, model=model) as hooks:
            await Runner.run(scripted("planner", "done"), "hello", hooks=hooks)
    rows = document(await cli("usage", "--json"))
    assert [(row["model"], row["requests"]) for row in rows] == [
        (None, 1),
        ("big", 1),
        ("small", 1),
    ]
    today = rows[0]["day"]
    assert rows[1] == {
        "day": today,
        "model": "big",
        "requests": 1,
        "input_tokens": 100,
        "cached_input_tokens": 0,
        "output_tokens": 10,
        "reasoning_tokens": 0,
        "total_tokens": 110,
        "cost": 0.002,
        "unpriced": [],
    }
    result = await cli("usage", "--by", "owner_id")
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["7", "2", "200", "0", "20", "0", "220", "-"],
        ["u1", "1", "100", "0", "10", "0", "110", "0.002"],
        ["total", "3", "300", "0", "30", "0", "330", "0.002", "+?"],
    ]
    sentence = "without a price, and not in the cost: small, unknown models\n"
    assert result.stderr == sentence
    options = ("--owner", "7", "--since", today, "--until", today, "--by", "session_id")
    assert [row["session_id"] for row in document(await cli("usage", *options, "--json"))] == [
        "b",
        "c",
    ]
    await cli("usage", "--owner", '"7"', code=1)
    await cli("usage", "--scope", "owner_id=u1", "--session", "b", code=1)
    result = await cli("usage", "--owner", "null", code=2)
    assert "--owner must not be null" in result.stderr
    await cli("usage", "--until", "2020-01-01", code=1)
    for wrong in (("--by", "week"), ("--by", "day", "--by", "day"), ("--since", "today")):
        await cli("usage", *wrong, code=2)


@pytest.mark.logic
async def test_requests_on_standard_input(cli, catalog):
    await cli("start", "run", "--agent", "planner")
    await cli("phase", "run", "planning")
    request = json.dumps({"session_id": "run"})
    assert document(await cli("resume-check", stdin=request))["reason"] == "resumable"
    assert document(await cli("resume-check", "--stdin", stdin=request))["idle_seconds"] < 60
    for fields, reason in (
        ({"session_id": "nope"}, "not_found"),
        ({"session_id": "run", "max_idle_minutes": 0.0}, "too_old"),
        ({"session_id": "run", "max_errors": 0}, "too_many_errors"),
        ({"session_id": "run", "max_idle_minutes": 0}, "too_old"),
        ({"session_id": "run", "phases": ["approval"]}, "not_resumable_phase"),
    ):
        result = await cli("resume-check", stdin=json.dumps(fields), code=1)
        assert document(result)["reason"] == reason
        assert document(result)["should_resume"] is False
    for request in (
        "",
        "{",
        "[]",
        "{}",
        '{"session_id": 7}',
        '{"session_id": "run", "session_id": "other"}',
        '{"session_id": "run", "max_idle": 3}',
        '{"session_id": "run", "max_idle_minutes": "3"}',
        '{"session_id": "run", "max_idle_minutes": true}',
        '{"session_id": "run", "max_idle_minutes": -1}',
        '{"session_id": "run", "max_idle_minutes": 1e300}',
        '{"session_id": "run", "max_idle_minutes": NaN}',
        '{"session_id": "run", "max_errors": 1.5}',
        '{"session_id": "run", "phases": "approval"}',
        '{"session_id": "run", "agent": "planner"}',
        '{"agent": 7}',
        '{"session_id": "run", "context": "a"}',
    ):
        result = await cli("resume-check", stdin=request, code=2)
        assert set(document(result)) == {"error"}, request
    request = '{"session_id": "run"}'
    for option, value, reason in (
        ("--max-errors", "0", "too_many_errors"),
        ("--max-idle-minutes", "0", "too_old"),
        ("--phase", "approval", "not_resumable_phase"),
    ):
        result = await cli("resume-check", "--stdin", option, value, stdin=request, code=1)
        assert document(result)["reason"] == reason
    await cli("resume-check", "run", "--stdin", stdin=request, code=2)
    await cli("resume-check", "run", "--agent", "planner", code=2)
    await cli("resume-check", "--agent", "planner", "--stdin", stdin=request, code=2)
    result = await cli(
        "resume-check", stdin='{"session_id": "run"}', url="postgresql://127.0.0.1:1/x", code=1
    )
    assert "database error" in document(result)["error"]


# ---- ageing and moving ----


@pytest.mark.logic
async def test_cleanup(cli, filled):
    assert "--hours" in (await cli("cleanup", "--yes", code=2)).stderr
    assert "not both" in (await cli("cleanup", "--days", "1", "--hours", "1", code=2)).stderr
    assert "--yes" in (await cli("cleanup", "--hours", "24", code=2)).stderr
    await cli("cleanup", "--hours", "-1", "--yes", code=2)
    await cli("cleanup", "--hours", "1e300", "--yes", code=2)
    for everything in ("{}", '{"$and": [{}]}', '{"$or": [{"owner_id": "u1"}, {}]}'):
        for more in ([], ["--dry-run"], ["--scope", "owner_id=u1"]):
            result = await cli("cleanup", "--where", everything, "--yes", *more, code=2)
            assert "--where with a condition" in said(result.stderr)
    result = await cli("cleanup", "--where", '{"a": {"$x": 1}}', "--yes", code=2)
    assert "$.a.$x" in result.stderr
    assert (await cli("cleanup", "--days", "999999", "--yes")).stdout == "0\n"
    await filled.create_session("new")
    result = await cli("cleanup", "--hours", "24", "--meta", "owner_id=u1", "--dry-run", "--json")
    assert document(result) == {"deleted": 2, "dry_run": True, "oldest": ["a", "b"]}
    result = await cli("cleanup", "--hours", "24", "--dry-run")
    assert result.stdout == "3\n"
    assert result.stderr == "would delete 3 sessions; the oldest: a, b, c\n"
    assert await filled.count_sessions() == 4
    result = await cli("cleanup", "--hours", "24", "--meta", "owner_id=u1", "--yes")
    assert (result.stdout, result.stderr) == ("2\n", "deleted 2 sessions\n")
    assert document(await cli("cleanup", "--days", "1", "--yes", "--json")) == {
        "deleted": 1,
        "dry_run": False,
    }
    assert (await cli("cleanup", "--days", "1", "--yes")).stdout == "0\n"
    assert await filled.count_sessions() == 1


@pytest.mark.logic
async def test_erase_writes_a_receipt_and_export_complete_all_data_of_a_person(
    cli, filled, tmp_path
):
    mine, receipt = filled.scoped({"owner_id": "u1"}), tmp_path / "receipt.json"
    session = mine.session("a")
    async with SessionTracker(session) as hooks:
        await Runner.run(scripted("engineer", "done"), "hello", session=session, hooks=hooks)
    runs = SessionRuns(mine)
    await runs.run("b", Deployer().agent(deploys("call-1")), "deploy")
    await runs.decide("b", "call-1", approve=True, by="ana")
    exported = await cli("export", "--owner", "u1", "--complete")
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    kinds = [kind for line in lines for kind in line]
    assert kinds == ["session", "session", "usage", "decision"]
    assert lines[2]["usage"]["session_id"] == "a"
    assert lines[3]["decision"]["by"] == "ana"
    for more in ((), ("--meta", "a=1"), ("--owner", "u1", "--meta", "a=1"), ("a", "--owner", "u1")):
        result = await cli("export", "--complete", *more, code=2)
        assert "--complete requires --owner" in said(result.stderr)
    assert "--yes" in (await cli("erase", "--owner", "u1", code=2)).stderr
    assert await mine.count_sessions() == 2
    result = await cli("erase", "--owner", "u1", "--yes", "--receipt", str(receipt), "--json")
    assert document(result) == json.loads(receipt.read_text())
    assert (document(result)["sessions"], document(result)["complete"]) == (2, True)
    assert await filled.count_sessions() == 1
    result = await cli("erase", "--owner", "u1", "--yes")
    assert "erased 0 sessions, 0 rows" in result.stderr


@pytest.mark.parametrize("form", ["--jsonl", "--json"])
async def test_export_and_import(cli, filled, tmp_path, form):
    file = tmp_path / "sessions"
    before = [info async for info in filled.iter_sessions(count_items=True)]
    exported = await cli("export", form)
    assert "exported 3 sessions" in exported.stderr
    assert (await cli("export", form, "--output", str(file))).stdout == ""
    assert file.read_text() == exported.stdout
    records = json.loads(exported.stdout) if form == "--json" else exported.stdout.splitlines()
    assert len(records) == 3
    conflict = await cli("import", str(file), code=1)
    assert "record 1" in conflict.stderr
    assert "; the records before it are imported" in conflict.stderr
    result = await cli("import", str(file), "--on-conflict", "skip", "--json")
    assert document(result) == {"read": 3, "written": 0}
    await filled.set_metadata("a", {"extra": 1})
    refused = await cli("import", str(file), "--on-conflict", "replace", code=2)
    assert "--yes" in refused.stderr
    result = await cli("import", str(file), "--on-conflict", "replace", "--yes", "--json")
    assert document(result) == {"read": 3, "written": 3}
    assert [info async for info in filled.iter_sessions(count_items=True)] == before
    await cli("delete", "a", "b", "c", "--yes")
    assert (await cli("import", stdin=exported.stdout)).stderr == "read 3 records, wrote 3\n"
    assert [info async for info in filled.iter_sessions(count_items=True)] == before


@pytest.mark.logic
async def test_an_export_of_sessions_by_id_names_the_missing_ones(cli, filled):
    def ids(result):
        return sorted(json.loads(line)["session_id"] for line in result.stdout.splitlines())

    assert ids(await cli("export", "a", "c")) == ["a", "c"]
    result = await cli("export", "a", "nope", code=1)
    assert ids(result) == ["a"]
    assert result.stderr == "exported 1 session\nsession nope does not exist\n"
    result = await cli("export", "a", "c", "--meta", "owner_id=u1", code=1)
    assert ids(result) == ["a"]
    assert ids(await cli("export", "Chat b", "--by", "title")) == ["b"]
    assert "--by requires SESSION" in (await cli("export", "--by", "title", code=2)).stderr
    assert "no session matches" in (await cli("export", "nope", code=1)).stderr


@pytest.mark.logic
async def test_line_ends_of_another_system(cli, filled, tmp_path):
    before = [info async for info in filled.iter_sessions(count_items=True)]
    for form in ("--jsonl", "--json"):
        exported = (await cli("export", form)).stdout
        text = "\ufeff\r\n" + exported.replace("\n", "\r\n\r\n")
        file = tmp_path / "sessions"
        file.write_bytes(text.encode())
        for source in ({"args": [str(file)]}, {"stdin": text.encode()}):
            await cli("cleanup", "--hours", "0", "--yes")
            result = await cli("import", *source.get("args", ()), stdin=source.get("stdin"))
            assert result.stderr == "read 3 records, wrote 3\n"
            assert [info async for info in filled.iter_sessions(count_items=True)] == before


@pytest.mark.logic
async def test_what_is_not_utf8_is_not_imported(cli, filled):
    exported = (await cli("export")).stdout.encode()
    assert b"hello" in exported
    damaged = exported.replace(b"hello", b"caf\xe9")
    result = await cli("import", "--on-conflict", "replace", "--yes", stdin=damaged, code=1)
    assert "line 1 is not valid JSON: 'utf-8' codec can't decode byte 0xe9" in said(result.stderr)
    assert (await cli("export")).stdout.encode() == exported


@pytest.mark.logic
async def test_a_broken_line_stops_an_import(cli, filled):
    exported = (await cli("export")).stdout.splitlines()
    await cli("delete", "a", "b", "c", "--yes")
    result = await cli("import", stdin="\n".join([exported[0], "", "{", exported[1]]), code=1)
    assert "line 3 is not valid JSON" in result.stderr
    assert "imported before it: 1 record" in result.stderr
    assert await filled.count_sessions() == 1
    result = await cli("import", stdin='{"format": 99}', code=1)
    assert "$.format is invalid" in result.stderr
    missing = await cli("import", "no-such-file", code=1)
    assert "no-such-file" in missing.stderr


# ---- the database ----


async def test_doctor(cli, catalog, shared_database):
    result = await cli("doctor")
    assert result.stderr == "healthy\n"
    await raw.execute(catalog.engine, "DROP TABLE agent_sessions_metadata_elements")
    result = await cli("doctor", code=1)
    assert "error    tables: table agent_sessions_metadata_elements is missing" in result.stdout
    assert "CREATE TABLE agent_sessions_metadata_elements (" in result.stdout
    assert result.stderr.splitlines()[-1] == "found 1 error"
    found = document(await cli("doctor", "--json", code=1))
    assert found["healthy"] is False
    assert found["findings"][1]["check"] == "tables"
    refused = await cli("doctor", "--scope", "a=1", code=2)
    assert "No such option '--scope'" in refused.stderr
    refused = await cli("doctor", "--create-tables", code=2)
    assert "No such option '--create-tables'" in refused.stderr


async def test_size(cli, filled):
    sizes = {each["table"]: each for each in document(await cli("size", "--json"))}
    assert sizes["agent_messages"]["rows"] == 3
    lines = (await cli("size")).stdout.splitlines()
    assert lines[0].split() == ["table", "rows", "bytes"]
    assert lines[2].split()[:2] == ["agent_sessions", "3"]


@pytest.mark.only_on("mariadb")
async def test_doctor_prints_no_warning_of_the_driver(cli, catalog, capfd):
    for statement in ("CREATE TABLE t (x INT)", "CREATE VIEW v AS SELECT x FROM t", "DROP TABLE t"):
        await raw.execute(catalog.engine, statement)
    assert (await cli("doctor")).stderr == "healthy\n"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_ddl_needs_no_database(dialect):
    result = run("ddl", "--dialect", dialect)
    assert result.exit_code == 0
    assert result.stdout == "".join(
        f"{each};\n" for each in create_statements(dialect, table_names())
    )
    dropped = run("ddl", "--dialect", dialect, "--drop").stdout.splitlines()
    assert dropped == [f"{each};" for each in drop_statements(dialect, table_names())]
    assert len(run("ddl", "--dialect", dialect, "--drop", "--all").stdout.splitlines()) == (
        len(dropped) + 2
    )
    assert run("ddl", "--dialect", dialect, "--all").exit_code == 2
    assert run("ddl", "--dialect", "oracle").exit_code == 2
    refused = run("ddl", "--dialect", dialect, "--scope", "a=1")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "No such option '--scope'" in refused.stderr
    assert "--scope" not in run("ddl", "--help").stdout


@pytest.mark.logic
async def test_an_export_that_fails_leaves_the_file_as_it_was(cli, filled, tmp_path):
    file = tmp_path / "sessions.jsonl"
    file.write_text("what was here before")
    await cli("export", "--where", '{"a": {"$z": 1}}', "--output", str(file), code=2)
    await cli("export", "--meta", "owner_id=nobody", "--output", str(file), code=1)
    assert file.read_text() == "what was here before"
    await cli("export", "--output", str(file))
    assert len(file.read_text().splitlines()) == 3
    assert [path.name for path in tmp_path.glob("sessions*")] == ["sessions.jsonl"]


@pytest.mark.logic
async def test_a_byte_that_is_not_utf8_breaks_one_record(cli, filled, tmp_path):
    file = tmp_path / "sessions.jsonl"
    await cli("export", "--output", str(file))
    first, second, third = file.read_bytes().splitlines()
    broken = second.replace(b'"session_id": "', b'"session_id": "\xff')
    file.write_bytes(b"\n".join([first, broken, third]))
    await cli("cleanup", "--hours", "0", "--yes")
    result = await cli("import", str(file), code=1)
    assert "line 2 is not valid JSON" in result.stderr
    assert await filled.count_sessions() == 1


async def test_a_record_that_the_database_refuses_is_named(cli, filled, tmp_path):
    file = tmp_path / "sessions.jsonl"
    await cli("export", "--output", str(file))
    await cli("cleanup", "--hours", "0", "--yes")
    await raw.refuse_session(filled.engine, "b")
    result = await cli("import", str(file), code=1)
    assert "database error" in said(result.stderr)
    assert "the import stopped at record 2 (index 1); the records before it are imported" in said(
        result.stderr
    )
    assert await filled.count_sessions() == 1


@pytest.mark.parametrize("value", ["{", "nul"])
async def test_a_corrupt_value_is_reported(cli, filled, value):
    await raw.execute(
        filled.engine,
        "UPDATE agent_sessions_metadata SET value = :value WHERE session_id = 'b' AND "
        + ("`key` = 'title'" if filled.engine.name in {"mysql", "mariadb"} else "key = 'title'"),
        value=value,
    )
    for form in ((), ("--json",), ("--all", "--jsonl")):
        result = await cli("list", *form, code=1)
        assert len(result.stderr.splitlines()) == 1
        assert "'title'" in result.stderr
        for name in "abc":
            assert f"Chat {name}" in result.stdout or name == "b"
    assert {
        each["session_id"] for each in document(await cli("list", "--json", code=1))["sessions"]
    } == {*"abc"}
    exported = await cli("export", code=1)
    assert [json.loads(line)["session_id"] for line in exported.stdout.splitlines()] == ["a", "c"]
    assert len([line for line in exported.stderr.splitlines() if "'title'" in line]) == 1
    assert (await cli("get", "b", "owner_id")).stdout == "u1\n"
    await cli("get", "b", "title", code=1)
    await cli("show", "b", code=1)


def test_an_option_that_the_driver_does_not_know():
    result = run("list", url="postgresql://u:secret@127.0.0.1:1/x?sslcert=a.pem")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "sslcert" in result.stderr
    assert "secret" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.logic
async def test_the_list_shows_the_status_of_the_run_and_filters_by_it(cli, catalog) -> None:
    await catalog.create_session("failed", metadata={"run": "failed", "agent": "billing"})
    await catalog.create_session("active", metadata={"run": "completed", "status": "active"})
    shown = {row.split()[0]: row for row in (await cli("list")).stdout.splitlines()}
    assert "failed" in shown["failed"].split("billing")[1]
    assert "active" in shown["active"].split(maxsplit=1)[1]
    assert "run=" not in shown["failed"]
    listed = document(await cli("list", "--status", "failed", "--json"))
    assert [each["session_id"] for each in listed["sessions"]] == ["failed"]
    assert "billing" in (await cli("last")).stdout


# ---- many sessions at once ----


@pytest.mark.logic
async def test_set_and_unset_change_every_session_that_matches(cli, filled):
    where = ("--where", '{"owner_id": "u1"}')
    result = await cli("set", *where, "archived=true", "--meta", "n=1", "--dry-run")
    assert result.stderr == "would change 2 sessions\n"
    assert await filled.count_sessions({"archived": True}) == 0
    result = await cli("set", *where, "archived=true", "--meta", "n=1")
    assert result.stderr == "changed 2 sessions\n"
    assert await filled.count_sessions({"archived": True, "n": 1, "owner_id": "u1"}) == 2
    # The change can be to what the filter asks for.
    await cli("set", "--where", '{"archived": true}', "archived=false")
    assert await filled.count_sessions({"archived": False}) == 2
    assert document(await cli("unset", *where, "n", "title", "--dry-run", "--json")) == {
        "matched": 2,
        "changed": 0,
        "dry_run": True,
    }
    assert (await cli("unset", "--where", "{}", "archived", "n")).stderr == "changed 2 sessions\n"
    assert await filled.count_sessions({"n": {"$exists": True}}) == 0
    none = await cli("set", "--where", '{"owner_id": "nobody"}', "a=1")
    assert "no session matches" in none.stderr
    for wrong in (
        *(["set", "a=1"], ["set", *where], ["set", *where, "a=1", "--create"], ["unset", *where]),
        *(["set", "a", "b=1", "--dry-run"], ["unset", "a", "title", "--dry-run"]),
    ):
        await cli(*wrong, code=2)


@pytest.mark.logic
async def test_times_of_filters_can_be_relative(cli, filled):
    await filled.create_session("new")
    for where in (
        '{"$updated_at": {"$gte": "7d"}}',
        '{"$not": {"$created_at": {"$lt": "yesterday"}}}',
        '{"$and": [{"$updated_at": {"$gte": "12h"}}]}',
    ):
        assert (await cli("count", "--where", where)).stdout == "1\n"
    assert (await cli("count", "--since", "yesterday")).stdout == "1\n"
    assert (await cli("count", "--since", "2020-01-02")).stdout == "3\n"
    # A value of metadata stays text.
    await filled.set_metadata("a", {"every": "7d"})
    assert (await cli("count", "--where", '{"every": "7d"}')).stdout == "1\n"
    await cli("count", "--since", "soon", code=2)


@pytest.mark.logic
async def test_a_cursor_of_a_relative_time_is_valid_on_the_next_page(cli, filled):
    where = ("--where", '{"$updated_at": {"$lt": "12h"}}', "--limit", "2", "--owner", "u1")
    first = document(await cli("list", *where[:-3], "2", "--json"))
    more = await cli("list", *where[:-2], "--cursor", first["next_cursor"], "--json")
    assert len(document(more)["sessions"]) == 1


@pytest.mark.logic
async def test_errors_of_filters_name_positions_that_were_typed(cli, filled):
    for command in (["list"], ["export"], ["runs"], ["search", "x"]):
        result = await cli(
            *command, "--owner", "u1", "--where", '{"a": {"$x": 1}}', "--since", "7d", code=2
        )
        assert "invalid filter at $.a.$x:" in said(result.stderr)


@pytest.mark.logic
async def test_a_misspelled_session_id_is_answered_with_a_similar_one(cli, catalog):
    await catalog.create_session("bigjson")
    for line in ("show bigjsn", "get bigjsn a", "set bigjsn a=1", "phase bigjsn", "history bigjsn"):
        result = await cli(*line.split(), code=1)
        assert "session bigjsn does not exist" in said(result.stderr)
        assert "did you mean bigjson?" in said(result.stderr)
    assert "mean" not in (await cli("show", "zzz", code=1)).stderr
    scoped = await cli("show", "bigjsn", "--scope", "owner_id=u1", code=1)
    assert "mean" not in scoped.stderr


@pytest.mark.logic
async def test_last_prints_lines(cli, catalog):
    for number, agent in enumerate(("a", "b")):
        await catalog.create_session(f"s{number}", metadata={"agent": agent})
    lines = [json.loads(line) for line in (await cli("last", "--jsonl")).stdout.splitlines()]
    assert {line["session_id"] for line in lines} == {"s0", "s1"}
    [line] = (await cli("last", "--agent", "@a", "--jsonl")).stdout.splitlines()
    assert json.loads(line)["session_id"] == "s0"
    for blank in ("", "@", " @ "):
        result = await cli("last", "--agent", blank, code=2)
        assert "--agent must be the name of an agent" in said(result.stderr)


@pytest.mark.logic
async def test_statistics(cli, catalog):
    metadata = {"status": "completed", "duration_ms": 1500, "cost": 0.25, "total_tokens": 1290}
    metadata |= {"runs": 2, "tool_calls": [["git", 3, 4500]], "owner_id": "u1"}
    await catalog.create_session("a", metadata=metadata)
    printed = (await cli("statistics", "--owner", "u1")).stdout
    for name, value in (
        *(("sessions", "1"), ("total_tokens", "1,290"), ("cost", "0.25"), ("duration", "1.500 s")),
        *(("completed", "1"), ("tool git", "3 calls, 4.500 s")),
    ):
        assert re.search(rf"^{name} +{re.escape(value)} *$", printed, re.MULTILINE), name
    found = document(await cli("statistics", "--json"))
    assert (found["sessions"], found["duration"], found["cost"]) == (1, 1.5, 0.25)
    assert found["tools"] == {"git": {"calls": 3, "duration": 4.5}}
    assert "no session matches" in (await cli("statistics", "--owner", "nobody")).stderr


@pytest.mark.logic
@pytest.mark.parametrize("form", [[], ["--jsonl"]])
async def test_watch_prints_changes_until_it_is_interrupted(catalog, shared_database, form):
    await catalog.create_session("old")
    command = [sys.executable, "-m", "agents_session_metadata.cli", "watch", "--initial", *form]
    process = await asyncio.create_subprocess_exec(
        *(*command, "--interval", "0.1", "--meta", "owner_id=u1"),
        env={**os.environ, "AGENT_SESSIONS_URL": shared_database.url},
        stdout=asyncio.subprocess.PIPE,
    )

    async def line():
        return (await asyncio.wait_for(process.stdout.readline(), 60)).decode()

    await catalog.create_session("new", metadata={"owner_id": "u1", "title": "Lisbon"})
    seen = [await line()]
    await catalog.set_metadata("new", {"title": "Porto"})
    seen.append(await line())
    await catalog.delete_session("new")
    seen.append(await line())
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 130
    kinds = ("added", "changed", "removed")
    if form:
        records = [json.loads(each) for each in seen]
        assert tuple(each["kind"] for each in records) == kinds
        assert {each["session_id"] for each in records} == {"new"}
    else:
        for kind, title in (("added", "Lisbon"), ("changed", "Porto"), ("removed", "Porto")):
            assert re.fullmatch(rf"\S+ \S+  {kind:7}  new  {title}\n", seen.pop(0))


@pytest.mark.logic
async def test_the_fields_of_usage_are_the_same_in_help_and_errors(cli, catalog):
    listed = "day, agent, model, owner_id, session_id, item_id"
    assert listed in said((await cli("usage", "--help")).stdout)
    assert listed in said((await cli("usage", "--by", "week", code=2)).stderr)
