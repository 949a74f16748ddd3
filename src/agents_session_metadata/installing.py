"""The command that installs an extra, for error messages."""

from __future__ import annotations

import json
import shlex

NAME = "agents-session-metadata"


def install_advice(extra: str) -> str:
    """Returns a command that installs the extra from the origin of this package.

    pip records the origin of a package that it did not get from an index: a checkout, an archive or
    a repository. The index might not have this package, or have another version of it.
    """
    wanted = f"{NAME}[{extra}]"
    return f"install {wanted} with: pip install {_source(wanted, extra)}"


def _source(wanted: str, extra: str) -> str:
    # Only errors need these, and they take long to import.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        recorded = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    if recorded is None:
        return shlex.quote(wanted)
    origin = json.loads(recorded)
    url = str(origin["url"])
    if url.startswith("file:"):
        path = shlex.quote(f"{url2pathname(urlsplit(url).path)}[{extra}]")
        return f"-e {path}" if origin.get("dir_info", {}).get("editable") else path
    system = origin.get("vcs_info", {}).get("vcs")
    return shlex.quote(f"{wanted} @ {f'{system}+' if system else ''}{url}")
