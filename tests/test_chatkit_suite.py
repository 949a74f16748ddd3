"""ChatKit's own tests of stores and servers, with `CatalogStore` in place of their store.

They are not part of this repository. "make test" unpacks them, from the source distribution of
ChatKit that is installed, into the virtual environment. docs/chatkit.md lists those that fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SUITE = Path(sys.prefix) / "chatkit-tests"
PAGE = Path(__file__).parents[1] / "docs" / "chatkit.md"
FILES = ["tests/test_store.py", "tests/test_chatkit_server.py"]
# How many tests pass with a release of ChatKit.
PASSED = {"1.6.5": 76}


def test_chatkit_suite(tmp_path: Path) -> None:
    assert SUITE.is_dir(), 'the tests of ChatKit are not unpacked: run "make test"'
    options = ["-p", "chatkit_plugin", "-p", "no:cacheprovider", "-q", "-rf", "-Wignore"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *FILES],
        cwd=SUITE,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "CHATKIT_SUITE_FOLDER": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    failed = set(re.findall(r"^FAILED \S+::(\w+)", run.stdout, re.MULTILINE))
    assert failed == set(re.findall(r"^\| `(test_\w+)`", PAGE.read_text(), re.MULTILINE)), (
        run.stdout
    )
    (passed,) = re.findall(r"(\d+) passed", run.stdout)
    assert int(passed) == PASSED.get(version("openai-chatkit"), int(passed))
