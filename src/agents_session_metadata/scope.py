"""A scope: the metadata values that every session seen through it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ScopeError
from .query.filters import EVERYTHING, All, Condition, equality, parse_values
from .types import JSONValue, MetadataLimits
from .values import EncodedValue, encode_metadata, plain, search_key


class Scope:
    """Fixed values under some keys; without any, everything is inside."""

    def __init__(self, values: Mapping[str, JSONValue] | None = None) -> None:
        self.values: dict[str, JSONValue] = {
            key: plain(value) for key, value in (values or {}).items()
        }
        self.condition: Condition = equality(self.values) if self.values else EVERYTHING

    @classmethod
    def of(cls, values: Mapping[str, JSONValue]) -> Scope:
        """Check the values of a scope.

        Raises:
            TypeError: If they are not a mapping.
            ValueError: If there is none, or one is `None`.
            InvalidFilterError: If a key cannot exist, or a value is not plain.
        """
        checked = parse_values(values, "a scope")
        for key, value in checked.items():
            if value is None:
                raise ValueError(f"scope key {key!r} is None; a scope needs a value")
        return cls(checked)

    def __bool__(self) -> bool:
        return bool(self.values)

    def narrowed(self, other: Scope) -> Scope:
        """Both scopes at once.

        Raises:
            ScopeError: If they fix a key to different values.
        """
        self.check(other.values)
        return Scope({**other.values, **self.values})

    def restrict(self, condition: Condition) -> Condition:
        """A condition that holds only inside."""
        return All((self.condition, condition)) if self else condition

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse values that would lead out.

        Raises:
            ScopeError: If a scope key has another value.
        """
        for key, value in self.values.items():
            if key in values and search_key(values[key]) != search_key(value):
                raise ScopeError(key)

    def check_encoded(self, values: Mapping[str, EncodedValue]) -> None:
        """Refuse encoded values that would lead out.

        Raises:
            ScopeError: If a scope key has another value.
        """
        for key, value in self.values.items():
            if key in values and values[key].search != search_key(value):
                raise ScopeError(key)

    def encoded(self, limits: MetadataLimits) -> dict[str, EncodedValue]:
        """The values as rows of a new session."""
        return encode_metadata(self.values, limits)
