"""The supported databases.

A `Dialect` has everything that differs between databases: statements, expressions and flags. Only
the modules of this package name a database.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from sqlalchemy import Dialect as SADialect

from agents_session_metadata.errors import UnsupportedDialectError
from agents_session_metadata.text import quoted

from ._dialect import Dialect

SUPPORTED = {
    "postgresql": "_postgresql.PostgreSQL",
    "mysql": "_mysql.MySQL",
    "mariadb": "_mysql.MySQL",
    "sqlite": "_sqlite.SQLite",
}
"""The class of each database. Its module is imported with the first engine for the database."""
DIALECTS = tuple(SUPPORTED)
PRODUCTS = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}


def dialect_of(sa_dialect: SADialect) -> Dialect:
    if sa_dialect.name not in SUPPORTED:
        raise UnsupportedDialectError(sa_dialect.name)
    return _dialect_named(sa_dialect.name)


@cache
def _dialect_named(name: str) -> Dialect:
    module, _, class_name = SUPPORTED[name].partition(".")
    dialect: Dialect = getattr(import_module(f".{module}", __name__), class_name)()
    return dialect


def offline(name: str) -> SADialect:
    """Returns an SQLAlchemy dialect that compiles statements without its driver."""
    if name not in DIALECTS:
        raise ValueError(f"dialect must be one of {', '.join(DIALECTS)}, got {quoted(name)}")
    options = {"is_mariadb": True} if name == "mariadb" else {}
    # With a named parameter style, a % in a table's name is not doubled.
    module = import_module(f"sqlalchemy.dialects.{'mysql' if options else name}")
    made: SADialect = module.dialect(paramstyle="named", **options)
    return made


def connected_name(sa_dialect: SADialect) -> str:
    """Returns the name of the connected database: a mysql:// URL can lead to MariaDB."""
    return "mariadb" if getattr(sa_dialect, "is_mariadb", False) else sa_dialect.name
