"""The SDK's newest source distribution, and an environment for its tests and checks."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from .build import ROOT

EXTRAS = "sqlalchemy,encrypt,redis,dapr,mongodb"
TOOLS = (
    *("aiosqlite", "fakeredis", "httpx", "inline-snapshot", "mypy", "pytest", "pytest-asyncio"),
    *("pytest-mock", "pytest-xdist", "pyright[nodejs]", "ruff"),
)
"""The SDK's development tools that its memory tests and checks need."""

_PIP = ("-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check")


def download(folder: Path) -> Path:
    """Download the newest source distribution of the SDK from PyPI and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    subprocess.run([sys.executable, *_PIP, "download", *options, "openai-agents"], check=True)
    (archive,) = folder.iterdir()
    return archive


def prepare(folder: Path, tree: Path) -> Path:
    """Create a virtual environment with the SDK from an unpacked tree, and its tools.

    An environment that is already complete is used again.

    Returns:
        The folder of its programs.
    """
    pins = _pins(tree)
    stamp, programs = folder / ".installed", folder / "bin"
    mark = hashlib.sha256("\n".join([pins, *TOOLS, EXTRAS, str(tree)]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text("utf-8") == mark:
        return programs
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run(
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True
    )
    constraints = folder / "constraints.txt"
    constraints.write_text(pins, "utf-8")
    python = str(programs / "python")
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraint",
        str(constraints),
    ]
    subprocess.run([*install, "hatchling", "editables"], check=True)
    sdk = ["--no-build-isolation", "--editable", f"{tree}[{EXTRAS}]"]
    subprocess.run([*install, *sdk, *TOOLS], check=True)
    stamp.write_text(mark, "utf-8")
    return programs


def _pins(tree: Path) -> str:
    """Return the versions in the SDK's lock file, and ours of packages that it does not have."""
    lock = (tree / "uv.lock").read_text("utf-8")
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r'^name = "(.+)"\nversion = "(.+)"', lock, re.MULTILINE):
        versions.setdefault(name, set()).add(version)
    pins = [f"{name}=={one}" for name, (one, *more) in versions.items() if not more]
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name = re.split(r"[=;@\s]", line)[0].lower()
        if name not in versions and not line.startswith("#"):
            pins.append(line)
    return "\n".join([*pins, ""])
