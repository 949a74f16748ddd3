"""An environment of its own for the SDK's tests and checks, and the SDK's newest source."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import venv
from pathlib import Path

from .sdk import SourceTree

ROOT = Path(__file__).parents[2]
EXTRAS = "sqlalchemy,encrypt,redis,dapr,mongodb"
TOOLS = (
    *("aiosqlite", "fakeredis", "httpx", "inline-snapshot", "mypy", "pytest", "pytest-asyncio"),
    *("pytest-mock", "pytest-xdist", "pyright[nodejs]", "ruff"),
    *("mkdocs", "mkdocs-material", "mkdocs-static-i18n", "mkdocstrings[python]"),
    "pymdown-extensions",
)
"""What memory tests, checks and documentation need of the SDK's development tools."""

_PIP = ("-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check")


def download(folder: Path) -> SourceTree:
    """The newest source distribution of the SDK on PyPI, fetched into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    subprocess.run([sys.executable, *_PIP, "download", *options, "openai-agents"], check=True)
    (archive,) = folder.iterdir()
    return SourceTree(archive)


class Environment:
    """A virtual environment with the SDK installed from an unpacked tree, and its tools.

    Args:
        folder: Where it is, or is to be.
        tree: The unpacked tree.
    """

    def __init__(self, folder: Path, tree: Path) -> None:
        self.programs = folder / "bin"
        self._folder = folder
        self._tree = tree
        self._constraints = self._pins()

    def prepare(self) -> None:
        """Install what is needed, unless that was done already."""
        stamp = self._folder / ".installed"
        known = "\n".join([self._constraints, *TOOLS, EXTRAS, str(self._tree)])
        mark = hashlib.sha256(known.encode()).hexdigest()
        if stamp.exists() and stamp.read_text("utf-8") == mark:
            return
        venv.create(self._folder, clear=True, with_pip=True)
        constraints = self._folder / "constraints.txt"
        constraints.write_text(self._constraints, "utf-8")
        python = str(self.programs / "python")
        pip = [python, *_PIP, "install", "--constraint", str(constraints)]
        subprocess.run([*pip, "hatchling", "editables"], check=True)
        sdk = ["--no-build-isolation", "--editable", f"{self._tree}[{EXTRAS}]"]
        subprocess.run([*pip, *sdk, *TOOLS], check=True)
        stamp.write_text(mark, "utf-8")

    def _pins(self) -> str:
        """The SDK's own lock; and of our pins those of what is not in it."""
        lock = (self._tree / "uv.lock").read_text("utf-8")
        versions: dict[str, set[str]] = {}
        for name, version in re.findall(r'^name = "(.+)"\nversion = "(.+)"', lock, re.MULTILINE):
            versions.setdefault(name, set()).add(version)
        pins = [f"{name}=={one}" for name, (one, *more) in versions.items() if not more]
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
            name = re.split(r"[=;@\s]", line)[0].lower()
            if name not in versions and not line.startswith("#"):
                pins.append(line)
        return "\n".join([*pins, ""])
