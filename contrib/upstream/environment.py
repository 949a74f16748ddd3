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
    *("pytest-mock", "pytest-xdist", "pyright[nodejs]", "types-requests"),
)
"""What the memory tests and the checks need of the SDK's development tools."""

_PIP = ("-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check")


def download(folder: Path) -> SourceTree:
    """The newest source distribution of the SDK on PyPI, fetched into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder]
    subprocess.run([sys.executable, *_PIP, "download", *options, "openai-agents"], check=True)
    (archive,) = folder.iterdir()
    return SourceTree(archive)


class Environment:
    """A virtual environment with the SDK installed from an unpacked tree, and its tools.

    Args:
        folder: Where it is, or is to be.
        tree: The unpacked tree.
        version: The version of the SDK in the tree.
    """

    def __init__(self, folder: Path, tree: Path, version: str) -> None:
        self.programs = folder / "bin"
        self.notes: list[str] = []
        self._folder = folder
        self._tree = tree
        self._project = (tree / "pyproject.toml").read_text("utf-8")
        self._constraints = self._pins(version)

    def prepare(self) -> None:
        """Install what is needed, unless that was done already."""
        stamp = self._folder / ".installed"
        known = "\n".join([self._project, self._constraints, *TOOLS, EXTRAS, str(self._tree)])
        mark = hashlib.sha256(known.encode()).hexdigest()
        if stamp.exists() and stamp.read_text("utf-8") == mark:
            return
        venv.create(self._folder, clear=True, with_pip=True)
        constraints = self._folder / "constraints.txt"
        constraints.write_text(self._constraints, "utf-8")
        pip = [self.programs / "python", *_PIP, "install", "--constraint", constraints]
        subprocess.run([*pip, "hatchling", "editables"], check=True)
        sdk = ["--no-build-isolation", "--editable", f"{self._tree}[{EXTRAS}]"]
        subprocess.run([*pip, *sdk, *TOOLS, "ruff"], check=True)
        stamp.write_text(mark, "utf-8")

    def _pins(self, version: str) -> str:
        """Our pins and those that the SDK has of its own tools, which come first."""
        ours = [
            line
            for path in (ROOT / "constraints.txt", Path(__file__).with_name("constraints.txt"))
            for line in path.read_text("utf-8").splitlines()
            if line and not line.startswith("#")
        ]
        pinned = re.findall(r'"(ruff|pyright)==([\d.]+)"', self._project)
        free = {"openai-agents", *(name for name, _ in pinned)}
        if f"openai-agents=={version}" not in ours:
            # What suited another release of the SDK need not suit this one.
            free |= {
                name.lower() for name in re.findall(r'^\s+"([\w.-]+)', self._project, re.MULTILINE)
            }
            self.notes.append(
                f"constraints.txt is for another release than {version}: "
                "what that one requires by itself was not pinned"
            )
        kept = [line for line in ours if re.split(r"[=;@\s]", line)[0].lower() not in free]
        return "\n".join([*kept, *(f"{name}=={number}" for name, number in pinned), ""])
