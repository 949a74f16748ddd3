"""`CatalogStore`: ChatKit's store on a session catalog. Requires the extra `chatkit`.

A thread is a session. Its title is the metadata key `title`; its status, image domains and
metadata are under the key `chatkit`. Thread items and attachments have tables of their own, which
`threads.transactions` reads and writes. `thread_fields` maps the fields of a thread to metadata.
"""

from __future__ import annotations

try:
    import chatkit as _chatkit  # noqa: F401
except ImportError:
    from agents_session_metadata.errors import install_advice

    raise ImportError(
        f"the ChatKit store requires openai-chatkit; {install_advice('chatkit')}", name="chatkit"
    ) from None

from agents_session_metadata.keys import CHATKIT

from .store import CatalogStore

__all__ = ["CHATKIT", "CatalogStore"]
