"""Which module inspects and repairs which database: the one with the dialect's name."""

from __future__ import annotations

from importlib import import_module

from sqlalchemy import Connection

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.storage.tables import TableNames

from .inspection import Inspection
from .repairs import Repairs


def inspect_database(connection: Connection, names: TableNames) -> tuple[Inspection, Repairs]:
    """Look at the tables of one name, and say how they can be repaired."""
    module = import_module(f".{dialect_of(connection.dialect).name}", __package__)
    inspection: Inspection = module.INSPECTION(connection, names)
    repairs: Repairs = module.REPAIRS(inspection)
    return inspection, repairs
