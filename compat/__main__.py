"""`python -m compat`: the tests on every combination, or on those that are chosen."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from . import results
from .installing import ROOT, build_wheel, interpreters, make_environment
from .matrix import combinations
from .results import SDK, Outcome

SUITES = {
    # Without a server: SQLite, and what needs no database.
    "sqlite": ("SQLite", "tests/conformance", "not postgresql and not psycopg and not mariadb"),
    "postgresql": ("PostgreSQL", "tests/conformance", "postgresql or psycopg"),
    "mariadb": ("MariaDB", "tests/conformance", "mariadb"),
    "sdk": (SDK, "tests/test_sdk_suite.py", ""),
}


def main() -> int:
    """Try the combinations; say in the exit status whether all tests passed."""
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    for name in ("python", "sqlalchemy", "sdk"):
        parser.add_argument(f"--{name}", nargs="+", metavar="VERSION", help="only with these")
    parser.add_argument("--databases", nargs="+", choices=["sqlite", "postgresql", "mariadb"])
    parser.add_argument("--list", action="store_true", help="show the combinations and end")
    arguments = parser.parse_args()

    found = interpreters()
    print("Python:", ", ".join(found))
    every = combinations(list(found))
    chosen = [
        one
        for one in every
        if all(
            getattr(arguments, name) is None or getattr(one, name) in getattr(arguments, name)
            for name in ("python", "sqlalchemy", "sdk")
        )
    ]
    if arguments.list or not chosen:
        print("\n".join(one.name for one in every))
        return int(not chosen)
    suites = [*(arguments.databases or ("sqlite", "postgresql", "mariadb")), "sdk"]
    wheel = build_wheel()
    kept = results.read()
    failed = False
    for one in chosen:
        print(f"\n{one.name}", flush=True)
        python = make_environment(one, found[one.python], wheel)
        for suite in suites:
            column, _, _ = SUITES[suite]
            outcome = run(python, suite)
            failed = failed or bool(outcome.failed)
            print(f"  {column}: {outcome}", flush=True)
            kept.setdefault(one, {})[column] = outcome
            # In the order of the matrix, and without what is no longer in it.
            results.write({each: kept[each] for each in every if each in kept})
    print(f"\n{results.table({each: kept[each] for each in every if each in kept})}")
    return int(failed)


def run(python: Path, suite: str) -> Outcome:
    """Run one of the suites; its output stays beside the environment, and is shown if it fails."""
    _, tests, words = SUITES[suite]
    options = ["-q", "-p", "no:cacheprovider", "-n", "auto", "--dist", "worksteal"]
    command = [str(python), "-m", "pytest", *options, tests, "-k", words]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CI": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    (python.parents[1] / f"{suite}.log").write_text(run.stdout, encoding="utf-8")
    if run.returncode:
        print("\n".join(run.stdout.splitlines()[-15:]))
    return Outcome.of(run.stdout, run.returncode)


if __name__ == "__main__":
    assert version("agents-session-metadata")  # noqa: S101  # its requirements are read
    sys.exit(main())
