"""The command line of the benchmarks, and one run that is too short to measure anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def benchmarks(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--small", *map(str, args)]
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("BENCH_")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
def test_a_short_run_writes_the_tables(tmp_path) -> None:
    output = tmp_path / "new" / "results.md"
    options = ["--servers", "sqlite", "--sizes", 200, "--seconds", 0, "--output", output]
    done = benchmarks(*options)
    assert done.returncode == 0, done.stderr
    written = output.read_text(encoding="utf-8")
    assert done.stdout.endswith(f"\n\n{written}\n")
    assert "| `get_items`, session kept |" in written
    assert "| find by owner |" in written


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = benchmarks("--servers", "postgresql", "--output", file / "results.md")
    assert done.returncode == 2
    assert "argument --output: " in done.stderr
    assert "left out" not in done.stdout


def test_an_unknown_server_is_refused() -> None:
    done = benchmarks("--servers", "postgres")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --servers: unknown server: postgres\n")
