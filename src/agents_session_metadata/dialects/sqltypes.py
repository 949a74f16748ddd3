"""Column types for CREATE TABLE, as each database spells them.

Queries use plain types: a collation on a bound parameter would keep PostgreSQL from using an index
of another collation.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    ColumnElement,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    type_coerce,
)
from sqlalchemy import Dialect as SADialect
from sqlalchemy.types import TypeEngine

from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SEARCH_KEY_BYTES

ID_LENGTH = 255


def _is_mysql(sa_dialect: SADialect) -> bool:
    return sa_dialect.name in ("mysql", "mariadb")


def _mysql() -> Any:
    """Imports SQLAlchemy's types for MySQL late, because that takes long."""
    from sqlalchemy.dialects import mysql

    module: Any = mysql
    return module


def _exact_varchar(length: int, sa_dialect: SADialect) -> TypeEngine[Any]:
    """Compares byte by byte: case, accents and trailing spaces are significant."""
    # Told at run time: a mysql:// URL may lead to MariaDB.
    is_mariadb = getattr(sa_dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    exact: TypeEngine[Any] = _mysql().VARCHAR(length, charset="utf8mb4", collation=collation)
    return exact


Impl: TypeAlias = "TypeEngine[Any] | type[TypeEngine[Any]]"


class SessionId(TypeDecorator[str]):
    """Has no length, as in the SDK, unless an index needs one: then 255 characters."""

    impl: Impl = String
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        if _is_mysql(dialect):
            return _exact_varchar(ID_LENGTH, dialect)
        return String(collation="C") if dialect.name == "postgresql" else String()


class MetadataKey(TypeDecorator[str]):
    impl: Impl = String(MAX_KEY_LENGTH)
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        if _is_mysql(dialect):
            return _exact_varchar(MAX_KEY_LENGTH, dialect)
        return String(MAX_KEY_LENGTH, collation="C" if dialect.name == "postgresql" else None)


class LongText(TypeDecorator[str]):
    """Text of any length: TEXT ends at 64 KiB on MySQL."""

    impl: Impl = Text
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return _mysql().LONGTEXT(charset="utf8mb4") if _is_mysql(dialect) else Text()


class PlainBytes(LargeBinary):
    """Bytes in statements, without the wrapper that a driver has for them.

    sqlite3's is a memoryview, which takes a quarter of the time of an insert.
    """

    def bind_processor(self, dialect: SADialect) -> Any:
        wrapped: Any = super().bind_processor
        return None if dialect.name == "sqlite" else wrapped(dialect)


class SearchBytes(TypeDecorator[bytes]):
    impl: Impl = LargeBinary
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return _mysql().VARBINARY(SEARCH_KEY_BYTES) if _is_mysql(dialect) else LargeBinary()


class Words(TypeDecorator[str]):
    """Words of a text. MySQL searches bytes faster than text, and without a collation."""

    impl: Impl = Text
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        if _is_mysql(dialect):
            bytes_type: TypeEngine[Any] = _mysql().MEDIUMBLOB()
            return bytes_type
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: SADialect) -> Any:
        return value.encode() if value is not None and _is_mysql(dialect) else value


class RowId(TypeDecorator[int]):
    impl: Impl = BigInteger
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        # SQLite gives numbers to a column of exactly this type.
        return Integer() if dialect.name == "sqlite" else BigInteger()


class SDKTime(TypeDecorator[Any]):
    """The type of a column of the SDK's tables that contains a time, as `of` converts it."""

    impl: Impl = TIMESTAMP
    cache_ok: bool | None = True
    from_database: ClassVar[Any] = None
    """A function that converts a selected value."""

    def of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(column, self)

    def comparable(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Like `of`, if equal times can be stored in different forms."""
        return self.of(column)

    def to_database(self, value: Any) -> Any:
        """Raises ValueError or ArithmeticError if the value is not a time."""
        return value

    def bind_processor(self, dialect: SADialect) -> Any:
        return self.to_database

    def result_processor(self, dialect: SADialect, coltype: object) -> Any:
        return self.from_database


class TimeCopy(TypeDecorator[Any]):
    """A copy of a time of the SDK's tables, in a form that sorts."""

    impl: Impl = TIMESTAMP
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        # Seconds since 1970: exact also in the hour that the end of summer time repeats.
        return _mysql().DECIMAL(20, 6) if _is_mysql(dialect) else TIMESTAMP()


class LongBytes(TypeDecorator[bytes]):
    impl: Impl = LargeBinary
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return _mysql().LONGBLOB() if _is_mysql(dialect) else LargeBinary()


TABLE_OPTIONS = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4"}.items()
}
