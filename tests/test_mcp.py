"""The MCP server, as a real client sees it: in memory, or over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from agents import Agent, Runner
from agents.mcp import MCPServerStdio, MCPUtil
from agents.strict_schema import ensure_strict_json_schema
from agents.testing import ScriptedModel, assistant_message, function_call
from conformance.approving import Deployer, call
from mcp import Client, StdioServerParameters
from proxy import proxy_to
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, SessionRuns
from agents_session_metadata.mcp import (
    ANSWER_CHARACTERS,
    ERROR_CHARACTERS,
    READ_TOOLS,
    WRITE_TOOLS,
    make_server,
)
from agents_session_metadata.mcp.answers import (
    HISTORY_NOTE,
    LISTED_ITEM_CHARACTERS,
    LISTED_VALUE_CHARACTERS,
    NOTE,
    WAITING_NOTE,
)
from agents_session_metadata.mcp.server import MetadataServer
from agents_session_metadata.mcp.tools import TOOLS

sqlite_only = pytest.mark.only_on("sqlite")
"""For what is the same on every database."""

on_servers = pytest.mark.not_on("sqlite")
"""For what only a connection to a server can do."""

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
        assert len(json.dumps(content.text, ensure_ascii=False)) <= ANSWER_CHARACTERS
        answer = json.loads(content.text)
        # The client has checked it against the output schema.
        assert result.structured_content == answer
        if tool in READ_TOOLS:
            notes = {
                "get_history": HISTORY_NOTE,
                "search_sessions": HISTORY_NOTE,
                "list_runs": WAITING_NOTE,
            }
            assert answer.pop("note") == notes.get(tool, NOTE)
        return answer

    async def error(self, tool, **arguments):
        result = await self.client.call_tool(f"{self._prefix}{tool}", arguments)
        (content,) = result.content
        assert result.is_error, content.text
        assert "Traceback" not in content.text
        assert "pydantic" not in content.text
        assert len(content.text) < ERROR_CHARACTERS + 100
        return content.text


@contextlib.asynccontextmanager
async def connected_by_pipes(url, *args):
    """A process of the command line."""
    program, arguments = command(url, *args)
    async with Client(StdioServerParameters(command=program, args=arguments)) as client:
        yield Tools(client)


@contextlib.asynccontextmanager
async def connected(url, *args):
    """The server that the command line makes, in this process, which has imported everything."""
    servers = []

    async def serve(server):
        servers.append(server)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetadataServer, "run_stdio_async", serve)
        done = await asyncio.to_thread(commands.run, "mcp", "--url", url, *args)
    assert done.exit_code == 0, done.output
    (server,) = servers
    async with Client(server) as client:
        yield Tools(client)
    # The command has closed its connections; these are those of the client's requests.
    await server._view.catalog.engine.dispose()


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


@pytest.mark.logic
async def test_an_orchestra(catalog, shared_database):
    async with connected_by_pipes(shared_database.url, "--allow-write") as tools:
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
        answer = await tools("delete_metadata", session="gt-alpha-Toast", all=True)
        assert answer["deleted"] == 4
    assert await catalog.get_metadata("gt-alpha-Toast") == {}
    # It is a real database: another server sees the same.
    async with within(catalog) as tools:
        found = await tools("find_sessions", metadata={"role": "polecat"})
        assert ids(found) == ["gt-beta-Jam", "secret"]


@sqlite_only
async def test_read_only_unless_told_otherwise(catalog, shared_database):
    async with connected(shared_database.url) as tools:
        offered = (await tools.client.list_tools()).tools
        assert {tool.name for tool in offered} == set(READ_TOOLS)
        assert all(tool.annotations.read_only_hint for tool in offered)
        assert not any(tool.annotations.destructive_hint for tool in offered)
        assert "unknown tool set_metadata" in await tools.error("set_metadata", session="x")
    async with within(catalog, allow_write=True, tool_prefix="fugue_") as tools:
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
            **dict.fromkeys(WRITE_TOOLS, (False, True)),
        }
        for tool in offered.values():
            assert tool.description
            assert tool.title
            for name, field in tool.input_schema["properties"].items():
                assert field.get("description"), (tool.name, name)
        answer = await tools("get_metadata", session="secret", key="role")
        assert answer["value"] == "polecat"


@pytest.mark.logic
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
        for write, arguments in (
            ("set_metadata", {"key": "a", "value": 1}),
            ("delete_metadata", {"key": "role"}),
            ("delete_metadata", {"all": True}),
        ):
            theirs = await tools.error(write, session="secret", **arguments)
            nobodys = await tools.error(write, session="nobody", **arguments)
            assert theirs == nobodys.replace("nobody", "secret")
            assert "does not exist" in theirs
        error = await tools.error("set_metadata", session="secret", key="a", value=1, create=True)
        assert "does not exist" in error
        error = await tools.error("set_metadata", session=mine[0], key="owner_id", value="u2")
        assert "part of the scope" in error
        error = await tools.error("delete_metadata", session=mine[0], key="owner_id")
        assert "part of the scope" in error
        await tools("delete_metadata", session=mine[0], all=True)
        await tools("set_metadata", session="new", key="a", value=1, create=True)
        # A cursor from elsewhere opens nothing.
        page = await catalog.list_sessions(limit=1)
        assert "cursor" in await tools.error("list_sessions", limit=1, cursor=page.next_cursor)
    assert await catalog.get_metadata(mine[0]) == {"owner_id": "u1"}
    assert await catalog.get_metadata("new") == {"owner_id": "u1", "a": 1}
    assert await catalog.get_session("secret") == before


@pytest.mark.logic
async def test_values_are_stored_as_they_are_given(catalog):
    values = ["[1]", "null", '{"a": 1}', "1", 1, 1.5, True, None, [1, [None]], {"a": {"b": "c"}}]
    values += ["é😀\x00", "", 2**70, -0.5, json.loads("[" * 99 + "]" * 99), 10**4_000]
    await catalog.create_session("v")
    async with within(catalog, allow_write=True) as tools:
        text = '{"a": [[1], 1.0]}'
        await tools("set_metadata", session="v", key="k", value=text, value_is_json=True)
        assert await catalog.get_metadata("v") == {"k": {"a": [[1], 1.0]}}
        for value in values:
            await tools("set_metadata", session="v", key="k", value=value)
            answer = await tools("get_metadata", session="v", key="k")
            stored = (await catalog.get_metadata("v"))["k"]
            for each in (answer["value"], stored):
                assert each == value
                assert type(each) is type(value)


@sqlite_only
async def test_histories(catalog, shared_database):
    long = {"type": "function_call_output", "call_id": "c", "output": '"é\0😀' * 2_000}
    huge = {"role": "user", "content": "x" * 3_000_000}
    items = [{"role": "user", "content": f'{number} \n"'} for number in range(120)]
    await catalog.session("gt-alpha-Toast").add_items([*items, long, huge])
    everything = (await catalog.list_items("gt-alpha-Toast", limit=1000)).items
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        for newest_first in (False, True):
            found, cursor = [], None
            while True:
                answer = await tools(
                    "get_history",
                    session="gt-alpha-Toast",
                    limit=50,
                    cursor=cursor,
                    newest_first=newest_first,
                )
                found += answer["items"]
                cursor = answer["next_cursor"]
                if cursor is None:
                    break
            ordered = everything[::-1] if newest_first else everything
            assert [each["item_id"] for each in found] == [each.item_id for each in ordered]
            for each, info in zip(found, ordered, strict=True):
                text = json.dumps(info.item, ensure_ascii=False, separators=(",", ":"))
                if "item" in each:
                    assert each["item"] == info.item
                else:
                    assert text.startswith(each["json_text"])
                    assert len(each["json_text"]) > LISTED_ITEM_CHARACTERS / 4
                    assert each["characters"] == len(text)
                assert each["created_at"] == info.created_at.isoformat(timespec="seconds")
            assert ["item" in each for each in found].count(False) == 2
        assert (await tools("get_history", session="secret"))["items"] == []
        assert "cursor" in await tools.error("get_history", session="gt-alpha-Toast", cursor="x")
    async with within(catalog, session="gt-alpha-Toast") as tools:
        answer = await tools("get_history", limit=2)
        assert [each["item"] for each in answer["items"]] == items[:2]
        assert "restricted to one session" in await tools.error("get_history", session="secret")


@pytest.mark.logic
async def test_half_of_a_character_is_answered(catalog, shared_database):
    item = {"role": "user", "content": "tram \ud83d"}
    await catalog.session("gt-alpha-Toast").add_items([item, {**item, "more": ["\udc00"] * 5_000}])
    await catalog.create_index("$text")
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        answer = await tools("search_sessions", query="tram")
        assert [hit["snippet"] for hit in answer["hits"]] == ["tram \ufffd"] * 2
        answer = await tools("get_history", session="gt-alpha-Toast")
        short, long = answer["items"]
        assert short["item"] == {**item, "content": "tram \ufffd"}
        assert long["json_text"].endswith('"\ufffd","\ufffd",')


@pytest.mark.logic
async def test_a_page_of_a_history_has_1_mib_of_items_at_most(catalog, shared_database):
    for number in range(3):
        await catalog.session("gt-alpha-Toast").add_items(
            [{"role": "user", "content": f"{number}" + "x" * (1 << 20)}]
        )
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        cursor, shown = None, []
        while cursor or not shown:
            more = {"cursor": cursor} if cursor else {}
            answer = await tools("get_history", session="gt-alpha-Toast", **more)
            [item] = answer["items"]
            shown.append(item["json_text"][26])
            cursor = answer["next_cursor"]
        assert shown == ["0", "1", "2"]


@pytest.mark.logic
async def test_search_stays_in_the_scope(catalog, shared_database):
    await catalog.session("gt-alpha-Toast").add_items([{"role": "user", "content": "tram 28"}])
    await catalog.session("secret").add_items([{"role": "user", "content": "a secret tram"}])
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        error = await tools.error("search_sessions", query="tram")
        assert error == "the text index does not exist; ask the operator, do not try again"
    await catalog.create_index("$text")
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        answer = await tools("search_sessions", query="TRAM")
        assert [hit["session"] for hit in answer["hits"]] == ["gt-alpha-Toast"]
        assert answer["complete"]
        assert (await tools("search_sessions", query="secret"))["hits"] == []
        assert "not excluded" in await tools.error("search_sessions", query="-tram")


@sqlite_only
async def test_waiting_runs(catalog, shared_database):
    runs = SessionRuns(catalog)
    for name, count in (("gt-alpha-Toast", 60), ("gt-beta-Jam", 1), ("secret", 1)):
        calls = [call("deploy", f"c{n}", target="x" * 3_000) for n in range(count)]
        await runs.run(name, Deployer().agent(calls), "Go")
    await runs.decide("gt-beta-Jam", "c0", approve=False, message="No")
    async with connected(shared_database.url, "--scope", "owner_id=u1") as tools:
        answer = await tools("list_runs", limit=1)
        [run] = answer["runs"]
        assert (run["session"], run["agent"], run["status"]) == (
            "gt-beta-Jam",
            "deployer",
            "waiting",
        )
        assert (run["attempts"], run["alive_at"] >= run["started_at"]) == (0, True)
        [waiting] = run["calls"]
        assert waiting.pop("arguments").startswith('{"target":"xxx')
        assert waiting == {
            "call_id": "c0",
            "tool": "deploy",
            "agent": "deployer",
            "decision": "rejected",
            "characters": len('{"target":""}') + 3_000,
        }
        answer = await tools("list_runs", limit=1, cursor=answer["next_cursor"])
        [run] = answer["runs"]
        assert answer["next_cursor"] is None
        assert run["session"] == "gt-alpha-Toast"
        assert len(run["calls"]) > 10
        assert len(run["calls"][0]["arguments"]) <= LISTED_VALUE_CHARACTERS
        assert run["cut"] == f"{60 - len(run['calls'])} more calls are left out"
        assert (await tools("list_runs", where={"role": "witness"}))["runs"] == []
        assert "cursor" in await tools.error("list_runs", cursor="x")
    async with within(catalog, session="gt-beta-Jam") as tools:
        assert [each["session"] for each in (await tools("list_runs"))["runs"]] == ["gt-beta-Jam"]


@pytest.mark.logic
async def test_errors_say_what_to_change(catalog):
    before = await catalog.get_session("secret")
    deep = "[" * 100_000
    nested = 1
    for _ in range(200):
        nested = {"a": nested}
    async with within(catalog, allow_write=True, tool_prefix="x_") as tools:
        for tool, arguments, words in (
            ("list_sessions", {"where": {"a": {"$foo": 1}}}, "unknown operator"),
            ("list_sessions", {"where": '{"a": {"$foo": 1}}'}, "unknown operator"),
            ("list_sessions", {"where": "everything"}, "where: not valid JSON"),
            ("list_sessions", {"where": '{"a": NaN}'}, "where: not valid JSON: NaN"),
            ("list_sessions", {"where": '{"a": 1, "a": 2}'}, "duplicate key 'a'"),
            ("list_sessions", {"where": deep}, "where: not valid JSON"),
            ("list_sessions", {"where": nested}, ""),
            ("list_sessions", {"where": [1]}, "where: input should be a valid dictionary"),
            ("list_sessions", {"where": "[1]"}, "where: input should be a valid dictionary"),
            ("list_sessions", {"where": {"$" + "x" * 50_000: 1}}, "$xxx"),
            (
                "list_sessions",
                {"filter": {"role": "polecat"}},
                "unknown argument filter; expected where, limit, cursor, order_by",
            ),
            ("list_sessions", {"y" * 50_000: 1}, "unknown argument yyy"),
            ("list_sessions", dict.fromkeys("abcdefgh", 1), "5 more problems"),
            ("list_sessions", {"limit": 0}, "limit: input should be greater than or equal to 1"),
            ("list_sessions", {"limit": 1000}, "less than or equal to 100, got 1000"),
            ("list_sessions", {"limit": True}, "valid integer, got true"),
            ("list_sessions", {"limit": "2" * 50_000}, "valid integer"),
            ("list_sessions", {"limit": 20.0}, "valid integer"),
            ("list_sessions", {"cursor": "nonsense"}, "next_cursor"),
            ("list_sessions", {"order_by": "title"}, "updated_at"),
            ("find_sessions", {}, "missing argument metadata"),
            ("find_sessions", {"metadata": {}}, "x_list_sessions"),
            ("find_sessions", {"metadata": "rig"}, "metadata: not valid JSON"),
            ("find_sessions", {"metadata": {"$or": [{"a": 1}]}}, "x_list_sessions takes filters"),
            ("find_sessions", {"metadata": {"role": "x"}, "where": {}}, "where"),
            ("get_metadata", {}, "missing argument session"),
            ("get_metadata", {"session": 7}, "session: input should be a valid string, got 7"),
            ("get_metadata", {"session": "s" * 256}, "at most 255 characters"),
            ("get_metadata", {"session": "secret", "key": "k" * 256}, "at most 255 characters"),
            ("get_metadata", {"session": "secret", "key": "role", "offset": 99}, "offset"),
            ("get_metadata", {"session": "secret", "key": "role", "offset": True}, "offset"),
            ("get_metadata", {"session": "secret", "offset": 2}, "there are only 2 keys"),
            ("get_metadata", {"session": "secret", "offset": 10**30}, "there are only 2 keys"),
            ("set_metadata", {"session": "nobody", "key": "k", "value": 1}, "pass create=true"),
            ("set_metadata", {"session": "secret", "key": "$x", "value": 1}, "begin with $"),
            (
                "set_metadata",
                {"session": "secret", "key": "k", "value": "x" * 70_000},
                "max_value_bytes",
            ),
            ("set_metadata", {"session": "secret", "key": "k", "value": nested}, "nested"),
            (
                "set_metadata",
                {"session": "", "key": "k", "value": 1, "create": True},
                "between 1 and 255",
            ),
            ("set_metadata", {"session": "secret", "key": "k"}, "missing argument value"),
            (
                "set_metadata",
                {"session": "secret", "key": "k", "value": "{", "value_is_json": True},
                "value: not valid JSON",
            ),
            (
                "set_metadata",
                {"session": "secret", "key": "k", "value": 1, "value_is_json": True},
                "value must be a string",
            ),
            ("delete_metadata", {"session": "secret"}, "all=true"),
            ("delete_metadata", {"session": "secret", "key": None}, "all=true"),
            ("delete_metadata", {"session": "secret", "key": "role", "all": True}, "either key"),
            ("delete_metadata", {"session": "secret", "all": "true"}, "all: input should be"),
        ):
            error = await tools.error(tool, **arguments)
            assert words in error, (tool, arguments)
            if "$" not in words:
                assert len(error) < 400, (tool, arguments)
        for arguments in ({"where": '{"role": "witness"}'}, {"where": {"role": "witness"}}):
            assert ids(await tools("list_sessions", **arguments)) == ["gt-alpha-Witness"]
        assert len(ids(await tools("list_sessions", where=""))) == 4
        for metadata in ('{"role": "witness"}', {"role": "witness"}):
            assert ids(await tools("find_sessions", metadata=metadata)) == ["gt-alpha-Witness"]
    assert await catalog.get_session("secret") == before
    assert await catalog.get_session("nobody") is None


def schemas(node):
    """A schema and all schemas within it."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str) or "anyOf" in node:
            yield node
        for each in node.values():
            yield from schemas(each)
    elif isinstance(node, list):
        for each in node:
            yield from schemas(each)


@pytest.mark.logic
async def test_a_session_that_is_named_by_a_value(catalog):
    await catalog.set_metadata("secret", {"agent": "ai-engineer"})
    async with within(catalog, allow_write=True) as tools:
        one = await tools("get_metadata", session="alpha-Toast", by="agent_name", key="role")
        assert (one["session"], one["value"]) == ("gt-alpha-Toast", "polecat")
        await tools("set_metadata", session="@ai-engineer", by="agent", key="n", value=1)
        assert (await catalog.get_metadata("secret"))["n"] == 1
        several = await tools.error("get_metadata", session="polecat", by="role")
        assert several == "more than one session has role=polecat; pass the session's id without by"
        for value in ("nobody", "alpha-toast"):
            problem = await tools.error("get_history", session=value, by="agent_name")
            assert problem.startswith(f"no session has agent_name={value}")
    async with within(catalog.scoped({"owner_id": "u1"})) as tools:
        problem = await tools.error("get_metadata", session="ai-engineer", by="agent")
        assert problem.startswith("no session has agent=")


@pytest.mark.logic
async def test_plain_answers(catalog, shared_database):
    async with connected(shared_database.url, "--plain") as tools:

        async def text(**arguments):
            answer = await tools.client.call_tool("get_metadata", arguments)
            return json.loads(answer.content[0].text)

        assert await text(session="gt-alpha-Toast", key="role") == {"role": "polecat"}
        assert await text(session="nobody", key="role") == {"role": None}
        stored = await catalog.get_metadata("gt-alpha-Toast")
        assert stored["role"] == "polecat"
        assert await text(session="gt-alpha-Toast") == stored
        assert await text(session="nobody") == {}
        await catalog.set_metadata("gt-alpha-Toast", {"name": "Toast", "long": "x" * 30_000})
        assert "next_offset" not in (await text(session="gt-alpha-Toast"))["left_out"]
        given = {"metadata": {"name": "Toast"}}
        listed = await tools.client.call_tool("find_sessions", given)
        [entry] = json.loads(listed.content[0].text)["sessions"]
        assert (entry["id"], entry["name"]) == ("gt-alpha-Toast", "Toast")


@pytest.mark.logic
async def test_create_lets_set_metadata_create_sessions(catalog, shared_database):
    arguments = {"session": "new", "key": "role", "value": "witness"}
    async with connected(shared_database.url, "--allow-write") as tools:
        assert (await tools.client.call_tool("set_metadata", arguments)).is_error
    async with connected(shared_database.url, "--allow-write", "--create") as tools:
        assert not (await tools.client.call_tool("set_metadata", arguments)).is_error
    assert await catalog.get_metadata("new") == {"role": "witness"}


@pytest.mark.parametrize("session", [None, "chat"])
async def test_schemas_fit_strict_mode(session):
    engine = create_async_engine("sqlite+aiosqlite://")
    server = make_server(SessionCatalog(engine), allow_write=True, session=session)
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
    assert len(tools) == len(READ_TOOLS + WRITE_TOOLS)
    for tool in tools:
        given = tool.input_schema
        strict = ensure_strict_json_schema(copy.deepcopy(given))
        # Nothing but what may be left out has changed.
        strict["required"] = given.get("required", [])
        assert strict == {"required": [], **given}
        # The SDK checks more before it declares a tool strict.
        mcp_server = MCPServerStdio(params={"command": "none"})
        assert MCPUtil.to_function_tool(tool, mcp_server, True).strict_json_schema
        for name, field in given["properties"].items():
            assert "type" in field or "anyOf" in field, name
        for each in (*schemas(given), *schemas(tool.output_schema)):
            assert each.get("type") != "array" or each["items"]
        for each in schemas(given):
            assert not {"default", "title", "maxLength"} & each.keys()
    await engine.dispose()


@sqlite_only
async def test_a_server_for_one_session(catalog, shared_database):
    own = ["--session", "gt-alpha-Toast", "--allow-write"]
    async with connected(shared_database.url, *own) as tools:
        assert (await tools("get_metadata"))["metadata"]["role"] == "polecat"
        assert (await tools("get_metadata", session=None, key="rig"))["value"] == "alpha"
        assert (await tools("get_metadata", session="gt-alpha-Toast"))["exists"]
        await tools("set_metadata", key="seen", value=True)
        assert (await catalog.get_metadata("gt-alpha-Toast"))["seen"] is True
        assert (await tools("delete_metadata", key="seen"))["deleted"] == 1
        for tool, arguments in (
            ("get_metadata", {}),
            ("set_metadata", {"key": "a", "value": 1}),
            ("delete_metadata", {"all": True}),
        ):
            theirs = await tools.error(tool, session="secret", **arguments)
            assert "restricted to one session" in theirs
            assert theirs == await tools.error(tool, session="nobody", **arguments)
        for where in (None, {}, {"owner_id": "u2"}, {"$or": [{"role": "x"}, {"rig": "alpha"}]}):
            found = ids(await tools("list_sessions", where=where))
            assert found == ([] if where == {"owner_id": "u2"} else ["gt-alpha-Toast"])
        assert ids(await tools("find_sessions", metadata={"role": "polecat"})) == ["gt-alpha-Toast"]
    async with within(catalog.scoped({"owner_id": "u1"}), session="secret") as tools:
        assert (await tools("get_metadata"))["exists"] is False
        assert ids(await tools("list_sessions")) == []
    async with within(catalog, session="new", allow_write=True) as tools:
        assert "create=true" in await tools.error("set_metadata", key="a", value=1)
        await tools("set_metadata", key="a", value=1, create=True)
    for session, error in ((7, TypeError), ("", ValueError), ("s" * 256, ValueError)):
        with pytest.raises(error, match="session"):
            make_server(catalog, session=session)
    with pytest.raises(ValueError, match="tool_prefix"):
        make_server(catalog, tool_prefix="a b")


@sqlite_only
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
            assert answer.get("cut") is None or "continue with cursor" in answer["cut"]
        assert seen == [f"s{number:02}" for number in range(30)]
        assert pages == 2
        page = await tools("list_sessions", where={"group": "long"}, limit=2)
        assert len(page["sessions"]) == 2
        assert "cut" not in page


@sqlite_only
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
            offset = len(session["metadata"])
            assert session["next_offset"] == offset
            assert f"continue with get_metadata(session, offset={offset})" in session["cut"]
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


@sqlite_only
async def test_every_name_can_be_reached(catalog):
    metadata = {f"{number:03}{chr(1) * 252}": "\x01" * 6_000 for number in range(50)}
    metadata |= {f"{number:03}{'é' * 252}": number for number in range(50, 100)}
    await catalog.set_metadata("many", metadata)
    async with within(catalog) as tools:
        for session in ("many", "nobody's"):
            answer = await tools("get_metadata", session=session, key="missing", offset=9)
            assert (answer["stored"], answer["value"]) == (False, None)
        found, left_out = await walk(tools, "many")
        assert found == {key: value for key, value in metadata.items() if value in range(100)}
        assert left_out == {
            key: 36_002 for key, value in metadata.items() if value not in range(100)
        }
        (listed,) = (await tools("list_sessions", where={"$session_id": "many"}))["sessions"]
        assert "more keys are left out" in listed["cut"]


@sqlite_only
async def test_the_cap_counts_what_is_sent(catalog, shared_database, tmp_path):
    texts = ['"', "\n", "\x01", "é", '\x01"é\\']
    for text in texts:
        given = {
            "short": text * (900 // len(text)),
            "long": text * (10_000 // len(text)),
            "nested": {text * 200: [[[text * (9_000 // len(text))]]]},
        }
        given |= {f"{name}{text}": given["short"] for name in "abc"}
        for name in long_names(text):
            await catalog.set_metadata(name, given)
    wire = tmp_path / "wire"
    program, arguments = command(shared_database.url)
    tee = ["-c", '"$@" | tee "$0"', str(wire), program, *arguments]
    async with Client(StdioServerParameters(command="/bin/sh", args=tee)) as client:
        tools = Tools(client)
        for text in texts:
            session = long_names(text)[0]
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
        assert {name for text in texts for name in long_names(text)} < set(listed)
        assert len(listed) == len(set(listed)) == 4 + 3 * len(texts)
    lines = wire.read_text(encoding="utf-8").split("\n")
    answers = [line for line in lines if '"content"' in line]
    assert len(answers) >= 3 * len(texts)
    # Text, the same as structured content, and the envelope around them.
    assert max(map(len, answers)) <= 2 * ANSWER_CHARACTERS + 500


def long_names(text):
    """Three ids that are as long as ids may be, or nearly."""
    name = text * (255 // len(text))
    return name, name[1:], name[2:]


@sqlite_only
async def test_a_long_value_comes_in_parts(catalog):
    value = {"text": "é" * 30_000}
    await catalog.set_metadata("long", {"k": value, "small": 1})
    async with within(catalog) as tools:
        answer = await tools("get_metadata", session="long")
        assert answer["metadata"] == {"small": 1}
        assert answer["left_out"] == {"k": 30_011}
        assert "get_metadata(session, key)" in answer["cut"]
        assert await read(tools, "long", "k") == value


@pytest.mark.logic
@pytest.mark.parametrize("order_by", ["session_id", "-updated_at"])
async def test_a_cut_page_skips_no_session(catalog, order_by):
    for number in range(20):
        metadata = {f"{key}": "x" * 900 for key in range(4)}
        await catalog.create_session(f"s{number:02}", metadata={"group": "cut", **metadata})
    fetch = catalog.list_sessions

    async def list_sessions(*args, **kwargs):
        """The second session of every page is deleted as soon as the page has been read."""
        page = await fetch(*args, **kwargs)
        for info in page.sessions[1:2]:
            deleted.add(info.session_id)
            await catalog.delete_session(info.session_id)
        return page

    deleted, seen, cursor = set(), [], None
    catalog.list_sessions = list_sessions
    async with within(catalog) as tools:
        while True:
            arguments = {"where": {"group": "cut"}, "order_by": order_by, "limit": 12}
            answer = await tools("list_sessions", **arguments, cursor=cursor)
            seen += [session["session"] for session in answer["sessions"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
    assert len(deleted) > 2
    assert len(seen) == len(set(seen))
    assert {f"s{number:02}" for number in range(20)} - deleted <= set(seen)


async def test_database_errors_say_what_kind(shared_database, tmp_path, caplog):
    # Nobody listens on the first port.
    engine = create_async_engine("postgresql+asyncpg://somebody@127.0.0.1:1/x")
    async with within(SessionCatalog(engine)) as tools:
        error = await tools.error("list_sessions")
        assert "cannot be reached" in error
        assert "127.0.0.1" not in error
        assert "somebody" not in error
        assert "127.0.0.1" in caplog.text
    await engine.dispose()
    caplog.clear()
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"a": "private"})
    async with engine.begin() as connection:
        await connection.exec_driver_sql(
            "ALTER TABLE agent_sessions_metadata RENAME COLUMN search_key TO something_else"
        )
    async with within(catalog) as tools:
        error = await tools.error("find_sessions", metadata={"a": "private"})
        assert error.startswith("database error (")
        assert "something_else" not in error
    (record,) = caplog.records
    assert record.name.startswith("agents_session_metadata.mcp")
    assert "search_key" in record.getMessage()
    assert "private" not in record.getMessage()


async def test_a_corrupt_value_does_not_block_a_listing(catalog, shared_database):
    await catalog.set_metadata("gt-alpha-Toast", {"bad": "x"})
    async with shared_database.engine().begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE agent_sessions_metadata SET value = '{' WHERE value = '\"x\"'"
        )
    async with within(catalog) as tools:
        for answer in (
            await tools("list_sessions", order_by="session_id"),
            await tools("find_sessions", metadata={"owner_id": "u1"}),
        ):
            corrupt = {each["session"]: each.get("corrupt") for each in answer["sessions"]}
            assert corrupt.pop("gt-alpha-Toast") == ["bad"]
            assert len(corrupt) >= 2
            assert set(corrupt.values()) == {None}
        answer = await tools("get_metadata", session="gt-alpha-Toast")
        assert answer["corrupt"] == ["bad"]
        assert answer["metadata"]["role"] == "polecat"
        answer = await tools("get_metadata", session="gt-alpha-Toast", key="bad")
        assert (answer["corrupt"], answer["stored"]) == (["bad"], True)
        assert "value" not in answer


@on_servers
async def test_the_first_call_after_a_dropped_connection(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1})
    async with proxy_to(make_url(shared_database.url)) as proxy:
        url = proxy.url.render_as_string(hide_password=False)
        async with connected(url, "--allow-write") as tools:
            for number in range(3):
                await tools("set_metadata", session="chat", key="a", value=number)
                proxy.cut()
                assert (await tools("get_metadata", session="chat", key="a"))["value"] == number
                proxy.cut()


def test_another_mcp_package_is_one_sentence(tmp_path):
    # As in mcp 1.x, there are modules of that name without what the server imports.
    (tmp_path / "mcp" / "server").mkdir(parents=True)
    (tmp_path / "mcp" / "__init__.py").touch()
    (tmp_path / "mcp" / "server" / "__init__.py").write_text("class Server: ...\n")
    (tmp_path / "chat.db").touch()
    program, arguments = command(f"sqlite:///{tmp_path / 'chat.db'}")
    result = subprocess.run(
        [program, *arguments],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
    )
    assert result.returncode == 1
    assert "requires mcp 2.x" in result.stderr
    assert "Traceback" not in result.stderr


async def test_many_requests_at_once_on_a_database_in_memory():
    async with connected_by_pipes("sqlite://", "--create-tables", "--allow-write") as tools:
        values = {f"key {number}": number for number in range(40)}
        requests = [
            tools("set_metadata", session="chat", key=key, value=value, create=True)
            for key, value in values.items()
        ]
        await asyncio.gather(*requests)
        assert (await tools("get_metadata", session="chat"))["metadata"] == values


@sqlite_only
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
    assert b"does not exist" in error or b"--create-tables" in error
    assert b"Traceback" not in error


@sqlite_only
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
    for tool in TOOLS:
        parameters = list(inspect.signature(tool.function).parameters.values())[1:]
        assert documented[tool.name] == [
            f"{each.name}{'' if each.default is each.empty else '?'}" for each in parameters
        ]
