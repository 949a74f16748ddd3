"""Everything that goes upstream: patches and texts, from our sources and the SDK's tree."""

from __future__ import annotations

import difflib
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .core import generate_core
from .rules import RuleError
from .sdk import CLASS, IMPORTED, MODULE, SourceTree, edit_code, edit_docs
from .suite import TEMPLATES, Suite, generate_suite

EXAMPLE = "examples/memory/sqlalchemy_metadata_session_example.py"
PAGE = f"docs/sessions/{MODULE}.md"
TEXTS = {"pull-request.md": "pull_request.md", "issue.md": "issue.md"}
"""What is pasted into a browser, and the template of it."""


@dataclass(frozen=True)
class Change:
    """One patch: files of the SDK before and after."""

    name: str
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def patch(self) -> str:
        """The change as `git apply` and `patch -p1` take it."""
        parts = []
        for path in sorted(self.after):
            old, new = self.before.get(path), self.after[path]
            if old is None:
                parts.append(f"diff --git a/{path} b/{path}\nnew file mode 100644\n")
            else:
                parts.append(f"diff --git a/{path} b/{path}\n")
            lines = difflib.unified_diff(
                [] if old is None else old.splitlines(keepends=True),
                new.splitlines(keepends=True),
                "/dev/null" if old is None else f"a/{path}",
                f"b/{path}",
            )
            parts.extend(lines)
        return "".join(parts)


@dataclass(frozen=True)
class Package:
    """What `make upstream` writes.

    Attributes:
        changes: The patches, in the order in which they are applied.
        texts: Texts for people, by file name.
        suite: The tests, and which of ours are not among them.
    """

    changes: tuple[Change, ...]
    texts: Mapping[str, str]
    suite: Suite = field(repr=False)

    @property
    def files(self) -> dict[str, str]:
        """Every file as it is when all patches are applied."""
        return {path: text for change in self.changes for path, text in change.after.items()}


def build(tree: SourceTree, ruff: Path) -> Package:
    """Make the package for a source tree of the SDK.

    Args:
        tree: The SDK.
        ruff: The program that sorts imports and formats, by the SDK's own configuration.

    Raises:
        RuleError: If a rule no longer matches our sources or the SDK's.
    """
    core, suite = generate_core(), generate_suite()
    example = {EXAMPLE: (TEMPLATES / "example.py").read_text("utf-8")}
    before, edited = edit_code(tree)
    made = in_order({**core, **suite.files, **example, **edited}, tree, ruff)
    code = Change(f"0001-{MODULE.replace('_', '-')}.patch", before, made)
    before, after = edit_docs(tree)
    pages = {
        PAGE: (TEMPLATES / "page.md").read_text("utf-8"),
        f"docs/ref/extensions/memory/{MODULE}.md": f"# `{CLASS}`\n\n::: {IMPORTED}\n",
    }
    docs = Change("0002-docs.patch", before, {**pages, **after})
    for change in (code, docs):
        for path, text in change.after.items():
            if not text.endswith("\n") or text.endswith("\n\n"):
                raise RuleError(f"{path} does not end with one line break")
    numbers = {
        "version": tree.version,
        "tests": str(sum(map(len, suite.tests.values()))),
        "lines": str(sum(text.count("\n") for path, text in made.items() if path in core)),
        "files": "\n".join(f"- `{path}`" for path in sorted(code.after)),
    }
    texts = {}
    for name, template in TEXTS.items():
        text = (TEMPLATES / template).read_text("utf-8")
        for key, number in numbers.items():
            text = text.replace(f"@{key}@", number)
        texts[name] = text
    return Package((code, docs), texts, suite)


def in_order(files: Mapping[str, str], tree: SourceTree, ruff: Path) -> dict[str, str]:
    """Python files without unused imports, sorted and formatted as the SDK does it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pyproject.toml").write_text(tree.read("pyproject.toml")["pyproject.toml"], "utf-8")
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
        fixes = ["--quiet", "--fix", "--exit-zero", "--fixable", "F401,I001,RUF100"]
        for arguments in (["check", *fixes], ["format", "--quiet"]):
            subprocess.run(
                [ruff, *arguments, "--no-cache", root], check=True, stdout=subprocess.DEVNULL
            )
        return {path: (root / path).read_text("utf-8") for path in files}
