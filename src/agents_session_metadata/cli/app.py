"""All commands together."""

from __future__ import annotations

from . import admin as cli_admin
from . import lifecycle as cli_lifecycle
from . import sessions as cli_sessions
from .command import app

__all__ = ["COMMANDS", "app"]

COMMANDS = (
    *("list", "show", "get", "set", "unset", "count", "values", "last"),
    *("start", "phase", "resume-check", "finish"),
    *("delete", "cleanup", "export", "import"),
    *("ddl", "doctor", "mcp"),
)
"""The commands, in the order of their help."""

_MODULES = (cli_sessions, cli_lifecycle, cli_admin)  # importing them adds their commands

app.registered_commands.sort(key=lambda each: COMMANDS.index(each.name or ""))
