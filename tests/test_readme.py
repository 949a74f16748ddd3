"""The README is short, and what it names exists. Its code is run by `test_documentation.py`."""

from __future__ import annotations

import re

from documentation import ROOT, blocks

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_it_begins_with_code_and_ends_in_time() -> None:
    assert blocks(README)[0].line <= 25
    assert len(TEXT.splitlines()) <= 160
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 700


def test_what_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"\]\((?!https?:|#)([^)#]+)", TEXT):
        assert (ROOT / path).exists(), path
