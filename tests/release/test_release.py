"""The distributions in dist/ are complete, and work in an empty environment.

These tests need the package index, so they are not part of `make test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import datetime, timezone
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest
from packaging.metadata import Metadata
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[2]
(WHEEL,) = (ROOT / "dist").glob("*.whl")
(SDIST,) = (ROOT / "dist").glob("*.tar.gz")
CONSTRAINTS = ROOT / "constraints.txt"
UV = Path(sys.executable).with_name("uv")
# Only in a checkout.
LEFT_OUT = (
    *(".ci/", "benchmarks/", "contrib/", "stress/"),
    *("tests/test_benchmarks.py", "tests/test_upstream.py"),
)


def wheel_files() -> dict[str, bytes]:
    with zipfile.ZipFile(WHEEL) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sdist_files() -> dict[str, bytes]:
    """Files of the source distribution, by their path below its one folder."""
    with tarfile.open(SDIST) as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None, f"{member.name} is no file"
            found[str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))] = file.read()
        return found


def metadata() -> list[bytes]:
    (in_wheel,) = (text for name, text in wheel_files().items() if name.endswith("/METADATA"))
    return [in_wheel, sdist_files()["PKG-INFO"]]


def described(text: bytes) -> tuple[Message, str]:
    """Metadata, and the text that a package index shows."""
    message = message_from_bytes(text)
    return message, message.get_payload(decode=True).decode()  # type: ignore[union-attr]  # bytes


def blocks(text: str) -> list[str]:
    return re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)


def test_metadata_is_valid_and_complete() -> None:
    wheel, sdist = metadata()
    assert wheel == sdist
    found = Metadata.from_email(wheel, validate=True)
    assert found.license_expression == "MIT"
    assert found.license_files == ["LICENSE"]
    assert found.description_content_type == "text/markdown"
    assert set(found.classifiers or ()) <= classifiers
    for python in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {python}" in (found.classifiers or ())
    assert {"Typing :: Typed", "Framework :: AsyncIO"} <= set(found.classifiers or ())
    # There is no page of the project yet, and none is invented.
    assert not found.project_urls
    assert b"example.com" not in wheel


def test_the_description_points_to_nothing_that_an_index_does_not_have() -> None:
    _, shown = described(metadata()[0])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", "".join(re.split(r"`[^`]*`", shown))) == []
    assert shown.startswith("# agents-session-metadata\n")
    assert blocks(shown) == blocks(readme)
    assert len(shown.splitlines()) == len(readme.splitlines())


def listed_files() -> list[str]:
    """The files of the checkout, without those that git ignores."""
    git = shutil.which("git")
    assert git is not None
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8")
    return listed.stdout.splitlines()


def test_builds_in_two_folders_are_equal_byte_for_byte(tmp_path) -> None:
    moment = datetime(2026, 11, 28, tzinfo=timezone.utc)
    made = tmp_path / "made"
    for folder in (ROOT, tmp_path / "copy"):
        if folder != ROOT:
            for name in listed_files():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", made / folder.name]
        dated = {**os.environ, "SOURCE_DATE_EPOCH": str(int(moment.timestamp()))}
        built = subprocess.run([*command, folder], env=dated, check=True, capture_output=True)
        assert b"Successfully built" in built.stdout
    one, two = (
        {each.name: each.read_bytes() for each in path.iterdir()} for path in made.iterdir()
    )
    assert one == two
    assert one.keys() == {WHEEL.name, SDIST.name}
    with zipfile.ZipFile(made / "copy" / WHEEL.name) as archive:
        assert {each.date_time for each in archive.infolist()} == {moment.timetuple()[:6]}


def test_the_page_of_dependencies_is_that_of_constraints_and_of_the_installed_packages() -> None:
    page = ROOT / "docs" / "dependencies.md"
    command = [sys.executable, page.with_suffix(".py")]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    stored, now = ({*text.split("\n")} for text in (page.read_text("utf-8"), printed.stdout))
    # Python 3.10 installs a few packages more.
    assert stored == now or (sys.version_info < (3, 11) and stored < now), "run `make dependencies`"


def test_the_wheel_has_the_package_and_nothing_else() -> None:
    package = ROOT / "src" / "agents_session_metadata"
    names = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = wheel_files()
    about = {name for name in found if ".dist-info/" in name}
    assert found.keys() - about == names
    assert f"{package.name}/py.typed" in names
    kinds = {PurePosixPath(name).name for name in about}
    assert kinds == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


def test_the_source_distribution_has_what_a_user_of_the_source_needs() -> None:
    wanted = {name for name in listed_files() if not name.startswith(LEFT_OUT)}
    assert sdist_files().keys() - {"PKG-INFO"} == wanted


@pytest.fixture(params=[WHEEL, SDIST], ids=["wheel", "sdist"], scope="module")
def environment(request, tmp_path_factory) -> Path:
    """An environment with a distribution and its extra for SQLite."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install(folder, f"{request.param}[sqlite]")
    return folder


def install(environment: Path, wanted: str) -> None:
    # It checks the hashes of constraints, too. Those of builds hold for a source distribution.
    pinned = ["--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS, wanted]
    subprocess.run([UV, "--quiet", "pip", "install", "--python", environment, *pinned], check=True)


def run(environment: Path, *command: object, cwd: Path) -> str:
    """Run a command with nothing of the checkout in reach."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    result = subprocess.run(
        [str(environment / "bin" / str(command[0])), *map(str, command[1:])],
        cwd=cwd,
        env={**kept, "PATH": f"{environment / 'bin'}:/usr/bin:/bin", "COLUMNS": "100"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_runs_the_quickstart(environment, tmp_path) -> None:
    shutil.copy(ROOT / "examples" / "quickstart.py", tmp_path)
    told = run(environment, "python", "-W", "error", "quickstart.py", cwd=tmp_path)
    assert "find_sessions_by_metadata" in told
    assert told.endswith("of user_456: []\n")
    where = "import agents_session_metadata; print(agents_session_metadata.__file__)"
    assert Path(run(environment, "python", "-c", where, cwd=tmp_path).strip()).is_relative_to(
        environment
    )


# Each extra by itself, and a command of it.
COMMANDS = {
    "sqlite": ["python", "-c", "import aiosqlite"],
    "postgresql": ["python", "-c", "import asyncpg"],
    "psycopg": ["python", "-c", "import psycopg, psycopg_binary"],
    "mysql": ["python", "-c", "import asyncmy"],
    "cli": ["agent-sessions", "count", "--create-tables", "--url", "sqlite:///chat.db"],
    "mcp": ["agent-sessions", "mcp", "--help"],
    "web": ["agent-sessions", "web", "--help"],
    "chatkit": ["python", "-c", "import agents_session_metadata.chatkit"],
    "testing": [
        *("pytest", "-q", "-p", "agents_session_metadata.testing"),
        *("--agents-session=agents:SQLiteSession", "--agents-session-in-memory"),
    ],
}


def interpreters() -> dict[str, str]:
    """The supported versions of Python that are installed, and their programs."""
    found = {}
    for version in ("3.10", "3.11", "3.12", "3.13"):
        program = shutil.which(f"python{version}")
        # A program of pyenv's may only say that the version is not active.
        if program and subprocess.run([program, "-V"], check=False, capture_output=True).stdout:
            found[version] = program
    return found


PYTHONS = interpreters()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", COMMANDS)
def test_each_extra_works_alone(extra, python, tmp_path) -> None:
    folder = tmp_path / "environment"
    subprocess.run([UV, "--quiet", "venv", "--python", PYTHONS[python], folder], check=True)
    install(folder, f"{WHEEL}[{extra}]")
    run(folder, *COMMANDS[extra], cwd=tmp_path)
    run(folder, "python", "-W", "error", "-c", "import agents_session_metadata", cwd=tmp_path)


def test_a_missing_extra_is_named(environment, tmp_path) -> None:
    database = f"sqlite:///{tmp_path / 'chat.db'}"
    options = ["--create", "--create-tables", "--url", database]
    # The SDK brings Click, and only tables need Rich.
    run(environment, "agent-sessions", "set", "a", "b=1", *options, cwd=tmp_path)
    with pytest.raises(AssertionError, match=r"install agents-session-metadata\[cli\]"):
        run(environment, "agent-sessions", "list", "--url", database, cwd=tmp_path)


def test_the_source_distribution_has_its_tests(tmp_path) -> None:
    with tarfile.open(SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    arguments = ["-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *arguments]
    subprocess.run([*command, "--collect-only"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    # It reads files of the checkout, and runs code.
    readme = [*command, "tests/test_readme.py"]
    subprocess.run(readme, cwd=folder, check=True, stdout=subprocess.DEVNULL)
