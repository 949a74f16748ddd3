"""An MCP server with tools on a catalog: agents read, find and (optionally) change metadata.

`make_server` is the entry point. To add a tool, write one function in `tools` and give it the
`tool` decorator; `answers.cut_page` limits the size of a page of anything.
"""

from __future__ import annotations

try:
    from mcp.server import ServerRequestContext as _OnlyInMcp2  # noqa: F401
except ImportError:
    from agents_session_metadata.errors import install_advice

    raise ImportError(
        f"the MCP server requires mcp 2.x; {install_advice('mcp')}", name="mcp"
    ) from None

from .answers import ANSWER_CHARACTERS, ERROR_CHARACTERS, LISTED_VALUE_CHARACTERS
from .server import MetadataServer, make_server
from .tools import READ_TOOLS, WRITE_TOOLS

__all__ = [
    "ANSWER_CHARACTERS",
    "ERROR_CHARACTERS",
    "LISTED_VALUE_CHARACTERS",
    "READ_TOOLS",
    "WRITE_TOOLS",
    "MetadataServer",
    "make_server",
]
