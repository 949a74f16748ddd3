"""The names of the databases, and SQLAlchemy dialects that need no driver."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import URL
from sqlalchemy import Dialect as SADialect

from agents_session_metadata.text import quoted

DialectName: TypeAlias = Literal["postgresql", "mysql", "mariadb", "sqlite"]
DIALECTS: tuple[str, ...] = get_args(DialectName)
PRODUCTS = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}


def offline(name: str) -> SADialect:
    """Returns an SQLAlchemy dialect that compiles statements without its driver."""
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
    """Returns the name of the connected database: a mysql:// URL can lead to MariaDB."""
    return "mariadb" if getattr(sa_dialect, "is_mariadb", False) else sa_dialect.name


def possible_names(url: URL) -> tuple[str, ...]:
    """Returns the more likely name first."""
    backend = url.get_backend_name()
    if backend == "mysql":
        return "mariadb", "mysql"
    return (backend,) if backend in DIALECTS else ()
