"""The shape of the package: which way its modules import, and what importing it loads."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agents_session_metadata

PACKAGE = Path(agents_session_metadata.__file__).parent

# A module imports only from those before it.
LIBRARY = [
    "errors",
    "types",
    "keys",
    "values",
    "dialect_types",
    "dialect_base",
    "dialect_sqlite",
    "dialect_postgresql",
    "dialect_mysql",
    "dialects",
    "filters",
    "ordering",
    "shapes",
    "schema",
    "creation",
    "scope",
    "builder",
    "queries",
    "database",
    "rows",
    "store",
    "cursors",
    "retention",
    "statistics",
    "transfer",
    "catalog",
    "sdk",
    "session",
    "lifecycle",
    "tracking",
]
# What stands on the library: the command line, the MCP server, and what they alone need.
FACES = ("cli", "ddl", "doctor", "mcp")

MODULES = {path.stem: path for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
IS_FACE = {name: name.split("_")[0] in FACES for name in MODULES}


def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports(node: ast.AST) -> Iterator[str]:
    """What is imported at the level of a module, for other than type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level:
            names = [child.module] if child.module else [alias.name for alias in child.names]
            yield from (f".{name}" for name in names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module)
        elif not is_later(child):
            yield from imports(child)


def is_later(node: ast.AST) -> bool:
    """Whether importing the module does not run this."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def own_imports(name: str) -> set[str]:
    return {each[1:] for each in imports(tree(name)) if each.startswith(".")}


def test_every_module_has_its_place() -> None:
    assert len(LIBRARY) == len(set(LIBRARY))
    assert set(LIBRARY) == {name for name in MODULES if not IS_FACE[name]}


@pytest.mark.parametrize("name", LIBRARY)
def test_imports_point_one_way(name) -> None:
    assert own_imports(name) <= set(LIBRARY[: LIBRARY.index(name)])


def test_faces_do_not_import_each_other_in_circles() -> None:
    wants = {name: {each for each in own_imports(name) if IS_FACE[each]} for name in MODULES}
    while free := {name for name, others in wants.items() if not others}:
        wants = {name: others - free for name, others in wants.items() if name not in free}
    assert wants == {}


def test_only_four_modules_know_the_sdk() -> None:
    def knows(name: str) -> bool:
        walked = ast.walk(tree(name))
        modules = [each for node in walked for each in imports(ast.Module([node], []))]
        return any(each.split(".")[0] == "agents" for each in modules)

    assert {name for name in MODULES if knows(name)} == {"sdk", "session", "catalog", "tracking"}


def test_dialect_modules_alone_name_databases() -> None:
    databases = {"sqlite", "postgresql", "mysql", "mariadb"}

    def named(name: str) -> set[object]:
        constants = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Constant))
        # Not as part of a longer name, such as an option of SQLAlchemy's.
        return {node.value for node in constants if isinstance(node.value, str)} & databases

    names = {name for name in LIBRARY if named(name)}
    assert names == {name for name in LIBRARY if name.startswith("dialect")} - {"dialect_base"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_is_too_long_to_read(name) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 800


def loaded(*statements: str) -> set[str]:
    """The modules that are loaded after some statements in a new process."""
    script = "\n".join([*statements, "import json, sys; print(json.dumps(list(sys.modules)))"])
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, encoding="utf-8"
    )
    return set(json.loads(result.stdout))


SQLALCHEMY = (
    "import sqlalchemy.ext.asyncio",
    "from sqlalchemy.dialects import mysql, postgresql, sqlite",
)
THE_SDK = ("from agents.extensions.memory import SQLAlchemySession", *SQLALCHEMY)


@pytest.mark.parametrize(
    ("imported", "before"),
    [
        ("import agents_session_metadata", SQLALCHEMY),
        ("from agents_session_metadata import SessionCatalog, SessionLifecycle", SQLALCHEMY),
        # openai-agents loads much, mcp among it. What counts is what this package adds.
        ("from agents_session_metadata import *", THE_SDK),
    ],
)
def test_importing_the_package_loads_little(imported, before) -> None:
    after = loaded(imported)
    added = {name.split(".")[0] for name in after - loaded(*before)} - set(sys.stdlib_module_names)
    assert added <= {"agents_session_metadata", "sqlalchemy"}
    drivers = {"aiosqlite", "asyncpg", "psycopg", "asyncmy", "aiomysql", "pymysql"}
    assert not after & (drivers | {"typer", "rich"})
    faces = {f"agents_session_metadata.{name}" for name in MODULES if IS_FACE[name]}
    assert not after & faces


def test_everything_public_is_there() -> None:
    names = agents_session_metadata.__all__
    assert names == sorted(names)
    assert all(hasattr(agents_session_metadata, name) for name in names)
    assert {*names} <= {*dir(agents_session_metadata)}
    with pytest.raises(AttributeError, match="'agents_session_metadata' has no attribute 'Nope'"):
        agents_session_metadata.Nope  # noqa: B018


def test_every_module_is_on_the_map() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+) \|", text.split("## ")[1], re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(MODULES)
    assert [name for name in named if not IS_FACE[name]] == LIBRARY
