"""How much a test does: little in `make test`, a lot in `make fuzz`, which sets TEST_SCALE=full.

A property test takes its numbers of examples from `@examples(25)` or `@examples(25, 2_000)`, any
other count from `scale(50, 100_000)`. `make fuzz` runs the property tests and those that are marked
`scaled`.
"""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

IS_FULL = os.environ.get("TEST_SCALE") == "full"


def examples(few: int, many: int | None = None) -> settings:
    """Settings for a property test: `few` examples or `many`, by default fifty times as many."""
    # One database serves all examples of a test; a slow server is no failure of a property.
    return settings(
        max_examples=(many or few * 50) if IS_FULL else few,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def scale(small: T, full: T) -> T:
    """What a test is to use: `small` in `make test`, `full` in `make fuzz`."""
    return full if IS_FULL else small
