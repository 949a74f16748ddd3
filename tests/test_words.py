"""The words of a text, compared with an evaluation of the whole text at once."""

# ruff: noqa: RUF001
from __future__ import annotations

import gc
import tracemalloc
from random import Random

from conformance.search_oracle import words
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata.search.words import LONGEST_WORD, normalize, stored_words, tokenize

PIECES = [
    *["the", "a", "tram", "TRAM", "trams", "28", "2", "_x", "foo_bar", "x" * 70, "x" * 70 + "y"],
    *["naïve", "naive", "nai\u0308ve", "STRASSE", "straße", "İstanbul", "ıstanbul", "ﬁne", "①②"],
    *["Ελλάς", "ΕΛΛΑΣ", "ёлка", "елка", "Й", "หิน", "हिन्दी", "हिनदी", "שלום", "مرحبا", "ᾳ"],
    *[
        "東京",
        "東京都",
        "京都",
        "京",
        "東",
        "タワー",
        "ﾀﾜｰ",
        "が",
        "か",
        "か\u3099",
        "ｶﾞ",
        "한국",
        "한",
    ],
    *["々", "〆", "㐀", "ー", "ﾞ", "。", "、", "京2", "2京", "각", "-\u11a8"],
    *["e-mail", "mail", "don't", "a\u200db", "ab", "👍🏽", "✌\ufe0f", "…", "\u0301", "\u0301a"],
    *["\u1112\u1161\u11ab", "각\u11a8", "²", "x²", "́", "ʼn", "ŉ", "½", "\u0345", "α\u0345", "ǰ"],
]
GLUE = [" ", " ", " ", "", "-", "\n", ". ", "\u3000", "_"]


def as_stored(tokens) -> str:
    """One space around each word, and two between separate runs of Han, Kana and Hangul."""
    found, before = "", None
    for token in tokens:
        is_separate = before and before.unspaced and token.unspaced and not token.joined
        found += ("  " if is_separate else " ") + token.word[:LONGEST_WORD]
        before = token
    return found and f"{found} "


@examples(50, 10_000)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8), st.data())
def test_words_are_those_of_the_whole_text(pieces, data):
    given_text = data.draw(st.sampled_from(GLUE)).join(pieces)
    tokens = list(tokenize(given_text))
    assert [(token.word, token.joined) for token in tokens] == words(given_text)
    assert normalize(normalize(given_text)) == normalize(given_text)
    assert stored_words(given_text) == as_stored(tokens)
    for token in tokens:
        part = [each.word for each in tokenize(given_text[token.start : token.end])]
        assert token.word in "".join(part)


def test_marks_without_end_are_ignored():
    # Hindi, whose marks are part of a word; and Latin, whose are not.
    [token] = tokenize("\u0928" + "\u093f" * 500)
    assert (token.word, token.end) == ("\u0928" + "\u093f" * 63, 501)
    # Sorting these takes longer than anybody waits if all are sorted together.
    text = "e" + "\u0301\u0323" * 500_000 + "x kept"
    assert [token.word for token in tokenize(text)] == ["ex", "kept"]


def test_the_caches_do_not_keep_the_texts_of_users() -> None:
    chance = Random(1)
    han = "".join(map(chr, range(0x4E00, 0x6000)))
    tracemalloc.start()
    try:
        for letters in ("абвгдежзиклмно", han, "é\u0301\u0302\u0303\u0304"):
            for _ in range(500):
                text = "".join(chance.choices(letters, k=60))
                stored_words(text)
                list(tokenize(text))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 15 << 18
    finally:
        tracemalloc.stop()
