"""Messages show text readably, and nothing in them steers a terminal or breaks a log."""

from __future__ import annotations

import pytest

from agents_session_metadata import InvalidFilterError, ScopeError
from agents_session_metadata.query.filters import parse_filter
from agents_session_metadata.text import escaped, quoted

READABLE = ["Straße", "日本語", "عربي", "a\u3000b", "👩\u200d👧", "☎\ufe0f", "e\u0301", "\xa0"]


@pytest.mark.parametrize("text", READABLE)
def test_text_stays_readable(text):
    assert quoted(text) == f"'{text}'"
    assert text in str(ScopeError(text))
    with pytest.raises(InvalidFilterError, match=text):
        parse_filter({text: {"$gt": None}})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\t\0\x1b[31m\x7f\x9b", r"a\nb\t\x00\x1b[31m\x7f\x9b"),
        ("\ud800", r"\ud800"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\u202a\u202e\u2066\u2069", r"\u202a\u202e\u2066\u2069"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert escaped(text) == shown
    assert quoted(text) == f"'{shown}'"
    with pytest.raises(InvalidFilterError) as caught:
        parse_filter({text: {"$gt": None}})
    assert caught.value.path in str(caught.value)
    assert escaped(str(caught.value)) == str(caught.value)


def test_long_texts_are_cut_and_other_values_shown():
    assert len(quoted("x" * 1_000)) == 80
    assert quoted("it's") == '"it\'s"'
    assert quoted(1.5) == "1.5"
    assert quoted(["é", "\x1b"]) == r"['é', '\x1b']"
    assert quoted(10**5_000) == "a long int"


def test_some_control_characters_may_stay():
    assert escaped("a\n\tb\x1b\u202e", "\n\t") == "a\n\tb\\x1b\\u202e"
