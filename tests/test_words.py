"""The words of a text, compared with an evaluation of the whole text at once."""

# ruff: noqa: RUF001
from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata.search.tokenizer import normalize, tokenize

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
    *["e-mail", "mail", "don't", "a\u200db", "ab", "👍🏽", "✌\ufe0f", "…", "\u0301", "\u0301a"],
    *["\u1112\u1161\u11ab", "각\u11a8", "²", "x²", "́", "ʼn", "ŉ", "½", "\u0345", "α\u0345", "ǰ"],
]
GLUE = [" ", " ", " ", "", "-", "\n", ". ", "\u3000", "_"]
DROPPED = {0x34F, 0x180F, 0x200C, 0x200D, 0x2060, *range(0x180B, 0x180E), *range(0xFE00, 0xFE10)}
DROPPED |= set(range(0xE0100, 0xE01F0))
SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC")

Word = tuple[str, bool]
"""A word, or a character of Han, Kana or Hangul; and whether it follows another such character."""


def normalized(text: str) -> str:
    text = "".join(each for each in text if ord(each) not in DROPPED)
    for _ in range(3):
        text = unicodedata.normalize("NFKC", text).casefold()
    kept, base = [], ""
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character) == "Mn":
            if unicodedata.name(base or " ", "").startswith(SCRIPTS):
                continue
        else:
            base = character
        kept.append(character)
    return unicodedata.normalize("NFKC", "".join(kept))


def kind(character: str) -> str:
    category = unicodedata.category(character)[0]
    if category == "M":
        return "mark"
    if category not in "LN":
        return "word" if character == "_" else ""
    name = unicodedata.name(character, "")
    prolonged = character in "ー々〆"
    return "unspaced" if prolonged or name.startswith(UNSPACED) else "word"


def words(text: str) -> list[Word]:
    found: list[Word] = []
    before = ""
    for character in normalized(text):
        now = kind(character)
        if now == "mark" and before:
            found[-1] = found[-1][0] + character, found[-1][1]
            continue
        if now == "word" == before:
            found[-1] = found[-1][0] + character, False
        elif now:
            found.append((character, now == before == "unspaced"))
        before = "word" if now == "mark" else now
    return found


@examples(50, 10_000)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8), st.data())
def test_words_are_those_of_the_whole_text(pieces, data):
    given_text = data.draw(st.sampled_from(GLUE)).join(pieces)
    tokens = list(tokenize(given_text))
    assert [(token.word, token.joined) for token in tokens] == words(given_text)
    assert normalize(normalize(given_text)) == normalize(given_text)
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
