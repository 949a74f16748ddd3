"""The MCP server, as a real client sees it over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from agents import Agent, Runner
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from mcp import Client, StdioServerParameters
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog
from agents_session_metadata.mcp_server import (
    ANSWER_CHARACTERS,
    ERROR_CHARACTERS,
    READ_TOOLS,
    WRITE_TOOLS,
    _Tools,
    make_server,
)

DOCS = Path(__file__).parent.parent / "docs" / "mcp.md"


def command(url, *args):
    return sys.executable, ["-m", "agents_session_metadata.cli", "mcp", "--url", url, *args]


class Tools:
    """A client: its answers are read as JSON."""

    def __init__(self, client, prefix=""):
        self.client = client
        self._prefix = prefix

    async def __call__(self, tool, **arguments):
        result = await self.client.call_tool(f"{self._prefix}{tool}", arguments)
        (content,) = result.content
        assert not result.is_error, content.text
        assert result.structured_content is None
        assert len(json.dumps(content.text, ensure_ascii=False)) <= ANSWER_CHARACTERS
        return json.loads(content.text)

    async def error(self, tool, **arguments):
        result = await self.client.call_tool(f"{self._prefix}{tool}", arguments)
        (content,) = result.content
        assert result.is_error, content.text
        assert "Traceback" not in content.text
        assert len(content.text) < ERROR_CHARACTERS + 100
        return content.text


@contextlib.asynccontextmanager
async def connected(url, *args):
    program, arguments = command(url, *args)
    async with Client(StdioServerParameters(command=program, args=arguments)) as client:
        yield Tools(client)


@contextlib.asynccontextmanager
async def within(catalog, **settings):
    """The same server without a process between, for many small questions."""
    async with Client(make_server(catalog, **settings)) as client:
        yield Tools(client, settings.get("tool_prefix", ""))


@pytest.fixture
async def catalog(shared_database):
    """Three sessions of an orchestra, and one of somebody else."""
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    for name, role, rig in (
        ("gt-alpha-Toast", "polecat", "alpha"),
        ("gt-alpha-Witness", "witness", "alpha"),
        ("gt-beta-Jam", "polecat", "beta"),
    ):
        metadata = {"role": role, "rig": rig, "agent_name": name[3:], "owner_id": "u1"}
        await catalog.create_session(name, metadata=metadata)
    await catalog.create_session("secret", metadata={"role": "polecat", "owner_id": "u2"})
    return catalog


def ids(answer):
    return sorted(session["session"] for session in answer["sessions"])


async def test_an_orchestra(catalog, shared_database):
    async with connected(shared_database.url, "--allow-write") as tools:
        assert await tools("set_metadata", session="gt-alpha-Toast", key="n", value=1) == {
            "session": "gt-alpha-Toast",
            "key": "n",
            "stored": True,
        }
        answer = await tools("get_metadata", session="gt-alpha-Toast")
        assert answer["exists"] is True
        assert answer["metadata"] == await catalog.get_metadata("gt-alpha-Toast")
        one = await tools("get_metadata", session="gt-alpha-Toast", key="role")
        assert (one["value"], one["stored"]) == ("polecat", True)
        missing = await tools("get_metadata", session="gt-alpha-Toast", key="nope")
        assert (missing["value"], missing["stored"]) == (None, False)
        nobody = await tools("get_metadata", session="nobody")
        assert nobody == {"session": "nobody", "exists": False, "metadata": {}}
        assert len((await tools("list_sessions"))["sessions"]) == 4
        found = await tools("find_sessions", metadata={"role": "polecat", "rig": "alpha"})
        assert ids(found) == ["gt-alpha-Toast"]
        assert found["sessions"][0]["metadata"]["agent_name"] == "alpha-Toast"
        answer = await tools("delete_metadata", session="gt-alpha-Toast", key="n")
        assert answer["deleted"] == 1
        answer = await tools("delete_metadata", session="gt-alpha-Toast")
        assert answer["deleted"] == 4
    assert await catalog.get_metadata("gt-alpha-Toast") == {}
    # It is a real database: another server sees the same.
    async with connected(shared_database.url) as tools:
        found = await tools("find_sessions", metadata={"role": "polecat"})
        assert ids(found) == ["gt-beta-Jam", "secret"]


async def test_read_only_unless_told_otherwise(catalog, shared_database):
    async with connected(shared_database.url) as tools:
        offered = (await tools.client.list_tools()).tools
        assert {tool.name for tool in offered} == set(READ_TOOLS)
        assert all(tool.annotations.read_only_hint for tool in offered)
        assert not any(tool.annotations.destructive_hint for tool in offered)
        with contextlib.suppress(Exception):
            assert (await tools.client.call_tool("set_metadata", {"session": "x"})).is_error
    async with connected(shared_database.url, "--allow-write", "--tool-prefix", "fugue_") as tools:
        offered = {tool.name: tool for tool in (await tools.client.list_tools()).tools}
        assert set(offered) == {f"fugue_{name}" for name in (*READ_TOOLS, *WRITE_TOOLS)}
        hints = {
            name.removeprefix("fugue_"): (
                tool.annotations.read_only_hint,
                tool.annotations.destructive_hint,
            )
            for name, tool in offered.items()
        }
        assert hints == {
            **dict.fromkeys(READ_TOOLS, (True, False)),
            "set_metadata": (False, False),
            "delete_metadata": (False, True),
        }
        for tool in offered.values():
            assert tool.description
            for name, field in tool.input_schema["properties"].items():
                assert field.get("description") or name == "key", (tool.name, name)
            assert tool.input_schema["additionalProperties"] is False
        answer = await tools("fugue_get_metadata", session="secret", key="role")
        assert answer["value"] == "polecat"


async def test_a_scoped_server_cannot_be_left(catalog, shared_database):
    before = await catalog.get_session("secret")
    async with connected(shared_database.url, "--allow-write", "--scope", "owner_id=u1") as tools:
        mine = ["gt-alpha-Toast", "gt-alpha-Witness", "gt-beta-Jam"]
        for where in (
            None,
            {},
            {"owner_id": "u2"},
            {"$or": [{"owner_id": "u2"}, {"owner_id": "u1"}]},
            {"$not": {"owner_id": "u1"}},
            {"owner_id": {"$ne": "u1"}},
            {"owner_id": {"$exists": True}},
            {"$session_id": "secret"},
            {"$session_id": {"$prefix": ""}},
        ):
            assert set(ids(await tools("list_sessions", where=where))) <= set(mine), where
        assert ids(await tools("find_sessions", metadata={"owner_id": "u2"})) == []
        assert ids(await tools("find_sessions", metadata={"role": "polecat"})) == mine[::2]
        assert (await tools("get_metadata", session="secret"))["exists"] is False
        assert (await tools("get_metadata", session="secret", key="role"))["stored"] is False
        for write in ("delete_metadata", "set_metadata"):
            arguments = {"key": "a", "value": 1} if write == "set_metadata" else {}
            error = await tools.error(write, session="secret", **arguments)
            assert "does not exist here" in error
        error = await tools.error("set_metadata", session=mine[0], key="owner_id", value="u2")
        assert "fixed by the scope" in error
        error = await tools.error("delete_metadata", session=mine[0], key="owner_id")
        assert "fixed by the scope" in error
        await tools("delete_metadata", session=mine[0])
        await tools("set_metadata", session="new", key="a", value=1)
        # A cursor from elsewhere opens nothing.
        page = await catalog.list_sessions(limit=1)
        assert "cursor" in await tools.error("list_sessions", limit=1, cursor=page.next_cursor)
    assert await catalog.get_metadata(mine[0]) == {"owner_id": "u1"}
    assert await catalog.get_metadata("new") == {"owner_id": "u1", "a": 1}
    assert await catalog.get_session("secret") == before


async def test_values_are_stored_as_they_are_given(catalog):
    values = ["[1]", "null", '{"a": 1}', "1", 1, 1.5, True, None, [1, [None]], {"a": {"b": "c"}}]
    values += ["é😀\x00", "", 2**70, -0.5]
    async with within(catalog, allow_write=True) as tools:
        for value in values:
            await tools("set_metadata", session="v", key="k", value=value)
            answer = await tools("get_metadata", session="v", key="k")
            stored = (await catalog.get_metadata("v"))["k"]
            for each in (answer["value"], stored):
                assert each == value
                assert type(each) is type(value)


async def test_errors_say_what_to_change(catalog):
    async with within(catalog, allow_write=True, tool_prefix="x_") as tools:
        for tool, arguments, words in (
            ("list_sessions", {"where": {"a": {"$foo": 1}}}, "unknown operator"),
            ("list_sessions", {"where": "everything"}, "where"),
            ("list_sessions", {"where": "{}"}, "valid dictionary"),
            ("list_sessions", {"where": {"$" + "x" * 50_000: 1}}, "$xxx"),
            ("list_sessions", {"filter": {"role": "polecat"}}, "filter"),
            ("list_sessions", {"limit": 0}, "limit"),
            ("list_sessions", {"limit": 1000}, "less than or equal to 100"),
            ("list_sessions", {"limit": True}, "valid integer"),
            ("list_sessions", {"limit": "20"}, "valid integer"),
            ("list_sessions", {"limit": 20.0}, "valid integer"),
            ("list_sessions", {"cursor": "nonsense"}, "next_cursor"),
            ("list_sessions", {"order_by": "title"}, "updated_at"),
            ("find_sessions", {}, "metadata"),
            ("find_sessions", {"metadata": {}}, "x_list_sessions"),
            ("find_sessions", {"metadata": '{"rig": "beta"}'}, "valid dictionary"),
            ("find_sessions", {"metadata": {"$or": [{"a": 1}]}}, "x_list_sessions takes filters"),
            ("find_sessions", {"metadata": {"role": "x"}, "where": {}}, "where"),
            ("get_metadata", {}, "session"),
            ("get_metadata", {"session": 7}, "session"),
            ("get_metadata", {"session": "s" * 256}, "at most 255 characters"),
            ("get_metadata", {"session": "secret", "key": "k" * 256}, "at most 255 characters"),
            ("get_metadata", {"session": "secret", "key": "role", "offset": 99}, "offset"),
            ("get_metadata", {"session": "secret", "key": "role", "offset": True}, "offset"),
            ("get_metadata", {"session": "secret", "offset": 2}, "there are only 2 keys"),
            ("get_metadata", {"session": "secret", "offset": 10**30}, "there are only 2 keys"),
            ("set_metadata", {"session": "a", "key": "$x", "value": 1}, "must not begin with $"),
            (
                "set_metadata",
                {"session": "a", "key": "k", "value": "x" * 70_000},
                "max_value_bytes",
            ),
            ("set_metadata", {"session": "", "key": "k", "value": 1}, "1 to 255"),
            ("set_metadata", {"session": "a", "key": "k"}, "value"),
        ):
            assert words in await tools.error(tool, **arguments), (tool, arguments)


async def test_long_lists_come_in_parts(catalog):
    for number in range(30):
        await catalog.create_session(
            f"s{number:02}", metadata={"big": "x" * 900, "huge": "y" * 5_000, "group": "long"}
        )
    async with within(catalog) as tools:
        arguments = {"where": {"group": "long"}, "limit": 25, "order_by": "session_id"}
        seen, cursor, pages = [], None, 0
        while True:
            answer = await tools("list_sessions", **arguments, cursor=cursor)
            seen += ids(answer)
            pages += 1
            for session in answer["sessions"]:
                assert session["metadata"] == {"big": "x" * 900, "group": "long"}
                assert session["left_out"] == {"huge": 5_002}
                assert "get_metadata" in session["cut"]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
            assert answer.get("cut") is None or "go on with cursor" in answer["cut"]
        assert seen == [f"s{number:02}" for number in range(30)]
        assert pages == 2
        page = await tools("list_sessions", where={"group": "long"}, limit=2)
        assert len(page["sessions"]) == 2
        assert "cut" not in page


async def test_sessions_of_a_hundred_keys(catalog):
    for name in ("many-1", "many-2"):
        metadata = {f"{'k' * 200}{number}": "x" * 900 for number in range(100)}
        await catalog.create_session(name, metadata=metadata)
    async with within(catalog) as tools:
        where = {"$session_id": {"$prefix": "many"}}
        first = await tools("list_sessions", where=where)
        second = await tools("list_sessions", where=where, cursor=first["next_cursor"])
        assert sorted(ids(first) + ids(second)) == ["many-1", "many-2"]
        for session in first["sessions"] + second["sessions"]:
            assert 5 < len(session["metadata"]) < 100
            assert "get_metadata(session) names them" in session["cut"]
        found, _ = await walk(tools, "many-1")
        assert found == metadata


async def walk(tools, session):
    """All metadata of a session, read page by page, and the keys of values that are left out."""
    metadata, left_out, offset = {}, {}, 0
    while offset is not None:
        answer = await tools("get_metadata", session=session, offset=offset)
        assert not answer["metadata"].keys() & metadata.keys()
        metadata |= answer["metadata"]
        left_out |= answer.get("left_out", {})
        assert answer.get("next_offset") in {None, len(metadata) + len(left_out)}
        offset = answer.get("next_offset")
    return metadata, left_out


async def read(tools, session, key):
    """A value that comes in parts."""
    text, offset = "", 0
    while offset is not None:
        answer = await tools("get_metadata", session=session, key=key, offset=offset)
        text += answer["json_text"]
        assert answer["characters"] >= len(text)
        offset = answer.get("next_offset")
    return json.loads(text)


async def test_every_name_can_be_reached(catalog):
    metadata = {f"{number:03}{chr(1) * 252}": "\x01" * 6_000 for number in range(50)}
    metadata |= {f"{number:03}{'é' * 252}": number for number in range(50, 100)}
    await catalog.set_metadata("many", metadata)
    async with within(catalog) as tools:
        found, left_out = await walk(tools, "many")
        assert found == {key: value for key, value in metadata.items() if value in range(100)}
        assert left_out == {
            key: 36_002 for key, value in metadata.items() if value not in range(100)
        }
        (listed,) = (await tools("list_sessions", where={"$session_id": "many"}))["sessions"]
        assert "more keys are left out" in listed["cut"]


@pytest.mark.parametrize("text", ['"', "\n", "\x01", "é", '\x01"é\\'])
async def test_the_cap_counts_what_is_sent(catalog, shared_database, tmp_path, text):
    session = text * (255 // len(text))
    texts = {
        "short": text * (900 // len(text)),
        "long": text * (10_000 // len(text)),
        "nested": {text * 200: [[[text * (9_000 // len(text))]]]},
    }
    for name in (session, session[1:], session[2:]):
        await catalog.set_metadata(name, {**texts, **{f"{n}{text}": texts["short"] for n in "abc"}})
    wire = tmp_path / "wire"
    program, arguments = command(shared_database.url)
    tee = ["-c", '"$@" | tee "$0"', str(wire), program, *arguments]
    async with Client(StdioServerParameters(command="/bin/sh", args=tee)) as client:
        tools = Tools(client)
        found, left_out = await walk(tools, session)
        for key in left_out:
            found[key] = await read(tools, session, key)
        assert found == await catalog.get_metadata(session)
        listed, cursor = [], None
        while True:
            answer = await tools("list_sessions", order_by="session_id", cursor=cursor)
            listed += ids(answer)
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        assert {session, session[1:], session[2:]} < set(listed)
        assert len(listed) == len(set(listed)) == 7
    lines = wire.read_text(encoding="utf-8").split("\n")
    answers = [line for line in lines if '"content"' in line]
    assert len(answers) >= 3
    assert max(map(len, answers)) <= ANSWER_CHARACTERS + 500  # the envelope around it


async def test_a_long_value_comes_in_parts(catalog):
    value = {"text": "é" * 30_000}
    await catalog.set_metadata("long", {"k": value, "small": 1})
    async with within(catalog) as tools:
        answer = await tools("get_metadata", session="long")
        assert answer["metadata"] == {"small": 1}
        assert answer["left_out"] == {"k": 30_011}
        assert "get_metadata(session, key)" in answer["cut"]
        assert await read(tools, "long", "k") == value


async def test_a_database_that_does_not_answer():
    # Nobody listens on the first port.
    engine = create_async_engine("postgresql+asyncpg://somebody@127.0.0.1:1/x")
    async with within(SessionCatalog(engine)) as tools:
        error = await tools.error("list_sessions")
        assert "does not answer" in error
        assert "127.0.0.1" not in error
        assert "somebody" not in error
    await engine.dispose()


async def test_many_requests_at_once_on_a_database_in_memory():
    async with connected("sqlite://", "--create-tables", "--allow-write") as tools:
        values = {f"key {number}": number for number in range(40)}
        requests = [
            tools("set_metadata", session="chat", key=key, value=value)
            for key, value in values.items()
        ]
        await asyncio.gather(*requests)
        assert (await tools("get_metadata", session="chat"))["metadata"] == values


async def test_a_server_that_cannot_answer_does_not_start(shared_database):
    program, arguments = command(shared_database.url)
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    assert b"there is no file" in error or b"--create-tables" in error
    assert b"Traceback" not in error


async def test_an_agent_of_the_sdk(catalog, shared_database):
    program, arguments = command(
        shared_database.url, "--allow-write", "--scope", "owner_id=u1", "--tool-prefix", "fugue_"
    )
    async with MCPServerStdio(
        params={"command": program, "args": arguments}, client_session_timeout_seconds=60
    ) as server:
        model = ScriptedModel(
            [
                [
                    function_call(
                        "fugue_find_sessions",
                        {"metadata": {"role": "polecat", "rig": "alpha"}},
                        call_id="1",
                    )
                ],
                [
                    function_call(
                        "fugue_set_metadata",
                        {"session": "gt-alpha-Toast", "key": "tags", "value": ["seen"]},
                        call_id="2",
                    )
                ],
                [function_call("fugue_get_metadata", {"session": "secret"}, call_id="3")],
                [function_call("fugue_list_sessions", {"where": {"a": {"$x": 1}}}, call_id="4")],
                [assistant_message("done")],
            ]
        )
        agent = Agent("mayor", model=model, mcp_servers=[server])
        result = await Runner.run(agent, "who works on alpha?")
    assert result.final_output == "done"
    outputs = [
        str(item.output) for item in result.new_items if item.type == "tool_call_output_item"
    ]
    assert "gt-alpha-Toast" in outputs[0]
    assert "gt-beta-Jam" not in outputs[0]
    assert "exists" in outputs[2]
    assert "polecat" not in outputs[2]
    assert "unknown operator" in outputs[3]
    assert (await catalog.get_metadata("gt-alpha-Toast"))["tags"] == ["seen"]


def test_every_tool_and_argument_is_documented():
    rows = re.findall(r"^\| `(\w+)\(([^)]*)\)`", DOCS.read_text(), re.MULTILINE)
    documented = {name: arguments.split(", ") for name, arguments in rows}
    assert set(documented) == {*READ_TOOLS, *WRITE_TOOLS}
    for name, arguments in documented.items():
        parameters = list(inspect.signature(getattr(_Tools, name)).parameters.values())[1:]
        assert arguments == [
            f"{each.name}{'' if each.default is each.empty else '?'}" for each in parameters
        ]
