"""Input that nobody meant: what hypothesis draws to break a parser."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from hypothesis import strategies as st

from agents_session_metadata import FILTER_OPERATORS
from conformance.strategies import one_of

# What has a meaning to some parser: of SQL, of its parameters, of JSON, of the filter language.
NASTY = [
    "'",
    '"',
    "`",
    "\\",
    "\\'",
    "--",
    "/*",
    "*/",
    ";",
    "%",
    "%%",
    "%s",
    "%(key)s",
    ":key",
    ":param_1",
    "?",
    "$1",
    "{}",
    "#",
    "' OR '1'='1",
    "'; DROP TABLE agent_sessions; --",
    "\\' OR 1=1 #",
    "x') UNION SELECT 1 --",
    "__[POSTCOMPILE_x]",
    "\N{FULLWIDTH APOSTROPHE} OR 1=1",
    "$session_id",
    "$and",
    "$",
    "",
    "\0",
    "\ud800",
    "\u202e",
    "\n",
]
OPERATORS = [
    *FILTER_OPERATORS,
    *["$and", "$or", "$not", "$session_id", "$created_at", "$updated_at", "$where", "$regex"],
]
TIMES = ["2020-01-03T00:00:00+00:00", "2020-02-05T12:00:00Z", "2020-01-03", "0001-01-01T00+14:00"]


async def attempt(work: Awaitable[Any], *refusals: type[Exception]) -> tuple[Any, Any]:
    """What came of it, and None; or None, and the error by which it was refused."""
    try:
        return await work, None
    except refusals as error:
        return None, error


texts = one_of(NASTY) | st.text(max_size=10) | st.lists(one_of(NASTY), max_size=4).map("".join)
numbers = st.integers() | st.floats() | one_of([10**400, 2**63, 1e308, -0.0])
json_scalars = st.none() | st.booleans() | numbers | texts | one_of(TIMES)
json = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
"""What a JSON reader may give, lone surrogates, NaN and infinities among it."""

no_json = one_of(
    [
        *[b"x", (1, 2), {1, 2}, object(), 1j, {1: 2}, {None: 1}, {("a",): 1}, {10**5_000: 1}],
        *[10**5_000, range(3), datetime(2020, 1, 3, tzinfo=timezone.utc), int, len],
    ]
)
anything = json | no_json


def filters(names: list[str]) -> st.SearchStrategy[Any]:
    """Almost filters: the words of the language, put together by chance."""
    keys = one_of(names) | one_of(OPERATORS) | texts
    return st.recursive(
        json_scalars | no_json,
        lambda inner: (
            st.dictionaries(keys, inner | json, min_size=1, max_size=3)
            | st.lists(inner, max_size=3)
        ),
        max_leaves=8,
    )


def spoiled(documents: st.SearchStrategy[Any], junk: st.SearchStrategy[Any]) -> Any:
    """Good documents with one place changed: a value replaced, an entry dropped or renamed."""

    @st.composite
    def draw(draw: Callable[..., Any]) -> Any:
        document = copy.deepcopy(draw(documents))
        places = list(entries(document))
        if not places:
            return draw(junk)
        holder, key = draw(one_of(places))
        match draw(st.sampled_from(["replace", "drop", "rename"])):
            case "replace":
                holder[key] = draw(junk)
            case "rename" if isinstance(holder, dict):
                holder[draw(one_of(OPERATORS) | texts)] = holder.pop(key)
            case _:
                del holder[key]
        return document

    return draw()


def entries(document: Any) -> Any:
    """Every place in a document: what holds it, and under which key or index."""
    if isinstance(document, dict | list):
        pairs = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in list(pairs):
            yield document, key
            yield from entries(value)
