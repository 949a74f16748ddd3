"""`make upstream`: write the patches, apply them to the SDK's newest release, run its checks.

`python -m contrib.upstream [--archive FILE]`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .build import ROOT, edited_files, git, new_files, unpack, write_patches
from .environment import download, prepare

BUILD = ROOT / "build" / "upstream"
TREE, OUT, LOGS = BUILD / "tree", BUILD / "out", BUILD / "logs"
CLASS = "agents.extensions.memory:SQLAlchemyMetadataSession"
MEMORY_TESTS = (
    "--dist=worksteal",
    "tests/memory",
    "tests/extensions/memory",
    # It uses nothing that the patches change, and gives processes a fixed time to start, which is
    # too short on a busy machine.
    "--ignore=tests/extensions/memory/test_advanced_sqlite_session.py",
)
SESSION_TESTS = (
    "tests/extensions/memory/test_sqlalchemy_session.py",
    "tests/memory/test_sqlalchemy_compaction.py",
)
"""The SDK's tests of `SQLAlchemySession`, which the subclass passes in its place."""


def main() -> int:
    """Write the patches, apply and check them, and return the exit code."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(prog="contrib.upstream", description=__doc__)
    parser.add_argument("--archive", type=Path, help="a source distribution to use")
    archive = parser.parse_args().archive or download(BUILD / "sdist")
    for old in (TREE, OUT, LOGS, BUILD / "draft"):
        shutil.rmtree(old, ignore_errors=True)
    LOGS.mkdir(parents=True)

    unpack(archive, BUILD / "draft")
    patches = write_patches(BUILD / "draft", OUT)
    unpack(archive, TREE)
    git(TREE, "init", "--quiet")  # Otherwise git takes the tree for a part of this repository.
    for patch in patches:
        git(TREE, "apply", "--whitespace=error-all", str(patch))
        print(f"wrote and applied {patch.relative_to(ROOT)}")
    print(f"{archive.name}: {git(TREE, 'apply', '--numstat', *map(str, patches))}", end="")

    programs = prepare(ROOT / ".venv" / "upstream", TREE)
    print(f"prepared after {time.monotonic() - start:.0f} s", flush=True)
    failed = run_checks(Checks(programs))
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'All checks passed'}", end="")
    print(f" ({time.monotonic() - start:.0f} s in all)")
    return 1 if failed else 0


class Checks:
    """The commands that the SDK's maintainers run, on the files that the patches touch.

    Args:
        programs: The folder of the environment's programs.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        touched = [*edited_files(), *new_files()]
        self._files = [path for path in touched if path.endswith(".py")]

    def commands(self) -> dict[str, Callable[[], str]]:
        """Return the checks, the longest first. Each returns a summary or raises `CheckError`."""
        config = TREE / "pyrightconfig.upstream.json"
        config.write_text(
            json.dumps({"extends": "./pyrightconfig.json", "include": self._files}), "utf-8"
        )
        swapped = {
            "PYTHONPATH": str(ROOT / "tests"),
            "PYTEST_PLUGINS": "sdk_plugin",
            "SDK_SUITE_CLASS": CLASS,
            "SDK_SUITE_REPORT": str(LOGS / "session-tests.json"),
        }
        session_tests = f"session tests with {CLASS.partition(':')[2]}"
        # All of src would need the SDK's optional packages; mypy follows imports from here.
        sources = [path for path in self._files if path.startswith("src/")]
        return {
            "memory tests": lambda: self._pytest("memory tests", "-n2", *MEMORY_TESTS),
            "mypy": lambda: self._run("mypy", "mypy", *sources),
            session_tests: lambda: self._pytest(session_tests, *SESSION_TESTS, **swapped),
            "pyright": lambda: self._run("pyright", "pyright", "-p", config.name),
            "ruff check": lambda: self._run("ruff check", "ruff", "check", *self._files),
            "ruff format": lambda: self._run(
                "ruff format", "ruff", "format", "--check", *self._files
            ),
        }

    def _pytest(self, name: str, *arguments: str, **variables: str) -> str:
        options = ["-q", "-rsfE", "-p", "no:cacheprovider"]
        return self._run(name, "python", "-m", "pytest", *options, *arguments, **variables)

    def _run(self, name: str, *command: str, **variables: str) -> str:
        code, output = self._output(name, *command, **variables)
        if code:
            raise CheckError(output)
        return output.rstrip().rpartition("\n")[2].strip("= ")

    def _output(
        self, name: str, program: str, *arguments: str, **variables: str
    ) -> tuple[int, str]:
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=TREE,
            env={**os.environ, "PATH": path, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        (LOGS / f"{name.replace(' ', '-')}.txt").write_text(done.stdout, "utf-8")
        return done.returncode, done.stdout


class CheckError(Exception):
    """A check failed. The message is its output."""


def run_checks(checks: Checks) -> list[str]:
    """Run all checks, two at a time, and return the names of those that failed."""

    def run(name: str, check: Callable[[], str]) -> bool:
        start = time.monotonic()
        try:
            summary, passed = check(), True
        except CheckError as error:
            summary, passed = str(error), False
        seconds = time.monotonic() - start
        print(f"{'ok' if passed else 'FAILED'}: {name} ({seconds:.0f} s): {summary}", flush=True)
        return passed

    with ThreadPoolExecutor(2) as pool:
        results = {name: pool.submit(run, name, check) for name, check in checks.commands().items()}
    return [name for name, result in results.items() if not result.result()]


if __name__ == "__main__":
    sys.exit(main())
