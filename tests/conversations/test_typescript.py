"""Official clients for TypeScript, unchanged, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from node_packages import installed

from agents_session_metadata import SessionCatalog

from .scenarios import user
from .serving import mounted, served

HERE = Path(__file__).parent / "typescript"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def node() -> tuple[str, Path]:
    """node, and the directory with the packages and the programs to run."""
    program, directory = installed(HERE, "typescript")
    for file in (*HERE.glob("*.mjs"), ROOT / "examples" / "thread_list.ts"):
        shutil.copy(file, directory)
    return program, directory


async def run(node: tuple[str, Path], *arguments: str) -> dict:
    program, directory = node
    environment = {**os.environ, "NODE_NO_WARNINGS": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()
    return json.loads(output)


@pytest.mark.only_on("sqlite-memory")
async def test_sessions(node, database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    local = await catalog.create_session("shared", metadata={"owner_id": "u1"})
    await local.add_items([user("from Python"), {"role": "assistant", "content": "hi"}])
    async with served(mounted(catalog, allow_roles=None)) as address:
        seen = await run(node, "session.mjs", f"{address}/v1", "shared")

    assert [(item["role"], item["content"][0]["text"]) for item in seen["before"]] == [
        ("user", "from Python"),
        ("assistant", "hi"),
    ]
    assert [item.get("role", item["type"]) for item in seen["items"]] == [
        *["user", "assistant"],
        *["user", "function_call", "function_call_result", "assistant"],
        *["user", "assistant"],
    ]
    assert seen["newest"] == seen["items"][-2:]
    assert seen["popped"]["content"][0]["text"] == "gone"
    assert seen["pages"] == 30
    assert seen["error"] == ["NotFoundError", 404, "invalid_request_error"]
    assert seen["calls"] == [3, 5, 7]

    items = await local.get_items()
    assert [item.get("role", item.get("type")) for item in items] == [
        *["user", "assistant"],
        *["user", "function_call", "function_call_output", "assistant"],
        *["user", "assistant"],
    ]
    assert items[3]["call_id"] == items[4]["call_id"] == "call_1"
    assert items[4]["output"] == "sunny in Oslo"
    assert await catalog.count_sessions() == 1


@pytest.mark.only_on("sqlite-memory")
async def test_the_thread_list_of_assistant_ui(node, database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    for number in range(60):
        await catalog.create_session(metadata={"owner_id": "u1", "title": str(number)})
    await catalog.create_session(metadata={"owner_id": "u2"})
    async with served(mounted(catalog)) as address:
        seen = await run(node, "threads.mjs", f"{address}/v1")
    assert seen["made"]["status"] == "regular"
    assert seen["made"]["custom"] == {"color": "red"}
    assert {key: seen["archived"][key] for key in ("title", "status", "custom")} == {
        "title": "Renamed",
        "status": "archived",
        "custom": {"color": "blue"},
    }
    assert "".join(seen["chunks"]) == "Which tram?"
    assert seen["titled"] == "Which tram?"
    assert seen["kept"] == "Renamed"
    assert seen["pages"] == [50, 10]
    assert "not found" in seen["error"]
    assert await catalog.count_sessions() == 61
