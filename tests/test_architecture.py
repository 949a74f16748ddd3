"""The shape of the package: which way its modules import, and what importing it loads.

The rules have no exceptions. A module that breaks one is moved or cut.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import entry_points, metadata
from itertools import product
from pathlib import Path

import pytest
from agents.extensions.memory import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession

import agents_session_metadata
from agents_session_metadata import SQLAlchemyMetadataSession, _sdk, session_tables
from agents_session_metadata.dialects import DIALECTS, sqltypes
from agents_session_metadata.dialects.urls import EXTRAS

NAME = "agents_session_metadata"
PACKAGE = Path(agents_session_metadata.__file__).parent
ROOT = PACKAGE.parents[1]

# A module imports from its own folder, and from layers before its own in this list.
LAYERS = [
    {"keys", "text", "types"},
    {"errors"},
    {"values"},
    {"dialects"},
    {"core"},
    {"query"},
    {"scope"},
    {"history"},
    {"idempotency", "indexes", "search", "threads", "transfer", "usage", "watch"},
    {"rights"},
    {"_sdk"},
    {"session"},
    {"catalog"},
    {"lifecycle"},
    {"tracking"},
    {"runs"},
    {"background"},
    {"replay"},
    {"http"},
    {"chatkit", "doctor", "mcp", "testing", "web"},
    {"cli"},
]
DOORS = {"chatkit", "cli", "doctor", "http", "mcp", "testing", "web"}
# Each can be taken out, with what stands above it.
REMOVABLE = [
    *["idempotency", "indexes", "search", "usage", "threads", "lifecycle", "tracking", "runs"],
    *["background", "replay", "rights", "watch"],
    *sorted(DOORS),
]
# Optional or slow to import: the only modules and folders that import them.
ONLY_IN = {
    "click": {"cli"},
    "rich": {"cli"},
    "mcp": {"mcp"},
    "starlette": {"http", "web"},
    "jinja2": {"web"},
    "markdown_it": {"web"},
    "pygments": {"web"},
    "uvicorn": {"cli"},
    "chatkit": {"chatkit"},
    "pytest": {"testing"},
    "pydantic": {"replay", "transfer", "threads", "runs", "mcp", "http", "chatkit"},
}
DRIVERS = [*EXTRAS, "aiomysql"]
# Not as part of a longer name, such as an option of SQLAlchemy's.
DATABASE = re.compile(rf"({'|'.join(DIALECTS)})(\+\w+)?|{'|'.join(DRIVERS)}")


def module_name(path: Path) -> str:
    """The dotted name within the package, such as `cli.app`; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
MODULES = [name for name in FILES if name]
# The modules of the names that can be imported from the package.
DEFINED_IN = {
    f"{NAME}.{name}": f"{NAME}.{agents_session_metadata._MODULE_OF.get(name, 'errors')}"
    for name in agents_session_metadata.__all__
}
DEFINED_IN[f"{NAME}.normalize_agent"] = f"{NAME}.keys"


def part(name: str) -> str:
    """The module or sub-package right below the package."""
    return name.split(".", maxsplit=1)[0]


def height(name: str) -> int:
    (found,) = [place for place, layer in enumerate(LAYERS) if part(name) in layer]
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(name: str, tree: ast.AST | None = None) -> Iterator[tuple[str, ast.stmt]]:
    """The absolute names of the modules that a module imports, in its functions too."""
    is_package = FILES[name].name == "__init__.py"
    here = [NAME, *filter(None, name.split("."))]
    for node in ast.iter_child_nodes(tree or TREES[name]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + is_package] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                if whole.removeprefix(f"{NAME}.") in FILES:
                    yield whole, node
                else:
                    yield DEFINED_IN.get(whole, source), node
        elif not is_for_type_checkers(node):
            yield from imports(name, node)


@cache
def own_imports(name: str) -> set[str]:
    """The modules of the package that a module imports, but for the one cycle."""
    found = {each.removeprefix(NAME).lstrip(".") for each, _ in imports(name) if part(each) == NAME}
    return found - ({"catalog"} if name == "session" else set())


def test_every_module_is_in_one_layer() -> None:
    layers = [each for layer in LAYERS for each in layer]
    assert [name for name in MODULES if layers.count(part(name)) != 1] == []


def broken(rule: Callable[[str], Iterable[str]], names: Iterable[str] = MODULES) -> dict[str, set]:
    """What breaks a rule, by module."""
    return {name: found for name in names if (found := set(rule(name)))}


def test_imports_point_down() -> None:
    def upwards(name: str) -> Iterator[str]:
        for each in own_imports(name):
            if not each:
                # The package itself imports everything, on first use. Doors are above it.
                yield from [] if part(name) in DOORS else [NAME]
            elif part(each) != part(name) and height(each) >= height(name):
                yield each

    assert broken(upwards) == {}


# Public modules, and what a door may import besides: the one that it stands on.
PUBLIC = {"errors", "keys", "text", "types", "values"}
BESIDES = {"http": set(), "mcp": set(), "web": {"http"}, "chatkit": {"threads"}}


def private_names() -> set[str]:
    """The private attributes of catalogs and sessions."""
    session = SQLAlchemyMetadataSession.from_url("chat", url="sqlite://")
    objects = session, session.catalog
    names = [name for each in objects for name in (*dir(each), *vars(each))]
    return {name for name in names if re.match("_[a-z]", name)}


def test_doors_use_the_public_api_only() -> None:
    """An application can write a door of its own with the names that those of this package use."""
    private, public = private_names(), {*agents_session_metadata.__all__}

    def below(name: str) -> Iterator[str]:
        allowed = {part(name), *PUBLIC, *BESIDES[part(name)]}
        for node in ast.walk(TREES[name]):
            if isinstance(node, ast.ImportFrom) and part(node.module or "") == NAME:
                module = part(str(node.module).removeprefix(NAME).lstrip("."))
                names = {alias.name for alias in node.names} - {*PUBLIC, *public}
                yield from names if not module else {module} - allowed
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                yield from {node.attr} & private

    assert broken(below, [name for name in MODULES if part(name) in BESIDES]) == {}


def test_modules_do_not_import_each_other_in_circles() -> None:
    TopologicalSorter({name: own_imports(name) for name in MODULES}).prepare()


def test_session_and_catalog_import_each_other_by_one_local_import_with_a_reason() -> None:
    local = [
        (name, node)
        for name, other in product(MODULES, ("session", "catalog"))
        if {part(name), other} == {"session", "catalog"}
        for node in {
            node for each, node in imports(name) if part(each.removeprefix(f"{NAME}.")) == other
        }
        if node.col_offset
    ]
    assert len(local) == 1
    (name, node), *_ = local
    lines = FILES[name].read_text(encoding="utf-8").splitlines()
    assert any("#" in line for line in lines[node.lineno - 2 : node.end_lineno])


def words(name: str, *fields: str) -> Iterator[str]:
    """What stands in these fields of a module's syntax tree."""
    for node in ast.walk(TREES[name]):
        yield from (word for field in fields if isinstance(word := getattr(node, field, None), str))


def test_core_and_query_know_neither_scope_nor_catalog() -> None:
    def known(name: str) -> list[str]:
        used = words(name, "id", "attr", "arg", "name")
        return [word for word in used if re.search("scope|catalog", word, re.IGNORECASE)]

    core = [name for name in MODULES if part(name) in {"core", "query"}]
    assert broken(known, core) == {}


def test_only_dialects_name_a_database() -> None:
    """No string elsewhere is the name of a database or driver, so nothing is decided by one."""

    def named(name: str) -> list[str]:
        found = [word for word in words(name, "value") if DATABASE.fullmatch(word)]
        return [] if part(name) == "dialects" else found

    assert broken(named) == {}


def test_only_one_module_touches_private_members_of_the_sdk() -> None:
    """A module that imports from the SDK neither reads, calls nor overrides a private member.

    Overrides count, too: the SDK's class is subclassed in `_sdk` alone, so a release that renames a
    private method changes one module.
    """
    classes = dir(SQLAlchemySession) + dir(OpenAIResponsesCompactionSession)
    private = {name for name in [*_sdk.STATE, *classes] if re.match("_[a-z]", name)}

    def touched(name: str) -> Iterator[str]:
        imported = {f"{each}.{alias.name}" for each, node in imports(name) for alias in node.names}
        from_sdk = {each for each in imported if part(each) == "agents"}
        yield from (each for each in from_sdk if "._" in each)
        if from_sdk:
            yield from private & {*words(name, "attr", "name")}

    assert broken(touched, [name for name in MODULES if name != "_sdk"]) == {}


def test_optional_dependencies_have_one_place_each() -> None:
    def misplaced(name: str) -> Iterator[str]:
        for each, _ in imports(name):
            if part(name) not in ONLY_IN.get(part(each), {part(name)}):
                yield each

    assert broken(misplaced, FILES) == {}


def test_column_types_are_defined_where_migrations_import_them() -> None:
    # Alembic writes the module that defines a type into its users' files.
    in_tables = {
        type(column.type)
        for table in session_tables().tables
        for column in table.columns
        if type(column.type).__module__.startswith(NAME)
    }
    assert {kind.__module__ for kind in in_tables} == {f"{NAME}.dialects.sqltypes"}
    assert all(getattr(sqltypes, kind.__name__) is kind for kind in in_tables)


def test_console_script_and_extras_keep_their_names() -> None:
    (script,) = entry_points(group="console_scripts", name="agent-sessions")
    assert callable(script.load())
    extras = {"sqlite", "postgresql", "psycopg", "mysql", "cli", "mcp", "web", "chatkit"}
    assert extras <= set(metadata("agents-session-metadata").get_all("Provides-Extra"))


def loaded(*statements: str) -> list[set[str]]:
    """The modules that are loaded after each of some statements in a new process."""
    script = "import json, sys\n" + "".join(
        f"{statement}\nprint(json.dumps(list(sys.modules)))\n" for statement in statements
    )
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, encoding="utf-8"
    )
    return [set(json.loads(line)) for line in result.stdout.splitlines()]


SQLALCHEMY = (
    "import sqlalchemy.ext.asyncio",
    "from sqlalchemy.dialects import mysql, postgresql, sqlite",
)
THE_SDK = ("from agents.extensions.memory import SQLAlchemySession", *SQLALCHEMY)


@pytest.mark.parametrize(
    ("imported", "before"),
    [
        (f"import {NAME}", SQLALCHEMY),
        (f"from {NAME} import SessionCatalog, SessionLifecycle", SQLALCHEMY),
        # The SDK loads much, mcp and pydantic too. What counts is what this package adds.
        (f"from {NAME} import *", THE_SDK),
    ],
)
@pytest.mark.thorough
def test_importing_the_package_loads_little(imported, before) -> None:
    *_, without, after = loaded(*before, imported)
    added = {part(name) for name in after - without} - set(sys.stdlib_module_names)
    assert added <= {NAME, "sqlalchemy"}
    assert not {part(name) for name in after} & {*DRIVERS, "rich"}
    assert not after & {f"{NAME}.{each}" for each in DOORS}


def standing_on(name: str) -> set[str]:
    """A feature and all that imports it, but for the package, which does so when asked for names.

    The catalog stays: its methods import features when they are called.
    """
    found = {name}
    while True:
        above = {
            part(module)
            for module in MODULES
            for each in own_imports(module)
            if part(each) in found and part(module) != "catalog"
        }
        if above <= found:
            return found
        found |= above


# What takes long to import is imported once. Each removal is tried in a fork of that process.
TRY_REMOVALS = f"""
import asyncio, importlib, json, os, sys, traceback
import agents.extensions.memory, chatkit.server, mcp.server, starlette.applications
import alembic, click, jinja2, rich.console, sqlalchemy.ext.asyncio, uvicorn
from sqlalchemy.dialects.sqlite import aiosqlite

async def use_the_core():
    from {NAME} import SessionCatalog
    async with SessionCatalog.from_url("sqlite://", create_tables=True) as catalog:
        session = await catalog.create_session("a", metadata={{"owner_id": "u1", "tags": ["x"]}})
        await session.add_items([{{"role": "user", "content": str(n)}} for n in range(3)])
        mine = catalog.scoped({{"owner_id": "u1"}})
        where = {{"tags": {{"$contains": "x"}}}}
        assert [one.session_id for one in (await mine.list_sessions(where)).sessions] == ["a"]
        assert await catalog.count_sessions({{"owner_id": "u1"}}) == 1
        assert len((await catalog.list_items("a")).items) == 3
        await catalog.fork_session("a", "b")
        assert len(await catalog.rewind_session("b", turns=1)) == 1
        records = [record async for record in mine.export_sessions()]
        assert await catalog.import_sessions(records, "replace") == 2
        assert await catalog.delete_sessions({{"owner_id": "u1"}}) == 2
        await session.clear_session()
        assert await session.get_metadata() == {{}}

assert not [name for name in sys.modules if name.startswith("{NAME}")]
failed = []
for place, names in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        try:
            sys.path.insert(0, place)
            for name in names:
                importlib.import_module("{NAME}." + name)
            assert sys.modules["{NAME}"].__file__.startswith(place)
            asyncio.run(use_the_core())
        except BaseException:
            print(place, file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(os.path.basename(place))
print(json.dumps(failed))
"""


@pytest.mark.thorough
def test_each_feature_can_be_removed(tmp_path: Path) -> None:
    left = {}
    for name in REMOVABLE:
        removed = standing_on(name)
        assert not removed & {"core", "query", "scope", "history", "transfer", "session", "catalog"}
        place = tmp_path / name
        shutil.copytree(PACKAGE, place / NAME)
        for each in removed:
            shutil.rmtree(place / NAME / each, ignore_errors=True)
            (place / NAME / f"{each}.py").unlink(missing_ok=True)
        left[str(place)] = [
            each for each in MODULES if part(each) not in removed and "__main__" not in each
        ]
    done = subprocess.run(
        [sys.executable, "-c", TRY_REMOVALS],
        input=json.dumps(left),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [], done.stderr


def test_every_public_name_is_there() -> None:
    names = agents_session_metadata.__all__
    assert len(names) == len({*names})  # Ruff sorts them.
    assert all(hasattr(agents_session_metadata, name) for name in names)
    assert {*names} <= {*dir(agents_session_metadata)}
    with pytest.raises(AttributeError, match=f"'{NAME}' has no attribute 'Nope'"):
        agents_session_metadata.Nope  # noqa: B018


def test_contributing_names_every_part_of_the_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    layout = text.split("## Layout")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)/?`", layout))
    assert {part(name) for name in MODULES} <= named
