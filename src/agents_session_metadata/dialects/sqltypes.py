"""Column types for CREATE TABLE, as each database spells them.

Queries use plain types: a collation on a bound parameter would keep PostgreSQL from using an index
of another collation.
"""

from __future__ import annotations

import re
from datetime import datetime
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

from agents_session_metadata.types import MAX_ID_LENGTH, MAX_KEY_LENGTH
from agents_session_metadata.values import SEARCH_KEY_BYTES

_MYSQL = "mysql", "mariadb"

Impl: TypeAlias = "TypeEngine[Any] | type[TypeEngine[Any]]"


class _Cached(TypeDecorator[Any]):
    """A type whose statements are cached. SQLAlchemy asks each class, and not its bases."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        setattr(cls, "cache_ok", True)  # noqa: B010  # a declaration would not be inherited


class _Spelled(_Cached):
    """A type that databases spell differently."""

    _by_code_point: ClassVar[bool] = False
    """Texts sort by code point on PostgreSQL too, where other types have its own order."""
    _on_mysql: ClassVar[tuple[str, dict[str, Any]]]
    """The name of SQLAlchemy's type for MySQL, and its arguments."""

    def load_dialect_impl(self, dialect: SADialect) -> Any:
        plain: Any = self.impl_instance
        if dialect.name in _MYSQL:
            # Imported late, because that takes long.
            from sqlalchemy.dialects import mysql

            name, arguments = self._on_mysql[0], {**self._on_mysql[1]}
            if name == "VARCHAR":
                # Compares byte by byte: case, accents and trailing spaces are significant.
                # Told at run time: a mysql:// URL may lead to MariaDB.
                is_mariadb = getattr(dialect, "is_mariadb", False)
                collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
                arguments |= {"charset": "utf8mb4", "collation": collation}
            made: TypeEngine[Any] = getattr(mysql, name)(**arguments)
            return made
        if self._by_code_point and dialect.name == "postgresql":
            return plain.adapt(type(plain), collation="C")
        return plain


class SessionId(_Spelled):
    """Has no length, as in the SDK, unless an index needs one: then 255 characters."""

    impl: Impl = String
    _by_code_point = True
    _on_mysql = "VARCHAR", {"length": MAX_ID_LENGTH}


class MetadataKey(_Spelled):
    impl: Impl = String(MAX_KEY_LENGTH)
    _by_code_point = True
    _on_mysql = "VARCHAR", {"length": MAX_KEY_LENGTH}


class LongText(_Spelled):
    """Text of any length: TEXT ends at 64 KiB on MySQL."""

    impl: Impl = Text
    _on_mysql = "LONGTEXT", {"charset": "utf8mb4"}


class PlainBytes(LargeBinary):
    """Bytes in statements, without the wrapper that a driver has for them.

    sqlite3's is a memoryview, which takes a quarter of the time of an insert.
    """

    def bind_processor(self, dialect: SADialect) -> Any:
        wrapped: Any = super().bind_processor
        return None if dialect.name == "sqlite" else wrapped(dialect)


class SearchBytes(_Spelled):
    impl: Impl = LargeBinary
    _on_mysql = "VARBINARY", {"length": SEARCH_KEY_BYTES}


class LongBytes(_Spelled):
    impl: Impl = LargeBinary
    _on_mysql = "LONGBLOB", {}


class Words(_Spelled):
    """Words of a text. MySQL searches bytes faster than text, and without a collation."""

    impl: Impl = Text
    _by_code_point = True
    _on_mysql = "MEDIUMBLOB", {}

    def process_bind_param(self, value: str | None, dialect: SADialect) -> Any:
        return value.encode() if value is not None and dialect.name in _MYSQL else value


class RowId(_Cached):
    impl: Impl = BigInteger

    def load_dialect_impl(self, dialect: SADialect) -> Any:
        # SQLite gives numbers to a column of exactly this type.
        return Integer() if dialect.name == "sqlite" else BigInteger()


_STORED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{6})?", re.ASCII)


class SDKTime(_Cached):
    """The type of a column of the SDK's tables that contains a time, as `of` converts it."""

    impl: Impl = TIMESTAMP
    from_database: ClassVar[Any] = None
    """A function that converts a selected value."""

    def of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(column, self)

    def to_database(self, value: Any) -> Any:
        """Raises ValueError or ArithmeticError if the value is not a time."""
        return value

    def is_stored(self, text: str) -> bool:
        """Returns whether a text is a stored time."""
        try:
            datetime.fromisoformat(text)
        except ValueError:
            return False
        return _STORED.fullmatch(text) is not None

    def bind_processor(self, dialect: SADialect) -> Any:
        return self.to_database

    def result_processor(self, dialect: SADialect, coltype: object) -> Any:
        return self.from_database


TABLE_OPTIONS = {
    f"{name}_{option}": value
    for name in _MYSQL
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4"}.items()
}
