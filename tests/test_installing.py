"""Messages about a missing package name the extra that installs it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from agents_session_metadata import errors


@pytest.mark.parametrize(("package", "extra"), [("jinja2", "web"), ("chatkit", "chatkit")])
def test_a_package_that_an_extra_installs_is_missing(package, extra, monkeypatch):
    module = f"agents_session_metadata.{extra}"
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"install agents-session-metadata\[{extra}\]"):
        importlib.import_module(module)


def test_no_module_names_an_install_command() -> None:
    source = Path(errors.__file__).parent
    named = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "pip install" in path.read_text(encoding="utf-8")
    ]
    assert named == []
