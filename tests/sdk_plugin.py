"""A pytest plugin for the SDK's own tests: they get the class under test for `SQLAlchemySession`.

How these tests reach the class: each module imports the name once, at its top, and uses it inside
functions only, when the test runs. So the name is rebound in the collected test modules, after
collection, and nowhere else. In the SDK's own modules it stays what it is: the SDK compares the
type of a session with it, and a class that is taken for the SDK's would pass whatever it does.
What would go round this (another import, a dotted path to patch, a subclass or a default value
made when the module is imported) is looked for, and is an error.

Environment: `SDK_SUITE_CLASS` is the class as "module:name", `SDK_SUITE_REPORT` a file for the
numbers of collected and passed tests.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession

NAME = SQLAlchemySession.__name__
PLACES = ("agents.extensions.memory", "agents.extensions.memory.sqlalchemy_session")

modules: set[ModuleType] = set()
collected = 0
passed = 0


def class_under_test() -> type[SQLAlchemySession]:
    module, _, name = os.environ["SDK_SUITE_CLASS"].partition(":")
    found: type[SQLAlchemySession] = getattr(importlib.import_module(module), name)
    return found


def pytest_collection_finish(session: pytest.Session) -> None:
    global collected  # noqa: PLW0603 - a plugin module is its own state
    collected = len(session.items)
    modules.update(item.module for item in session.items if isinstance(item, pytest.Function))
    for module in modules:
        check_ways_to_the_class(Path(str(module.__file__)))
        assert getattr(module, NAME) is SQLAlchemySession
        setattr(module, NAME, class_under_test())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global passed  # noqa: PLW0603 - a plugin module is its own state
    passed += report.when == "call" and report.outcome == "passed"


def pytest_sessionfinish() -> None:
    assert all(getattr(module, NAME) is class_under_test() for module in modules)
    counts = {"collected": collected, "passed": passed}
    Path(os.environ["SDK_SUITE_REPORT"]).write_text(json.dumps(counts))


def check_ways_to_the_class(path: Path) -> None:
    """Raises if a test module reaches the class by another way than the name in its globals."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    in_functions = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in function.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(place)) if place in PLACES:
                odd = id(node) in in_functions or [(a.name, a.asname) for a in node.names] != [
                    (NAME, None)
                ]
            case ast.Import(names=names):
                odd = any(alias.name in PLACES for alias in names)
            case ast.Constant(value=str(text)):
                odd = any(place in text for place in PLACES)
            case ast.Name(id=name):
                odd = name == NAME and id(node) not in in_functions
            case _:
                odd = False
        if odd:
            raise AssertionError(f"{path.name}:{node.lineno} reaches {NAME} in a way not handled")
