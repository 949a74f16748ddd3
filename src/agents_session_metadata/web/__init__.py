"""Pages to look at sessions in a browser.

`browser_app` is the entry point. The pages are rendered on the server and work without JavaScript.
"""

from __future__ import annotations

try:
    import jinja2 as _jinja2  # noqa: F401
    import markdown_it as _markdown_it  # noqa: F401
    import pygments as _pygments  # noqa: F401
except ImportError as _error:
    from agents_session_metadata.errors import install_advice

    raise ImportError(
        f"the browser pages require Jinja2, markdown-it-py and Pygments; {install_advice('web')}",
        name=_error.name,
    ) from None

from agents_session_metadata.http.app import GetScope

from .app import LOCAL_HOSTS, browser_app
from .call import DecidedBy

__all__ = ["LOCAL_HOSTS", "DecidedBy", "GetScope", "browser_app"]
