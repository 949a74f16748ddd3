"""Which databases are supported.

Everything that differs between them is asked of a `Dialect`: a statement, an expression or a flag.
Only the `dialect` modules name a database.
"""

from __future__ import annotations

from sqlalchemy import Dialect as SADialect

from agents_session_metadata.errors import UnsupportedDialectError

from ._dialect import Dialect
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

SUPPORTED: dict[str, Dialect] = {
    "sqlite": SQLite(),
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
}


def dialect_of(sa_dialect: SADialect) -> Dialect:
    """The ways of the database that an SQLAlchemy dialect speaks to.

    Raises:
        UnsupportedDialectError: If it is none of the supported ones.
    """
    try:
        return SUPPORTED[sa_dialect.name]
    except KeyError:
        raise UnsupportedDialectError(sa_dialect.name) from None
