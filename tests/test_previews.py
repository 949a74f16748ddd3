"""The texts of previews, and JSON that was cut anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata.query.previews import HEAD, LENGTH, completed, preview_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def is_beginning(part: object, whole: object) -> bool:
    """Whether JSON is the beginning of other JSON: further entries may follow, and longer text."""
    if isinstance(part, str) and isinstance(whole, str):
        # The second half of a character may be missing.
        return whole.startswith((part, part[:-1]))
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(is_beginning, part, whole))
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_beginning(part[key], whole[key]) for key in part)
    return part == whole


@examples(200)
@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans())
def test_json_that_is_cut_anywhere(value, ensure_ascii):
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    assert completed(text) == text
    for end in range(1, len(text)):
        assert is_beginning(json.loads(completed(text[:end])), value)


@examples(200)
@given(st.text(), st.booleans(), st.booleans())
def test_the_beginning_of_the_text(text, ensure_ascii, role_first):
    item = {"role": "user", "content": text} if role_first else {"content": text, "role": "user"}
    stored = json.dumps(item, ensure_ascii=ensure_ascii, separators=(",", ":"))
    expected = " ".join(text.split())[:LENGTH].rstrip() or None
    assert preview_of(stored[:HEAD]) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": " a\n\tb "}]}, "a b"),
        (
            {"content": [{"type": "input_image"}, {"text": "a"}, {"text": "b"}], "role": "user"},
            "a b",
        ),
        ({"role": "user", "content": "x" * 5_000}, "x" * LENGTH),
        ({"role": "user", "content": "😀" * 5_000}, "😀" * LENGTH),
        ({"role": "user", "content": "\ud83d!"}, "\ufffd!"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x" * 5_000}]}, None),
        ({"role": "user", "content": " \n"}, None),
        ({"role": "user", "content": None}, None),
        ({"type": "message", "role": "user"}, None),
        ({"role": "assistant", "content": "x", "more": {"role": "user"}}, None),
        (["role", "user"], None),
    ],
)
def test_messages(item, expected):
    assert preview_of(json.dumps(item, separators=(",", ":"))[:HEAD]) == expected


@pytest.mark.parametrize("text", ["", "}", "{]", "x", '{"role":"user"', '{"a\\', "[" * 4_000])
def test_text_that_is_no_message(text):
    assert preview_of(text) is None
