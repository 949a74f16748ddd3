"""Whether a trigger is as the statements of this package create it."""

from __future__ import annotations

import re
from typing import NamedTuple

from agents_session_metadata.dialects._triggers import has_body, normal

_CAST = re.compile(r"""::(?:character varying|[\w."]+)""")


class StoredTrigger(NamedTuple):
    """A trigger as the database describes it, in the words of the statements that create it.

    Attributes:
        runs: What it runs, as it was typed, and when, if the database keeps that as well. Empty if
            the trigger has no effect.
        fires: More parts of the statements, with the database's own parentheses and casts.
    """

    runs: str
    fires: tuple[str, ...] = ()

    def is_created_by(self, statements: tuple[str, ...]) -> bool:
        """Whether these statements create it."""
        text = _plain("".join(statements))
        return has_body(statements, self.runs) and all(_plain(each) in text for each in self.fires)


def _plain(statement: str) -> str:
    """A normal statement without casts, and without parentheses."""
    return re.sub("[()]", "", normal(_CAST.sub("", statement)))
