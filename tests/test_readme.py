"""The README's code runs, and what it says comes out does."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


class Block:
    """A block of Python: its source, and the line of the README that it begins after."""

    def __init__(self, match: re.Match[str]) -> None:
        self.source = match[1]
        self.line = TEXT[: match.start(1)].count("\n")

    async def run(self, namespace: dict[str, Any]) -> int:
        """Run the statements one by one; gives the number of results compared."""
        compared = 0
        for statement in ast.parse(self.source).body:
            if isinstance(statement, ast.Expr):
                result = await self._execute(ast.Expression(statement.value), namespace)
                promised = self._promised(statement)
                if promised is not None:
                    place = f"{README.name}, line {self.line + statement.lineno}"
                    assert result == ast.literal_eval(promised), place
                    compared += 1
            else:
                await self._execute(ast.Module([statement], []), namespace)
        return compared

    def _promised(self, statement: ast.stmt) -> str | None:
        """What the comment behind a statement, or on the next line, says that it gives."""
        assert statement.end_lineno is not None
        lines = self.source.splitlines()[statement.end_lineno - 1 :][:2]
        lines[0] = lines[0].encode()[statement.end_col_offset :].decode()
        comments = [re.fullmatch(r"\s*# -> (.*)", line) for line in lines]
        found = next(filter(None, comments), None)
        return found and found[1]

    async def _execute(self, code: ast.Module | ast.Expression, namespace: dict[str, Any]) -> Any:
        for node in ast.walk(code):
            if hasattr(node, "lineno"):
                node.lineno += self.line
                node.end_lineno += self.line
        mode = "eval" if isinstance(code, ast.Expression) else "exec"
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        result = eval(compile(code, README, mode, flags), namespace)  # noqa: S307 - our own code
        return await result if inspect.iscoroutine(result) else result


BLOCKS = [
    Block(match) for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
]


async def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "AGENT_SESSIONS_URL"):
        monkeypatch.delenv(name, raising=False)
    namespace: dict[str, Any] = {}
    try:
        compared = [await block.run(namespace) for block in BLOCKS]
    finally:
        for owner in namespace.values():
            if isinstance(engine := getattr(owner, "engine", None), AsyncEngine):
                await engine.dispose()
    assert all(compared)
    # Each promise is of a statement: none is overlooked.
    assert sum(compared) == TEXT.count("# -> ")
    assert (tmp_path / "chat.db").exists()


def test_it_begins_with_code_and_ends_in_time() -> None:
    assert BLOCKS[0].line <= 25
    assert len(TEXT.splitlines()) <= 190


def test_what_it_names_exists() -> None:
    root = README.parent
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make (\w+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    for extra in ("sqlite", "postgresql", "psycopg", "mysql"):
        assert re.search(rf"^{extra} = ", project, re.MULTILINE), extra
