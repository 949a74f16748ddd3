"""Values and filters that hypothesis draws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
integers = st.integers() | st.integers(min_value=-(10**400), max_value=10**400)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | integers | floats | strings
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(strings, inner, max_size=5),
    max_leaves=15,
)
keys = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    .filter(lambda key: not key.startswith("$"))
    .map(lambda key: key[:255])
)
metadata = st.dictionaries(keys, json_values, min_size=1, max_size=8)


def one_of(values: list[Any]) -> st.SearchStrategy[Any]:
    """Like `sampled_from`, which shows all it has to choose from wherever it is shown."""
    return st.integers(min_value=0, max_value=len(values) - 1).map(lambda place: values[place])


def filters(
    names: list[str], values: list[Any], session_ids: list[str], moments: list[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Valid filters over a corpus: its keys, values, ids and times, and their neighbours."""
    value = one_of(values) | json_values
    scalar = one_of([one for one in values if not isinstance(one, list | dict)]) | scalars
    ordered = one_of(
        [one for one in values if isinstance(one, int | float | str) and not isinstance(one, bool)]
    )
    ordered = ordered | integers | floats | strings
    prefix = st.builds(
        lambda text, length: text[:length],
        one_of([one for one in values if isinstance(one, str)]) | strings,
        st.integers(min_value=0, max_value=5),
    )
    operators = st.fixed_dictionaries(
        {},
        optional={
            "$eq": value,
            "$ne": value,
            "$in": st.lists(value, max_size=4),
            "$nin": st.lists(value, max_size=4),
            "$gt": ordered,
            "$gte": ordered,
            "$lt": ordered,
            "$lte": ordered,
            "$exists": st.booleans(),
            "$contains": scalar,
            "$all": st.lists(scalar, min_size=1, max_size=3),
            "$prefix": prefix,
        },
    )
    few_operators = operators.filter(bool).map(lambda all_: dict(list(all_.items())[:2]))
    condition = few_operators | value.filter(is_plain)
    moment = one_of(moments)
    range_ = st.sampled_from(["$gt", "$gte", "$lt", "$lte"])
    ids = one_of(session_ids) | st.just("nobody")
    id_condition = (
        ids
        | ids.map(lambda one: {"$eq": one})
        | st.lists(ids, max_size=4).map(lambda some: {"$in": some})
        | ids.map(lambda one: {"$prefix": one[:3]})
    )
    leaf = (
        st.dictionaries(one_of(names) | keys, condition, min_size=1, max_size=2)
        | st.builds(lambda name, when: {"$created_at": {name: when}}, range_, moment)
        | st.builds(lambda name, when: {"$updated_at": {name: when}}, range_, moment)
        | id_condition.map(lambda one: {"$session_id": one})
    )
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$and": some})
            | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"$or": some})
            | inner.map(lambda one: {"$not": one})
            | st.builds(lambda one, other: {**one, "$not": other}, inner, inner)
        ),
        max_leaves=5,
    )


def is_plain(value: Any) -> bool:
    """A bare object is a value only when none of its keys begins with `$`."""
    return not (isinstance(value, dict) and any(key.startswith("$") for key in value))
