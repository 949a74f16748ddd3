"""The supported databases.

A `Dialect` has everything that differs between databases: statements, expressions and flags. Only
the modules of this package name a database.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from sqlalchemy import Dialect as SADialect

from agents_session_metadata.errors import UnsupportedDialectError

from ._dialect import Dialect

SUPPORTED = {
    "sqlite": "sqlite.SQLite",
    "postgresql": "postgresql.PostgreSQL",
    "mysql": "mysql.MySQL",
    "mariadb": "mysql.MySQL",
}
"""The class of each database. Its module is imported with the first engine for the database."""


def dialect_of(sa_dialect: SADialect) -> Dialect:
    if sa_dialect.name not in SUPPORTED:
        raise UnsupportedDialectError(sa_dialect.name)
    return _dialect_named(sa_dialect.name)


@cache
def _dialect_named(name: str) -> Dialect:
    module, _, class_name = SUPPORTED[name].partition(".")
    dialect: Dialect = getattr(import_module(f".{module}", __name__), class_name)()
    return dialect
