"""The API reference, as "make docs" has built it, shows every public member."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from agents import RunHooks

import agents_session_metadata

SITE = Path(__file__).parents[2] / "site" / "api"
NAMES = [
    name
    for name in agents_session_metadata.__all__
    if inspect.isclass(getattr(agents_session_metadata, name))
]


def members(kind: type) -> set[str]:
    """The public methods and properties that a class has from this package."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("agents_session_metadata")]
    return {
        name
        for name in dir(kind)
        if not name.startswith("_") and not hasattr(RunHooks, name)  # The SDK describes its hooks.
        for found in [next((vars(each)[name] for each in ours if name in vars(each)), None)]
        if inspect.isfunction(getattr(found, "fget", getattr(found, "__func__", found)))
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_member_is_in_the_reference(name: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in SITE.glob("*.html"))
    shown = set(re.findall(rf'id="agents_session_metadata\.{name}\.(\w+)"', pages))
    assert members(getattr(agents_session_metadata, name)) - shown == set()


def test_the_catalog_has_all_its_members() -> None:
    assert len(members(agents_session_metadata.SessionCatalog)) > 25
