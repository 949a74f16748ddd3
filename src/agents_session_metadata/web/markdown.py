"""Renders Markdown and code as HTML: no raw HTML, few kinds of links, images only from the text.

Whatever a text contains, the result needs no other server, no script and no style of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .formats import clean, cut, shown

LARGEST_IMAGE = 2 << 20
"""In bytes."""
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp|avif);base64,([A-Za-z0-9+/]+={0,2})")
_NUMBERED = re.compile(r"image:\d+")
_DIFF = re.compile(r"(?:diff --git |--- |\*\*\* Begin Patch|@@ )")
_FORMATTER: Any = HtmlFormatter(nowrap=True, classprefix="c-")
_REL = "nofollow noopener noreferrer"


def code(text: str, language: str = "") -> Markup:
    """Highlights code; of an unknown language, only what is clearly a diff."""
    text = clean(text)
    try:
        name = language or ("diff" if _DIFF.match(text) else "text")
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(text)
    # Pygments escapes the text.
    return Markup(highlight(text, lexer, _FORMATTER))  # noqa: S704


def picture(url: str, name: str = "image") -> Markup:
    """Returns an image if its data are in the URL, otherwise a link, or text."""
    found = _IMAGE.fullmatch(url)
    if found and len(found[1]) * 3 // 4 <= LARGEST_IMAGE:
        return Markup('<img src="{}" alt="{}">').format(url, clean(name))
    if found or not _LINK.match(url):
        return escape(f"({clean(shown(name, 80))}, not shown)")
    link = Markup('<a href="{}" rel="{}">{}</a>')
    return link.format(clean(url), _REL, clean(name) or clean(shown(url)))


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  # the name of the method it replaces
        return bool(_LINK.match(url) or _NUMBERED.fullmatch(url))


def _image(_: Any, tokens: Sequence[Token], at: int, __: Any, images: Any) -> str:
    url = str(tokens[at].attrs["src"])
    return str(picture(images.get(url, url), tokens[at].content))


def _link(renderer: Any, tokens: Sequence[Token], at: int, options: Any, images: Any) -> str:
    if _NUMBERED.fullmatch(str(tokens[at].attrs["href"])):
        tokens[at].attrs.pop("href")
    tokens[at].attrs["rel"] = _REL
    return str(renderer.renderToken(tokens, at, options, images))


_RULES = _Markdown(
    "commonmark", {"html": False, "highlight": lambda text, language, _: str(code(text, language))}
).enable(["table", "strikethrough"])
_RULES.add_render_rule("image", _image)
_RULES.add_render_rule("link_open", _link)


@lru_cache(maxsize=256)
def markdown(text: str) -> Markup:
    """Renders a message. Its highest headings become those below `h2`."""
    images: dict[str, str] = {}

    def keep(found: re.Match[str]) -> str:
        name = f"image:{len(images)}"
        images[name] = found[0]
        return name

    # Images do not count for the length of a text.
    tokens = _RULES.parse(clean(cut(_IMAGE.sub(keep, text))), images)
    headings = [each for each in tokens if each.type.startswith("heading_")]
    highest = min((int(each.tag[1]) for each in headings), default=0)
    for each in headings:
        each.tag = f"h{min(int(each.tag[1]) - highest + 3, 6)}"
    # The source can name any character, so the result is cleaned as well.
    return Markup(clean(_RULES.renderer.render(tokens, _RULES.options, images)))  # noqa: S704
