"""All code in the README and the documentation runs, and what it says comes out does."""

from __future__ import annotations

import ast
import codeop
import dataclasses
import functools
import inspect
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agents import RunHooks
from documentation import DOCS, ROOT, Program, blocks, pages
from servers import Database
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from typing_extensions import is_typeddict

import agents_session_metadata
from agents_session_metadata import SessionCatalog, keys, types

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Parts of a migration: a test of their own puts them into one and runs Alembic.
ELSEWHERE = {DOCS / "migrations.md": "test_alembic.py"}

by_name = pytest.mark.parametrize(
    "page", [page for page in pages() if blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)


@by_name
async def test_the_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "tutorial"):  # The programs of two pages begin there.
        monkeypatch.syspath_prepend(ROOT / "examples" / name)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("AGENT_SESSIONS_URL", "")  # Pages that run commands export it.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    found = blocks(page)
    if page in ELSEWHERE:
        there = (Path(__file__).parent / ELSEWHERE[page]).read_text(encoding="utf-8")
        assert all(f'documented("{block.heading}")' in there for block in found)
        return
    program = Program()
    try:
        for block in found:
            await program.run(block)
    finally:
        await program.close()
    # Each promise is of a statement: none is overlooked.
    promises = sum(block.source.count("# -> ") for block in found if block.kind == "python")
    assert program.compared == promises


@by_name
def test_the_code_can_be_pasted_into_a_console(page: Path) -> None:
    """As `python -m asyncio` reads it: line by line, each statement as soon as it is complete."""
    if page in ELSEWHERE:
        return
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for block in blocks(page):
        if block.kind != "python":
            continue
        lines: list[str] = []
        for line in [*block.source.splitlines(), ""]:
            lines.append(line)
            try:
                if compiler("\n".join(lines), block.place, "single") is not None:
                    lines = []
            except SyntaxError as error:
                pytest.fail(f"{block.place}: {error}: {line}")
        assert lines == [], block.place


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_change_while_a_table_is_moved_is_kept(
    shared_database: Database, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_async_engine(shared_database.url)
    # The SDK cannot create its tables on MariaDB.
    await SessionCatalog(engine, create_tables=True).count_sessions()
    program = Program()
    for block in blocks(DOCS / "guide" / "moving.md"):
        source = block.source.replace("sqlite+aiosqlite:///chat.db", shared_database.url)
        await program.run(dataclasses.replace(block, source=source))
    names = program.namespace
    catalog = names["catalog"]
    write = catalog.set_metadata
    change = "UPDATE chats SET title = 'Porto', tags = NULL WHERE session_id = 'chat-1'"

    async def user_changes() -> None:
        monkeypatch.setattr(catalog, "set_metadata", write)
        async with engine.begin() as connection:
            await connection.execute(text(change))
        await write("chat-1", {"title": "Porto", "tags": []})

    async def copies(*arguments: Any, **options: Any) -> None:
        if moment == "before":
            await user_changes()
        await write(*arguments, **options)
        if moment == "after":
            await user_changes()

    monkeypatch.setattr(catalog, "set_metadata", copies)
    assert await names["copy_chats"]() == ["gone"]
    moved = {"owner_id": "u1", "title": "Porto", "tags": []}
    assert await catalog.get_metadata("chat-1") == moved
    assert await names["different_chats"]() == []

    # A process that stops between its two writes
    async with engine.begin() as connection:
        await connection.execute(text(change.replace("Porto", "Faro")))
    assert await names["different_chats"]() == ["chat-1"]
    await names["copy_chats"]()
    assert await catalog.get_metadata("chat-1") == {**moved, "title": "Faro"}
    assert await names["different_chats"]() == []
    await program.close()
    await engine.dispose()


def test_lines_are_wrapped() -> None:
    for page in pages():
        lines = re.sub(
            r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        if page.name == "faults.md":  # Written by a program.
            continue
        for line in lines.splitlines():
            assert len(line) <= 106 or line.startswith(("|", "![", ":::")), f"{page.name}: {line}"


def test_every_page_is_in_the_navigation() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))

    def paths(entries: object) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        values = entries.values() if isinstance(entries, dict) else entries
        return [path for entry in values for path in paths(entry)]

    listed = paths(settings["project"]["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) == {str(page.relative_to(DOCS)) for page in pages() if DOCS in page.parents}


def test_a_page_has_the_title_of_its_entry_in_the_navigation() -> None:
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for title, path in re.findall(r'"([^"]+)" = "([\w/-]+\.md)"', settings):
        first = (DOCS / path).read_text(encoding="utf-8").splitlines()[0]
        assert first == ("# agents-session-metadata" if path == "index.md" else f"# {title}")


def sentences(page: Path) -> int:
    """The number of sentences, without code, tables, headings and what a program has written."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\||#|!\[|:::).*$", "", text, flags=re.MULTILINE)
    return len(re.findall(r"[.!?][*_)]*(?=\s|$)", re.sub(r"`[^`]*`", "", text)))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short_and_can_be_read_on_a_code_host(page: Path) -> None:
    assert sentences(page) <= 120
    text = page.read_text(encoding="utf-8")
    assert "--8<--" not in text
    assert ":::" not in text or page.parent.name == "api"
    for path in re.findall(
        r"\]\((?!https?:|#)([^)#\s]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    ):
        assert (page.parent / path).exists(), path


def test_every_table_of_measurements_has_its_date_and_commit() -> None:
    page = (DOCS / "performance-tables.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        assert re.search(r"20\d\d-\d\d-\d\d", section), section[:80]
        assert section.startswith("Versions") or re.search(r"`[0-9a-f]{8}`", section), section[:80]
    assert len((DOCS / "performance.md").read_text(encoding="utf-8").split()) <= 1500


def test_everything_public_is_in_the_reference() -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api/*.md"))
    listed = re.findall(r"^::: agents_session_metadata\.(\w+)$", reference, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) - {"keys"} == set(agents_session_metadata.__all__)
    # Nothing is shown under a path that is not to be imported.
    doors = re.findall(
        r"^::: agents_session_metadata\.(?:chatkit|http|mcp|testing|web)\.", reference, re.MULTILINE
    )
    assert len(listed) + len(doors) == len(re.findall(r"^:::", reference, re.MULTILINE))


def named_in_signatures(thing: Any) -> Iterator[str]:
    """The names in the signatures of a class or function, and in the fields of a dataclass."""
    for member in [thing, *(vars(thing).values() if isinstance(thing, type) else ())]:
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if not inspect.isfunction(function) or (
            function.__name__.startswith("_")
            and (function.__name__ != "__init__" or dataclasses.is_dataclass(thing))
        ):
            continue
        parameters = inspect.signature(function)
        annotations = [each.annotation for each in parameters.parameters.values()]
        for annotation in [*annotations, parameters.return_annotation]:
            yield from re.findall(r"\w+", str(annotation))
        # Defaults are shown as the source has them.
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if isinstance(node, ast.arguments):
                for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                    yield from re.findall(r"\w+", ast.unparse(default))
    if is_typeddict(thing):
        yield from re.findall(r"\w+", f"{thing.__annotations__}")
    if dataclasses.is_dataclass(thing):
        for each in dataclasses.fields(thing):
            yield from re.findall(r"\w+", f"{each.type}")
        source = inspect.getsource(next(c for c in thing.__mro__ if "__annotations__" in vars(c)))
        yield from re.findall(r"^    \w+: .* = ([A-Z_]+)$", source, re.MULTILINE)


def test_what_signatures_name_can_be_imported() -> None:
    unknown = set()
    for public in agents_session_metadata.__all__:
        thing = getattr(agents_session_metadata, public)
        module = sys.modules.get(getattr(thing, "__module__", ""), None)
        for name in named_in_signatures(thing):
            found = getattr(module, name, getattr(types, name, None))
            ours = str(getattr(found, "__module__", "")).startswith("agents_session_metadata")
            constant = name.isupper() and isinstance(found, int | tuple)
            alias = any(name in aliases(each) for each in modules_of_the_package())
            if (ours or constant or alias) and not name.startswith("_"):
                unknown.add(name)
    # Protocols, and what stands for "not given".
    unknown -= {"AnySession", "Forwarding", "MISSING"}
    assert unknown - set(agents_session_metadata.__all__) == set()


def test_everything_public_is_in_the_typing_tests() -> None:
    files = (ROOT / "tests" / "typing").glob("*.py")
    words = {
        word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))
    }
    assert set(agents_session_metadata.__all__) <= words


def undescribed(thing: Any) -> Iterator[str]:
    """What a class or function takes or has, and does not say what it means."""
    text = inspect.getdoc(thing) or ""
    if not text:
        yield "itself"
    if is_typeddict(thing):
        [defined] = ast.parse(inspect.getsource(thing)).body
        own = (each for each in ast.walk(defined) if isinstance(each, ast.AnnAssign))
        named = {ast.unparse(each.target) for each in own}
    elif dataclasses.is_dataclass(thing):
        named = {field.name for field in dataclasses.fields(thing)}
    elif isinstance(thing, type) and issubclass(thing, Exception):
        # What a constructor keeps has the name of what it takes.
        made = vars(thing).get("__init__", None)
        named = (
            set(inspect.signature(made).parameters) & set(made.__code__.co_names) if made else set()
        )
    elif text.startswith("As `"):
        named = set()  # As another one, which says it.
    else:
        named = set(inspect.signature(thing).parameters) - {"self", "cls"}
    yield from (name for name in named if not re.search(rf"^ +(\*\*)?{name}: ", text, re.MULTILINE))
    for name, member in vars(thing).items() if isinstance(thing, type) else ():
        # The SDK says when it calls each hook.
        if not name.startswith("_") and not hasattr(RunHooks, name):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(function):
                yield from (f"{name}: {each}" for each in undescribed(function))


@pytest.mark.parametrize("name", agents_session_metadata.__all__)
def test_everything_public_is_described(name: str) -> None:
    thing = getattr(agents_session_metadata, name)
    module = getattr(thing, "__module__", "")
    if hasattr(thing, "__qualname__") and module.startswith("agents_session_metadata"):
        assert list(undescribed(thing)) == []
    else:
        assert any(name in described(module) for module in modules_of_the_package())


def test_the_example_of_a_docstring_comes_first() -> None:
    things = [getattr(agents_session_metadata, name) for name in agents_session_metadata.__all__]
    members = [
        member for each in things if isinstance(each, type) for member in vars(each).values()
    ]
    for each in [*things, *members]:
        if "agents_session_metadata" not in (getattr(each, "__module__", None) or ""):
            continue
        summary, _, rest = (inspect.getdoc(each) or "").partition("\n\n")
        assert "```python\n" not in rest or rest.startswith("```") or each in FOLLOW, summary


FOLLOW = {agents_session_metadata.SessionRuns.follow}
"""Its block has the events, which are explained below it."""


def modules_of_the_package() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith("agents_session_metadata"):
            yield module


@functools.cache
def aliases(module: ModuleType) -> set[str]:
    """The names of the types that a module defines by an assignment."""
    return {
        node.target.id
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation) == "TypeAlias"
    }


def described(module: ModuleType) -> list[str]:
    """The constants and type aliases of a module that a docstring follows."""
    body = ast.parse(inspect.getsource(module)).body
    return [
        ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
        for node, following in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign | ast.Assign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    ]


def test_every_key_is_described() -> None:
    assert described(keys) == [name for name in vars(keys) if name.isupper()]


@pytest.mark.parametrize("kind", ["", "perl"])
async def test_a_block_that_nobody_runs(kind: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```{kind}\nprint 1\n```\n", encoding="utf-8")
    [block] = blocks(page)
    with pytest.raises(AssertionError, match="nobody runs"):
        await Program().run(block)
