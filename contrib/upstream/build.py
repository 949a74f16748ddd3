"""Write the patches for the SDK: hand-written files, small edits, and one copied module."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).with_name("files")
"""New files, at the paths that they have in the SDK's repository."""
EDITS = Path(__file__).with_name("edits.patch")
"""Changes of files that the SDK has."""
SOURCE_PLACE = FILES / "src" / "agents" / "extensions" / "memory"
VALUES = ROOT / "src" / "agents_session_metadata" / "values.py"
COPIED = PurePosixPath("src/agents/extensions/memory/_session_metadata_values.py")
"""The path of the byte-for-byte copy of `VALUES`."""

DOCS = ("docs", "mkdocs.yml")
PATCHES = {
    "0001-sqlalchemy-metadata-session.patch": (".", *(f":!{path}" for path in DOCS)),
    # The SDK publishes documentation together with the release that it describes.
    "0002-docs.patch": DOCS,
}
"""The patches, each with the paths in it."""


def edited_files() -> list[str]:
    """Return the paths of the SDK's files that the edits change."""
    lines = EDITS.read_text("utf-8").splitlines()
    return [line.removeprefix("--- a/") for line in lines if line.startswith("--- a/")]


def new_files() -> dict[str, Path]:
    """Return the new files: their paths in the SDK's repository, and where they are here."""
    found = {
        path.relative_to(FILES).as_posix(): path
        for path in sorted(FILES.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    return {**found, str(COPIED): VALUES}


def unpack(archive: Path, folder: Path, only: list[str] | None = None) -> None:
    """Unpack a source distribution, without its top folder, into a new folder.

    Args:
        archive: The `.tar.gz` file.
        folder: Where the files go.
        only: The files to unpack; all by default.
    """
    folder.mkdir(parents=True)
    with tarfile.open(archive) as opened:
        for member in opened:
            member.name = PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix()
            if member.isfile() and (only is None or member.name in only):
                opened.extract(member, folder, filter="data")


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, without the user's configuration, and return its output."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def write_patches(tree: Path, out: Path) -> list[Path]:
    """Add the new files and the edits to an unpacked tree, and write the difference.

    Returns:
        The patches, in the order in which they apply.

    Raises:
        CalledProcessError: If the edits do not apply.
    """
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "apply", "--whitespace=error-all", str(EDITS))
    for path, source in new_files().items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, tree / path)
    git(tree, "add", "--all", "--intent-to-add")
    out.mkdir(parents=True, exist_ok=True)
    for name, paths in PATCHES.items():
        (out / name).write_text(git(tree, "diff", "--", *paths), "utf-8")
    return [out / name for name in PATCHES]
