"""The conformance kit: it passes what is right, and each of its tests fails on something wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import faulty_sessions
import pytest
import reported_sessions

from agents_session_metadata.testing import contract

TESTS = {name for name in vars(contract) if name.startswith("test_")}
FAULTY = [
    found.__name__
    for found in vars(faulty_sessions).values()
    if isinstance(found, type)
    and issubclass(found, faulty_sessions.Right)
    and found is not faulty_sessions.Right
]


LOOP_SCOPE = "asyncio_default_fixture_loop_scope=function"
SUITE = """
import faulty_sessions, pytest, reported_sessions
from agents_session_metadata.testing.contract import *

@pytest.fixture(params={names})
def make_session(request, tmp_path):
    return lambda session_id: {module}.named(request.param)(session_id, tmp_path)
"""


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in a project that has nothing but this package installed."""
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -W error\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_right_session_passes(tmp_path):
    done = run(tmp_path, "--session=faulty_sessions:Right")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(TESTS)} passed" in done.stdout


@pytest.mark.thorough
def test_each_test_can_fail(tmp_path):
    (tmp_path / "test_all.py").write_text(SUITE.format(module="faulty_sessions", names=FAULTY))
    done = run(tmp_path, "--tb=no", "-o", LOOP_SCOPE)
    found = defaultdict(set)
    for test, name in re.findall(r"^FAILED .*::(\w+)\[(\w+)\]", done.stdout, re.MULTILINE):
        found[name].add(test)
    assert set(found) == set(FAULTY), done.stdout
    assert set().union(*found.values()) == TESTS, found


def test_sessions_in_memory(tmp_path):
    """Without a second object of the same id, tests that need one are left out, and said to be."""
    done = run(tmp_path, "--session=agents:SQLiteSession", "--session-in-memory")
    shared = sum("shared" in str(getattr(vars(contract)[name], "pytestmark", "")) for name in TESTS)
    assert f"{len(TESTS) - shared} passed, {shared} deselected" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "--session must be package.module:factory, got 'nothing'"),
        ("agents:Nothing", "has no attribute 'Nothing'"),
        ("no_such_module:factory", "No module named 'no_such_module'"),
        ("sys:path", "--session: sys:path is not callable"),
    ],
)
def test_wrong_name(tmp_path, name, message):
    done = run(tmp_path, f"--session={name}")
    assert done.returncode == 4
    assert message in done.stderr


PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
REPORTED = [*reported_sessions.ON_FILE]
COLUMNS = [*REPORTED, "in_memory"]


def report(directory: Path) -> str:
    """The table on the page: a row per test, a column per class."""
    (directory / "test_report.py").write_text(
        SUITE.format(module="reported_sessions", names=COLUMNS)
    )
    results = directory / "results.xml"
    options = [
        "--tb=no",
        f"--junitxml={results}",
        "-o",
        LOOP_SCOPE,
    ]
    done = run(directory, *options)
    assert results.exists(), done.stdout + done.stderr
    outcomes = {
        case.attrib["name"]: "**fails**" if len(case) else "passes"
        for case in ElementTree.parse(results).iter("testcase")  # noqa: S314  # pytest wrote it
    }
    names = [*(f"`{name}`" for name in REPORTED), "`SQLAlchemySession` in memory"]
    lines = [f"| promise | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, test in vars(contract).items():
        if name in TESTS:
            results_of_test = (outcomes[f"{name}[{column}]"] for column in COLUMNS)
            lines.append(f"| {test.__doc__} | {' | '.join(results_of_test)} |")
    return "\n".join(lines)


@pytest.mark.thorough
def test_report_on_the_page(tmp_path):
    _, table, _ = PAGE.read_text(encoding="utf-8").split("<!-- report -->\n")
    assert table.strip() == report(tmp_path)
