"""Apply the patches to the SDK's tree, and run there what its maintainers would run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
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
        self._known: dict[str, Counter[str]] = {}
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
        self._memory_tests()
        name = f"the tests of SQLAlchemySession, with {CLASS}"
        self._run(
            name,
            self._pytest(*PARENT_TESTS),
            variables={
                "PYTHONPATH": str(ROOT / "tests"),
                "PYTEST_PLUGINS": "sdk_plugin",
                "SDK_SUITE_CLASS": f"agents.extensions.memory:{CLASS}",
                "SDK_SUITE_REPORT": str(self._logs / "parent-tests.json"),
            },
        )
        self._count(name)
        play = Path(__file__).with_name("play.py")
        self._run("the example and the page", self._program("python", str(play), EXAMPLE, PAGE))
        self._documentation()

    def _memory_tests(self) -> None:
        """Run them all; those of the SDK's own that failed, perhaps for want of time, once more."""
        name = "the memory tests, old and new"
        late: list[str] = []

        def judge(code: int, output: str) -> str:
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
            if code == 1 and failed and not any(PLACE in one for one in failed):
                late.extend(failed)
                return ""
            return "" if code == 0 else output

        paths = ("tests/memory", "tests/extensions/memory")
        self._run(name, self._pytest("-n2", "--dist=worksteal", *paths), judge)
        self._count(name)
        if late:
            self.notes.append(f"{name}: ran again, alone: {', '.join(late)}")
            self._run(f"{name}: {len(late)} of the SDK's own again, alone", self._pytest(*late))

    def _documentation(self) -> None:
        """Build the site as the SDK does, but in English only, and look at what is new in it."""
        script = "docs/scripts/generate_ref_files.py"
        self._run("generate_ref_files.py", self._program("python", script))
        if stubs := sorted((self.folder / "docs" / "ref").rglob("*_session_metadata*/*")):
            self.failures.append(f"the API reference has pages of private modules: {stubs[0]}")
        config = self.folder / "mkdocs.upstream.yml"
        text = (self.folder / "mkdocs.yml").read_text("utf-8")
        config.write_text(
            text.replace("- i18n:\n", "- i18n:\n      build_only_locale: en\n"), "utf-8"
        )
        site = self._logs / "site"

        def judge(code: int, output: str) -> str:
            ours = rf"^(?:WARNING|ERROR).*(?:{MODULE}|_session_metadata).*"
            said = re.findall(ours, output, re.MULTILINE)
            page = site / PAGE.removeprefix("docs/").removesuffix(".md") / "index.html"
            is_there = page.exists() and CLASS in page.read_text("utf-8")
            return "\n".join(said) if code == 0 and is_there else output

        build = self._program("mkdocs", "build", "--config-file", config.name, "--site-dir")
        self._run("mkdocs build, in English", [*build, str(site.resolve())], judge)
        config.unlink()
        shutil.rmtree(site, ignore_errors=True)

    def _lints(self) -> dict[str, list[str]]:
        return {
            "ruff check": self._program("ruff", "check", "--no-cache", "--output-format=concise"),
            "ruff format --check": self._program("ruff", "format", "--no-cache", "--check"),
            "mypy src": self._program("mypy", "src"),
        }

    def _program(self, name: str, *arguments: str) -> list[str]:
        return [str(self._environment.programs / name), *arguments]

    def _know(self, name: str, _: int, output: str) -> str:
        self._known[name] = findings(output)
        return ""

    def _new(self, name: str, code: int, output: str) -> str:
        known, found = self._known[name], findings(output)
        if code not in (0, 1) or bool(code) is not bool(found):
            return output
        if known:
            self.notes.append(
                f"{name}: {known.total()} findings in the SDK's own files, the same before: "
                "packages or folders that are not here"
            )
        return "\n".join(sorted(found - known))

    def _pytest(self, *arguments: str) -> list[str]:
        options = ["-q", "-rsfE", "-p", "no:cacheprovider"]
        return self._program("python", "-m", "pytest", *options, *arguments)

    def _count(self, name: str) -> None:
        """Say how many tests ran, and which did not."""
        output = self._log(name).read_text("utf-8")
        print(f"       {output.rstrip().splitlines()[-1].strip('= ')}", flush=True)
        skipped = re.findall(r"^SKIPPED \[\d+\] (.*)$", output, re.MULTILINE)
        self.notes.extend(f"{name}: skipped {one}" for one in skipped)

    def _log(self, name: str) -> Path:
        return self._logs / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-').lower()}.txt"

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
        self._log(name).write_text(run.stdout, "utf-8")
        problem = judge(run.returncode, run.stdout)
        print(
            f"{'FAILED' if problem else 'ok':<7}{name} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        if problem:
            print(problem, flush=True)
            self.failures.append(name)
        return not problem


def findings(output: str) -> Counter[str]:
    """What a checker found, without the lines that move when something is put in above them."""
    found = [
        re.sub(r":\d+(:\d+)?: ", ": ", line)
        for line in output.splitlines()
        if re.match(r"\S+\.\w+:\d+(:\d+)?: ", line) and ": note: " not in line
    ]
    return Counter([*found, *re.findall(r"^Would reformat: \S+", output, re.MULTILINE)])
