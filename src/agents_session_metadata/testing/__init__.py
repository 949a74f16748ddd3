"""A conformance kit for sessions of the Agents SDK (extra `testing`): a plugin of pytest.

`pytest -p agents_session_metadata.testing --agents-session=package.module:factory` runs the tests
of the module `contract` on the sessions that `factory` returns, whatever their class is.
`parametrize_sessions` runs a test on stored sessions, and needs no plugin.

PYTEST_DONT_REWRITE: nothing here asserts, and pytest warns if the module was imported before.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from sqlalchemy import URL

    from agents_session_metadata.types import FeedbackKind

    from .contract import MakeSession

CONTRACT = Path(__file__).with_name("contract.py")

pytest.register_assert_rewrite("agents_session_metadata.testing.contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("session", "sessions of the OpenAI Agents SDK")
    group.addoption(
        "--agents-session",
        metavar="MODULE:FACTORY",
        help="run the contract of a session on what FACTORY(session_id) returns. If FACTORY has a "
        "second parameter without a default, it is an empty directory, a new one for each test",
    )
    group.addoption(
        "--agents-session-in-memory",
        action="store_true",
        help="leave out the tests that need two session objects with the same history",
    )
    group.addoption(
        "--agents-session-on-server",
        action="store_true",
        help="leave out the tests that fail if a server adds fields to items and does not hear of "
        "cancellations; of the SDK's classes, this is OpenAIConversationsSession",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.agents_session:
        # pytest-asyncio warns if a project does not set its default, which nothing here uses.
        warnings.filterwarnings("ignore", '.*"asyncio_default_fixture_loop_scope" is unset')
        sys.path.insert(0, str(config.invocation_params.dir))
        config.stash[FACTORY] = _load(config.option.agents_session)
        config.args[:] = [str(CONTRACT)]


def pytest_report_header(config: pytest.Config) -> str | None:
    name = config.option.agents_session
    return f"agents session: {name}" if name else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    lacking = set()
    if config.option.agents_session_in_memory:
        lacking.add("shared")
    if config.option.agents_session_on_server:
        lacking.add("exact")
    left_out = [item for item in items if lacking & getattr(item.obj, "needs", set())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def make_session(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSession:
    """Makes a session with the given id. Override it to test sessions without the option."""
    factory = request.config.stash.get(FACTORY, None)
    if factory is None:
        pytest.fail("no sessions to test: pass --agents-session=package.module:factory")
    arguments = [tmp_path] if _takes_directory(factory) else []
    return lambda session_id: factory(session_id, *arguments)


FACTORY = pytest.StashKey[Callable[..., object]]()


def _load(name: str) -> Callable[..., object]:
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--agents-session must be package.module:factory, got {name!r}: {error}"
        raise pytest.UsageError(message) from error
    if callable(found):
        return cast("Callable[..., object]", found)
    raise pytest.UsageError(f"--agents-session: {name} is not callable")


def _takes_directory(factory: Callable[..., object]) -> bool:
    """Returns whether a second parameter is required. `SQLiteSession` has optional ones."""
    parameters = list(inspect.signature(factory).parameters.values())
    return len(parameters) > 1 and parameters[1].default is inspect.Parameter.empty


# ---- stored sessions ----


def parametrize_sessions(
    catalog_url: str | URL,
    where: Mapping[str, Any] | None = None,
    *,
    feedback: FeedbackKind | None = None,
    updated_since: datetime | None = None,
) -> pytest.MarkDecorator:
    """Run a test once for each stored session that matches, with its id as `session_id`.

    ```python
    @parametrize_sessions("sqlite:///sessions.db", {"tags": {"$contains": "regression"}})
    async def test_session(session_id): ...
    ```

    The ids are read when the decorator is called, so when pytest collects the module, in a thread
    with an event loop of its own. The test can be a function or a coroutine function.

    Args:
        catalog_url: The URL of the database.
        where: A filter; all sessions by default.
        feedback: As in `Replay.each`.
        updated_since: As in `Replay.each`.

    Returns:
        The decorator, a mark of pytest.

    Raises:
        LookupError: If no session matches, so that an empty suite does not pass.
        InvalidFilterError: If the filter is invalid.
        TablesMissingError: If the database has no tables.
    """
    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.replay import selected_sessions

    async def read() -> list[str]:
        async with SessionCatalog.from_url(catalog_url) as catalog:
            selected = selected_sessions(catalog, where, feedback, updated_since)
            return [info.session_id async for info, _ in selected]

    with ThreadPoolExecutor(1) as thread:  # This thread may have a loop that runs.
        ids = thread.submit(asyncio.run, read()).result()
    if not ids:
        raise LookupError("parametrize_sessions() found no session that matches")
    return pytest.mark.parametrize("session_id", ids)
