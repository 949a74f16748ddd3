"""No text that users read contains a phrase that was hard to understand or not idiomatic."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documentation import ROOT, pages

import agents_session_metadata
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.http import sessions_app
from agents_session_metadata.mcp import make_server
from agents_session_metadata.web import browser_app

SOURCE = ROOT / "src" / "agents_session_metadata"

# Each was in a published text. What to write instead is in the comment.
PHRASES = {
    # whom or what the sentence is about
    r"\b(no|any|some|every)body\b": "no one, another user, every caller",
    r"\bwho(m)?ever\b": "any program, the process that …",
    r"\bone (must|has to|can)\b": "you",
    r"\bcomes? out of (it|a|the)\b": "that … returns",
    r"\blooks? after\b": "manages",
    r"\bwhat (is missing|could|one|nobody|others|somebody)\b": "the noun",
    r"\bwhat the model is told\b": "the text that the model receives",
    r"\bhooks are not told\b": "the SDK does not report it to hooks",
    r"\bthe latest first\b": "newest first",
    r"\bby hand\b": "yourself, in your own migration",
    # is, are and stay
    r"\bstays? as (it is|they are)\b": "does not change",
    r"\bas (it is|they are) stored\b": "the stored …",
    r"\bleaves? (it |them |the other rows )?(as (it|they) (is|are|was)|alone)\b": "keeps, skips",
    r"(?<!there )\b(is|are) no (activity|obstacle|user message|record|session)\b": "is not a …",
    r"\bthere is no backend to write\b": "you do not have to write a backend",
    r"\bmakes what is missing\b": "creates missing …",
    r"\bafter `?key=`? stands\b": "VALUE is parsed as JSON",
    r"\bwhere a key stands\b": "in place of a key",
    r"\bwhere it does not gain\b": "where it is no faster",
    # errors and retries
    r"\berrors that pass\b": "transient errors",
    r"\braised as they are\b": "the original error is raised",
    r"\ball or nothing\b": "one transaction",
    r"\bmeanwhile\b": "in the meantime",
    r"\bcan know\b": "is unknown",
    r"\bdoes not answer as it should\b": "database error: …",
    r"\bby the deadline\b": "in time",
    r"\ball the same\b": "anyway",
    r"\bnevertheless\b": "anyway",
    r"\btry again when\b": "try again after",
    # concurrency and time
    r"\btakes? turns\b": "are serialized",
    r"\bright within a second\b": "even if several were active within the same second",
    r"\bas of then\b": "its current state",
    # terms
    r"\bthe way back\b": "the DROP statements",
    r"\bto be rid of\b": "to remove",
    r"\bsteer a terminal\b": "terminal control characters",
    r"\bwords to standard error\b": "messages go to stderr",
    r"\bmade-up\b": "generated",
    r"\bwho is who\b": "the identity of each agent",
    r"\bone \w+ a (user|session|call|process)\b": "one … per …",
    r"\bdoomed|\bpatient\b|\bfaces\b": "no metaphors",
    r"\bmay be anybody's\b": "can belong to another user",
    # limits: `limit must be between 1 and 1000, got 0`
    r"\bmust (not )?(be|have) [^.;:]{1,60}, not (the bare )?\{": "…, got {…}",
    r"\bmust be \d+ to\b": "must be between … and …",
    r"\bdeep at most\b|\b(digits|characters|keys) at most\b": "at most …",
    r"\bthis makes [\d{]": "exceeds the limit of",
    r"\bthere are …": "expected one of …",
    r"\bmetadata key 'record'": "the path in the record",
}


def collapsed(text: str) -> str:
    """A text without code blocks, on one line."""
    return " ".join(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split())


def published() -> Iterator[tuple[str, str]]:
    """Each page, with its name."""
    more = [ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    for page in [*pages(), *more, *(SOURCE / "web" / "templates").glob("*.html")]:
        # What is measured is written by programs of its own.
        yield str(page.relative_to(ROOT)), collapsed(page.read_text(encoding="utf-8"))


def docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the public API, with their names."""
    things: list[Any] = [CatalogStore, sessions_app, make_server, browser_app]
    things += [getattr(agents_session_metadata, name) for name in agents_session_metadata.__all__]
    for thing in things:
        if str(getattr(thing, "__module__", "")).startswith("agents_session_metadata"):
            name = thing.__name__ if hasattr(thing, "__name__") else repr(thing)
            yield name, collapsed(inspect.getdoc(thing) or "")
            for member in vars(thing) if isinstance(thing, type) else ():
                if not member.startswith("_"):
                    text = inspect.getdoc(getattr(thing, member)) or ""
                    yield f"{name}.{member}", collapsed(text)


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """The texts in a module that are not docstrings, and the help of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr) and id(node) not in silent:
            text = "".join(
                each.value if isinstance(each, ast.Constant) else "{…}" for each in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in silent:
            text = node.value if isinstance(node.value, str) else ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            text = ast.get_docstring(node) or ""
        if " " in text:
            yield f"{path.relative_to(SOURCE)}, line {getattr(node, 'lineno', 0)}", collapsed(text)


def hard_to_read(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [
        f"{place}: {found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}; "
        f"write: {advice}"
        for place, text in texts
        for phrase, advice in PHRASES.items()
        if (found := re.search(phrase, text, re.IGNORECASE))
    ]


def example_texts(path: Path) -> Iterator[tuple[str, str]]:
    """The docstrings, comments and printed texts of an example, which pages of the guide show."""
    source = path.read_text(encoding="utf-8")
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    comments = re.findall(r"(?:^ *# .*\n)+|# .*$", source, re.MULTILINE)
    for text in [*texts, *(re.sub(r"^ *# ", "", each, flags=re.MULTILINE) for each in comments)]:
        yield path.name, collapsed(text)


def test_pages() -> None:
    assert hard_to_read(published()) == []


def test_examples() -> None:
    texts = [text for path in (ROOT / "examples").glob("*.py") for text in example_texts(path)]
    assert len(texts) > 100
    assert hard_to_read(iter(texts)) == []


def test_docstrings() -> None:
    assert hard_to_read(docstrings()) == []


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_messages(path: Path) -> None:
    assert hard_to_read(messages(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Everything that comes out of it carries it",
        "looks after the sessions in a database",
        "Without a lifecycle, phases stay as they are",
        "at most 160 characters, as they are stored",
        "nobody can see where its turns begin",
        "is no obstacle",
        "there is no backend to write",
        "limit must be 1 to {…}, not {…}",
        "max_keys is 100, this makes 101",
        "whether its commit arrived, nobody can know",
        "One scope a user",
    ],
)
def test_phrases_are_found(text: str) -> None:
    assert hard_to_read(iter([("text", text)])) != []
