"""Apply the contribution to the newest openai-agents and run upstream's checks and tests on it.

Run by `make upstream`, with the Python of this project's environment, which starts PostgreSQL.
Everything is written to `.cache/upstream`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / ".cache" / "upstream"
SDK = WORK / "sdk"
PYTHON = str(WORK / "env" / "bin" / "python")

SOURCE = "src/agents/extensions/memory/sqlalchemy_metadata_session.py"
TESTS = "tests/extensions/memory/test_sqlalchemy_metadata_session.py"
NEW_FILES = {SOURCE: 270, TESTS: 420}
PATCHES = ["hook.patch", "export.patch", "docs.patch"]
# The tests for SQLAlchemySession, which the new class must pass in its place.
SUITE = [
    "tests/extensions/memory/test_sqlalchemy_session.py",
    "tests/memory/test_sqlalchemy_compaction.py",
]
ISSUES = ["issue_hook.md", "issues/cancelled_read.md"]
# Upstream's setting, and a package that its tests import and its source distribution lacks.
ISORT = (
    'lint.isort = {combine-as-imports = true, known-first-party = ["agents", "integration_tests"]}'
)
EXTRAS = "sqlalchemy,encrypt,redis,dapr,mongodb"
# What these checks and tests need of upstream's dev group, in the versions of its uv.lock.
TOOLS = (
    "aiosqlite fakeredis httpx inline-snapshot mypy pyright pytest pytest-asyncio pytest-mock"
    " pytest-xdist ruff"
).split()


def run(*command: str, cwd: Path = SDK, **environment: str) -> None:
    print("$", " ".join(command).replace(f"{ROOT}/", ""), flush=True)
    subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, check=True)


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def unpack() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    download = f"-m pip --quiet download --no-deps --no-binary :all: --no-build-isolation -d {WORK}"
    run(sys.executable, *download.split(), "openai-agents", cwd=WORK)
    [archive] = WORK.glob("openai_agents-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(WORK, filter="data")
    archive.with_name(archive.name.removesuffix(".tar.gz")).rename(SDK)
    print(archive.name)


def install() -> None:
    lock = WORK / "locked.txt"
    options = "--frozen --all-extras --group dev --no-hashes --no-emit-project --quiet"
    uv = str(Path(sys.executable).with_name("uv"))
    run(uv, "export", *options.split(), "-o", str(lock), UV_PYTHON_DOWNLOADS="never")
    run(sys.executable, "-m", "venv", str(WORK / "env"))
    pip = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    run(*pip, "-c", str(lock), "-e", f".[{EXTRAS}]", *TOOLS)


def reproduction(issue: str) -> list[str]:
    """Run the script of an issue, and return what it prints."""
    [script] = re.findall(r"```python\n(.*?)```", (HERE / issue).read_text(), re.DOTALL)
    result = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
    print(result.stdout, end="", flush=True)
    return result.stdout.splitlines()


def apply() -> None:
    for path, limit in NEW_FILES.items():
        source = HERE / Path(path).name
        lines = len(source.read_text(encoding="utf-8").splitlines())
        print(f"{path}: {lines} lines, at most {limit}")
        if lines > limit:
            raise SystemExit(1)
        shutil.copy(source, SDK / path)
    for name in PATCHES:
        run(
            "git", "apply", "--stat", "--apply", str(HERE / name), GIT_CEILING_DIRECTORIES=str(WORK)
        )


def check() -> None:
    run(PYTHON, "-m", "ruff", "format", "--check")
    run(PYTHON, "-m", "ruff", "check", "--config", ISORT)
    run(PYTHON, "-m", "mypy", SOURCE, "src/agents/extensions/memory/sqlalchemy_session.py")
    config = SDK / "pyrightconfig.new.json"
    base = json.loads((SDK / "pyrightconfig.json").read_text(encoding="utf-8"))
    config.write_text(json.dumps({**base, "include": [SOURCE, TESTS]}), encoding="utf-8")
    run(PYTHON, "-m", "pyright", "--project", str(config), "--pythonpath", PYTHON)


def test(*paths: str, **environment: str) -> None:
    """Run tests. Those that fail, because they depend on time, run once more, alone."""
    cache = f"cache_dir={WORK / 'pytest-cache'}"
    command = [PYTHON, "-m", "pytest", "-q", "-W", "ignore", "-o", cache, *paths]
    try:
        run(*command, **environment)
    except subprocess.CalledProcessError as error:
        if error.returncode != pytest.ExitCode.TESTS_FAILED:
            raise
        run(*command, "--last-failed", "-n", "0", **environment)


def test_in_place() -> None:
    """Run upstream's tests for SQLAlchemySession with the new class in its place."""
    report = WORK / "report.json"
    test(
        "-p",
        "sdk_plugin",
        *SUITE,
        PYTHONPATH=str(ROOT / "tests"),
        SDK_SUITE_CLASS="agents.extensions.memory:SQLAlchemyMetadataSession",
        SDK_SUITE_REPORT=str(report),
    )
    counts = json.loads(report.read_text(encoding="utf-8"))
    print(f"{counts['passed']} of {counts['collected']} passed")


def test_on_postgresql() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from servers import PostgreSQL

    server = PostgreSQL()
    try:
        test(TESTS, "-k", "url", SQLALCHEMY_TEST_URL=server.url.render_as_string(False))
    finally:
        server.stop()


if __name__ == "__main__":
    step("Download the newest source distribution")
    unpack()
    step("Install it, and the tools of its checks, in the versions of its uv.lock")
    install()
    step("Reproduce the issues without the contribution")
    before = [line for issue in ISSUES for line in reproduction(issue)[-2:]]
    step("Apply the contribution")
    apply()
    step("make format-check lint mypy pyright; the two checkers on the new files")
    check()
    step("Upstream's tests for SQLAlchemySession, with the new class in its place")
    test_in_place()
    step("tests/extensions/memory and tests/memory, with the new tests, on SQLite")
    test("-n", "2", "tests/extensions/memory", "tests/memory")
    step("The new tests on PostgreSQL")
    test_on_postgresql()
    step("Summary")
    print("The contribution applies, and passes everything above.")
    print("Not run: the rest of upstream's tests, and its scripts in .github, which the source")
    print("distribution does not contain.")
    print(f"Issues, as in the newest release: {'; '.join(before)}")
