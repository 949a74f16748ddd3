"""The texts of previews, from messages that were cut anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata.query.details import HEAD, LENGTH, preview_of

LONG = "x" * 5_000


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
        ({"role": "user", "content": [{"text": "x" * 5_000}]}, "x" * LENGTH),
        ({"role": "user", "content": [{"text": "a"}, {"url": "x" * 5_000}]}, "a"),
        ({"role": "user", "content": "\ud83d!"}, "\ufffd!"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x" * 5_000}]}, None),
        ({"role": "user", "content": " \n"}, None),
        ({"role": "user", "content": None}, None),
        ({"type": "message", "role": "user"}, None),
        ({"role": "assistant", "content": "x", "more": {"role": "user"}}, None),
        (["role", "user"], None),
        # The text of another item is none of the user, however long the item is.
        ({"role": "assistant", "content": LONG, "more": {"role": "user"}}, None),
        ({"type": "x", "input": [{"role": "user", "content": LONG}]}, None),
        ({"type": "x_output", "output": {"role": "user", "content": "a"}, "more": LONG}, None),
        ({"input": {"role": "user"}, "role": "assistant", "content": LONG}, None),
        ({"type": "message", "role": "user", "content": LONG}, LONG[:LENGTH]),
        ({"content": [{"type": "input_text", "text": LONG}], "role": "user"}, LONG[:LENGTH]),
        ({"content": '{"type": "x", [' * 1_000, "role": "user"}, ('{"type": "x", [' * 20)[:LENGTH]),
    ],
)
def test_messages(item, expected):
    assert preview_of(json.dumps(item, separators=(",", ":"))[:HEAD]) == expected


@pytest.mark.parametrize("text", ["", "}", "{]", "x", '{"role":"user"', '{"a\\', "[" * 4_000])
def test_text_that_is_no_message(text):
    assert preview_of(text) is None
