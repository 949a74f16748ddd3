"""Parses JSON from outside: no NaN or infinity, and no duplicate keys."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from .text import quoted


def parse_json(text: str, *, duplicates: bool = False, **hooks: Any) -> Any:
    """Raises `ValueError` for NaN, infinities, too long integers, deep nesting and duplicate keys.

    With `duplicates`, an object can repeat a key, and the last value is used. `hooks` are further
    arguments of `json.loads`.
    """
    if not duplicates:
        hooks["object_pairs_hook"] = _without_duplicates
    try:
        return json.loads(text, parse_constant=refuse_constant, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "set_int_max_str_digits" not in str(error):
            raise
        most = sys.get_int_max_str_digits()
        raise ValueError(f"an integer can have at most {most} digits") from None


def refuse_constant(name: str) -> NoReturn:
    """Rejects NaN and infinities, as `parse_constant` of `json.loads`."""
    raise ValueError(f"{name} is not a JSON value")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {quoted(repeated)}")
    return found
