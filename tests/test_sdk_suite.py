"""The SDK's own tests for `SQLAlchemySession`, passed by `SQLAlchemyMetadataSession`.

They are not part of this repository. "make test" unpacks them, from the source distribution of the
SDK that is installed, into the virtual environment. What stands in for what: see `sdk_plugin`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SUITE = Path(sys.prefix) / "sdk-tests"
FILES = [
    "tests/extensions/memory/test_sqlalchemy_session.py",
    "tests/memory/test_sqlalchemy_compaction.py",
]
# How many tests a release of the SDK has in these files.
COUNTS = {"0.24.0": 73}


def test_sdk_suite(tmp_path: Path) -> None:
    assert SUITE.is_dir(), 'the SDK\'s tests are not unpacked: run "make test"'
    report = tmp_path / "report.json"
    run = subprocess.run(
        [*[sys.executable, "-m", "pytest", "-p", "sdk_plugin", "-p", "no:cacheprovider"], *FILES],
        cwd=SUITE,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "SDK_SUITE_CLASS": "agents_session_metadata:SQLAlchemyMetadataSession",
            "SDK_SUITE_REPORT": str(report),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    counts = json.loads(report.read_text())
    assert counts["passed"] == counts["collected"], run.stdout
    assert counts["collected"] == COUNTS.get(version("openai-agents"), counts["collected"])
