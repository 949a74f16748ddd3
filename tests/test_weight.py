"""What a call weighs: statements at first use, and frames of this package before the first one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from servers import Database
from sqlalchemy import event

import agents_session_metadata
from agents_session_metadata import SessionCatalog

PACKAGE = str(Path(agents_session_metadata.__file__).parent)


class Watch:
    """The statements of an engine, and the frames of this package below the first."""

    def __init__(self, engine) -> None:
        self.statements: list[str] = []
        self.frames: list[str] = []
        event.listen(engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, _connection, _cursor, statement, *_: object) -> None:
        if not self.statements:
            self.frames = list(package_frames())
        self.statements.append(statement)


def package_frames():
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # Work on a connection runs in a greenlet of its own, whose parent awaits it.
        if code.co_filename.startswith(PACKAGE):
            yield f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_name}"
        frame = frame.f_back


@pytest.mark.not_on("sqlite-memory")
async def test_first_use_of_healthy_tables(database: Database):
    first = SessionCatalog(database.engine(), create_tables=True)
    await first.create_session("chat", metadata={"owner_id": "u1"})
    await first.create_index("owner_id")
    await first.engine.dispose()
    for call in (
        lambda catalog: catalog.get_metadata("chat"),
        lambda catalog: catalog.list_sessions({"owner_id": "u1"}),
        lambda catalog: catalog.set_metadata("chat", {"title": "Lisbon"}),
    ):
        counts = []
        catalog = SessionCatalog(database.engine(), create_tables=True)
        watch = Watch(catalog.engine)
        for _ in range(2):
            watch.statements.clear()
            await call(catalog)
            counts.append(len(watch.statements))
        assert counts[0] - counts[1] <= 5, watch.statements


async def test_frames_before_the_first_statement(database: Database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat")
    watch = Watch(catalog.engine)
    await catalog.set_metadata("chat", {"title": "Lisbon"})
    assert len(watch.frames) <= 8, watch.frames
