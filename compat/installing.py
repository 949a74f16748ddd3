"""Interpreters, releases on the package index, and an environment for each combination."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from .matrix import Combination

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "compat"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def interpreters() -> dict[str, Path]:
    """The interpreters that are installed, by version: on PATH, or those that pyenv has."""
    found: dict[str, Path] = {}
    candidates = [shutil.which(f"python{version}") for version in PYTHONS]
    if pyenv := shutil.which("pyenv"):
        for name in _output(pyenv, "versions", "--bare").split():
            prefix = _output(pyenv, "prefix", name).strip()
            candidates.append(str(Path(prefix, "bin", "python")))
    for candidate in candidates:
        # A shim of pyenv is there also for what is not chosen, and then fails.
        version = candidate and _output(
            candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
        )
        if candidate and version and version.strip() in PYTHONS:
            found.setdefault(version.strip(), Path(candidate))
    return {version: found[version] for version in PYTHONS if version in found}


def releases(project: str, python: str) -> list[Version]:
    """The final releases of a project that the package index has for a Python, oldest first."""
    command = [*_PIP, "index", "versions", "--python-version", python, project]
    told = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    listed = re.search(r"^Available versions: (.*)$", told, re.MULTILINE)
    assert listed is not None, told  # noqa: S101  # else pip writes otherwise
    return sorted(Version(one) for one in listed[1].split(", "))


def build_wheel() -> Path:
    """Build the package once; every environment gets the same."""
    folder = FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(combination: Combination, interpreter: Path, wheel: Path) -> Path:
    """Install a combination with all drivers and the tests' tools; gives its interpreter."""
    folder = FOLDER / combination.name
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", interpreter, folder], check=True)
    python = folder / "bin" / "python"
    constraints = FOLDER / "constraints.txt"
    constraints.write_text(_constraints(combination), encoding="utf-8")
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", constraints]
    subprocess.run([*install, f"{wheel}[dev]"], check=True)
    # Where tests/test_sdk_suite.py looks for them.
    (folder / "sdk-tests").symlink_to(_sdk_tests(combination.sdk))
    return python


def _constraints(combination: Combination) -> str:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    varied = {"sqlalchemy": combination.sqlalchemy, "openai-agents": combination.sdk}
    kept = [line for line in pinned if line.partition("==")[0] not in varied]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in varied.items())])


def _sdk_tests(version: str) -> Path:
    """The tests of a release of the SDK; only its source distribution has them."""
    folder = FOLDER / f"sdk-tests-{version}"
    if not folder.exists():
        downloads = FOLDER / "downloads"
        command = [*_PIP, "--quiet", "--quiet", "download", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--dest", str(downloads), f"openai-agents=={version}"]
        subprocess.run(command, check=True)
        (archive,) = downloads.glob(f"openai_agents-{version}.tar.gz")
        unpacked = FOLDER / f"openai_agents-{version}"
        with tarfile.open(archive) as tar:
            tar.extractall(FOLDER, filter="data")
        # They are to test the SDK that is installed.
        shutil.rmtree(unpacked / "src")
        unpacked.rename(folder)
    return folder


def _output(*command: str) -> str:
    """What a command prints; nothing when it fails."""
    run = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    return run.stdout if run.returncode == 0 else ""
