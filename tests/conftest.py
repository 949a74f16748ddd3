from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from scaling import IS_FULL
from servers import (
    DATABASES,
    KNOWN_DATABASES,
    SHARED_DATABASES,
    Database,
    Servers,
    directory_in_memory,
    empty_database,
    program,
)

# The SDK would send traces of the runs that the tests make.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

# A shell ignores SIGINT in what it runs in the background, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# SQLite waits for the disk at every commit, unless its file (in `tmp_path`) is kept in memory.
if directory := directory_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory)


# Nothing that is imported or collected goes away before the end: looking for garbage in it takes a
# fifth of the time.
gc.disable()


def pytest_xdist_auto_num_workers() -> int:
    """As many workers as cores: one more collects all tests and starts all servers once more."""
    return max(2, os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """All workers collect the same at once: what one has compiled, the others read."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    # Collects once, because the time to the next full collection depends on what this one leaves.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    applying = [
        item
        for item in items
        if applies_to_its_database(item) and (is_everywhere() or runs_in_every_change(item))
    ]
    names = {item.nodeid for item in applying}
    repeated = {item for item in applying if repeats_in_memory(item, names)}
    left_out = {*items} - {*applying} | (set() if is_everywhere() else repeated)
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        if is_quick(item):
            item.add_marker("quick")
        if hasattr(item.obj, "hypothesis"):
            item.add_marker("scaled")


def is_everywhere() -> bool:
    return IS_FULL or os.environ.get("TEST_DATABASES") == "all"


def database_name(item: pytest.Function) -> str | None:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters.get("database") or parameters.get("shared_database")


def runs_in_every_change(item: pytest.Function) -> bool:
    """Whether a test runs on its database although `.ci/nightly` runs everything everywhere.

    Without a mark, on all but one of MariaDB and MySQL, which its name chooses. Marked `dialect`,
    or only for some databases, on all. Marked `logic`, on SQLite. A mark of a test counts more than
    that of its module.
    """
    name = database_name(item) or "sqlite"
    marks = [mark.name for mark in item.iter_markers() if mark.name in {"logic", "dialect"}]
    if name.startswith("sqlite") or marks[:1] == ["dialect"]:
        return True
    if any(name.startswith(mark.args) for mark in item.iter_markers("only_on")):
        return True
    test = f"{item.path.name}::{item.originalname}"
    left_out = ("mariadb", "mysql")[zlib.crc32(test.encode()) % 2]
    return not marks and not name.startswith(left_out)


def repeats_in_memory(item: pytest.Function, names: set[str]) -> bool:
    """Whether a test on a SQLite file is the same test as one on SQLite in memory.

    Those run in `.ci/nightly` only. Tests of several connections or processes run on a file always.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    is_on_file = parameters.get("database") == "sqlite-file"
    return is_on_file and item.nodeid.replace("sqlite-file", "sqlite-memory") in names


def applies_to_its_database(item: pytest.Function) -> bool:
    """Whether the marks `only_on` and `not_on` of a test allow the database that it uses."""
    marks = [mark for mark in item.iter_markers() if mark.name in {"only_on", "not_on"}]
    if not marks:
        return True
    name = database_name(item)
    if name is None:
        raise pytest.UsageError(f"{item.nodeid} is marked {marks[0].name}, but uses no database")
    for prefix in (prefix for mark in marks for prefix in mark.args):
        if not any(each.startswith(prefix) for each in KNOWN_DATABASES):
            raise pytest.UsageError(f"{item.nodeid}: no database begins with {prefix!r}")
    return all(name.startswith(mark.args) == (mark.name == "only_on") for mark in marks)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip `release/` and `reference/` unless named; with `-m quick` what has no quick tests."""
    if collection_path.parent == Path(__file__).parent and collection_path.name in {
        "release",
        "reference",
    }:
        # These tests need distributions in dist/ and the package index.
        return None if any(collection_path.name in each for each in config.args) else True
    is_module = config.option.markexpr == "quick" and collection_path.name.startswith("test_")
    return True if is_module and not has_quick(collection_path) else None


def has_quick(module: Path) -> bool:
    return module.parent.name == "conformance" or module.name == "test_architecture.py"


def is_quick(item: pytest.Function) -> bool:
    """Whether a test belongs to the first answer: the promises, on SQLite, and the layout.

    Tests that are marked `thorough` do not: each takes seconds.
    """
    if item.get_closest_marker("thorough"):
        return False
    if item.path.parent.name != "conformance":
        return has_quick(item.path)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    used = {each for each in parameters if each in DATABASES}
    # Those on a file start processes, or wait for each other.
    return used <= {"sqlite-memory"} if used else "servers" not in item.fixturenames


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    asyncio.run(servers.stop())


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser that is installed, for Playwright's `executable_path`."""
    return program("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(params=DATABASES)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> AsyncIterator[Database]:
    """An empty database of every kind."""
    async with empty_database(request.param, tmp_path, servers) as database:
        yield database


@pytest.fixture(params=SHARED_DATABASES)
async def shared_database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> AsyncIterator[Database]:
    """An empty database that several engines and processes can share."""
    async with empty_database(request.param, tmp_path, servers) as database:
        yield database
