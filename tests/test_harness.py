"""The tests' own tools: what would make the other tests pass for the wrong reason."""

from __future__ import annotations

import ast
import contextlib
import inspect
import multiprocessing
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import raw
from processes import ProcessError, run_processes, run_program
from servers import SHARED_DATABASES, Database, Servers, empty_database, missing, program
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

SERVERS = [name for name in SHARED_DATABASES if name != "sqlite-file"]
SKIPS = {"skip", "skipif", "importorskip", "xfail", "skipTest", "SkipTest", "skipIf", "skipUnless"}


def test_only_what_is_missing_is_skipped() -> None:
    found = [
        (path.name, node.lineno)
        for path in Path(__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in SKIPS)
        or (isinstance(node, ast.Name) and node.id in SKIPS)
        or (isinstance(node, ast.ImportFrom) and any(each.name in SKIPS for each in node.names))
    ]
    here = [file for file in found if file[0] != "test_harness.py"]
    lines, first = inspect.getsourcelines(missing)
    assert [name for name, _ in here] == ["servers.py"], here
    assert here[0][1] in range(first, first + len(lines))


def test_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="nothing-such is not installed"):
        program("nothing-such")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="nothing-such is not installed"):
        program("nothing-such")


MARKED = """
@pytest.mark.only_on("sqlite")
def test_sqlite(database): ...

@pytest.mark.not_on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.not_on("sqlite-file"))])
def test_others(n, database): ...
"""
WRONG = {
    "no database begins with 'sqlight'": "@pytest.mark.only_on('sqlight')\ndef test(database): ...",
    "uses no database": "@pytest.mark.not_on('sqlite')\ndef test(): ...",
    "Empty parameter set": "@pytest.mark.parametrize('n', [])\ndef test(n): ...",
}


def collected(directory: Path, tests: str, scale: str = "full", databases: str = "") -> str:
    """What pytest says when it collects a module."""
    module, here = directory / "test_marked.py", Path(__file__).parent
    module.write_text(f"import pytest\n{tests}", encoding="utf-8")
    options = ["-c", here.parent / "pyproject.toml", "--rootdir", directory, "-p", "conftest"]
    # The process that is forked has imported what pytest would rewrite.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments = ["-q", "--collect-only", *map(str, options), str(module)]
    program = directory / "collect.py"
    program.write_text(
        "import sys, warnings, pytest\nwarnings.resetwarnings()\n"
        f"sys.path.insert(0, {str(here)!r})\nsys.exit(pytest.main({arguments}))\n"
    )
    environment = {**os.environ, "TEST_SCALE": scale, "TEST_DATABASES": databases}
    result = run_program(program, directory=directory, environment=environment)
    return result.stdout + result.stderr


def test_marks_deselect_where_a_test_does_not_apply(tmp_path: Path) -> None:
    lines = collected(tmp_path, MARKED).splitlines()
    assert {line.partition("::")[2] for line in lines if "::" in line} == {
        "test_sqlite[sqlite-file]",
        "test_sqlite[sqlite-memory]",
        "test_others[sqlite-file-1]",
        "test_others[sqlite-memory-1]",
        "test_others[sqlite-memory-2]",
    }


def test_a_file_is_used_where_memory_does_not_show_the_same(tmp_path: Path) -> None:
    lines = collected(tmp_path, MARKED, scale="").splitlines()
    assert not any("sqlite-file" in line for line in lines)
    only_on_file = """
@pytest.mark.not_on("sqlite-memory")
def test_file(database): ...

def test_shared(shared_database): ...
"""
    lines = collected(tmp_path, only_on_file, scale="").splitlines()
    assert sum("sqlite-file" in line for line in lines) == 2


def test_marks_select_what_runs_for_every_change(tmp_path: Path) -> None:
    tests = """
@pytest.mark.logic
def test_logic(database): ...

@pytest.mark.dialect
def test_dialect(database): ...

def test_other(database): ...

@pytest.mark.only_on("mysql")
def test_mysql(database): ...

@pytest.mark.dialect
class TestOf:
    @pytest.mark.logic
    def test_one(self, database): ...
"""
    servers = {name: name.partition("-")[0] for name in SERVERS}

    def runs(databases: str) -> set[tuple[str, str]]:
        lines = collected(tmp_path, tests, scale="", databases=databases).splitlines()
        found = [re.fullmatch(r".*::test_(\w+)\[(.+)\]", line) for line in lines]
        return {(each[1], servers[each[2]]) for each in found if each and each[2] in servers}

    names = ("logic", "dialect", "other", "one")
    every = {(name, kind) for name in names for kind in servers.values()}
    assert runs("all") == {*every, ("mysql", "mysql")}
    left = {(name, kind) for name in ("logic", "one") for kind in servers.values()}
    found = runs("")
    # One of the two that are alike, chosen by the name of the test.
    [other] = {"mariadb", "mysql"} - {kind for name, kind in found if name == "other"}
    assert found == {*every, ("mysql", "mysql")} - left - {("other", other)}


@pytest.mark.parametrize("error", WRONG)
def test_marks_that_cannot_apply_are_refused(tmp_path: Path, error: str) -> None:
    assert error in collected(tmp_path, WRONG[error])


def test_modules_with_large_counts_have_tests_that_fuzz_selects() -> None:
    modules = Path(__file__).parent.rglob("test_*.py")
    texts = {path.name: path.read_text(encoding="utf-8") for path in modules}
    scaled = {name for name, text in texts.items() if re.search(r"import .*\bscale\b", text)}
    assert {"test_plans.py", "test_runs_crashes.py"} <= scaled
    assert {name for name in scaled if "@pytest.mark.scaled" not in texts[name]} == set()


async def test_database_is_empty_and_of_its_kind(database: Database) -> None:
    engine = database.engine()
    assert engine.dialect.name == database.kind
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE agent_sessions (n INTEGER)"))
        await connection.execute(text("INSERT INTO agent_sessions VALUES (1)"))
    async with database.engine().connect() as connection:
        assert (await connection.execute(text("SELECT n FROM agent_sessions"))).scalar() == 1


# What a test may leave behind in a database besides rows.
LEFT_BEHIND = {
    "postgresql": [
        "CREATE TABLE one (n SERIAL PRIMARY KEY)",
        'CREATE SCHEMA "a \'b"',
        'CREATE TABLE "a \'b".two (n INTEGER REFERENCES one)',
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER nothing BEFORE INSERT ON one EXECUTE FUNCTION nothing()",
        "CREATE VIEW three AS SELECT * FROM one",
        "ALTER DATABASE {database} SET timezone = 'Asia/Kolkata'",
    ],
    "mysql": [
        "CREATE TABLE one (n INTEGER AUTO_INCREMENT PRIMARY KEY)",
        "CREATE TABLE two (n INTEGER, FOREIGN KEY (n) REFERENCES one (n))",
        "CREATE TRIGGER nothing BEFORE INSERT ON one FOR EACH ROW SET @n = 1",
        "CREATE PROCEDURE nothing() SELECT 1",
        "CREATE VIEW three AS SELECT * FROM one",
        "ALTER DATABASE {database} CHARACTER SET latin1",
    ],
}
# What tells a new database from one that was used.
CATALOGS = ["class", "constraint", "depend", "namespace", "proc", "trigger", "type"]
VIEWS = {
    "tables": "table",
    "triggers": "trigger",
    "routines": "routine",
    "table_constraints": "constraint",
}
CONTENTS = {
    "postgresql": [
        *[f"SELECT count(*) FROM pg_{name}" for name in CATALOGS],
        "SELECT setting FROM pg_settings WHERE name = 'TimeZone'",
        "SELECT count(*) FROM pg_db_role_setting WHERE setdatabase <> 0",
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY nspname",
    ],
    "mysql": [
        "SELECT @@character_set_database",
        *[
            f"SELECT count(*) FROM information_schema.{view} WHERE {kind}_schema = database()"
            for view, kind in VIEWS.items()
        ],
    ],
}


@pytest.mark.parametrize("name", SERVERS)
async def test_reused_database_is_as_a_new_one(tmp_path: Path, servers: Servers, name: str) -> None:
    async def contents(database: Database) -> list[object]:
        engine = database.engine(poolclass=NullPool)
        return [await raw.execute(engine, query) for query in CONTENTS[database.kind]]

    async with contextlib.AsyncExitStack() as stack:
        lent = stack.enter_async_context
        # The free ones are all in use, so the last is new.
        while servers.has_empty(name):
            await lent(empty_database(name, tmp_path, servers))
        expected = await contents(await lent(empty_database(name, tmp_path, servers)))

        async with empty_database(name, tmp_path, servers) as used:
            engine = used.engine(poolclass=NullPool)
            for statement in LEFT_BEHIND[used.kind]:
                database = make_url(used.url).database
                await raw.execute(engine, statement.format(database=database))
            abandoned = create_async_engine(used.url)
            connection = await abandoned.connect()
            await connection.execute(text("SELECT * FROM one FOR UPDATE"))
            assert await contents(used) != expected

        async with empty_database(name, tmp_path, servers) as reused:
            assert reused.url == used.url
            assert await contents(reused) == expected
        with pytest.raises(DBAPIError):
            await connection.execute(text("SELECT 1"))
        await connection.invalidate()
        await abandoned.dispose()


async def test_leaked_connection_fails(tmp_path, servers: Servers) -> None:
    async def leak() -> None:
        async with empty_database("sqlite-file", tmp_path, servers) as database:
            leaked.append(await database.engine().connect())

    leaked = []
    with pytest.raises(AssertionError, match="1 connections to sqlite-file were not given back"):
        await leak()
    await leaked[0].invalidate()


async def test_processes_share_a_database_and_begin_together(shared_database: Database) -> None:
    async with shared_database.engine().begin() as connection:
        await connection.execute(text("CREATE TABLE seen (n INTEGER)"))
    script = """
import asyncio, sys, time
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

async def main(url, number):
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO seen VALUES (:n)"), {"n": number})
    await engine.dispose()

url, number = sys.argv[1], int(sys.argv[2])
time.sleep(number / 10)
prepared = time.time()
start()
started = time.time()
asyncio.run(main(url, number))
emit({"prepared": prepared, "started": started})
emit(number)
"""
    results = await run_processes(script, [(shared_database.url, n) for n in range(4)])
    assert [number for _, number in results] == [0, 1, 2, 3]
    times = [times for times, _ in results]
    assert max(t["prepared"] for t in times) <= min(t["started"] for t in times)
    async with shared_database.engine().connect() as connection:
        seen = (await connection.execute(text("SELECT n FROM seen ORDER BY n"))).scalars()
        assert list(seen) == [0, 1, 2, 3]


async def test_failed_process_is_an_error() -> None:
    script = "import sys; start(); assert sys.argv[1] != '1', 'the second one'"
    with pytest.raises(ProcessError, match="the second one"):
        await run_processes(script, [(0,), (1,)])


@pytest.mark.parametrize(
    "then", ["time.sleep(600)", "[emit(time.sleep(0.1)) for _ in range(6000)]"]
)
async def test_process_that_does_not_end_is_killed(then) -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(ProcessError, match=r"no end within 0\.5 s"):
        await run_processes(f"import time; start(); {then}", [(), ()], timeout=0.5)
    assert set(multiprocessing.active_children()) == before


def test_sqlite_is_new_enough() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)


def test_the_stress_tests_start() -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-W", "ignore", "-m", "stress", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(root / "tests")}
    done = subprocess.run(
        command, check=False, cwd=root, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "galera" in done.stdout
