"""Messages about a missing extra name a command that works where the package came from."""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from agents_session_metadata import errors
from agents_session_metadata.errors import install_advice

INDEX = "'agents-session-metadata[cli]'"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, INDEX),
        ({"url": "file:///home/me/a%20b", "dir_info": {}}, "'/home/me/a b[cli]'"),
        ({"url": "file:///src/p", "dir_info": {"editable": True}}, "-e '/src/p[cli]'"),
        ({"url": "file:///tmp/p-1.whl", "archive_info": {}}, "'/tmp/p-1.whl[cli]'"),
        (
            {"url": "https://example.com/p.git", "vcs_info": {"vcs": "git"}},
            "'agents-session-metadata[cli] @ git+https://example.com/p.git'",
        ),
    ],
    ids=["index", "checkout", "editable", "archive", "repository"],
)
def test_the_command_for_an_extra(origin, command, tmp_path, monkeypatch):
    folder = tmp_path / "agents_session_metadata-1.dist-info"
    folder.mkdir()
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    found = metadata.PathDistribution(folder)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: found)
    assert install_advice("cli") == (
        f"install agents-session-metadata[cli] with: pip install {command}"
    )


def test_a_package_that_was_not_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert install_advice("cli").endswith(f"pip install {INDEX}")


@pytest.mark.parametrize(("package", "extra"), [("jinja2", "web"), ("chatkit", "chatkit")])
def test_a_package_that_an_extra_installs_is_missing(package, extra, monkeypatch):
    module = f"agents_session_metadata.{extra}"
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"install agents-session-metadata\[{extra}\] with: "):
        importlib.import_module(module)


def test_no_other_module_names_an_install_command() -> None:
    source = Path(errors.__file__).parent
    named = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "pip install" in path.read_text(encoding="utf-8")
    ]
    assert named == ["errors.py"]
