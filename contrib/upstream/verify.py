"""Apply the patches to the SDK's tree, and run there what its maintainers would run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from .core import MEMORY
from .environment import ROOT, Environment
from .package import EXAMPLE, PAGE, Package
from .sdk import CLASS, MODULE, SourceTree
from .suite_rules import PLACE

PARENT_TESTS = (
    "tests/extensions/memory/test_sqlalchemy_session.py",
    "tests/memory/test_sqlalchemy_compaction.py",
)
"""The SDK's tests of `SQLAlchemySession`, which the subclass passes in its place."""

Judge: TypeAlias = Callable[[int, str], str]
"""Gives what is wrong with a program's exit code and output; nothing, when nothing is."""


class Verification:
    """The checks of one run.

    Args:
        tree: The SDK.
        build: The folder that all files go to; logs into `logs`, the tree into `tree`.
        environment: The folder of the environment.
    """

    def __init__(self, tree: SourceTree, build: Path, environment: Path) -> None:
        self.folder = build / "tree"
        self.failures: list[str] = []
        self.notes: list[str] = []
        self._logs = build / "logs"
        self._known: dict[str, set[str]] = {}
        for old in (self.folder, self._logs):
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir(parents=True)
        tree.unpack(self.folder)
        print(f"openai-agents {tree.version}: unpacked", flush=True)
        self._environment = Environment(environment, self.folder)
        self._environment.prepare()

    @property
    def ruff(self) -> Path:
        """The formatter that the SDK pins."""
        return self._environment.programs / "ruff"

    def baseline(self) -> None:
        """See what the checks say of the tree as it is: that is not the patches' doing."""
        for name, command in self._lints().items():
            self._run(f"{name}, before", command, partial(self._know, name))

    def apply(self, package: Package, patches: Sequence[Path]) -> bool:
        """Apply the patches with git, and compare the tree with what was generated."""
        for patch in patches:
            command = ["git", "apply", "--whitespace=error-all", str(patch.resolve())]
            if not self._run(f"git apply {patch.name}", command):
                return False
        for path, text in package.files.items():
            if (self.folder / path).read_text("utf-8") != text:
                self.failures.append(f"{path} is not as it was generated")
        return not self.failures

    def check(self) -> None:
        """Run the SDK's linters, type checkers and memory tests, and the example and the page."""
        for name, command in self._lints().items():
            self._run(name, command, partial(self._new, name))
        ours = [f"{MEMORY}/{MODULE}.py", f"{MEMORY}/_session_metadata", PLACE]
        config = self.folder / "pyrightconfig.upstream.json"
        config.write_text(json.dumps({"extends": "./pyrightconfig.json", "include": ours}), "utf-8")
        self._run("pyright, of what is new", self._program("pyright", "-p", config.name))
        config.unlink()
        self._test("the memory tests, old and new", "tests/memory", "tests/extensions/memory")
        self._test(
            f"the tests of SQLAlchemySession, with {CLASS}",
            *PARENT_TESTS,
            variables={
                "PYTHONPATH": str(ROOT / "tests"),
                "PYTEST_PLUGINS": "sdk_plugin",
                "SDK_SUITE_CLASS": f"agents.extensions.memory:{CLASS}",
                "SDK_SUITE_REPORT": str(self._logs / "parent-tests.json"),
            },
            workers=0,
        )
        play = Path(__file__).with_name("play.py")
        self._run("the example and the page", self._program("python", str(play), EXAMPLE, PAGE))

    def _lints(self) -> dict[str, list[str]]:
        return {
            "ruff check": self._program("ruff", "check", "--no-cache", "--output-format=concise"),
            "ruff format --check": self._program("ruff", "format", "--no-cache", "--check"),
            "mypy src": self._program("mypy", "src"),
        }

    def _program(self, name: str, *arguments: str) -> list[str]:
        return [str(self._environment.programs / name), *arguments]

    def _know(self, name: str, _: int, output: str) -> str:
        self._known[name] = _findings(output)
        return ""

    def _new(self, name: str, _: int, output: str) -> str:
        known, found = self._known[name], _findings(output)
        if known:
            self.notes.append(
                f"{name}: {len(known)} findings in the SDK's own files, the same before: "
                "packages or folders that are not here"
            )
        return "\n".join(sorted(found - known))

    def _test(
        self,
        name: str,
        *paths: str,
        variables: dict[str, str] | None = None,
        workers: int = 2,
    ) -> None:
        def judge(code: int, output: str) -> str:
            summary = output.rstrip().splitlines()[-1]
            skipped = re.findall(r"^SKIPPED \[\d+\] (.*)$", output, re.MULTILINE)
            self.notes.extend(f"{name}: skipped {one}" for one in skipped)
            print(f"    {summary.strip('= ')}", flush=True)
            return "" if code == 0 else output

        options = ["-q", "-rs", "-p", "no:cacheprovider", "-m", "not serial"]
        if workers:
            options += ["-n", str(workers), "--dist", "worksteal"]
        command = self._program("python", "-m", "pytest", *options, *paths)
        self._run(name, command, judge, variables)

    def _run(
        self,
        name: str,
        command: Sequence[str],
        judge: Judge = lambda code, output: "" if code == 0 else output,
        variables: dict[str, str] | None = None,
    ) -> bool:
        start = time.monotonic()
        path = f"{self._environment.programs}{os.pathsep}{os.environ['PATH']}"
        run = subprocess.run(
            command,
            cwd=self.folder,
            # git must not take our repository for the tree's.
            env={
                **os.environ,
                "GIT_CEILING_DIRECTORIES": str(self.folder.parent.resolve()),
                "PATH": path,
                **(variables or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        log = self._logs / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-').lower()}.txt"
        log.write_text(run.stdout, "utf-8")
        problem = judge(run.returncode, run.stdout)
        print(
            f"{'FAILED' if problem else 'ok':<7}{name} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        if problem:
            print(problem, flush=True)
            self.failures.append(name)
        return not problem


def _findings(output: str) -> set[str]:
    """What a checker found, without the lines that move when something is put in above them."""
    found = {
        re.sub(r":\d+(:\d+)?: ", ": ", line)
        for line in output.splitlines()
        if re.match(r"\S+\.\w+:\d+(:\d+)?: ", line) and ": note: " not in line
    }
    return found | set(re.findall(r"^Would reformat: \S+", output, re.MULTILINE))
