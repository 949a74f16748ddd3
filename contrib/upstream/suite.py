"""Our conformance tests as tests of the SDK: what they promise, on SQLite, without a catalog.

A test comes along when all that it uses does. It stays away when it needs a catalog, a server, a
second process or a library that the SDK's developers do not install; `Suite.left_out` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

from .core import apply
from .fold import Fold, code_of
from .join import Wording, from_module, join, only
from .reach import Source, Unit, is_docstring, is_import, units
from .rules import EXPORTS, LINTED, RuleError
from .suite_rules import (
    ADDED,
    HELPERS,
    PLACE,
    TEST_ASSUMED,
    TEST_REPLACED,
    TESTS,
    UNAVAILABLE,
)

CONFORMANCE = Path(__file__).parents[2] / "tests" / "conformance"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass
class Suite:
    """The generated tests.

    Attributes:
        files: Text by path within the SDK's source tree; neither sorted nor formatted yet.
        tests: Names of the tests that came along, by the module of ours that they are from.
        left_out: Names of those that did not.
    """

    files: dict[str, str] = field(default_factory=dict)
    tests: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)


def generate_suite(folder: Path = CONFORMANCE) -> Suite:
    """Make the SDK's tests out of ours.

    Raises:
        RuleError: If a rule no longer matches what it is for.
    """
    texts = {name: (folder / f"{name}.py").read_text("utf-8") for name in {**HELPERS, **TESTS}}
    for rule in TEST_REPLACED:
        texts[rule.module] = apply(rule, texts[rule.module])
    suite, used = Suite(), set()
    suite.files[f"{PLACE}/conftest.py"] = (TEMPLATES / "conftest.py").read_text("utf-8")
    for name, target in {**HELPERS, **TESTS}.items():
        fold = Fold(TEST_ASSUMED)
        source = Source(name, cst.parse_module(texts[name]).visit(fold).visit(_Without("catalog")))
        used |= fold.used
        kept = _Selection(source, target.names)
        if name in TESTS:
            suite.tests[name] = kept.tests
            suite.left_out[name] = kept.left_out
            if not kept.tests:
                raise RuleError(f"no test of {name} comes along")
        wording = Wording(LINTED, ())
        body = [one.visit(wording).visit(_AsyncFixtures()) for one in kept.statements]
        file = join(target.docstring, [(source, body)], _rewritten, imports=target.imports)
        if name in ADDED:
            file += "\n\n" + (TEMPLATES / ADDED[name]).read_text("utf-8")
        suite.files[f"{PLACE}/{target.path}"] = file
    if used != set(TEST_ASSUMED):
        raise RuleError(f"assumed of what is nowhere: {sorted(set(TEST_ASSUMED) - used)}")
    return suite


class _Without(cst.CSTTransformer):
    """Leaves out statements that call something on an attribute and use nothing of it."""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self._call = f".{attribute}."

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        statement = updated_node.body[0]
        calls = isinstance(statement, cst.Expr) and self._call in code_of(statement)
        return cst.RemoveFromParent() if calls else updated_node


class _AsyncFixtures(cst.CSTTransformer):
    """Lets asynchronous fixtures run in the loop of their test: the SDK's default is another."""

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        if updated_node.asynchronous is None or not updated_node.decorators:
            return updated_node
        new = cst.parse_expression('pytest_asyncio.fixture(loop_scope="function")')
        decorators = []
        for decorator in updated_node.decorators:
            code = code_of(decorator.decorator)
            if code.startswith("pytest.fixture("):
                raise RuleError(f"no rule for the fixture {updated_node.name.value}")
            is_fixture = code == "pytest.fixture"
            decorators.append(decorator.with_changes(decorator=new) if is_fixture else decorator)
        return updated_node.with_changes(decorators=decorators)


class _Selection:
    """What of a module can come along: the tests, or some names of a helper."""

    def __init__(self, source: Source, wanted: Sequence[str]) -> None:
        self._units = [unit for unit in units(source.tree.body) if not is_import(unit.node)]
        self._by_name = {name: unit for unit in self._units for name in unit.names}
        self._used = {name: _identifiers(unit) for name, unit in self._by_name.items()}
        self._missing = self._unavailable(source)
        tests = [name for name in self._by_name if name.startswith("test_")]
        self.tests = [name for name in tests if name not in self._missing]
        self.left_out = [name for name in tests if name in self._missing]
        absent = [name for name in wanted if name not in self._by_name or name in self._missing]
        if absent:
            raise RuleError(f"{source.name} no longer has {', '.join(absent)}")
        needed = self._needed(wanted or self.tests)
        self.statements = [
            statement
            for unit in self._units
            if needed & set(unit.names)
            for statement in unit.statements
        ]

    def _unavailable(self, source: Source) -> set[str]:
        missing = set(UNAVAILABLE) - set(self._by_name)
        for statement in source.tree.body:
            if is_import(statement):
                missing |= _names_lost(statement)
        while True:
            more = {
                name for name, used in self._used.items() if name not in missing and used & missing
            }
            if not more:
                return missing
            missing |= more

    def _needed(self, roots: Sequence[str]) -> set[str]:
        needed: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name in self._by_name and name not in needed:
                needed.add(name)
                waiting.extend(self._used[name])
        return needed


def _identifiers(unit: Unit) -> set[str]:
    """Every name that a unit uses, arguments for fixtures among them."""
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, cst.Name):
            found.add(node.value)
        for child in node.children:
            look(child)

    for statement in unit.statements:
        if not is_docstring(statement):
            look(statement)
    return found - set(unit.names)


def _names_lost(statement: Any) -> set[str]:
    """The local names of an import that lead to nothing in the SDK."""
    lost: set[str] = set()
    for one in statement.body:
        if not isinstance(one, cst.ImportFrom) or isinstance(one.names, cst.ImportStar):
            continue
        module = code_of(one.module) if one.module else ""
        for alias in one.names:
            name = code_of(alias.name)
            is_lost = (
                module in UNAVAILABLE
                or (module == "agents_session_metadata" and name not in EXPORTS)
                or (module == "conformance" and name not in HELPERS)
                or (module.startswith("conformance.") and module.split(".")[1] not in HELPERS)
            )
            if is_lost:
                lost.add(code_of(alias.asname.name) if alias.asname else name)
    return lost


def _rewritten(statement: cst.ImportFrom) -> cst.ImportFrom | None:
    module = code_of(statement.module) if statement.module else ""
    package = PLACE.replace("/", ".")
    if module in UNAVAILABLE:
        return None
    if module == "agents_session_metadata":
        kept = only(statement, set(EXPORTS))
        return kept and from_module(kept, "agents.extensions.memory")
    if module == "conformance":
        kept = only(statement, set(HELPERS))
        return kept and from_module(kept, package)
    if module.startswith("conformance."):
        name = module.split(".")[1]
        return from_module(statement, f"{package}.{name}") if name in HELPERS else None
    return statement
