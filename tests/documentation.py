"""The code in the documentation: its blocks, and how each kind of them is run.

A page is one program. Its blocks run in their order, in a directory of the page's own.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from commands import run
from sqlalchemy.ext.asyncio import AsyncEngine

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """All pages."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: The page that it stands on.
        kind: What it is, as the page says: `python`, `console`, …
        source: Its lines.
        line: The line of the page that it begins after.
        heading: The heading that it stands under.
    """

    page: Path
    kind: str
    source: str
    line: int
    heading: str

    @property
    def place(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text[: match.start()]), re.MULTILINE)
        found.append(
            Block(
                page,
                match["kind"].split(" ")[0],
                match["source"],
                text[: match.start("source")].count("\n"),
                headings[-1] if headings else "",
            )
        )
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page}: a fence"
    return found


@dataclass
class Program:
    """A page as it runs.

    Attributes:
        namespace: The names that its Python has.
        compared: How many results were as the page says.
    """

    namespace: dict[str, Any] = field(default_factory=dict)
    compared: int = 0

    async def run(self, block: Block) -> None:
        """Run a block; a kind that nobody knows how to run is an error."""
        if block.kind == "python":
            await self._run_python(block)
        elif block.kind == "console":
            # In a thread: each command brings an event loop of its own.
            printed = await asyncio.to_thread(_replayed, block)
            _check_output(_steady(printed), _steady(block.source), block)
        elif block.kind == "sh":
            for line in block.source.splitlines():
                _check_command(line, block)
        elif block.kind == "json":
            json.loads(block.source)
        else:
            raise AssertionError(f"{block.place}: nobody runs blocks of {block.kind!r}")

    async def close(self) -> None:
        """Dispose the engines that the page's names lead to."""
        for owner in self.namespace.values():
            for engine in (owner, getattr(owner, "engine", None)):
                if isinstance(engine, AsyncEngine):
                    await engine.dispose()

    async def _run_python(self, block: Block) -> None:
        for statement in ast.parse(block.source).body:
            if isinstance(statement, ast.Expr):
                result = await self._execute(ast.Expression(statement.value), block)
                promised = _promised(statement, block.source)
                if promised is not None:
                    place = f"{block.page.name}, line {block.line + statement.lineno}"
                    expected = eval(promised, {"Decimal": Decimal})  # noqa: S307  # our own text
                    assert result == expected, place
                    self.compared += 1
            else:
                await self._execute(ast.Module([statement], []), block)

    async def _execute(self, code: ast.Module | ast.Expression, block: Block) -> Any:
        for node in ast.walk(code):
            if hasattr(node, "lineno"):
                node.lineno += block.line
                node.end_lineno += block.line
        mode = "eval" if isinstance(code, ast.Expression) else "exec"
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        # Without the features that this file imports from `__future__`.
        compiled = compile(code, block.page, mode, flags, dont_inherit=True)
        result = eval(compiled, self.namespace)  # noqa: S307  # our own code
        return await result if inspect.iscoroutine(result) else result


def _promised(statement: ast.stmt, source: str) -> str | None:
    """What the comment behind a statement, or on the next line, says that it gives."""
    assert statement.end_lineno is not None
    lines = source.splitlines()[statement.end_lineno - 1 :][:2]
    lines[0] = lines[0].encode()[statement.end_col_offset :].decode()
    comments = [re.fullmatch(r"\s*# -> (.*)", line) for line in lines]
    found = next(filter(None, comments), None)
    return found and found[1]


def _check_output(printed: str, shown: str, block: Block) -> None:
    """Compare what was printed with what the page shows, in which `...` stands for lines."""
    if "\n...\n" not in shown:
        assert printed == shown, f"{block.place}: {printed}"
        return
    pattern = r"\n(?:.*\n)+?".join(map(re.escape, shown.split("\n...\n")))
    assert re.fullmatch(pattern, printed), f"{block.place}: {printed}"


def _replayed(block: Block) -> str:
    """Run the commands of a block; the block with what they really print."""
    lines = []
    for line in block.source.splitlines():
        if not line.startswith("$ "):
            continue
        stdin = None
        words = shlex.split(line[2:])
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            os.environ[name] = value
            lines.append(line)
            continue
        if words[:3] == ["make", "demo", ">"]:
            _run_demo(Path(words[3]))
            lines.append(line)
            continue
        if words[0] == "echo":
            stdin, words = words[1], words[3:]
        assert words[0] == "agent-sessions", block.place
        result = run(*words[1:], stdin=stdin)
        lines += [line, *(each.rstrip() for each in result.output.splitlines())]
    return "\n".join(lines) + "\n"


def _run_demo(output: Path) -> None:
    """What `make demo` does, without the set-up."""
    with output.open("w", encoding="utf-8") as file:
        demo = [sys.executable, ROOT / "examples" / "quickstart.py"]
        subprocess.run(demo, check=True, stdout=file)


def _steady(text: str) -> str:
    """Output without what differs from day to day."""
    text = re.sub(r"\d{1,3}(?:,\d{3})+", "BYTES", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME", text)
    return re.sub(r"\d+\.\d+(\.\d+)*", "VERSION", text)


def _check_command(line: str, block: Block) -> None:
    """Check a command that would take minutes, or the network: what it names exists."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["make", *words[1:2]]:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), block.place
    elif words[:1] == ["python"]:
        assert (ROOT / words[1]).exists(), block.place
    elif words in (["python3", "-m", "venv", ".venv"], ["source", ".venv/bin/activate"]):
        pass  # of Python itself
    elif words[0] == "agent-sessions":
        options = [word for word in words if word.startswith("--")]
        shown = run(words[1], "--help").output
        assert all(option in shown for option in options), block.place
    elif words[0] == "pytest":
        kit = ["-p", "agents_session_metadata.testing", "--agents-session=sessions:make_session"]
        assert words[1:] == kit, block.place  # of a test of its own
    elif words[:2] == ["pip", "install"]:
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in _extras(words[2]):
            assert re.search(rf"^{extra} = ", project, re.MULTILINE), block.place
    else:
        raise AssertionError(f"{block.place}: nobody checks {line!r}")


def _extras(requirement: str) -> Iterator[str]:
    found = re.fullmatch(r"(?:\.|agents-session-metadata)\[([a-z,]+)\]", requirement)
    assert found, requirement
    yield from found[1].split(",")
