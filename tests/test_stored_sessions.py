"""`parametrize_sessions`: stored sessions as the parameters of a test, in a pytest of its own."""

from __future__ import annotations

import pytest

from agents_session_metadata import SessionCatalog
from agents_session_metadata.testing import parametrize_sessions

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from agents import Agent
from agents_session_metadata import Replay, SessionCatalog
from agents_session_metadata.testing import parametrize_sessions

URL = "sqlite:///chat.db"

@parametrize_sessions(URL, {"owner_id": "u1"})
def test_id(session_id):
    assert session_id in ("a", "b")

@pytest.mark.asyncio
@parametrize_sessions(URL)
async def test_replay(session_id):
    async with SessionCatalog.from_url(URL) as catalog:
        result = await (await Replay.of(catalog, session_id)).run(Agent("guide"))
    assert not result.differences
"""


@pytest.fixture
async def catalog(pytester):
    url = f"sqlite:///{pytester.path}/chat.db"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        for name, owner in [("a", "u1"), ("b", "u1"), ("c", "u2")]:
            session = await catalog.create_session(name, metadata={"owner_id": owner})
            call = {"type": "function_call", "call_id": "c", "id": "fc", "name": "gone"}
            output = {"type": "function_call_output", "call_id": "c", "output": "x"}
            calls = [{**call, "arguments": "{}"}, output] if name == "c" else []
            answer = {"role": "assistant", "content": "hi"}
            await session.add_items([{"role": "user", "content": "hi"}, *calls, answer])
        yield catalog


def pytest_run(pytester, source):
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\n")
    pytester.makepyfile(test_sessions=source)
    return pytester.runpytest_subprocess("-v", "-W", "error", "-o", LOOP_SCOPE)


LOOP_SCOPE = "asyncio_default_fixture_loop_scope=function"


async def test_a_test_runs_once_for_each_session(catalog, pytester):
    done = pytest_run(pytester, SUITE)
    done.assert_outcomes(passed=4, failed=1)
    for name in ("test_id[a]", "test_id[b]", "test_replay[a]", "test_replay[c]"):
        assert f"::{name} " in str(done.stdout)
    assert "test_id[c]" not in str(done.stdout)
    assert "the agent has no tool 'gone'" in str(done.stdout)


async def test_a_suite_without_sessions_does_not_pass(catalog, pytester):
    done = pytest_run(pytester, SUITE.replace('"u1"', '"nobody"'))
    done.assert_outcomes(errors=1)
    assert "found no session that matches" in str(done.stdout)


async def test_ids_are_read_while_an_event_loop_runs(catalog, pytester):
    url = f"sqlite:///{pytester.path}/chat.db"
    assert parametrize_sessions(url, {"owner_id": "u2"}).args == ("session_id", ["c"])
