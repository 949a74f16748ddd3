"""The contribution to the SDK: its size, its patches, and that both classes share one database.

`make upstream` also runs the SDK's own checks and tests with it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import agents.extensions.memory
import pytest
from agents.extensions.memory import SQLAlchemySession
from conformance import raw
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SQLAlchemyMetadataSession
from contrib.upstream import build

TABLES = (
    "agent_sessions_metadata_elements",
    "agent_sessions_metadata",
    "agent_messages",
    "agent_sessions",
)
METADATA = {
    "owner": "user_1",
    "count": 10**400,
    "half": 0.5,
    "flag": True,
    "none": None,
    "tags": ["work", 1, True, None, "work", 2.5, ["nested"]],
    "profile": {"straße": "東京", "null": None},
    "long": "x" * 2000,
    "trailing space ": "Ä",
}
POSTGRESQL_SCHEMA = [
    """
    SELECT table_name, column_name, data_type, collation_name, character_maximum_length,
        is_nullable, column_default
    FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position
    """,
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace ORDER BY 1
    """,
]


@pytest.fixture(scope="session")
def contributed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The contributed class, imported as if the installed SDK had it."""
    folder = tmp_path_factory.mktemp("contributed")
    for path in build.SOURCE_PLACE.glob("*.py"):
        shutil.copyfile(path, folder / path.name)
    shutil.copyfile(build.VALUES, folder / build.COPIED.name)
    agents.extensions.memory.__path__.append(str(folder))
    module = importlib.import_module("agents.extensions.memory.sqlalchemy_metadata_session")
    assert Path(str(module.__file__)).parent == folder
    return module.SQLAlchemyMetadataSession


def count_lines(*paths: Path) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def added_lines(folder: str) -> int:
    """Lines that the edits add to the SDK's own files in a folder."""
    count, inside = 0, False
    for line in build.EDITS.read_text("utf-8").splitlines():
        if line.startswith("+++ "):
            inside = line.startswith(f"+++ b/{folder}/")
        else:
            count += inside and line.startswith("+")
    return count


def test_the_contribution_stays_small():
    own = {path: file for path, file in build.new_files().items() if file != build.VALUES}
    for folder in ("src", "tests"):
        new = [file for path, file in own.items() if path.startswith(f"{folder}/")]
        assert count_lines(*new) + added_lines(folder) <= 700, folder
    tools = [path for path in build.EDITS.parent.iterdir() if path.is_file()]
    docs = [file for path, file in own.items() if path.startswith("docs/")]
    assert count_lines(*tools, *docs, Path(__file__)) <= 900


def test_the_copied_module_needs_only_the_standard_library():
    for node in ast.walk(ast.parse(build.VALUES.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names


def test_the_patches_apply_to_the_installed_release(tmp_path):
    (archive,) = (Path(sys.prefix) / "sdk-tests").glob("openai_agents-*.tar.gz")
    draft, tree = tmp_path / "draft", tmp_path / "tree"
    for folder in (draft, tree):
        build.unpack(archive, folder, only=build.edited_files())
    patches = build.write_patches(draft, tmp_path / "out")
    build.git(tree, "init", "--quiet")
    for patch in patches:
        build.git(tree, "apply", "--whitespace=error-all", str(patch))
    for path, source in build.new_files().items():
        assert (tree / path).read_bytes() == source.read_bytes()
    for path in tree.rglob("*.py"):
        ast.parse(path.read_text("utf-8"))
    changed = {
        line[6:] for line in patches[0].read_text("utf-8").splitlines() if line[:4] == "+++ "
    }
    assert str(build.COPIED) in changed
    assert not [path for path in changed if path.startswith(build.DOCS)]


@pytest.mark.parametrize("creator", ["package", "contribution"])
async def test_each_class_reads_what_the_other_writes(database, contributed, creator):
    engine = database.engine()
    package = partial(SQLAlchemyMetadataSession, engine=engine)
    contribution = partial(contributed, engine=engine)
    create = package if creator == "package" else contribution
    await create("first", create_tables=True).set_metadata({"tags": ["work"]})

    for write, read in ((package, contribution), (contribution, package)):
        writer, reader = write("chat"), read("chat")
        await writer.add_items([raw.message("hello")])
        await writer.set_metadata(METADATA)
        found = await reader.get_metadata()
        assert found == METADATA
        assert {key: type(found[key]) for key in found} == {
            key: type(METADATA[key]) for key in METADATA
        }
        for key, value in METADATA.items():
            assert await reader.find_sessions_by_metadata(key, value) == ["chat"]
        assert await reader.find_sessions_by_metadata({"owner": "user_1", "flag": 1}) == []
        assert await reader.find_sessions_by_metadata({"tags": ["work"], "flag": True}) == []
        # Written the other way, all stored bytes are the same.
        writer_of_copy = read("copy")
        await writer_of_copy.set_metadata(METADATA)
        for table in TABLES[:2]:
            assert await stored(engine, table, "chat") == await stored(engine, table, "copy")
        await writer_of_copy.clear_session()

        def change(metadata: dict[str, Any]) -> None:
            metadata["tags"] = ["home", "work"]
            metadata["profile"] = ["now a list"]
            del metadata["owner"]

        after = await reader.edit_metadata(change)
        assert after == await writer.get_metadata()
        in_work = await package("any").find_sessions_by_metadata({"tags": {"$contains": "home"}})
        assert in_work == ["chat"]
        await writer.set_metadata({"tags": "no list"})
        assert await writer.delete_metadata(["profile", "nope"]) == 1
        await writer.clear_session()
        assert await reader.get_metadata() == {}
        assert await raw.metadata_rows(engine) == await count_rows_of(engine, "first")
        await reader.set_metadata({"title": "anew"})
        assert await writer.get_metadata() == {"title": "anew"}
        await SQLAlchemySession("chat", engine=engine).clear_session()
        assert await reader.get_metadata(["title"]) == {"title": None}


async def test_both_classes_make_the_same_tables(database, contributed):
    engine = database.engine()
    for with_history in (False, True):
        made = []
        for kind in (SQLAlchemyMetadataSession, contributed):
            if with_history:
                await create_sdk_tables(engine)
            session = kind("chat", engine=engine, create_tables=True)
            assert await session.get_metadata() == {}
            made.append(await schema(engine))
            for table in TABLES:
                await raw.execute(engine, f"DROP TABLE {table}")
        assert made[0] == made[1]


async def test_editors_of_both_classes_take_turns(database, contributed):
    engine = database.engine()
    await contributed("other", engine=engine, create_tables=True).get_items()

    def count(metadata: dict[str, Any]) -> None:
        metadata["count"] = metadata.get("count", 0) + 1
        metadata["tags"] = [*metadata.get("tags", []), metadata["count"]]

    kinds = (SQLAlchemyMetadataSession, contributed)
    sessions = [kinds[number % 2]("chat", engine=engine) for number in range(16)]
    await asyncio.gather(
        *(session.edit_metadata(count) for session in sessions),
        *(session.add_items([raw.message("hello")]) for session in sessions),
    )
    assert await sessions[0].get_metadata() == {"count": 16, "tags": list(range(1, 17))}
    assert len(await sessions[1].get_items()) == 16


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("setting", ["NO_BACKSLASH_ESCAPES", "big5", "gbk", "sjis", "latin1"])
async def test_settings_under_which_the_driver_does_not_escape(database, contributed, setting):
    session = contributed("chat", engine=database.engine(), create_tables=True)
    await session.set_metadata({"title": "kept"})
    url, mode = make_url(database.url), f"SET sql_mode = '{setting}'"
    if setting.islower():
        url, mode = url.update_query_dict({"charset": setting}), "SET @unused = 0"
    engine = create_async_engine(url, connect_args={"init_command": mode})
    unsafe = contributed("chat", engine=engine)
    for call in (
        lambda: unsafe.find_sessions_by_metadata("title", "kept"),
        lambda: unsafe.set_metadata({"title": "changed"}),
    ):
        with pytest.raises(ValueError, match=f"{setting} is not supported"):
            await call()
    await engine.dispose()
    assert await session.get_metadata() == {"title": "kept"}


async def stored(engine, table: str, session_id: str) -> list[tuple[Any, ...]]:
    rows = await raw.execute(
        engine, f"SELECT * FROM {table} WHERE session_id = :session_id", session_id=session_id
    )
    times = {"session_id", "created_at", "updated_at"}
    return sorted(
        tuple((name, value) for name, value in row._mapping.items() if name not in times)
        for row in rows
    )


async def count_rows_of(engine, *session_ids: str) -> int:
    counts = [
        await raw.count_rows(engine, table, session_id)
        for table in TABLES[:2]
        for session_id in session_ids
    ]
    return sum(counts)


async def create_sdk_tables(engine) -> None:
    if engine.dialect.name != "mysql":
        await SQLAlchemySession("chat", engine=engine, create_tables=True).get_items()
        return
    statements = raw.SDK_TABLES_ON_MYSQL.format(
        length=300, charset="utf8mb4", collation="utf8mb4_general_ci"
    )
    for statement in statements.split(";"):
        await raw.execute(engine, statement)


async def schema(engine) -> list[Any]:
    """Everything that the database says of its tables, indexes, constraints and triggers."""
    if engine.dialect.name == "sqlite":
        rows = await raw.execute(engine, "SELECT name, sql FROM sqlite_master ORDER BY name")
        return [(name, (sql or "").replace('"', "").split()) for name, sql in rows]
    if engine.dialect.name == "postgresql":
        return [await raw.execute(engine, statement) for statement in POSTGRESQL_SCHEMA]
    return [(await raw.execute(engine, f"SHOW CREATE TABLE {table}"))[0][1] for table in TABLES]
