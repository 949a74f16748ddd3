"""Renders texts of users as HTML, within what a page may cost.

No raw HTML, few kinds of links, images only from the text. Whatever a text contains, the result
needs no other server, no script and no style of its own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from time import thread_time
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .formats import LONGEST_TEXT, as_json, clean, readable, shown

LARGEST_PAGE = 2 << 20
"""In bytes."""
_ROOM = LARGEST_PAGE // 2
"""Bytes of a page for texts of users. The rest is for everything else."""
_SECONDS = 0.25
"""CPU time of a page after which texts are shown as they are."""
_LONGEST_CODE, _MOST_LINES = 3_000, 150
"""Code of more characters or lines is not highlighted: the time can grow with their square."""
_MOST_BRACKETS = 1_000
"""Each may begin a link."""
_MOST_CELLS = 10_000
"""Markdown fills the rows of a table up to its widest one."""
_NOTE_BYTES = 400
_CELL_BYTES = 80

LARGEST_IMAGE = 2 << 20
"""In bytes."""
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_IMAGE = re.compile(r"data:(image/(?:png|jpeg|gif|webp|avif));base64,([A-Za-z0-9+/]+={0,2})")
_NUMBERED = re.compile(r"image:\d+")
_DIFF = re.compile(r"(?:diff --git |--- |\*\*\* Begin Patch|@@ )")
_BLOCKS = {"paragraph_open", "heading_open", "list_item_open"}
_FORMATTER: Any = HtmlFormatter(nowrap=True, classprefix="c-")
_REL = "nofollow noopener noreferrer"
_LANGUAGES = frozenset(
    [
        *("bash", "c", "c#", "c++", "cpp", "cs", "csharp", "css", "dart", "diff", "docker"),
        *("dockerfile", "elixir", "go", "graphql", "haskell", "html", "http", "ini", "java"),
        *("javascript", "js", "json", "jsx", "julia", "kotlin", "less", "lua", "markdown", "md"),
        *("objective-c", "patch", "perl", "php", "powershell", "proto", "protobuf", "py", "pycon"),
        *("python", "r", "rb", "rs", "ruby", "rust", "scala", "scss", "sh", "shell", "sql"),
        *("swift", "toml", "ts", "tsx", "typescript", "xml", "yaml", "yml", "zsh"),
    ]
)
"""Others can take seconds for a short text."""


class Room:
    """What is left for texts of users on a page: bytes of HTML, and time to render them.

    A text that does not fit is cut. One for whose rendering there is no time is shown as it is.
    `whole` is the address of the item that a text is part of.
    """

    def __init__(self) -> None:
        self._bytes = _ROOM
        self._end = thread_time() + _SECONDS

    def plain(self, text: str, whole: str = "") -> Markup:
        # Of six bytes each, as an escaped character can have.
        most = min(LONGEST_TEXT, max(self._bytes - _NOTE_BYTES, 0) // 6)
        html = escape(clean(text[:most]))
        self._take(html)
        return html if len(text) <= most else html + _cut(whole)

    def copied(self, text: str) -> Markup:
        """Returns the text for an attribute; nothing if it is long, or the page half full."""
        most = min(LONGEST_TEXT, (self._bytes - _ROOM // 2) // 6)
        html = escape(clean(text)) if len(text) <= most else Markup("")
        self._take(html)
        return html

    def code(self, text: str, language: str = "", whole: str = "") -> Markup:
        """Highlights short code; of an unknown language, only what is clearly a diff."""
        html = self._highlighted(text[:LONGEST_TEXT], language)
        if html is None or not self._take(html):
            return self.plain(text, whole)
        return html if len(text) <= LONGEST_TEXT else html + _cut(whole)

    def readable(self, text: str | None) -> Any:
        """Returns the value of JSON text, or the text itself if there is no time to parse it."""
        return text if thread_time() > self._end else readable(text)

    def has_room_for(self, text: str) -> bool:
        """True if JSON text can be shown as a tree, for whose elements bytes are then set aside."""
        size = _CELL_BYTES * sum(map(text.count, ",:[{"))
        if thread_time() > self._end or size > self._bytes:
            return False
        self._bytes -= size
        return True

    def markdown(self, text: str, whole: str = "") -> Markup:
        """Renders a message. Its highest headings become those below `h2`."""
        images: dict[str, str] = {}

        def keep(found: re.Match[str]) -> str:
            name = f"image:{len(images)}"
            images[name] = found[0]
            return name

        # Images do not count for the length of a text.
        text = _IMAGE.sub(keep, text)
        html = self._rendered(text[:LONGEST_TEXT], {"images": images, "room": self, "whole": whole})
        if html is None or not self._take(html):
            return self.plain(text, whole)
        return html if len(text) <= LONGEST_TEXT else html + _cut(whole)

    def picture(self, url: str, whole: str) -> Markup:
        """Returns an image if its data are in the URL, otherwise a link, or text."""
        html = _picture(url, whole, "image")
        return html if self._take(html) else _cut(whole)

    def _rendered(self, text: str, env: dict[str, Any]) -> Markup | None:
        rows = text.split("\n")
        if text.count("[") > _MOST_BRACKETS or thread_time() > self._end:
            return None
        wide = len(rows) * max(row.count("|") for row in rows) > _MOST_CELLS
        rules = _RULES["commonmark" if wide else "tables"]
        tokens = rules.parse(clean(text), env)
        headings = [each for each in tokens if each.type.startswith("heading_")]
        highest = min((int(each.tag[1]) for each in headings), default=0)
        for each in tokens:
            _prepare(each)
        for each in headings:
            each.tag = f"h{min(int(each.tag[1]) - highest + 3, 6)}"
        # The source can name any character, so the result is cleaned as well.
        return Markup(clean(rules.renderer.render(tokens, rules.options, env)))  # noqa: S704

    def _highlighted(self, text: str, language: str) -> Markup | None:
        name = (language or ("diff" if _DIFF.match(text) else "")).lower()
        most = LONGEST_TEXT if name == "json" else _LONGEST_CODE
        is_long = len(text) > most or (name != "json" and text.count("\n") > _MOST_LINES)
        if name not in _LANGUAGES or is_long or thread_time() > self._end:
            return None
        try:
            lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
        except ClassNotFound:
            return None
        # Pygments escapes the text.
        return Markup(highlight(clean(text), lexer, _FORMATTER))  # noqa: S704

    def _take(self, html: str) -> bool:
        size = len(html.encode("utf-8", "replace"))
        if size > self._bytes:
            return False
        self._bytes -= size
        return True


def _cut(whole: str) -> Markup:
    link = Markup(' (cut; <a href="{}">show all</a>)').format(whole) if whole else " (cut)"
    return escape("…") + link


def _picture(url: str, whole: str, name: str) -> Markup:
    found = _IMAGE.fullmatch(url)
    if found and len(found[2].rstrip("=")) * 3 // 4 <= LARGEST_IMAGE:
        # By itself: a page would be too large with it.
        address = f"{whole}&image={_digest(url)}"
        return Markup('<img src="{}" alt="{}" loading="lazy">').format(address, clean(name))
    if found or not _LINK.match(url):
        return escape(f"({clean(shown(name, 80))}, not shown)")
    link = Markup('<a href="{}" rel="{}">{}</a>')
    host = urlsplit(url).hostname if url.isprintable() else None
    return link.format(clean(url), _REL, clean(f"{shown(name, 80) or 'image'} ({host or 'link'})"))


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def find_image(item: Any, digest: str) -> tuple[bytes, str] | None:
    """Returns an image of an item, by the name that its page has for it, and its media type."""
    for found in _IMAGE.finditer(as_json(item)):
        if _digest(found[0]) == digest:
            # Browsers do not need the padding.
            data = found[2].rstrip("=")
            with suppress(ValueError):
                return base64.b64decode(data + "=" * (-len(data) % 4)), found[1]
    return None


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  # the name of the method it replaces
        return bool(_LINK.match(url) or _NUMBERED.fullmatch(url))


def _prepare(token: Token) -> None:
    """Lets each block have its own direction. The page's policy allows classes, and no styles."""
    if token.type in _BLOCKS:
        token.attrSet("dir", "auto")
    style = str(token.attrs.pop("style", ""))
    if style:
        token.attrSet("class", style.removeprefix("text-align:"))


def _table(renderer: Any, tokens: Sequence[Token], at: int, options: Any, _: Any) -> str:
    opens = tokens[at].nesting == 1
    html = renderer.renderToken(tokens, at, options, {})
    return f'<div class="scroll" tabindex="0" dir="auto">{html}' if opens else f"{html}</div>"


def _image(_: Any, tokens: Sequence[Token], at: int, __: Any, env: Any) -> str:
    url = str(tokens[at].attrs["src"])
    return str(_picture(env["images"].get(url, url), env["whole"], tokens[at].content))


def _link(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    if _NUMBERED.fullmatch(str(tokens[at].attrs["href"])):
        tokens[at].attrs.pop("href")
    tokens[at].attrs["rel"] = _REL
    return str(renderer.renderToken(tokens, at, options, env))


def _fence(_: Any, tokens: Sequence[Token], at: int, __: Any, env: Any) -> str:
    text, language = tokens[at].content, (tokens[at].info.split(maxsplit=1) or [""])[0]
    html = env["room"]._highlighted(text, language)
    return f"<pre><code>{escape(text) if html is None else html}</code></pre>\n"


def _rules(*names: str) -> MarkdownIt:
    rules = _Markdown("commonmark", {"html": False}).enable(["strikethrough", *names])
    for name, rule in (
        *(("image", _image), ("link_open", _link), ("fence", _fence)),
        *(("table_open", _table), ("table_close", _table)),
    ):
        rules.add_render_rule(name, rule)
    return rules


_RULES = {"commonmark": _rules(), "tables": _rules("table")}
