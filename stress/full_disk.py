"""SQLite without room: a full file system, and a file that may not grow."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from .audit import audit
from .databases import program, version
from .journal import Journal
from .load import Load, prepare
from .results import Result

ROOM = 32_768
"""Bytes that the writers have until there is no room."""
SECONDS = 2.0


async def fill_disk() -> AsyncIterator[Result]:
    """Write until there is no room and beyond; make room and go on."""
    with tempfile.TemporaryDirectory(prefix="growth-") as directory:
        yield await _fill(Path(directory), _forbid_growth, "no file may grow further")
    with tempfile.TemporaryDirectory(prefix="full-") as directory:
        mount = [program("mount"), "-t", "tmpfs", "-o", "size=32m", "tmpfs", directory]
        if subprocess.run(mount, check=False).returncode:
            print("disk full: no right to mount a small file system; the limit stands for it")
            return
        try:
            yield await _fill(Path(directory), _fill_up, "disk full")
        finally:
            subprocess.run([program("umount"), directory], check=True)


async def _fill(
    directory: Path, take_room: Callable[[Path], Callable[[], None]], fault: str
) -> Result:
    file = directory / "full.db"
    url = URL.create("sqlite+aiosqlite", database=str(file))
    await prepare(url)
    engine = create_async_engine(url)
    journal = Journal()
    await Load(journal, [engine], writers=3, name="before").run(1)
    give_room = take_room(directory)
    try:
        await Load(journal, [engine], writers=3, name="full").run(SECONDS)
    finally:
        give_room()
    failed = len(journal.unknown)
    # One connection may still have a transaction to forget.
    await Load(journal, [engine], writers=3, name="after").run(1)
    late = len(journal.unknown) - failed
    result = Result(fault, await version(engine), await audit(engine, journal))
    result.notes.append(f"slowest error {journal.slowest:.2f} s")
    result.require(failed > 0, "the writers ran out of room")
    result.require(late == 0, f"it works again when there is room: {late} errors")
    result.require(result.figures.applied == 0, "what raised for want of room was not applied")
    result.require(journal.slowest < 1, "the error comes at once")
    await engine.dispose()
    return result


def _forbid_growth(directory: Path) -> Callable[[], None]:
    """Let no file of this process grow much beyond the database, its log neither."""
    size = next(directory.glob("*.db")).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + ROOM, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _fill_up(directory: Path) -> Callable[[], None]:
    """Leave little room on a file system."""
    ballast = directory / "ballast"
    free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
    ballast.write_bytes(bytes(free - ROOM))
    return ballast.unlink
