"""Pages to look at sessions in a browser.

`browser_app` is the entry point. The pages are rendered on the server and work without JavaScript.
"""

from __future__ import annotations

try:
    import jinja2 as _jinja2  # noqa: F401
except ImportError:
    from agents_session_metadata.errors import install_advice

    raise ImportError(
        f"the browser pages require Jinja2; {install_advice('web')}", name="jinja2"
    ) from None

from agents_session_metadata.http.app import GetScope

from .app import LOCAL_HOSTS, browser_app
from .call import DecidedBy

__all__ = ["LOCAL_HOSTS", "DecidedBy", "GetScope", "browser_app"]
