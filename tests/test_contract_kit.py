"""The conformance kit: it passes what is right, and each of its tests fails on something wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import faulty_sessions
import pytest
import reported_sessions
from scaling import scale

from agents_session_metadata.testing import contract

pytest_plugins = ["pytester"]

TESTS = {name for name in vars(contract) if name.startswith("test_")}
FAULTY = [
    found.__name__
    for found in vars(faulty_sessions).values()
    if isinstance(found, type)
    and issubclass(found, faulty_sessions.Right)
    and found is not faulty_sessions.Right
]


KIT = ("-p", "agents_session_metadata.testing")
LOOP_SCOPE = "asyncio_default_fixture_loop_scope=function"
SUITE = """
import faulty_sessions, pytest, reported_sessions
from agents_session_metadata.testing.contract import *

@pytest.fixture(params={names})
def make_session(request, tmp_path):
    return lambda session_id: {module}.named(request.param)(session_id, tmp_path)
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs pytest in a project of its own."""
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -W error\n")
    return lambda *options: pytester.runpytest_inprocess("-q", *options)


def test_right_session_passes(run):
    done = run(*KIT, "--agents-session=faulty_sessions:Right")
    assert done.ret == 0, done.outlines + done.errlines
    assert f"{len(TESTS)} passed" in str(done.stdout)


@pytest.mark.thorough
def test_each_test_can_fail(run, pytester):
    pytester.makepyfile(test_all=SUITE.format(module="faulty_sessions", names=FAULTY))
    done = run("--tb=no", "-o", LOOP_SCOPE)
    found = defaultdict(set)
    for test, name in re.findall(r"^FAILED .*::(\w+)\[(\w+)\]", str(done.stdout), re.MULTILINE):
        found[name].add(test)
    assert set(found) == set(FAULTY), done.outlines
    assert set().union(*found.values()) == TESTS, found


def test_sessions_in_memory(run):
    """Without a second object of the same id, tests that need one are left out, and said to be."""
    done = run(*KIT, "--agents-session=agents:SQLiteSession", "--agents-session-in-memory")
    shared = sum("shared" in getattr(vars(contract)[name], "needs", ()) for name in TESTS)
    assert f"{len(TESTS) - shared} passed, {shared} deselected" in str(done.stdout), done.outlines


def test_sessions_on_a_server_that_normalizes_items(run):
    """Those of the SDK's `OpenAIConversationsSession`; what cannot hold there is left out."""
    done = run(*KIT, "--agents-session=reported_sessions:on_server", "--agents-session-on-server")
    exact = sum("exact" in getattr(vars(contract)[name], "needs", ()) for name in TESTS)
    assert 0 < exact < len(TESTS)
    assert f"{len(TESTS) - exact} passed, {exact} deselected" in str(done.stdout), done.outlines


def test_pytest_knows_nothing_of_the_kit_unless_asked(pytester):
    """A project can have options and fixtures of these names."""
    pytester.makeconftest(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--session')\n"
        "    parser.addoption('--session-in-memory')\n"
    )
    pytester.makepyfile("def test_option(pytestconfig): assert pytestconfig.option.session == 'x'")
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "--session=x")
    assert "1 passed" in str(done.stdout), done.outlines + done.errlines
    assert not entry_points(group="pytest11", name="agents-session-metadata")
    told = pytester.runpytest_subprocess("--help", "-p", "no:cacheprovider")
    assert "agents" not in str(told.stdout)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "--agents-session must be package.module:factory, got 'nothing'"),
        ("agents:Nothing", "has no attribute 'Nothing'"),
        ("no_such_module:factory", "No module named 'no_such_module'"),
        ("sys:path", "--agents-session: sys:path is not callable"),
    ],
)
def test_wrong_name(run, name, message):
    done = run(*KIT, f"--agents-session={name}")
    assert done.ret == 4
    assert message in str(done.stderr)


PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
COLUMNS = {name: f"`{name}`" for name in reported_sessions.ON_FILE} | {
    "in_memory": "`SQLAlchemySession` in memory"
}


def report(run, pytester, names: list[str]) -> list[list[str]]:
    """The cells of the table on the page: a row per test, a column per class."""
    pytester.makepyfile(test_report=SUITE.format(module="reported_sessions", names=names))
    results = pytester.path / "results.xml"
    done = run("--tb=no", f"--junitxml={results}", "-o", LOOP_SCOPE)
    assert results.exists(), done.outlines + done.errlines
    outcomes = {
        case.attrib["name"]: "**fails**" if len(case) else "passes"
        for case in ElementTree.parse(results).iter("testcase")  # noqa: S314  # pytest wrote it
    }
    rows = [
        [test.__doc__, *(outcomes[f"{name}[{column}]"] for column in names)]
        for name, test in vars(contract).items()
        if name in TESTS
    ]
    return [["promise", *map(COLUMNS.get, names)], *rows]


@pytest.mark.scaled
@pytest.mark.thorough
def test_report_on_the_page(run, pytester):
    _, table, _ = PAGE.read_text(encoding="utf-8").split("<!-- report -->\n")
    cells = [re.findall(r"\| (.+?) (?=\|)", line) for line in table.strip().splitlines()]
    heads = cells[0]
    assert heads == ["promise", *COLUMNS.values()]
    names = scale(["SQLAlchemyMetadataSession", "in_memory"], [*COLUMNS])
    chosen = [0, *(heads.index(COLUMNS[name]) for name in names)]
    shown = [[line[column] for column in chosen] for line in cells if line]
    assert shown == report(run, pytester, names)
