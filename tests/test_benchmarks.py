"""The command line of the benchmarks, and one run that is too short to measure anything."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from scaling import scale

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmarks(monkeypatch):
    """Runs `python -m benchmarks --small` in this process."""
    for name in ("BENCH_POSTGRESQL_URL", "BENCH_MYSQL_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(ROOT)
    module = importlib.import_module("benchmarks.__main__")

    def run(*args: object) -> None:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--small", *map(str, args)])
        module.main()

    return run


@pytest.mark.scaled
@pytest.mark.thorough
def test_a_short_run_writes_the_tables(tmp_path) -> None:
    """In a process of its own: it collects garbage before each measurement."""
    output = tmp_path / "new" / "results.md"
    parts = scale(["--only", "catalog"], [])
    options = ["--small", "--servers", "sqlite", "--sizes", "200", "--seconds", "0"]
    command = [sys.executable, "-m", "benchmarks", *options, "--output", output, *parts]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    written = output.read_text(encoding="utf-8")
    assert printed.endswith(f"\n\n{written}\n")
    assert "| find by owner |" in written
    assert parts or "| `get_items`, session kept |" in written


def refusal(benchmarks, capsys, *args: object) -> str:
    with pytest.raises(SystemExit) as refused:
        benchmarks(*args)
    assert refused.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    benchmarks, tmp_path, capsys
) -> None:
    file = tmp_path / "file"
    file.touch()
    options = ["--servers", "postgresql", "--output", file / "results.md"]
    assert "argument --output: " in refusal(benchmarks, capsys, *options)


def test_an_unknown_server_is_refused(benchmarks, capsys) -> None:
    error = refusal(benchmarks, capsys, "--servers", "postgres")
    assert error.endswith("argument --servers: unknown server: postgres\n")
