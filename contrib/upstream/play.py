"""Runs the example and the code of the docs page, in an environment that has the patched SDK.

No network: whatever an agent is asked, a scripted model answers. Usage: play.py EXAMPLE PAGE
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import agents
from agents.testing import ScriptedModel, assistant_message

_Agent: Any = agents.Agent


def scripted(*args: Any, **kwargs: Any) -> Any:
    """An agent that needs no model."""
    return _Agent(*args, model=ScriptedModel([[assistant_message("San Francisco")]]), **kwargs)


def play(page: str) -> int:
    """Run the blocks of a page, one after the other, and give their number."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for block in blocks:
        code = compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)  # noqa: S307  # our own page
        if inspect.isawaitable(result):
            loop.run_until_complete(result)
    loop.run_until_complete(names["session"].engine.dispose())
    loop.close()
    return len(blocks)


def main() -> None:
    """Run both."""
    agents.set_tracing_disabled(True)
    agents.Agent = scripted  # type: ignore[assignment,misc]  # what the code imports
    example, page = sys.argv[1:]
    runpy.run_path(example, run_name="__main__")
    print(f"{play(Path(page).read_text('utf-8'))} blocks of {page} ran")


if __name__ == "__main__":
    main()
