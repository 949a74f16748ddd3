"""Shows a model the last turns of a history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from agents_session_metadata.text import quoted

from .pairs import is_user_message, separated_pair, unanswered

Items: TypeAlias = "list[Any]"


def recent_turns(n: int) -> Callable[[Items, Items], Items]:
    """A `session_input_callback` with which the model sees the last turns and the new input.

    A turn begins with a message of the user. A call without its output is left out, and so is an
    output without its call. The stored history does not change.

    ```python
    config = RunConfig(session_input_callback=recent_turns(5))
    await Runner.run(agent, "And tomorrow?", session=session, run_config=config)
    ```

    Args:
        n: The number of turns, at least 1.

    Returns:
        The function, for `RunConfig`.

    Raises:
        ValueError: If `n` is not a positive integer.
    """
    if type(n) is not int or n < 1:
        raise ValueError(f"n must be a positive integer, got {quoted(n)}")

    def recent(history: Items, new: Items) -> Items:
        starts = [at for at, item in enumerate(history) if is_user_message(item)]
        begin = starts[-n] if len(starts) > n else 0
        items: Items = list(history)
        while (pair := separated_pair(items, begin)) is not None:
            items[pair[1]] = None
        shown = items[begin:]
        for at in unanswered([*shown, *new]):
            if at < len(shown):
                shown[at] = None
        return [*(item for item in shown if item is not None), *new]

    return recent
