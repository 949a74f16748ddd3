"""The filter language evaluated in plain Python: the answer that every database has to give."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
MISSING = object()


def matches(
    where: Mapping[str, Any] | None,
    metadata: Mapping[str, Any],
    *,
    session_id: str = "",
    created_at: datetime | None = None,
    updated_at: datetime | None = None,
) -> bool:
    """Whether a session with this metadata and these columns is among the answers to `where`."""
    columns = {"$session_id": session_id, "$created_at": created_at, "$updated_at": updated_at}

    def holds(filter_: Mapping[str, Any]) -> bool:
        return all(one(key, condition) for key, condition in filter_.items())

    def one(key: str, condition: Any) -> bool:
        if key == "$and":
            return all(holds(part) for part in condition)
        if key == "$or":
            return any(holds(part) for part in condition)
        if key == "$not":
            return not holds(condition)
        value = columns[key] if key in columns else metadata.get(key, MISSING)
        if isinstance(condition, dict) and any(name.startswith("$") for name in condition):
            return all(satisfies(value, name, operand) for name, operand in condition.items())
        return satisfies(value, "$eq", condition)

    return holds(where or {})


def satisfies(value: Any, name: str, operand: Any) -> bool:
    """Whether a stored value (or MISSING) meets one operator."""
    if name == "$exists":
        return (value is not MISSING) is operand
    if name == "$ne":
        return value is MISSING or not equal(value, operand)
    if name == "$nin":
        return value is MISSING or not any(equal(value, one) for one in operand)
    if value is MISSING:
        return False
    if name == "$eq":
        return equal(value, operand)
    if name == "$in":
        return any(equal(value, one) for one in operand)
    if name == "$contains":
        return isinstance(value, list) and any(equal(element, operand) for element in value)
    if name == "$all":
        return all(satisfies(value, "$contains", one) for one in operand)
    if name == "$prefix":
        return isinstance(value, str) and value.startswith(operand)
    if isinstance(value, datetime):
        moment = operand if isinstance(operand, datetime) else datetime.fromisoformat(operand)
        return ORDER[name](value, moment)
    if is_number(value) and is_number(operand):
        return ORDER[name](decimal(value), decimal(operand))
    return isinstance(value, str) and isinstance(operand, str) and ORDER[name](value, operand)


def equal(left: Any, right: Any) -> bool:
    """Same type and same value; numbers are one type, and booleans are not numbers."""
    if is_number(left) and is_number(right):
        return decimal(left) == decimal(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def decimal(number: float) -> Decimal:
    return Decimal(json.dumps(number))
