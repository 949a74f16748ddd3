"""The command line of the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def benchmarks(*args: object) -> subprocess.CompletedProcess[str]:
    """Measure nothing: of a server without a URL, a small run says that it is left out."""
    command = [sys.executable, "-m", "benchmarks", "--small", *args]
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("BENCH_")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_folder_of_the_results_is_created(tmp_path) -> None:
    folder = tmp_path / "new" / "folder"
    done = benchmarks("--servers", "postgresql", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "PostgreSQL is left out" in done.stdout
    assert folder.is_dir()


def test_a_folder_that_cannot_be_created_is_refused_before_anything_is_measured(tmp_path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = benchmarks("--servers", "postgresql", "--output", file / "folder")
    assert done.returncode == 2
    assert "argument --output: " in done.stderr
    assert "left out" not in done.stdout


def test_an_unknown_server_is_refused() -> None:
    done = benchmarks("--servers", "postgres")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --servers: unknown server: postgres\n")
