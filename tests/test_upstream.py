"""The patch for the SDK: made of our sources, by rules that match, into code that stands alone.

"make upstream" applies it to the newest release and runs the SDK's own checks and tests there.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import agents
import pytest

from contrib.upstream.core import MEMORY, PACKAGE, generate_core
from contrib.upstream.package import Package, build
from contrib.upstream.rules import EXPORTS, RuleError
from contrib.upstream.sdk import CLASS, MODULE, SourceTree, insert
from contrib.upstream.suite_rules import PLACE, TESTS

RUFF = Path(sys.executable).with_name("ruff")
ROOT = Path(__file__).parents[1]
PATCHES = """
import sys
from pathlib import Path
from contrib.upstream.package import build
from contrib.upstream.sdk import SourceTree

package = build(SourceTree(Path(sys.argv[1])), Path(sys.argv[2]))
sys.stdout.buffer.write("".join(change.patch for change in package.changes).encode())
"""
BESIDE_THE_SDK = """
import asyncio, sys
import agents.extensions.memory as memory

memory.__path__.append(sys.argv[1])
from agents.extensions.memory import sqlalchemy_metadata_session as generated

async def main():
    session = generated.SQLAlchemyMetadataSession.from_url(
        "chat", url="sqlite+aiosqlite:///:memory:", create_tables=True
    )
    await session.set_metadata({"owner": "u", "tags": ["a"]})
    await session.add_items([{"role": "user", "content": "hello"}])
    where = {"owner": "u", "tags": {"$contains": "a"}}
    assert await session.find_sessions_by_metadata(where) == ["chat"]
    await session.clear_session()
    assert await session.get_metadata() == {}
    await session.engine.dispose()

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("agents_session_metadata")]
assert isinstance(generated.session_tables(), generated.SessionTables)
"""


@pytest.fixture(scope="module")
def archive() -> Path:
    found = list((Path(sys.prefix) / "sdk-tests").glob("openai_agents-*.tar.gz"))
    assert len(found) == 1, 'the SDK\'s source distribution is not there: run "make test"'
    return found[0]


@pytest.fixture(scope="module")
def package(archive: Path) -> Package:
    return build(SourceTree(archive), RUFF)


def source_files(package: Package) -> dict[str, str]:
    return {path: text for path, text in package.files.items() if path.startswith("src/")}


def run(code: str, *arguments: object, **variables: str) -> bytes:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_the_patches_are_the_same_each_time(package, archive):
    patches = "".join(change.patch for change in package.changes)
    assert run(PATCHES, archive, RUFF, PYTHONHASHSEED="1") == patches.encode()


def test_the_code_stands_alone(package, archive, tmp_path):
    files = {path: text for path, text in package.files.items() if path.endswith(".py")}
    assert len(files) > 25
    for path, text in files.items():
        compile(text, path, "exec")
        assert "agents_session_metadata" not in text, path
    for path, text in source_files(package).items():
        for node in ast.walk(ast.parse(text)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            for module in modules:
                known = {*sys.stdlib_module_names, "sqlalchemy", "typing_extensions"}
                assert module.partition(".")[0] in known, path
    for path, text in {**files, **SourceTree(archive).read("pyproject.toml")}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    for check in (["check"], ["format", "--check"]):
        command = [RUFF, *check, "--no-cache", tmp_path]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout
    run(BESIDE_THE_SDK, tmp_path / MEMORY)


def test_the_exports_are_those_that_are_wanted(package):
    def value_of(text: str, name: str) -> object:
        for node in ast.parse(text).body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if [getattr(target, "id", None) for target in targets] == [name]:
                return ast.literal_eval(node.value)
        raise LookupError(name)

    public = package.files[f"{MEMORY}/{MODULE}.py"]
    memory = package.files[f"{MEMORY}/__init__.py"]
    assert value_of(public, "__all__") == sorted(EXPORTS)
    assert set(EXPORTS) <= set(value_of(memory, "__all__"))
    lazy = value_of(memory, "_LAZY_EXPORTS")
    assert {name for name, (module, _) in lazy.items() if module == f".{MODULE}"} == set(EXPORTS)
    assert package.files["tests/extensions/memory/test_memory_imports.py"].count(f'"{CLASS}"') == 1


def test_our_tests_come_along(package):
    suite = package.suite
    assert suite.tests.keys() == TESTS.keys()
    assert sum(map(len, suite.tests.values())) > 3 * sum(map(len, suite.left_out.values()))
    for name in ("session", "limits", "compaction"):
        assert len(suite.left_out[f"test_{name}"]) < 2


def test_our_tests_pass_there(package, archive, tmp_path):
    """`make upstream` runs them too, in an environment of the SDK's own."""
    shutil.copytree(Path(agents.__file__).parent, tmp_path / "src" / "agents")
    sdk = SourceTree(archive).read("pyproject.toml", "tests/__init__.py")
    for path, text in {**sdk, **package.files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PLACE]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_texts_are_filled_in(package):
    for text in package.texts.values():
        assert not re.search(r"@\w+@", text)
    assert f"`{MEMORY}/{MODULE}.py`" in package.texts["pull-request.md"]


@pytest.mark.parametrize(
    ("module", "old", "new", "error"),
    [
        ("session", "def _in_store(", "def _of_store(", "dropped: .*_in_store"),
        ("store", "self.scope.check(values)", "self.scope.check(dict(values))", "found 0 times"),
        ("store", "Upsert keys of a session", "Upsert keys, in scope or not,", "speaks of"),
        ("rows", "from .dialect_base import", "from .catalog import", "in no target: catalog.D"),
        ("filters", "NOTHING = AnyOf", "NOTHING.x = 1\nNOTHING = AnyOf", "no rule for NOTHING.x"),
    ],
)
def test_a_rule_that_no_longer_matches_is_an_error(tmp_path, module, old, new, error):
    package = tmp_path / "package"
    shutil.copytree(PACKAGE, package)
    text = (package / f"{module}.py").read_text(encoding="utf-8")
    assert old in text
    (package / f"{module}.py").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(RuleError, match=error):
        generate_core(package)


def test_an_anchor_must_be_there_just_once():
    assert insert("a\nb\n", ["x"], path="file", after="a") == "a\nx\nb\n"
    assert insert("a\nb\n", ["x"], path="file", before="b") == "a\nx\nb\n"
    for text in ("b\n", "a\na\n"):
        with pytest.raises(RuleError, match="file"):
            insert(text, ["x"], path="file", after="a")
