"""The names of the databases, and SQLAlchemy dialects that need no driver."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import URL
from sqlalchemy import Dialect as SADialect

from agents_session_metadata.quoting import quoted

DialectName: TypeAlias = Literal["postgresql", "mysql", "mariadb", "sqlite"]
DIALECTS: tuple[str, ...] = get_args(DialectName)
PRODUCTS = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}
"""The names as messages write them."""


def offline(name: str) -> SADialect:
    """An SQLAlchemy dialect to compile statements with, without its driver.

    Raises:
        ValueError: If there is none of that name.
    """
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    makers: dict[str, Any] = {
        "postgresql": postgresql.dialect,
        "mysql": mysql.dialect,
        "mariadb": mysql.dialect,
        "sqlite": sqlite.dialect,
    }
    if name not in makers:
        raise ValueError(f"dialect must be one of {', '.join(DIALECTS)}, got {quoted(name)}")
    options = {"is_mariadb": True} if name == "mariadb" else {}
    # With a named parameter style, a % in a table's name is not doubled.
    made: SADialect = makers[name](paramstyle="named", **options)
    return made


def connected_name(sa_dialect: SADialect) -> str:
    """The name of the database that a dialect is connected to, whatever its URL said."""
    return "mariadb" if getattr(sa_dialect, "is_mariadb", False) else sa_dialect.name


def possible_names(url: URL) -> tuple[str, ...]:
    """The names of the databases that a URL may lead to, the more likely one first."""
    backend = url.get_backend_name()
    if backend == "mysql":
        return "mariadb", "mysql"
    return (backend,) if backend in DIALECTS else ()
