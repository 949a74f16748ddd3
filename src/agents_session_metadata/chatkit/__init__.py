"""`CatalogStore`: ChatKit's store on a session catalog. Requires the extra `chatkit`.

A thread is a session. Its title is the metadata key `title`; its status, image domains and
metadata are under the key `chatkit`. Thread items and attachments have tables of their own.
"""

from .store import CatalogStore
from .threads import CHATKIT

__all__ = ["CHATKIT", "CatalogStore"]
