"""Parses filters, which are plain JSON, into trees of conditions.

One parser serves the library, the command line and MCP. It rejects everything that it does not
know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeAlias

from agents_session_metadata.errors import InvalidFilterError
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import (
    NUMBER,
    STRING,
    key_problem,
    prefix_key,
    search_key,
    split_search_key,
    upper_bound,
    value_problem,
)

from .conditions import (
    COMPARE,
    Between,
    Bound,
    Contains,
    ContainsAll,
    Equals,
    Exists,
    HasPrefix,
    IdHasPrefix,
    IdIn,
    TimeBound,
    TimeColumn,
)
from .logic import EVERYTHING, NOTHING, All, AnyOf, Condition, Not

MAX_DEPTH = 10
MAX_CONDITIONS = 100
MAX_OPERANDS = 1000
MAX_ELEMENTS = 100

Where: TypeAlias = Mapping[str, Any]
"""A filter as it is written."""


def parse_filter(where: Where | None) -> Condition:
    """Parses a filter. `None` and `{}` mean every session. Errors contain the path."""
    if where is None:
        return EVERYTHING
    return _Parser().filter(where, "$", 0)


def parse_values(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Checks and copies plain values, such as a scope; errors call them `what`."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a mapping, got {type(values).__name__}")
    if not values:
        raise ValueError(f"{what} must not be empty")
    for key, value in values.items():
        path = _place("$", key)
        check_filter_key(key, path)
        if isinstance(value, Mapping) and any(str(name).startswith("$") for name in value):
            raise InvalidFilterError(f"{what} requires plain values, got operators", path=path)
        _check_value(value, path)
    return dict(values)


class _Parser:
    """Parses one filter. It counts conditions, so it cannot be used again."""

    def __init__(self) -> None:
        self._conditions = 0

    def filter(self, where: object, path: str, depth: int) -> Condition:
        if not isinstance(where, Mapping):
            raise _expected("an object", where, path)
        if depth > MAX_DEPTH:
            problem = f"filters can be nested at most {MAX_DEPTH} levels deep"
            raise InvalidFilterError(problem, path=path)
        parts: list[Condition] = []
        for key, operand in where.items():
            parts.extend(self._entry(key, operand, _place(path, key), depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _entry(self, key: object, operand: object, path: str, depth: int) -> Iterator[Condition]:
        if key in ("$and", "$or"):
            parts = self._list(operand, path, depth)
            yield All(parts) if key == "$and" else AnyOf(parts)
        elif key == "$not":
            yield Not((self.filter(operand, path, depth + 1),))
        else:
            build = _OF_COLUMN.get(key) or partial(_condition, check_filter_key(key, path))
            yield from _paired([build(*each) for each in self._operators(operand, path)])

    def _list(self, operand: object, path: str, depth: int) -> tuple[Condition, ...]:
        if not isinstance(operand, list) or not operand:
            raise InvalidFilterError("expected a list of at least one filter", path=path)
        return tuple(
            self.filter(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(operand)
        )

    def _operators(self, operand: object, path: str) -> Iterator[tuple[str, object, str]]:
        """Yields operators with their operands and paths. A bare value is an `$eq`."""
        operators: list[tuple[str, object, str]] = [("$eq", operand, path)]
        if isinstance(operand, Mapping):
            special = [isinstance(name, str) and name.startswith("$") for name in operand]
            if any(special):
                if not all(special):
                    problem = "operators and plain keys cannot be mixed in one object"
                    raise InvalidFilterError(problem, path=path)
                operators = [(name, value, f"{path}.{name}") for name, value in operand.items()]
        for operator in operators:
            self._conditions += 1
            if self._conditions > MAX_CONDITIONS:
                problem = f"a filter can have at most {MAX_CONDITIONS} conditions"
                raise InvalidFilterError(problem, path=path)
            yield operator


def _condition(key: str, operator: str, operand: object, path: str) -> Condition:
    if operator not in OPERATORS:
        raise _unknown("operator", OPERATORS, path)
    return OPERATORS[operator](key, operand, path)


def _unknown(what: str, known: Iterable[str], path: str) -> InvalidFilterError:
    return InvalidFilterError(f"unknown {what}; expected one of {', '.join(known)}", path=path)


def _eq(key: str, operand: object, path: str) -> Condition:
    return Equals(key, (search_key(_check_value(operand, path)),))


def _in(key: str, operand: object, path: str) -> Condition:
    values = (search_key(_check_value(value, path)) for value in _check_list(operand, path))
    distinct = tuple(sorted(set(values)))
    return Equals(key, distinct) if distinct else NOTHING


def _range(operator: str) -> Callable[[str, object, str], Condition]:
    inclusive = operator in ("$gte", "$lte")

    def build(key: str, operand: object, path: str) -> Condition:
        if isinstance(operand, bool) or not isinstance(operand, (str, int, float)):
            raise _expected("a number or a string", operand, path)
        bound = Bound(search_key(_check_value(operand, path)), inclusive)
        ends = (bound, None) if operator in ("$gt", "$gte") else (None, bound)
        return Between(key, STRING if isinstance(operand, str) else NUMBER, *ends)

    return build


def _exists(key: str, operand: object, path: str) -> Condition:
    if not isinstance(operand, bool):
        raise _expected("true or false", operand, path)
    return Exists(key) if operand else Not((Exists(key),))


def _contains(key: str, operand: object, path: str) -> Condition:
    return Contains(key, (search_key(_check_scalar(operand, path)),))


def _all(key: str, operand: object, path: str) -> Condition:
    values = _check_list(operand, path, MAX_ELEMENTS)
    if not values:
        raise InvalidFilterError("expected a list of at least one value", path=path)
    distinct = sorted({search_key(_check_scalar(value, path)) for value in values})
    # The first can drive a statement. One look at the elements answers for all that are indexed.
    whole = tuple(value for value in distinct[1:] if value.is_whole)
    single = [Contains(key, (value,)) for value in distinct if value not in whole]
    return All((*single, ContainsAll(key, whole)) if whole else tuple(single))


def _prefix(key: str, operand: object, path: str) -> Condition:
    low = prefix_key(_check_string(operand, path))
    high = split_search_key(upper_bound(low.indexed + low.rest))
    return HasPrefix(key, STRING, Bound(low, inclusive=True), Bound(high, inclusive=False))


OPERATORS: dict[str, Callable[[str, object, str], Condition]] = {
    "$eq": _eq,
    "$ne": lambda key, operand, path: Not((_eq(key, operand, path),)),
    "$in": _in,
    "$nin": lambda key, operand, path: Not((_in(key, operand, path),)),
    **{operator: _range(operator) for operator in COMPARE},
    "$exists": _exists,
    "$contains": _contains,
    "$all": _all,
    "$prefix": _prefix,
}


FILTER_OPERATORS: tuple[str, ...] = tuple(OPERATORS)
"""The operators of filters on a key. `$and`, `$or` and `$not` combine filters."""


def check_filter(where: Where | None) -> None:
    """Check a filter while a person types it: `check_filter({"tags": {"$contains": "x"}})`.

    Args:
        where: A filter.

    Raises:
        InvalidFilterError: If the filter is invalid.
    """
    parse_filter(where)


def filter_hint(where: object) -> str | None:
    """Describe an operator in a filter whose `$` was probably forgotten.

    ```python
    filter_hint({"tags": {"contains": "x"}})  # "for the operator, write $contains instead of …"
    ```

    `{"tags": {"contains": "x"}}` is a valid filter, but it matches an object, not a list. Show the
    hint if a filter that a person typed matches nothing.

    Args:
        where: A filter.

    Returns:
        The hint, or None.
    """
    for key in _operators_without_dollar(where, is_value=False):
        return f"for the operator, write ${key} instead of {key}"
    return None


def _operators_without_dollar(where: object, *, is_value: bool) -> Iterator[str]:
    """Yields operators without `$` that are the only key of an object that is a value."""
    if isinstance(where, Mapping):
        for key, operand in where.items():
            if is_value and len(where) == 1 and f"${key}" in OPERATORS:
                yield key
            is_operand = not str(key).startswith("$")
            yield from _operators_without_dollar(operand, is_value=is_operand)
    elif isinstance(where, list):
        for each in where:
            yield from _operators_without_dollar(each, is_value=False)


def _paired(conditions: list[Condition]) -> list[Condition]:
    """Joins the ranges of one type, so that one look at an index answers all of them.

    The narrowest bound of each side remains.
    """
    ranges = [part for part in conditions if type(part) is Between]
    joined: list[Condition] = []
    for key, tag in dict.fromkeys((part.key, part.tag) for part in ranges):
        lows = [part.low for part in ranges if part.tag == tag and part.low]
        highs = [part.high for part in ranges if part.tag == tag and part.high]
        low = max(lows, key=lambda end: (end.value, not end.inclusive), default=None)
        high = min(highs, key=lambda end: (end.value, end.inclusive), default=None)
        joined.append(Between(key, tag, low, high))
    return [*joined, *(part for part in conditions if type(part) is not Between)]


def _time_condition(column: TimeColumn, operator: str, operand: object, path: str) -> Condition:
    if operator not in COMPARE:
        raise _unknown("operator for a time", COMPARE, path)
    moment = operand
    if isinstance(operand, str):
        # Python 3.10 does not read the Z that stands for UTC.
        text = operand[:-1] + "+00:00" if operand.endswith(("Z", "z")) else operand
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            problem = "expected a time in ISO 8601, such as 2026-01-31T12:00:00Z"
            raise InvalidFilterError(problem, path=path) from None
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        problem = "expected an aware datetime, or ISO 8601 text with an offset from UTC"
        raise InvalidFilterError(problem, path=path)
    try:
        return TimeBound(column, operator, moment.astimezone(timezone.utc))
    except OverflowError:
        raise InvalidFilterError("the time is out of range", path=path) from None


def _id_condition(operator: str, operand: object, path: str) -> Condition:
    if operator == "$prefix":
        prefix = _check_string(operand, path)
        if not prefix:
            return EVERYTHING
        return NOTHING if "\x00" in prefix else IdHasPrefix(prefix)
    if operator == "$eq":
        candidates = [_check_string(operand, path)]
    elif operator == "$in":
        candidates = [_check_string(value, path) for value in _check_list(operand, path)]
    else:
        raise _unknown("operator for a session id", ("$eq", "$in", "$prefix"), path)
    # No session has such an id, and not every database takes it as a parameter.
    ids = tuple(sorted({one for one in candidates if "\x00" not in one}))
    return IdIn(ids) if ids else NOTHING


_OF_COLUMN: dict[object, Callable[[str, object, str], Condition]] = {
    "$session_id": _id_condition,
    "$created_at": partial(_time_condition, "created_at"),
    "$updated_at": partial(_time_condition, "updated_at"),
}


def _place(path: str, key: object) -> str:
    # Python does not write every integer, and what is no string is no key.
    return f"{path}.{key}" if isinstance(key, str) else f"{path}.<{type(key).__name__}>"


def check_filter_key(key: object, path: str = "key") -> str:
    problem = key_problem(key)
    if problem is None and isinstance(key, str) and len(key) <= MAX_KEY_LENGTH:
        return str.__str__(key)
    if isinstance(key, str) and key.startswith("$"):
        names = ", ".join(("$and", "$or", "$not", *map(str, _OF_COLUMN)))
        problem = f"expected a metadata key, or one of {names}"
    problem = problem or f"a key can have at most {MAX_KEY_LENGTH} characters"
    raise InvalidFilterError(problem, path=path)


def _expected(what: str, given: object, path: str) -> InvalidFilterError:
    kind = "object" if isinstance(given, Mapping) else type(given).__name__
    return InvalidFilterError(f"expected {what}, got {kind}", path=path)


def _check_value(value: Any, path: str) -> Any:
    problem = value_problem(value)
    if problem is not None:
        place, what = problem
        raise InvalidFilterError(what, path=path + place.removeprefix("$"))
    return value


def _check_scalar(operand: object, path: str) -> Any:
    if isinstance(operand, (list, Mapping)):
        raise _expected("a string, number, true, false or null", operand, path)
    return _check_value(operand, path)


def _check_list(operand: object, path: str, most: int = MAX_OPERANDS) -> list[Any]:
    if not isinstance(operand, list):
        raise _expected("a list", operand, path)
    if len(operand) > most:
        problem = f"a list can have at most {most:,} values, got {len(operand):,}"
        raise InvalidFilterError(problem, path=path)
    return operand


def _check_string(operand: object, path: str) -> str:
    if not isinstance(operand, str):
        raise _expected("a string", operand, path)
    return str.__str__(_check_value(operand, path))
