"""Which module inspects and repairs which database."""

from __future__ import annotations

from sqlalchemy import Connection

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.storage.tables import TableNames

from .inspection import Inspection
from .mysql import MySQLInspection, MySQLRepairs
from .postgresql import PostgreSQLInspection, PostgreSQLRepairs
from .repairs import Repairs
from .sqlite import SQLiteInspection, SQLiteRepairs

_KINDS: dict[str, tuple[type[Inspection], type[Repairs]]] = {
    "sqlite": (SQLiteInspection, SQLiteRepairs),
    "postgresql": (PostgreSQLInspection, PostgreSQLRepairs),
    "mysql": (MySQLInspection, MySQLRepairs),
}


def inspect_database(connection: Connection, names: TableNames) -> tuple[Inspection, Repairs]:
    """Look at the tables of one name, and say how they can be repaired."""
    inspected, repaired = _KINDS[dialect_of(connection.dialect).name]
    inspection = inspected(connection, names)
    return inspection, repaired(inspection)
