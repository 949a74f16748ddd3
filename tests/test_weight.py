"""What a call weighs: statements at first use, and frames of this package before the first one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import greenlet
import pytest
from servers import Database
from sqlalchemy import event

import agents_session_metadata
from agents_session_metadata import SessionCatalog, SessionRuns

PACKAGE = str(Path(agents_session_metadata.__file__).parent)


class Watch:
    """The statements of an engine, and the frames of this package below the first of them.

    Those of the task that runs it, in SQLAlchemy's greenlet and around it, are running. Those of
    the call wait for the task.
    """

    def __init__(self, engine) -> None:
        self.statements: list[str] = []
        self.frames: list[str] = []
        self.call: Any = None
        event.listen(engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, _connection, _cursor, statement, *_: object) -> None:
        if self.call is not None and not self.statements:
            around = getattr(greenlet.getcurrent().parent, "gr_frame", None)
            self.frames = [*of_package(sys._getframe()), *of_package(around)]
            waiting = self.call
            while waiting is not None and hasattr(waiting, "cr_code"):
                if waiting.cr_code.co_filename.startswith(PACKAGE):
                    self.frames.append(waiting.cr_code.co_name)
                waiting = waiting.cr_await
        self.statements.append(statement)


def of_package(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield frame.f_code.co_name
        frame = frame.f_back


@pytest.mark.not_on("sqlite-memory")
async def test_first_use_of_healthy_tables(database: Database):
    first = SessionCatalog(database.engine(), create_tables=True)
    await first.create_session("chat", metadata={"owner_id": "u1"})
    for group in first._store.database.tables.groups:
        await first._store.database.ensure(group.name)
    await first.engine.dispose()
    for call in (
        lambda catalog: catalog.get_metadata("chat"),
        lambda catalog: catalog.list_sessions({"owner_id": "u1"}),
        lambda catalog: catalog.set_metadata("chat", {"title": "Lisbon"}),
        lambda catalog: catalog.usage(),
        lambda catalog: SessionRuns(catalog).decisions("chat"),
        lambda catalog: catalog.add_items("chat", [], key=uuid4().hex),
    ):
        counts = []
        catalog = SessionCatalog(database.engine(), create_tables=True)
        watch = Watch(catalog.engine)
        for _ in range(2):
            watch.statements.clear()
            await call(catalog)
            counts.append(len(watch.statements))
            assert not [each for each in watch.statements if "timeout" in each]
        assert counts[0] - counts[1] <= 4, watch.statements


@pytest.mark.not_on("sqlite-memory")  # Its callers take turns, which is another frame.
async def test_frames_before_the_first_statement(database: Database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat")
    watch = Watch(catalog.engine)
    watch.call = catalog.set_metadata("chat", {"title": "Lisbon"})
    await watch.call
    assert 4 <= len(watch.frames) <= 8, watch.frames
