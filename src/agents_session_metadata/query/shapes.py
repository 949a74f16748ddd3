"""What a condition has in common with others: its shape, and the parameters that are its own.

Statements are built once a shape and run with the parameters of each call. Whatever decides about a
statement's text is in the shape; keys and values never are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.keys import COARSE
from agents_session_metadata.values import FALSE, NULL, STRING, TRUE, SearchKey, upper_bound

from . import filters as f

IN_ORDER = 3
"""Up to this rank, the ids that a condition drives come in order."""
SELECTIVE = 7
"""Up to this rank, a condition is taken to hold for few sessions."""
NO_DRIVER = 11
"""The rank of a condition that cannot drive."""

_COARSE_VALUES = {NULL, FALSE, TRUE}


def shape_of(condition: f.Condition) -> Any:
    """A hashable value that two conditions share when one statement serves both."""
    if isinstance(condition, (f.All, f.AnyOf)):
        return type(condition).__name__, tuple(map(shape_of, condition.parts))
    if isinstance(condition, f.Not):
        return "Not", shape_of(condition.part)
    name, rank = type(condition).__name__, rank_of(condition)
    if isinstance(condition, (f.Equals, f.Contains)):
        whole, long = split_values(condition)
        return name, rank, count_shape(len(whole)), len(long)
    if isinstance(condition, f.Between):
        ends = (condition.low, condition.high)
        return (
            name,
            rank,
            condition.tag,
            *(end and (end.inclusive, end.value.is_whole) for end in ends),
        )
    if isinstance(condition, f.HasPrefix):
        return name, rank, bool(condition.prefix.rest)
    if isinstance(condition, f.IdIn):
        return name, rank, count_shape(len(condition.ids))
    if isinstance(condition, f.IdHasPrefix):
        return name, rank, string_above(condition.prefix) is None
    if isinstance(condition, f.TimeBound):
        return name, condition.column, condition.operator
    return name, rank


def parameters_of(condition: f.Condition, dialect: Dialect) -> dict[str, Any]:
    """The values of a condition, by the names that a statement for its shape gives them."""
    parameters: dict[str, Any] = {}
    for number, leaf in enumerate(leaves(condition)):
        name = f"c{number}"
        if not isinstance(leaf, (f.IdIn, f.IdHasPrefix, f.TimeBound)):
            parameters[f"{name}_key"] = leaf.key
        if isinstance(leaf, (f.Equals, f.Contains)):
            whole, long = split_values(leaf)
            if len(whole) == 1:
                parameters[name] = whole[0]
            elif whole:
                parameters.update(dialect.list_parameters(name, whole))
            for index, value in enumerate(long):
                parameters[f"{name}_{index}"] = value.indexed
                parameters[f"{name}_{index}_rest"] = value.rest
        elif isinstance(leaf, f.Between):
            for side, end in (("low", leaf.low), ("high", leaf.high)):
                if end is not None:
                    parameters[f"{name}_{side}"] = end.value.indexed
                    if not end.value.is_whole:
                        parameters[f"{name}_{side}_rest"] = end.value.rest
        elif isinstance(leaf, f.HasPrefix):
            indexed, rest = leaf.prefix
            parameters[name] = indexed
            if rest:
                parameters[f"{name}_rest"] = rest
            parameters[f"{name}_above"] = upper_bound(rest or indexed)
        elif isinstance(leaf, f.IdIn):
            parameters.update(dialect.list_parameters(name, leaf.ids))
        elif isinstance(leaf, f.IdHasPrefix):
            parameters[name] = leaf.prefix
            above = string_above(leaf.prefix)
            if above is not None:
                parameters[f"{name}_above"] = above
        elif isinstance(leaf, f.TimeBound):
            parameters[name] = dialect.moment_value(leaf.moment)
    return parameters


def leaves(condition: f.Condition) -> Iterator[f.Leaf]:
    """The conditions that are no combinations, in a fixed order."""
    if isinstance(condition, (f.All, f.AnyOf)):
        for part in condition.parts:
            yield from leaves(part)
    elif isinstance(condition, f.Not):
        yield from leaves(condition.part)
    else:
        yield condition


def conjunction(condition: f.Condition) -> Iterator[f.Condition]:
    """The conditions that must all hold."""
    if isinstance(condition, f.All):
        for part in condition.parts:
            yield from conjunction(part)
    else:
        yield condition


def rank_of(condition: f.Condition) -> int:
    """How good a condition is at driving, judged by its kind; the lowest is the best."""
    if isinstance(condition, f.IdIn):
        return 0
    if isinstance(condition, f.Equals) and len(condition.values) == 1:
        coarse = condition.key in COARSE or condition.values[0].indexed in _COARSE_VALUES
        return 8 if coarse else 1
    if isinstance(condition, f.IdHasPrefix):
        return 2
    if isinstance(condition, f.Contains):
        return 3
    if isinstance(condition, f.Equals):
        return 4
    if isinstance(condition, f.HasPrefix):
        # The empty prefix is every string.
        return 5 if condition.prefix.indexed != STRING else 9
    if isinstance(condition, f.Between):
        return 6 if condition.low and condition.high else 9
    if isinstance(condition, f.AnyOf) and condition.parts:
        best = (min(map(rank_of, conjunction(part)), default=NO_DRIVER) for part in condition.parts)
        return max(7, *best)
    return 10 if isinstance(condition, f.Exists) else NO_DRIVER


def needs_sessions(condition: f.Condition) -> bool:
    """Whether a condition is about columns of the sessions table other than the id."""
    return any(isinstance(leaf, f.TimeBound) for leaf in leaves(condition))


def split_values(condition: f.Equals | f.Contains) -> tuple[list[bytes], list[SearchKey]]:
    """The values that their indexed part tells apart, and those that need the rest as well."""
    values = condition.values if isinstance(condition, f.Equals) else (condition.element,)
    whole = [value.indexed for value in values if value.is_whole]
    return whole, [value for value in values if not value.is_whole]


def count_shape(count: int) -> int:
    """A count as far as it decides about a statement: none, one, some, or (in hundreds) many."""
    return count if count < 2 else 2 + (count > Dialect.many)


def string_above(prefix: str) -> str | None:
    """The smallest string above every one that begins with `prefix`; None when there is none."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:
            last = 0xE000  # Surrogates are no characters.
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None
