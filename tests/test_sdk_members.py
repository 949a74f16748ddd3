"""A release of the SDK that has changed what this package builds on is refused in one sentence."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SQLAlchemyMetadataSession, session
from agents_session_metadata import _sdk as sdk
from agents_session_metadata.dialects.urls import create_engine

TREE = ast.parse(
    "\n".join(Path(each.__file__).read_text(encoding="utf-8") for each in (session, sdk)).replace(
        "from __future__ import annotations", ""
    )
)
OWN = {
    node.name
    for node in ast.walk(TREE)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    and not hasattr(SQLAlchemySession, node.name)
}

VERSIONS = (
    f"agents-session-metadata {version('agents-session-metadata')} does not know "
    f"the SQLAlchemySession of openai-agents {version('openai-agents')}: "
)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def refusal() -> str:
    """What the import says of the SDK as it is now, in a module beside the one that is in use."""
    name = f"{sdk.__name__}_again"
    spec: Any = importlib.util.spec_from_file_location(name, sdk.__file__)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        with pytest.raises(ImportError) as caught:
            spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return str(caught.value).removeprefix(VERSIONS)


def test_every_private_member_that_is_used_is_checked() -> None:
    attributes = {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(TREE) if isinstance(node, ast.Constant)}
    known = {name for name in vars(SQLAlchemySession) if private(name)} - {"_abc_impl"}
    overridden = known & vars(sdk.StoredSession).keys()
    used = {name for name in attributes if private(name)} | (texts & known) | overridden
    own = {
        *OWN,
        *vars(sdk.StoredSession),
        *vars(SQLAlchemyMetadataSession),
        "_store",
        "_on_clear",
        "_sharing",
        "_must_exist",
    } - known
    # Of agents, tools, models, states and results, which `tests/conformance/test_runs.py` uses.
    own |= {"_agent_ref", "_cancel_mode", "_check_errors", "_context", "_is_agent_tool"}
    own |= {"_request_id", "_stored_exception"}
    state = {name for name in sdk.STATE if private(name)}
    assert used - own == {*sdk.MEMBERS} | state
    assert overridden | {"_atomic_replace_items"} == set(sdk.HOOKS)


@pytest.mark.parametrize("name", sdk.MEMBERS)
def test_a_member_that_is_missing(name, monkeypatch) -> None:
    monkeypatch.delattr(SQLAlchemySession, name)
    assert refusal() == f"it has no {name}"


@pytest.mark.parametrize(("place", "name"), [(place, name) for place, name, _ in sdk.INTERCEPTED])
def test_a_function_of_the_runner_that_is_missing(place, name, monkeypatch) -> None:
    monkeypatch.delattr(place, name)
    assert refusal() == f"its runner has no {name} in {place.__name__}"


@pytest.mark.parametrize("name", sdk.HOOKS)
def test_a_hook_that_the_sdk_calls_no_more(name, monkeypatch) -> None:
    for kind in (SQLAlchemySession, OpenAIResponsesCompactionSession):
        for member, value in list(vars(kind).items()):
            code = getattr(inspect.unwrap(value), "__code__", None)
            if name in sdk._names(code) and member != name:
                # It takes what it took, and does nothing.
                signature = inspect.signature(getattr(kind, member))
                changed = eval("lambda *_, **__: None")  # noqa: S307  # with no code of the SDK's
                changed.__signature__ = signature
                monkeypatch.setattr(kind, member, changed)
    assert f"it does not call {name}" in refusal().split("; ")


@pytest.mark.parametrize("name", sorted(sdk.STATE))
def test_a_constructor_that_leaves_something_out(name, monkeypatch) -> None:
    constructor = SQLAlchemySession.__init__

    def changed(self, *args, **kwargs) -> None:
        constructor(self, *args, **kwargs)
        del vars(self)[name]

    monkeypatch.setattr(SQLAlchemySession, "__init__", changed)
    monkeypatch.setattr(sdk, "_known_constructors", {})
    engine = create_async_engine("sqlite+aiosqlite://")
    for more in ({}, {"session_settings": {"limit": 3}}):
        with pytest.raises(ImportError) as caught:
            SQLAlchemyMetadataSession("chat", engine=engine, **more)
        assert str(caught.value) == f"{VERSIONS}its constructor does not set {name}"


async def test_a_constructor_that_sets_more_is_called(monkeypatch) -> None:
    constructor = SQLAlchemySession.__init__

    def changed(self, *args, **kwargs) -> None:
        constructor(self, *args, **kwargs)
        self._new = True

    monkeypatch.setattr(SQLAlchemySession, "__init__", changed)
    monkeypatch.setattr(sdk, "_known_constructors", {})
    engine = create_async_engine("sqlite+aiosqlite://")
    chat = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    assert chat._new
    await chat.set_metadata({"a": 1})
    assert await chat.get_metadata() == {"a": 1}
    await engine.dispose()


def test_it_is_the_import_that_stops() -> None:
    script = """
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
del SQLAlchemySession._lock_session
from agents_session_metadata import SQLAlchemyMetadataSession
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == f"ImportError: {VERSIONS}it has no _lock_session"


async def test_an_engine_of_our_own_is_configured_as_one_of_the_sdks(tmp_path) -> None:
    ours = create_engine(f"sqlite+aiosqlite:///{tmp_path}/ours.db?timeout=0")
    the_sdks = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/the_sdks.db?timeout=0")
    SQLAlchemySession("chat", engine=the_sdks)
    configured = []
    for engine in (ours, the_sdks):
        async with engine.connect() as connection:
            pragmas = [
                f"PRAGMA {name}" for name in ("busy_timeout", "journal_mode", "foreign_keys")
            ]
            found = [await connection.exec_driver_sql(pragma) for pragma in pragmas]
            configured.append([result.scalar_one() for result in found])
        await engine.dispose()
    assert configured[0] == configured[1]


def test_threads_may_be_the_first_to_need_the_sdk() -> None:
    script = """
import threading
import agents_session_metadata as package

uses = [
    lambda: package.SessionCatalog.from_url("sqlite+aiosqlite://").session("chat"),
    lambda: package.SessionTracker,
    lambda: package.SQLAlchemyMetadataSession,
    lambda: __import__("agents").Runner,
] * 2
begin, failed = threading.Barrier(len(uses)), []

def run(use):
    begin.wait()
    try:
        use()
    except BaseException as error:
        failed.append(repr(error))

threads = [threading.Thread(target=run, args=(use,)) for use in uses]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""
    subprocess.run([sys.executable, "-c", script], check=True)
