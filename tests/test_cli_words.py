"""What the command line says: when it cannot, at a terminal, in its help and its documentation."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
import time
from array import array
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import get_args

import click
import pytest
from commands import run, said
from scaling import scale

from agents_session_metadata import RunStatus, SessionCatalog
from agents_session_metadata.cli import output as cli_output
from agents_session_metadata.cli.app import cli
from agents_session_metadata.cli.options import parse_value
from agents_session_metadata.text import ago

DOCS = Path(__file__).parent.parent / "docs"
COMMANDS = cli.list_commands(click.Context(cli))
PASSWORD = "s3cr3t-of-mine"  # noqa: S105  # the point of the test


# ---- what is understood, and what is not ----


def test_values_after_the_equals_sign():
    pairs = {"7": 7, "1.0": 1.0, "true": True, "null": None, "NaN": "NaN", "[": "[", "": ""}
    for text, value in pairs.items():
        assert parse_value(text) == value
        assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["list"], "no database is given; pass --url, or set AGENT_SESSIONS_URL"),
        (["list", "--url", "nonsense"], "the database URL is not valid"),
        (["list", "--url", f"postgresql://u:{PASSWORD}@h:port/x"], "the database URL is not valid"),
        (["list", "--url", f"oracle://u:{PASSWORD}@h/x"], "'oracle' is not supported"),
        (
            ["list", "--url", f"postgresql+psycopg2://u:{PASSWORD}@h/x"],
            "use postgresql+asyncpg, and install agents-session-metadata[postgresql]",
        ),
        (
            ["list", "--url", f"postgresql+nothing://u:{PASSWORD}@h/x"],
            "use postgresql+asyncpg, and install agents-session-metadata[postgresql]",
        ),
        (["list", "--url", "sqlite://somewhere"], "the database URL is not valid"),
        (["list", "--url", "sqlite:///:memory:", "--where", "{"], "--where is not valid JSON"),
        (
            ["list", "--url", "sqlite:///:memory:", "--where", '{"a": 1, "a": 2}'],
            "duplicate key 'a'",
        ),
        (["list", "--url", "sqlite:///:memory:", "--where", '{"a": {"$x": 1}}'], "$.a.$x"),
        (["list", "--url", "sqlite:///:memory:", "--where", "[]"], "filter at"),
        (["list", "--url", "sqlite:///:memory:", "--meta", "a"], "--meta takes KEY=VALUE"),
        (["list", "--url", "sqlite:///:memory:", "--meta", "a=1", "--meta", "a=2"], "'a' twice"),
        (
            ["list", "--url", "sqlite:///:memory:", "--limit", "0"],
            "0 is not in the range 1..1000",
        ),
        (
            ["values", "a", "--url", "sqlite:///:memory:", "--limit", "1001"],
            "1001 is not in the range 1..1000",
        ),
        (["list", "--url", "sqlite:///:memory:", "--order-by", "$title"], "order_by"),
        (["list", "--url", "sqlite:///:memory:", "--where", "owner_id=u1"], "--meta owner_id=u1"),
        (
            ["list", "--url", "sqlite:///:memory:", "--create-tables", "--cursor", "abc"],
            "--cursor is not valid here",
        ),
        (["set", "a", "--url", "sqlite:///:memory:"], "nothing to set"),
        (["unset", "a", "--url", "sqlite:///:memory:"], "--all"),
        (["list", "--url", "sqlite:///:memory:", "--json", "--jsonl"], "--jsonl, not both"),
        (["resume-check", "a", "--max-idle-minutes", "nan"], "out of range: nan"),
        (["resume-check", "a", "--phase", ""], "a phase must be a string that is not empty"),
        (["cleanup", "--hours", "1e300"], "--hours is out of range: 1e+300"),
        (["cleanup", "--days", "nan"], "--days is out of range: nan"),
        (["set", "", "a=1", "--url", "sqlite:///:memory:", "--create-tables"], "session id"),
        (["mcp", "--session", "", "--url", "sqlite:///:memory:"], "session id"),
        (["mcp", "--tool-prefix", "a b", "--url", "sqlite:///:memory:"], "tool_prefix"),
    ],
)
def test_usage(args, words):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert words in said(result.stderr)
    assert "Usage: " in result.stderr
    assert PASSWORD not in result.output
    assert result.stdout == ""


def commands():
    """Every command by its name, which is two words in a group."""
    for name in COMMANDS:
        found = cli.commands[name]
        for second, command in getattr(found, "commands", {"": found}).items():
            yield f"{name} {second}".strip(), command


def examples():
    return {
        name: command.epilog.removeprefix("Example: agent-sessions ")
        for name, command in commands()
    }


def test_an_option_with_one_value_is_refused_twice():
    for name, command in commands():
        options = [each for each in command.params if isinstance(each, click.Option)]
        single = [each for each in options if not (each.multiple or each.is_flag)]
        assert len(single) >= 3
        for option in single:
            long, other = option.opts[0], option.opts[-1]
            value = {
                "--since": "2025-01-01",
                "--until": "2025-01-01",
                "--on-conflict": "skip",
                "--as": "evals",
            }
            one = value.get(long, "1")
            words = [*name.split(), long, one, other, one]
            result = run(*words)
            assert result.exit_code == 2, words
            assert f"{long} was given more than once; pass it once" in said(result.stderr), words
            assert result.stdout == ""


def test_options_and_flags_that_may_be_repeated(tmp_path):
    url = f"sqlite:///{tmp_path}/sessions.db"
    start = ["start", "a", "--agent", "x", "--create-tables", "--create-tables"]
    assert run(*start, url=url).exit_code == 0
    pairs = ["--meta", "agent=x", "--meta", "status=active", "--key", "agent", "--key", "status"]
    result = run("list", *pairs, "--jsonl", "--jsonl", "--active", "--active", url=url)
    assert json.loads(result.stdout)["metadata"] == {"agent": "x", "status": "active"}
    assert run("delete", "a", "-y", "--yes", url=url).exit_code == 0


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "mysql", "mariadb"])
def test_a_server_that_is_not_there(scheme):
    result = run("list", "--url", f"{scheme}://u:{PASSWORD}@127.0.0.1:1/x?password={PASSWORD}")
    assert result.exit_code == 1, result.output
    assert "database error" in result.stderr
    assert "doctor" in result.stderr
    assert "Usage: " not in result.stderr
    assert PASSWORD not in result.output


def test_a_misspelt_file_is_not_made(tmp_path):
    url = f"sqlite:///{tmp_path}/typo.db"
    for command in ("list", "doctor", "count"):
        result = run(command, url=url)
        assert result.exit_code == 1
        assert "does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "x.db").write_text("this is not a database, but a text of some length" * 99)
    result = run("list", url=f"sqlite:///{tmp_path}/x.db")
    assert result.exit_code == 1
    assert "file is not a database" in result.stderr


BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {names!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ['agent-sessions', *{args!r}]
from agents_session_metadata.cli import main
main()
"""


@pytest.mark.parametrize(
    ("names", "args", "words"),
    [
        (["click"], ["list"], "agents-session-metadata[cli]"),
        (["rich"], ["list"], "agents-session-metadata[cli]"),
        (["asyncpg"], ["list", "--url", "postgresql://h/x"], "agents-session-metadata[postgresql]"),
        (["asyncmy"], ["list", "--url", "mysql://h/x"], "agents-session-metadata[mysql]"),
        (["aiosqlite"], ["list", "--url", "sqlite://"], "agents-session-metadata[sqlite]"),
    ],
)
def test_something_is_not_installed(names, args, words, tmp_path):
    filled(tmp_path, "n=1")
    # The SDK needs mcp; a release of its own may lack what the server needs.
    script = BLOCK.format(names=names, args=args)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "AGENT_SESSIONS_URL": f"sqlite:///{tmp_path}/x.db"},
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


APPROVALS = {"runs", "approve", "reject", "discard", "stop"}


def test_no_command_waits_for_the_sdk(tmp_path):
    lines = [
        'set chat a=1 tags=["x"] --create --create-tables',
        *("list", "show chat", "get chat a", "count", "values tags", "unset chat a", "statistics"),
        *("start chat --agent a", "phase chat planning", "last --agent a", "resume-check chat"),
        *("finish chat completed", "export --output records", "delete chat --yes"),
        *("import records", "cleanup --hours 1 --yes", "ddl --dialect sqlite", "doctor"),
        *("index create $updated_at", "index list", "index drop $updated_at", "size"),
        "erase --owner u1 --yes",
    ]
    # These are about the SDK's own items, or are servers.
    others = {"mcp", "web", "history", "rewind", "fork", "usage", "search", "replay", "watch"}
    others |= APPROVALS
    assert {line.split()[0] for line in lines} == {*COMMANDS} - others
    script = (
        "import sys; sys.modules['agents'] = None; from commands import run\n"
        "for line in sys.argv[1:]:\n"
        "    result = run(*line.split())\n"
        "    assert result.exit_code == 0, (line, result.output)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, *lines],
        check=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "AGENT_SESSIONS_URL": "sqlite:///x.db",
        },
    )


@pytest.mark.parametrize(
    ("line", "spared"),
    [
        ("--help", {"sqlalchemy", "asyncio", "rich", "agents"}),
        ("resume-check chat", {"pydantic", "rich", "agents", "sqlalchemy.dialects.mysql"}),
        ("resume-check --test", {"sqlalchemy", "rich", "agents"}),
    ],
)
def test_a_command_imports_little(line, spared, tmp_path):
    filled(tmp_path, "n=1")
    script = (
        "import atexit, json, os, sys\n"
        "atexit.register(lambda: os.write(2, json.dumps(list(sys.modules)).encode()))\n"
        "from agents_session_metadata.cli import main\n"
        f"sys.argv[1:] = {json.dumps(line.split())}\n"
        "main()"
    )
    done = shell(f"{{python}} -c '{script}' 2>&1 >/dev/null | tail -n 1", tmp_path)
    imported = {*json.loads(done.stdout[done.stdout.index("[") :])}
    assert not spared & imported
    assert ("sqlalchemy.dialects.sqlite" in imported) == (line == "resume-check chat")


def test_output_that_nobody_reads_to_its_end(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    pairs = [f"k{number}={'x' * 5000}" for number in range(40)]
    assert run("set", "a", "--create", *pairs, "--create-tables", url=url).exit_code == 0
    script = f"{sys.executable} -m agents_session_metadata.cli get a --json --url {url} | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True, text=True)
    assert done.stderr == ""


# ---- terminals ----


def at_terminal(args, answer, url):
    """Run a command with a terminal in front of it; its exit code and what was shown."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agents_session_metadata.cli", *args],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "AGENT_SESSIONS_URL": url, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(child)
    os.write(parent, answer.encode())
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(parent, 10_000):
            shown += part
    os.close(parent)
    return process.wait(60), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_asking_before_something_is_lost(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    for name in "abc":
        run("set", name, "n=1", "--create", "--create-tables", url=url)
    code, shown = at_terminal(["delete", "a"], "n\n", url)
    assert (code, "Delete session a with history and metadata? [y/N]" in shown) == (1, True)
    assert "nothing was changed" in shown
    assert "Error" not in shown
    code, shown = at_terminal(["delete", "a"], "y\n", url)
    assert (code, "deleted 1 session" in shown) == (0, True)
    code, shown = at_terminal(["cleanup", "--hours", "0"], "n\n", url)
    assert "Delete 2 sessions with history and metadata? [y/N]" in shown
    assert code == 1
    code, shown = at_terminal(["cleanup", "--hours", "0", "--yes"], "", url)
    assert "Deleting" in shown  # the bar
    assert code == 0
    assert run("count", url=url).stdout == "0\n"


def test_names_are_no_markup_at_a_terminal():
    parent, child = pty.openpty()
    with os.fdopen(child, "w") as terminal, contextlib.redirect_stderr(terminal):
        for name in ("[/x]", "[bold]x"):
            with cli_output.progress(f"indexing {name}") as reach:
                reach(1)
            assert f"indexing {name}" in os.read(parent, 10_000).decode()
    os.close(parent)


def test_what_steers_a_terminal_is_not_printed_to_it(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    evil = "\x1b[2J\x1b]0;owned\x07\u202e[red]"
    run("set", "a", f"title={evil}", f"more={evil}", "--create", "--create-tables", url=url)
    for args in (["list"], ["show", "a"], ["get", "a"], ["get", "a", "title"]):
        shown = run(*args, url=url).output
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert "[red]" in shown
    assert json.loads(run("get", "a", "title", "--json", url=url).stdout) == {"title": evil}


def test_what_was_typed_is_not_printed_raw(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    evil = "a\x1b[2J\x07\u202e[red]\nb"
    shown = "a\\x1b[2J\\x07\\u202e[red]\\nb"
    started = run("start", evil, "--agent", "x", "--meta", f"{evil}=v", "--create-tables", url=url)
    assert started.stdout == f"{shown}\n"
    for args in (
        ["list"],
        ["list", "--key", evil],
        ["show", evil],
        ["get", evil],
        ["values", evil],
    ):
        result = run(*args, url=url)
        assert result.exit_code == 0
        assert shown in result.stdout
    for args in (
        ["show", f"{evil}2"],
        ["get", "x", evil],
        ["get", evil, "x", evil * 2],
        ["values", f"{evil}2"],
        ["last", "--agent", evil],
        ["phase", evil, evil],
        ["phase", f"{evil}2"],
        ["finish", evil, evil],
        ["unset", evil, evil * 2],
        ["delete", f"{evil}2", "--yes"],
        ["export", "--output", evil * 99],
        ["import", evil],
        ["set", evil, evil],
        ["list", "--meta", evil],
        ["list", "--where", evil],
        ["list", "--order-by", f"${evil}"],
        ["list", "--url", f"sqlite:///{evil}"],
        ["list", "--url", f"{evil}://x"],
        ["list", "--limit", evil],
        ["list", f"--{evil}"],
        ["list", evil],
        [evil],
    ):
        result = run(*args, **({} if "--url" in args else {"url": url}))
        assert result.exit_code in {1, 2}, args
        assert result.stdout == ""
        assert all(each.isprintable() or each == "\n" for each in result.stderr), args


def test_odd_terminals(tmp_path):
    filled(tmp_path, "title=x")
    for width in ("0", "1", "3", "wide", "-5", "100000"):
        done = run("list", url=f"sqlite:///{tmp_path}/x.db", width=width)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.count("x") == 1
        assert "\x1b" not in done.stdout
    # Whether there are colors is decided once per process.
    script = "; ".join(
        f"{more} {{cli}} list" for more in ("NO_COLOR=1", "TERM=", "env -u TERM -u COLUMNS")
    )
    done = shell(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("x") == 3
    assert "\x1b" not in done.stdout


# ---- streams ----


def shell(script, folder, environment=None, stdin=None):
    """Run a shell's line, in which `{cli}` is the command line on a database in a folder."""
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            script.format(
                cli=f"{sys.executable} -m agents_session_metadata.cli", python=sys.executable
            ),
        ],
        check=False,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env={
            # Unbuffered streams would hide errors of the flush at exit.
            **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            "AGENT_SESSIONS_URL": f"sqlite:///{folder}/x.db",
            **(environment or {}),
        },
    )


def filled(folder, *pairs):
    """Put a session into the database of a folder."""
    url = f"sqlite:///{folder}/x.db"
    assert run("set", "chat", *pairs, "--create", "--create-tables", url=url).exit_code == 0


CLOSED = "standard output is closed; send it to a file, or to /dev/null\n"
FULL = "standard output: No space left on device\n"


STREAMS = [
    ("{cli} list >&-", 1, CLOSED),
    ("{cli} mcp </dev/null >&-", 1, CLOSED),
    ("{cli} list --json >/dev/full", 1, FULL),
    ("{cli} --help >/dev/full", 1, FULL),
    ("{cli} export --output /dev/full", 1, "/dev/full: No space left on device\n"),
    ("{cli} list --meta a=9 2>&-", 1, ""),
    ("{cli} list <&- >&- 2>&-", 1, ""),
    ("{cli} import <&-", 1, "stdin is closed"),
    (
        "{cli} delete chat <&-",
        2,
        "this command asks for confirmation and stdin is not a terminal; pass --yes",
    ),
    ("{cli} get chat big | head -c 1 >/dev/null", 0, ""),
]
MORE_STREAMS = [
    ("{cli} --help >&-", 1, CLOSED),
    ("{cli} list >/dev/full", 1, FULL),
    ("{cli} list --json --meta a=9 >/dev/full", 1, FULL),
    ("{cli} get chat big >/dev/full", 1, FULL),
    ("{cli} export >/dev/full", 1, FULL),
    ("{cli} ddl --dialect mysql >/dev/full", 1, FULL),
    ("{cli} list <&- >/dev/null", 0, ""),
    ("{cli} mcp <&-", 1, "stdin is closed"),
    ("{cli} --help | true", 0, ""),
]


@pytest.mark.scaled
@pytest.mark.parametrize(("line", "code", "words"), scale(STREAMS, STREAMS + MORE_STREAMS))
def test_streams_that_are_closed_or_full(line, code, words, tmp_path):
    filled(tmp_path, f"big={'x' * 60_000}")
    done = shell(line, tmp_path)
    assert done.returncode == code
    # Messages may come before, as long as the buffer of the output is not full.
    assert said(done.stderr).endswith(said(words))
    assert words or not done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stdout == ""


def test_a_server_whose_output_is_full(tmp_path):
    request = '{{"jsonrpc": "2.0", "id": 1, "method": "ping"}}'
    done = shell(f"echo '{request}' | {{cli}} mcp --create-tables >/dev/full", tmp_path)
    # At the end of its input, the server may stop before it answers.
    assert (done.returncode, done.stderr) in {(1, f"Error: {FULL}"), (0, "")}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    filled(tmp_path, *(f"{key}={'x' * 60_000}" for key in "abcdefghij"))
    folder = tmp_path / "exports"
    folder.mkdir()
    file = folder / "sessions"
    file.write_text("before")
    # Blocks of 512 or 1,024 bytes: less than the export, more than SQLite writes for a reader.
    done = shell(f"ulimit -f 400; {{cli}} export --output {file}", tmp_path)
    assert done.returncode == 1
    assert "File too large" in said(done.stderr)
    assert file.read_text() == "before"
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_in_another_encoding(encoding, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    assert run("set", "é😀", "title=é😀", "--create", "--create-tables", url=url).exit_code == 0
    # Each kind of output: a table, one value.
    script = "{cli} show é😀; {cli} get é😀 title"
    done = shell(script, tmp_path, {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert last == {"ascii": "\\xe9\\U0001f600", "latin-1": "\udce9\\U0001f600"}.get(
        encoding, "é😀"
    )


@pytest.mark.parametrize(
    ("args", "reads"),
    [
        (["import"], False),
        (["resume-check", "--stdin"], False),
        (["mcp"], False),
        (["export"], True),
    ],
)
def test_an_interruption(args, reads, tmp_path):
    """What waits for its input, or for somebody to read its output, ends at the first Ctrl-C."""
    filled(tmp_path, *(f"{key}={'x' * 60_000}" for key in "abc"))
    with subprocess.Popen(
        [sys.executable, "-m", "agents_session_metadata.cli", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "AGENT_SESSIONS_URL": f"sqlite:///{tmp_path}/x.db"},
    ) as process:
        if reads:
            assert process.stdout.read(1)
        elif args == ["mcp"]:
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert process.stdout.readline()
        else:
            # More than a pipe holds: once it is written and gone, the command waits for the rest.
            process.stdin.write(b" " * 200_000)
            process.stdin.flush()
            unread = array("i", [1])
            while unread[0]:
                time.sleep(0.1)
                fcntl.ioctl(process.stdin, termios.FIONREAD, unread)
            time.sleep(0.5)  # a signal between two reads is seen after the second
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
    assert run("count", url=f"sqlite:///{tmp_path}/x.db").stdout == "1\n"


def test_ages():
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for passed, words in (
        (timedelta(seconds=-5), "just now"),
        (timedelta(seconds=59), "just now"),
        (timedelta(seconds=60), "1 min ago"),
        (timedelta(hours=3, minutes=59), "3 h ago"),
        (timedelta(days=2), "2 d ago"),
        (timedelta(days=90), "2025-10-03"),
    ):
        assert ago(now - passed, now) == words


@pytest.mark.parametrize("width", [40, 60, 100])
def test_tables_fit_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    long = "a long title " * 10
    rows = [("id" * 8, long, "3 h ago", long)]
    cli_output.Table(("session", "title", "active", "more"), rows).write()
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "id" * 8 in lines[2]
    assert "…" in lines[2]


# ---- files ----


def test_an_export_replaces_nothing_but_the_content_of_its_file(tmp_path, monkeypatch):
    filled(tmp_path, "title=x")
    file, own, link = tmp_path / "s.jsonl", tmp_path / "s.jsonl.part", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o600)
    own.write_text("mine")
    link.symlink_to(file)
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///x.db"
    umask = os.umask(0o022)
    try:
        for path in (link, "new"):
            done = run("export", "-o", str(path), url=url)
            assert (done.exit_code, done.stdout) == (0, "")
    finally:
        os.umask(umask)
    assert json.loads(file.read_text())["session_id"] == "chat"
    assert (file.stat().st_mode & 0o777, link.is_symlink(), own.read_text()) == (
        0o600,
        True,
        "mine",
    )
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    assert run("export", "-o", "-", url=url).stdout == file.read_text()
    # Two exports to one path: each is complete.
    both = f"{{cli}} export -o {file} & {{cli}} export -o {file}; wait"
    assert shell(both, tmp_path).returncode == 0
    assert json.loads(file.read_text())["session_id"] == "chat"
    assert run("export", "-o", "full", "--meta", "title=y", url=url).exit_code == 1
    assert {each.name for each in tmp_path.iterdir()} >= {"s.jsonl", "s.jsonl.part", "link", "new"}
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_an_import_that_skips_what_is_invalid(tmp_path):
    filled(tmp_path, "title=x")
    url = f"sqlite:///{tmp_path}/x.db"
    record = json.loads(run("export", url=url).stdout)
    lines = [{**record, "session_id": name} for name in "ab"]
    text = "\n".join(
        ['{"a": 1, "a": 2}', json.dumps(lines[0]), '{"format": 9}', json.dumps(lines[1])]
    )
    result = run("import", "--skip-invalid", "--json", url=url, stdin=text)
    assert json.loads(result.stdout) == {"read": 3, "written": 2, "invalid": 2}
    assert result.exit_code == 1
    first, second, _ = result.stderr.splitlines()
    assert first == "skipped: line 1 is not valid JSON: duplicate key 'a'"
    assert "format" in second
    assert run("count", url=url).stdout == "3\n"


def test_an_import_without_tables_stops(tmp_path):
    filled(tmp_path, "title=x")
    text = run("export", url=f"sqlite:///{tmp_path}/x.db").stdout * 3
    with contextlib.closing(sqlite3.connect(tmp_path / "empty.db")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    url = f"sqlite:///{tmp_path}/empty.db"
    result = run("import", "--skip-invalid", url=url, stdin=text)
    assert result.exit_code == 1
    assert said(result.stderr).count("missing from the database: agent_sessions,") == 1
    assert "--create-tables" in said(result.stderr)
    assert result.stdout == ""


# ---- the database ----


@pytest.mark.parametrize(
    "password", ["Qz1@qz2", "Qz1@qz2/qz3", "Qz1@qz2:qz3", "Qz1/qz2@qz3@", "Qz1:qz2@qz3"]
)
def test_no_part_of_a_password_is_shown(password):
    result = run("list", url=f"postgresql://postgres:{password}@127.0.0.1:1/x")
    assert result.exit_code in {1, 2}
    for part in re.split("[@/:]", password):
        assert not part or part not in result.output


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "mysql"])
def test_a_server_that_does_not_answer(scheme, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{scheme}://u:{PASSWORD}@127.0.0.1:{server.getsockname()[1]}/x"
        done = shell(
            f"{{cli}} resume-check --timeout 0.2 --url {url}", tmp_path, stdin='{"session_id": "a"}'
        )
        assert (done.returncode, json.loads(done.stdout).keys()) == (1, {"error"})
        assert "did not answer within 0.2 s" in said(done.stderr)
        assert PASSWORD not in done.stderr + done.stdout
    assert run("list", "--timeout", "0", url="sqlite://").exit_code == 2


def test_text_of_all_the_world_stays_readable(tmp_path):
    text = "東京\u3000大阪 👨\u200d👩\u200d👧 e\u0301 نص"
    filled(tmp_path, f"title={text}")
    url = f"sqlite:///{tmp_path}/x.db"
    for command in ("list", "get chat title", "values title", "show chat"):
        assert text in run(*command.split(), url=url).stdout
    assert text in run("show", text, url=url).stderr


def test_a_file_as_url(tmp_path):
    filled(tmp_path, "n=1")
    assert run("count", "--url", f"{tmp_path}/x.db").stdout == "1\n"


def test_a_session_by_the_value_of_a_key(tmp_path):
    filled(tmp_path, "title=x", "owner_id=u1")
    url = f"sqlite:///{tmp_path}/x.db"
    assert json.loads(run("show", "x", "--by", "title", "--json", url=url).stdout)["session_id"]
    assert run("set", "x", "a=1", "--by", "title", url=url).exit_code == 0
    assert run("get", "x", "a", "--by", "title", url=url).stdout == "1\n"
    missing = run("show", "y", "--by", "title", url=url)
    assert (missing.exit_code, "no session has title=y" in missing.stderr) == (1, True)
    assert run("set", "other", "title=x", "--create", url=url).exit_code == 0
    twice = run("unset", "x", "a", "--by", "title", url=url)
    assert (twice.exit_code, "more than one session has title=x" in twice.stderr) == (1, True)
    assert run("count", "--owner", "u1", url=url).stdout == "1\n"


def test_limits(tmp_path):
    filled(tmp_path, "n=1")
    url = f"sqlite:///{tmp_path}/x.db"
    refused = run("set", "chat", "m=2", "--max-keys", "1", url=url)
    assert (refused.exit_code, "limit of 1" in refused.stderr) == (1, True)
    assert run("set", "chat", "m=2", "--max-keys", "2", url=url).exit_code == 0
    assert run("set", "chat", "key=2", "--max-key-length", "2", url=url).exit_code == 1
    assert run("set", "chat", "m=123", "--max-value-bytes", "2", url=url).exit_code == 1


def test_a_filter_without_its_dollar(tmp_path):
    filled(tmp_path, 'tags=["work"]')
    where = '{"tags": {"contains": "work"}}'
    result = run("list", "--where", where, url=f"sqlite:///{tmp_path}/x.db")
    assert (result.exit_code, "write $contains instead of contains" in result.stderr) == (1, True)


def test_an_index_creates_what_it_needs(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    assert run("index", "create", "$updated_at", url=f"sqlite:///{tmp_path}/x.db").exit_code == 0
    missing = run("index", "create", "$updated_at", url=f"sqlite:///{tmp_path}/typo.db")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (1, True)


def test_a_table_shows_the_owner_first_and_no_totals(tmp_path):
    filled(tmp_path, 'tags=["work"]', "title=x", "owner_id=u1", "total_tokens=7777", "own=mine")
    shown = run("list", url=f"sqlite:///{tmp_path}/x.db").stdout
    assert shown.split()[:4] == ["session", "owner_id", "title", "tags"]
    assert "own=mine" in shown
    assert "7777" not in shown


def test_every_page_at_once(tmp_path, monkeypatch):
    filled(tmp_path, "n=1")
    url = f"sqlite:///{tmp_path}/x.db"
    record = json.loads(run("export", url=url).stdout)
    lines = [json.dumps({**record, "session_id": f"s{number:04}"}) for number in range(1_200)]
    assert run("import", url=url, stdin="\n".join(lines)).exit_code == 0
    calls = []
    original = SessionCatalog.list_sessions
    monkeypatch.setattr(
        SessionCatalog,
        "list_sessions",
        lambda *args, **kwargs: calls.append(kwargs["limit"]) or original(*args, **kwargs),
    )
    assert len(json.loads(run("list", "--all", "--json", url=url).stdout)["sessions"]) == 1_201
    assert len(run("list", "--all", "--jsonl", url=url).stdout.splitlines()) == 1_201
    assert run("list", "--all", url=url).stdout.count("active") == 2  # a table per page
    assert calls == [1_000] * 6


# ---- what the program says of itself ----


def test_help():
    shown = run("-h").stdout
    assert shown == run("--help").stdout
    for word in ("Sessions", "Lifecycle", "--version", "resume-check"):
        assert word in shown
    assert re.fullmatch(r"agent-sessions \d+\.\d+\S*\n", run("--version").stdout)
    for name in COMMANDS:
        assert "<bool>" not in run(name, "-h").stdout
    for name in examples():
        shown = run(*name.split(), "-h").stdout
        assert "<bool>" not in shown
        assert "[[" not in shown
        assert "Database options" in shown
    assert re.search("Did you mean .*'list'", run("lst").stderr)


def test_help_shows_every_command_under_a_heading():
    shown = run("--help").stdout
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert "Commands:" not in shown  # where Click puts those without a heading


def test_the_statuses_of_runs_are_those_of_the_library():
    result = run("runs", "--status", "done", url="sqlite://")
    statuses = ", ".join(get_args(RunStatus))
    assert f"--status must be one of {statuses}, got done" in said(result.stderr)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("res", "resume-check"),
        ("runs --status w", "waiting"),
        ("usage --by owner", "owner_id"),
        ("finish chat-1 f", "failed"),
        ("replay --feedback n", "negative"),
        ("import --on-conflict r", "replace"),
        ("index drop '\\$t'", "$text"),
    ],
)
def test_the_shell_completes_commands_and_fixed_values(words, expected):
    done = shell(
        f'COMP_WORDS="agent-sessions {words}" COMP_CWORD={len(words.split())} '
        "_AGENT_SESSIONS_COMPLETE=bash_complete "
        '{python} -c \'import sys; sys.argv[0] = "agent-sessions"; '
        "from agents_session_metadata.cli import main; main()'",
        ".",
    )
    assert done.stdout.split() == [f"plain,{expected}"]


def test_what_changes_something_answers_in_json(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    result = run("set", "a", "n=1", "--create", "--create-tables", "--json", url=url)
    assert json.loads(result.stdout) == {"session_id": "a", "metadata": {"n": 1}}
    assert json.loads(run("unset", "a", "n", "--json", url=url).stdout) == {
        "session_id": "a",
        "removed": 1,
    }
    result = run("delete", "a", "b", "--yes", "--json", url=url)
    assert json.loads(result.stdout) == {"deleted": ["a"], "not_found": ["b"]}


# ---- help and documentation ----


def test_every_command_has_an_example_in_its_help():
    for name, example in examples().items():
        result = run(*name.split(), "--help")
        assert result.exit_code == 0
        assert "".join(f"agent-sessions {example}".split()) in "".join(result.stdout.split())
        parsed = shlex.split(example)
        assert " ".join(parsed).startswith(name)


def test_every_command_is_documented():
    text = (DOCS / "cli.md").read_text()
    sections = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(COMMANDS) <= set(sections)
    for name in COMMANDS:
        assert f"agent-sessions {name}" in sections[name], name


def test_the_database_of_the_environment_and_its_retention(tmp_path, monkeypatch):
    filled(tmp_path, "title=x")
    url = f"sqlite:///{tmp_path}/x.db"
    monkeypatch.setenv("AGENT_SESSIONS_RETENTION_DAYS", "1")
    for arguments, words in (
        (["--yes"], "0\ndeleted 0 sessions"),
        (["--hours", "0", "--dry-run"], "1\nwould delete 1 session; the oldest: "),
        (["--days", "0", "--yes"], "1\ndeleted 1 session"),
    ):
        assert run("cleanup", *arguments, url=url).output.startswith(words)


def test_every_command_on_a_session_takes_the_value_of_a_key(tmp_path):
    filled(tmp_path, "title=x")
    url = f"sqlite:///{tmp_path}/x.db"
    for line in (
        *("show x", "get x", "set x a=1", "unset x a", "start x --agent b", "phase x planning"),
        *("resume-check x", "fork x copy --meta title=y", "finish x completed"),
    ):
        result = run(*line.split(), "--by", "title", url=url)
        assert result.exit_code == 0, (line, result.output)
    for line, words in (
        ("history x", "session chat has no items"),
        ("rewind x --turns 1 --yes", "session chat has no turns"),
        ("approve x --all", "session chat has no run"),
        ("reject x --all", "session chat has no run"),
        ("discard x --yes", "session chat has no run"),
        ("stop x", "session chat has no run"),
    ):
        result = run(*line.split(), "--by", "title", url=url)
        assert (result.exit_code, result.stderr) == (1, f"{words}\n"), line
    assert run("delete", "x", "y", "--by", "title", "--yes", url=url).exit_code == 0
    assert run("count", url=url).stdout == "0\n"
    assert run("start", "--agent", "a", "--by", "title", url=url).exit_code == 2


def test_one_sentence_for_a_session_that_does_not_exist(tmp_path):
    filled(tmp_path, "title=x")
    for line in (
        *("show nope", "get nope", "unset nope a", "history nope", "rewind nope --turns 1 --yes"),
        *(
            "fork nope",
            "stop nope",
            "discard nope --yes",
            "approve nope --all",
            "delete nope --yes",
        ),
    ):
        result = run(*line.split(), url=f"sqlite:///{tmp_path}/x.db")
        assert (result.exit_code, result.stderr) == (1, "session nope does not exist\n"), line


def test_help_shows_defaults_ranges_and_upper_case_names():
    shown = said(run("list", "--help").stdout)
    assert "[default: 20]" in shown
    assert "[1..1000]" in shown
    assert "--key KEY" in shown
    assert "values [OPTIONS] KEY" in said(run("values", "--help").stdout)


def test_no_message_speaks_python(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    for words in (["list"], ["usage"], ["runs"], ["list", "--create-tables", "--cursor", "abc"]):
        said_ = said(run(*words, url=url).stderr)
        assert said_
        for python in ("create_tables=", "None", "next_cursor", "order_by", "session_tables"):
            assert python not in said_, (words, said_)
