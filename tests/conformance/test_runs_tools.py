"""Custom tools, MCP tools and compaction in runs that fail and go on."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, function_tool
from agents.exceptions import UserError
from agents.mcp import MCPServer
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel
from agents.tool import CustomTool, ToolOutputFileContent, ToolOutputImage, ToolOutputText
from mcp.types import CallToolResult, TextContent, Tool
from openai.types.responses import ResponseCustomToolCall

from agents_session_metadata import SessionRuns
from agents_session_metadata.runs.record import dump_output, load_output
from conformance import raw
from conformance.test_runs import Shop, history


class Server(MCPServer):
    """A server with one tool, `remote`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    name = "server"

    async def connect(self) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        place = {"type": "object", "properties": {"place": {"type": "string"}}}
        return [Tool(name="remote", description="Calls.", inputSchema=place)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.calls.append(arguments["place"])
        return CallToolResult(content=[TextContent(type="text", text="far away")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.logic
async def test_an_mcp_tool_is_not_called_again(catalog) -> None:
    shop, server, runs = Shop(), Server(), SessionRuns(catalog)
    agent = shop.agent(["remote c1"], ["fetch c2"], mcp_servers=[server])
    with pytest.raises(UserError):
        await runs.run("chat", agent, "Hi")
    shop.fails = False
    run = await runs.resume("chat", shop.agent("Done", mcp_servers=[server]))
    assert (run.final_output, server.calls) == ("Done", ["c1"])
    items = await catalog.session("chat").get_items()
    assert "far away" in str(items[2]["output"])
    assert len(items) == 6


@pytest.mark.logic
async def test_a_custom_tool_is_not_called_again(catalog) -> None:
    shop, runs = Shop(), SessionRuns(catalog)
    called: list[str] = []

    async def invoke(context: Any, given: str) -> str:
        called.append(given)
        return "a patch"

    def agent(*steps: Any) -> Agent[Any]:
        tool = CustomTool(name="edit", description="Edits.", on_invoke_tool=invoke)
        found = shop.agent(*steps, tools=[tool])
        if not called:
            call = ResponseCustomToolCall(
                call_id="e1", input="text", name="edit", type="custom_tool_call"
            )
            failing = shop.agent(["fetch c2"]).model
            found.model = ScriptedModel([[call], *failing._steps])
        return found

    with pytest.raises(UserError):
        await runs.run("chat", agent(), "Hi")
    shop.fails = False
    run = await runs.resume("chat", agent("Done"))
    assert (run.final_output, called) == ("Done", ["text"])
    found = await history(runs)
    assert found[:3] == ["user", "custom_tool_call e1", "custom_tool_call_output e1"]
    assert len(found) == 6


@pytest.mark.logic
@pytest.mark.parametrize(
    "output",
    [
        ToolOutputText(text="the sea"),
        ToolOutputImage(image_url="data:image/png;base64,AA==", detail="low"),
        [ToolOutputText(text="the sea"), ToolOutputFileContent(file_id="file-1")],
    ],
)
async def test_parts_of_an_output_are_given_back(catalog, output) -> None:
    shop, runs, called = Shop(), SessionRuns(catalog), list[str]()

    @function_tool
    def show(place: str) -> Any:
        called.append(place)
        return output

    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["show c1"], ["fetch c2"], tools=[show]), "Hi")
    before = await catalog.session("chat").get_items()
    shop.fails = False
    run = await runs.resume("chat", shop.agent("Done", tools=[show]))
    assert (run.final_output, called) == ("Done", ["c1"])
    items = await catalog.session("chat").get_items()
    assert items[: len(before)] == before
    assert items[2]["type"] == "function_call_output"
    assert load_output(dump_output(output)) == output


class Compacting(OpenAIResponsesCompactionSession):
    """Replaces the history by a summary, as the SDK does after a call of OpenAI's endpoint."""

    async def run_compaction(self, args: Any = None) -> None:
        if len(await self.underlying_session.get_items()) >= 4:
            summary: Any = raw.message("summary")
            assert await self.underlying_session._atomic_replace_items([summary])


@pytest.mark.logic
async def test_compaction_inside_a_run(catalog) -> None:
    shop, runs = Shop(), SessionRuns(catalog)
    await runs.run("chat", shop.agent("Old"), "Before")
    await catalog.set_metadata("chat", {"title": "Kept"})

    def wrap(session: Any) -> Any:
        return Compacting("chat", session, client=object(), model="gpt-4.1")

    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["look c1"], ["fetch c2"]), "Hi", session=wrap)
    before = await history(runs)
    shop.fails = False
    run = await runs.resume("chat", shop.agent("Done"), session=wrap)
    assert run.final_output == "Done"
    assert shop.calls == ["look c1", "fetch c2", "fetch c2"]
    assert before[0] == "user"
    assert (await catalog.get_metadata("chat")) == {
        "agent": "shop",
        "run": "completed",
        "title": "Kept",
    }
    after = await history(runs)
    assert len(set(after)) == len(after)
    assert await catalog.session("chat").get_items() != []
