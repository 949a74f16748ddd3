"""`SessionCatalog`: every session in one database.

Each module has the methods of one subject; `catalog` puts them together.
"""

from .catalog import SessionCatalog

__all__ = ["SessionCatalog"]
