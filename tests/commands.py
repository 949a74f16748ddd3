"""Runs the command line within the process of the tests."""

from __future__ import annotations

from typer.testing import CliRunner

from agents_session_metadata.cli.app import app


def run(*args, stdin=None, url=None):
    environment = {"COLUMNS": "100", "TERM": "dumb"}
    if url is not None:
        environment["AGENT_SESSIONS_URL"] = url
    return CliRunner(env=environment).invoke(app, list(args), input=stdin)
