"""The SDK's source tree, and the places in its own files where something is put in.

Nothing of it is kept here: each place is found by a line that must be there, exactly once.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from .core import MEMORY
from .rules import EXPORTS, RuleError

MODULE = "sqlalchemy_metadata_session"
CLASS = "SQLAlchemyMetadataSession"
IMPORTED = f"agents.extensions.memory.{MODULE}"

_ROW = (
    f"| `{CLASS}` | Production apps that list, label and search conversations "
    "| `SQLAlchemySession` with JSON metadata for each session |"
)
_PARAGRAPH = (
    f"`{CLASS}` is a `SQLAlchemySession` that also stores metadata for each session, such as the "
    "owner, a title or tags, and finds sessions by it. See [SQLAlchemy metadata sessions]"
    f"({MODULE}.md)."
)


class SourceTree:
    """The text files of a source distribution, in its archive.

    Args:
        archive: The `.tar.gz` file.
    """

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]

    def read(self, *paths: str) -> dict[str, str]:
        """The text of some files, by path.

        Raises:
            RuleError: If one is not in the archive.
        """
        with tarfile.open(self.archive) as archive:
            texts = {}
            for member in archive:
                path = PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix()
                if path in paths:
                    file = archive.extractfile(member)
                    texts[path] = file.read().decode() if file else ""
        missing = sorted(set(paths) - set(texts))
        if missing:
            raise RuleError(f"openai-agents {self.version} has no {', '.join(missing)}")
        return texts

    def unpack(self, folder: Path) -> None:
        """Put the whole tree into an empty folder."""
        with tarfile.open(self.archive) as archive:
            for member in archive.getmembers():
                parts = PurePosixPath(member.name).parts[1:]
                if parts and (member.isfile() or member.isdir()):
                    member.name = PurePosixPath(*parts).as_posix()
                    archive.extract(member, folder, filter="data")


def insert(text: str, lines: Sequence[str], *, path: str, before: str = "", after: str = "") -> str:
    """Put lines before or after the one line that begins like the anchor, blanks aside.

    Raises:
        RuleError: If there is not just one such line.
    """
    anchor = before or after
    found = text.splitlines(keepends=True)
    places = [at for at, line in enumerate(found) if line.strip().startswith(anchor)]
    if len(places) != 1:
        raise RuleError(f"{path}: {len(places)} lines begin with {anchor!r}, not one")
    at = places[0] + (1 if after else 0)
    return "".join([*found[:at], *(f"{line}\n" for line in lines), *found[at:]])


def edit_code(tree: SourceTree) -> tuple[dict[str, str], dict[str, str]]:
    """The SDK's files that the feature changes: before, and after."""
    memory, imports = f"{MEMORY}/__init__.py", "tests/extensions/memory/test_memory_imports.py"
    before = tree.read(memory, imports)
    after = {memory: _exports(before[memory], memory)}
    rows = [
        "    (",
        f'        "{CLASS}",',
        f'        "{IMPORTED}",',
        f'        "{IMPORTED}",',
        '        "sqlalchemy",',
        '        "sqlalchemy",',
        "    ),",
    ]
    after[imports] = insert(
        before[imports], rows, path=imports, before='("DaprSession", "agents.extensions'
    )
    return before, after


def _exports(text: str, path: str) -> str:
    names = sorted(EXPORTS)
    text = insert(
        text,
        [f"    from .{MODULE} import (", *(f"        {name}," for name in names), "    )"],
        path=path,
        before="from .sqlalchemy_session import SQLAlchemySession",
    )
    head, start, rest = text.partition("__all__: list[str] = [\n")
    listed, end, tail = rest.partition("]\n")
    present = [line.strip().strip('",') for line in listed.splitlines()]
    if not start or not end or present != sorted(present):
        raise RuleError(f"{path}: __all__ is not a sorted list of lines")
    lines = "".join(f'    "{name}",\n' for name in sorted([*present, *names]))
    text = head + start + lines + end + tail
    entry = f'(".{MODULE}", ("sqlalchemy", "sqlalchemy"))'
    return insert(
        text,
        [f'    "{name}": {entry},' for name in names],
        path=path,
        after='"SQLAlchemySession": (',
    )


def edit_docs(tree: SourceTree) -> tuple[dict[str, str], dict[str, str]]:
    """The SDK's files that its documentation changes: before, and after."""
    nav, index = "mkdocs.yml", "docs/sessions/index.md"
    before = tree.read(nav, index)
    page = f"sessions/{MODULE}.md"
    text = insert(
        before[nav],
        [f"{' ' * 20}- SQLAlchemy metadata session: {page}"],
        path=nav,
        after="- SQLAlchemy session: sessions/sqlalchemy_session.md",
    )
    text = insert(
        text,
        [f"{' ' * 20}- {CLASS}: ref/extensions/memory/{MODULE}.md"],
        path=nav,
        after="- SQLAlchemySession: ref/extensions/memory/sqlalchemy_session.md",
    )
    after = {nav: text}
    text = insert(
        before[index],
        [_ROW],
        path=index,
        after="| `SQLAlchemySession` |",
    )
    text = insert(
        text,
        ["", _PARAGRAPH],
        path=index,
        after="See [SQLAlchemy Sessions](sqlalchemy_session.md)",
    )
    after[index] = insert(
        text,
        [f"-   [`{CLASS}`][{IMPORTED}.{CLASS}] - SQLAlchemy sessions with searchable metadata"],
        path=index,
        after="-   [`SQLAlchemySession`][agents.extensions.memory.sqlalchemy_session",
    )
    return before, after
