"""The part of indexes in the core: their tables, which `tables` defines, and pages from `read`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import Feature

from .tables import ACTIVITY, define, look


def _reader(database: Database, connection: Connection) -> Any:
    from .read import IndexReader

    return IndexReader(database, connection)


FEATURE = Feature(ACTIVITY, ("_indexes", "_activity"), define, learn=look, reader=_reader)
