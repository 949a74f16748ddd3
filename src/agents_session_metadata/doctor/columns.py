"""What a column holds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sqlalchemy import BigInteger

SAMPLES = (("case", "a", "A"), ("accents", "a", "á"), ("trailing spaces", "a", "a "))
"""What a collation may ignore, with two texts that then are equal."""


class TextColumn(NamedTuple):
    """How a column of text compares, and how much a column of text or bytes holds.

    Its kind is the name of its type, where types of text differ in how they compare.
    """

    length: float
    collation: str = ""
    charset: str = ""
    is_exact: bool = True
    kind: str = ""

    def __str__(self) -> str:
        length = "any number of" if self.length == math.inf else self.length
        return f"{length} characters of the collation {self.collation}"


def kind_of(kind: Any) -> type:
    """What Python makes of a type's values."""
    try:
        found: type = kind.python_type
    except NotImplementedError:
        return object
    return found


def is_kind(wanted: Any, actual: Any) -> bool:
    """Whether a type is for the same values as another; texts and bytes may be shorter."""
    is_narrow = isinstance(wanted, BigInteger) and not isinstance(actual, BigInteger)
    return kind_of(wanted) is kind_of(actual) and not is_narrow
