"""What goes in comes out; what cannot come out does not go in."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import unicodedata
import uuid
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel
from scaling import examples

from agents_session_metadata import (
    InvalidMetadataError,
    MetadataLimits,
    SQLAlchemyMetadataSession,
)
from agents_session_metadata.values import encode_metadata
from conformance import strategies


def nested(depth: int) -> list[Any]:
    """`depth` lists, one in the other, the innermost empty."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_dict(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def spelled(value: Any) -> Any:
    """A value with its types: to `==`, 1, 1.0 and True are one, as are 0.0 and -0.0."""
    if isinstance(value, list):
        return ["list", *map(spelled, value)]
    if isinstance(value, dict):
        assert type(value) is dict
        return {key: spelled(one) for key, one in value.items()}
    return type(value).__name__, value, repr(value) if type(value) is float else None


def text_of_bytes(size: int) -> str:
    """A string whose JSON text has exactly `size` bytes, the quotes included."""
    return "x" * (size - 2)


NASTY = {
    "text_one": "1",
    "one": 1,
    "true": True,
    "false": False,
    "one_point_zero": 1.0,
    "zero": 0,
    "zero_point_zero": 0.0,
    "minus_zero": -0.0,
    "null": None,
    "huge_float": 1e308,
    "greatest_float": 1.7976931348623157e308,
    "smallest_float": 5e-324,
    "a_third": 1 / 3,
    "1e16": 1e16,
    "1e23": 1e23,
    "int_of_1e23": 10**23,
    "4001_digits": 10**4000,
    "4300_digits": -(10**4300 - 1),
    "2_to_53_plus_1": 2**53 + 1,
    "2_to_63": 2**63,
    "minus_2_to_63": -(2**63) - 1,
    "2_to_64_plus_1": 2**64 + 1,
    "text_null": "null",
    "text_true": "true",
    "text_nan": "NaN",
    "text_json": '{"a": [1]}',
    "empty": "",
    "space": " ",
    "trailing_spaces": "a  ",
    "trailing_newline": "a\n",
    "nul": "\0",
    "nul_inside": "a\0b",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f",
    "quotes": "'\"`\\ \\\\ \\' %s %% :name ?",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "composed": unicodedata.normalize("NFC", "é"),
    "decomposed": unicodedata.normalize("NFD", "é"),
    "non_characters": "\ufffe\uffff\U0010ffff",
    "separators": "\u2028\u2029\ufeff",
    "text_of_surrogate_escape": "\\ud800",
    "empty_list": [],
    "empty_object": {},
    "list_of_kinds": ["1", 1, True, 1.0, None, [], {}, [None], {"": ""}],
    "repeated": ["a", "a", "a"],
    "object": {"b": 1, "a": {"$gt": 1, "": None, "a\0": "\0", " ": " ", "A": "a"}},
    "depth_100": nested(100),
    "depth_100_objects": nested_dict(100),
    "64_KiB": text_of_bytes(65_536),
    "64_KiB_of_emoji": "👍" * ((65_536 - 2) // 4),
    "many_elements": [f"tag {number:05}" for number in range(4_000)],
    "long_elements": ["y" * 600, "y" * 601, "y" * 600 + "z"],
    "600_bytes": "z" * 600,
}

NASTY_KEYS = [
    "a",
    "A",
    "á",
    unicodedata.normalize("NFD", "á"),
    "a ",
    " a",
    " ",
    "a\n",
    "it's",
    'say "so"',
    "`tick`",
    "100%",
    "%s",
    "%(a)s",
    ":a",
    "?",
    "a.b",
    "a[0]",
    "a$",
    "\\",
    "_",
    "-- ",
    "';DROP TABLE agent_sessions;--",
    "ß",
    "ss",
    "\u200b",
    "\x01",
    "\uffff",
    "k" * 255,
    "é" * 255,
    "👍" * 255,
    "👍" * 254 + "👎",
]


@pytest.fixture
def session(database):
    return SQLAlchemyMetadataSession("chat", engine=database.engine(), create_tables=True)


def fresh(session: SQLAlchemyMetadataSession, **kwargs: Any) -> SQLAlchemyMetadataSession:
    """The same session as a program started later sees it."""
    return SQLAlchemyMetadataSession(session.session_id, engine=session.engine, **kwargs)


async def test_nasty_values_come_back_type_for_type(session):
    written = await session.set_metadata(NASTY)
    assert written is None
    assert spelled(await fresh(session).get_metadata()) == spelled(NASTY)


async def test_each_nasty_value_replaces_each_other(session):
    # An upsert must leave nothing of the old value: no tail, no list element, no type.
    for value in [*NASTY.values(), *reversed(NASTY.values())]:
        await session.set_metadata({"a": value})
        assert spelled(await session.get_metadata()) == spelled({"a": value})


async def test_object_keys_keep_their_order(session):
    value = {"z": 1, "a": 2, "m": {"2": 0, "1": 0, "10": 0}}
    await session.set_metadata({"a": value})
    assert json.dumps(await fresh(session).get_metadata()) == json.dumps({"a": value})


async def test_nasty_keys_stay_apart(session):
    values = {key: number for number, key in enumerate(NASTY_KEYS)}
    await session.set_metadata(values)
    assert await fresh(session).get_metadata() == values
    for key, number in values.items():
        assert await session.get_metadata([key]) == {key: number}
        assert await session.find_sessions_by_metadata(key, number) == ["chat"]
        assert await session.find_sessions_by_metadata(key, number + 1) == []
    for left, key in enumerate(NASTY_KEYS, start=1):
        assert await session.delete_metadata([key]) == 1
        assert len(await session.get_metadata()) == len(NASTY_KEYS) - left


@examples(25, 3_000)
@given(values=strategies.metadata)
async def test_any_metadata_comes_back(session, values):
    await session.delete_metadata()
    await session.set_metadata(values)
    assert spelled(await session.get_metadata()) == spelled(values)


@examples(25, 3_000)
@given(value=strategies.json_values)
async def test_any_value_is_found_by_itself(session, value):
    await session.set_metadata({"a": value})
    assert await session.find_sessions_by_metadata("a", value) == ["chat"]
    assert await session.find_sessions_by_metadata({"a": {"$ne": value}}) == []


async def test_stored_none_and_a_missing_key_differ(session):
    await session.set_metadata({"a": None})
    assert await session.get_metadata() == {"a": None}
    assert await session.get_metadata(keys=["a", "b"]) == {"a": None, "b": None}
    assert await session.find_sessions_by_metadata({"a": {"$exists": True}}) == ["chat"]
    assert await session.find_sessions_by_metadata({"b": {"$exists": True}}) == []


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 7


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Elements(list):
    pass


class Mapped(dict):
    pass


@pytest.mark.logic
async def test_subclasses_come_back_as_the_plain_type(session):
    await session.set_metadata(
        {
            "colour": Colour.RED,
            "level": Level.HIGH,
            "inside": Mapped(a=Elements([Colour.RED, Text("b"), Whole(3), Real(2.0)])),
            "keyed": {Colour.RED: 1},
            Colour.RED: True,
        }
    )
    assert spelled(await session.get_metadata()) == spelled(
        {
            "colour": "red",
            "level": 7,
            "inside": {"a": ["red", "b", 3, 2.0]},
            "keyed": {"red": 1},
            "red": True,
        }
    )
    assert all(type(key) is str for key in await session.get_metadata())
    assert await session.find_sessions_by_metadata("colour", Colour.RED) == ["chat"]
    assert await session.find_sessions_by_metadata({"level": {"$gte": Level.HIGH}}) == ["chat"]


@pytest.mark.logic
async def test_a_value_changed_by_the_caller_later_does_not_change_what_is_stored(session):
    tags = ["a"]
    await session.set_metadata({"tags": tags})
    tags.append("b")
    stored = await session.get_metadata()
    stored["tags"].append("c")
    assert await session.get_metadata() == {"tags": ["a"]}


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REJECTED = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus_infinity": float("-inf"),
    "surrogate": "a\ud800",
    "tuple": (1, 2),
    "set": {1},
    "frozenset": frozenset(),
    "bytes": b"a",
    "bytearray": bytearray(b"a"),
    "datetime": datetime.datetime.now(tz=datetime.timezone.utc),
    "date": datetime.date(2024, 1, 1),
    "decimal": decimal.Decimal(1),
    "complex": 1j,
    "object": object(),
    "range": range(3),
    "int_key": {1: 1},
    "none_key": {None: 1},
    "surrogate_key": {"\udfff": 1},
    "4301_digits": 10**4300,
    "depth_102": nested(102),
    "depth_102_objects": nested_dict(102),
    "depth_50000": nested(50_000),
    "circle": circle(),
}


@pytest.mark.logic
async def test_what_is_no_json_is_refused(session):
    await session.set_metadata({"old": 1})
    for kind, value in REJECTED.items():
        with pytest.raises(InvalidMetadataError) as caught:
            pytest.fail(
                f"{kind}: {await session.set_metadata({'good': 1, 'old': 2, 'bad': value})}"
            )
        assert caught.value.key == "bad", kind
        assert "bad" in str(caught.value), kind
        assert isinstance(caught.value, ValueError)
    assert await session.get_metadata() == {"old": 1}


@pytest.mark.logic
async def test_the_refusal_names_the_place_inside_the_value(session):
    with pytest.raises(InvalidMetadataError) as caught:
        await session.set_metadata({"bad": {"list": [0, {"deep": float("nan")}]}})
    place = caught.value.path
    assert place in str(caught.value)
    assert place.index("list") < place.index("1") < place.index("deep")


@pytest.mark.logic
async def test_bad_keys_are_refused(session):
    await session.set_metadata({"old": 1})
    for key in (
        "",
        "\0",
        "a\0b",
        "$",
        "$session_id",
        "$eq",
        "a\ud800",
        1,
        None,
        True,
        b"a",
        ("a",),
    ):
        with pytest.raises(InvalidMetadataError) as caught:
            pytest.fail(f"{key!a}: {await session.set_metadata({'good': 1, key: 1})}")
        assert caught.value.key == key
    assert await session.get_metadata() == {"old": 1}


class Size(enum.Enum):
    LARGE = "large"


class Order(BaseModel):
    number: int


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), "store value.isoformat()"),
        (datetime.date(2026, 1, 1), "store value.isoformat()"),
        (decimal.Decimal("1.5"), "store str(value)"),
        (uuid.UUID(int=1), "store str(value)"),
        (Size.LARGE, "store value.value"),
        ((1, 2), "store list(value)"),
        ({1}, "store list(value)"),
        (Order(number=1), 'store value.model_dump(mode="json")'),
        (b"bytes", "store a string, number, list or dict"),
    ],
    ids=repr,
)
def test_what_to_store_instead(value, hint) -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        encode_metadata({"key": {"a": [value]}}, MetadataLimits())
    assert str(caught.value) == (
        f"metadata key 'key' at $.a[0]: {type(value).__name__} is not JSON; {hint}"
    )
