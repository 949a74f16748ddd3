"""Runs the command line within the process of the tests."""

from __future__ import annotations

from click.testing import CliRunner

from agents_session_metadata.cli.app import cli


def run(*args, stdin=None, url=None, width=250):
    environment = {"COLUMNS": str(width), "TERM": "dumb"}
    if url is not None:
        environment["AGENT_SESSIONS_URL"] = url
    return CliRunner(env=environment).invoke(cli, list(args), input=stdin)


def said(text):
    """Messages on one line."""
    return " ".join(text.split())
