"""The console script `agent-sessions`.

Typer and Rich come with the extra `cli`; this module imports without them, to say so.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from .cli_app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"agent-sessions needs {error.name}; "
            "install it with: pip install 'agents-session-metadata[cli]'\n"
        )
        sys.exit(1)
    app()


if __name__ == "__main__":
    main()
