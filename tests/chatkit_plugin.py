"""A pytest plugin for ChatKit's own tests: they get `CatalogStore` for their `SQLiteStore`.

Their source distribution lacks the two modules that they import, `helpers.mock_store` and
`tests._types`. Both are made here. A path of a database is replaced by a file in
`CHATKIT_SUITE_FOLDER`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agents_session_metadata import SessionCatalog
from agents_session_metadata.chatkit import CatalogStore


@dataclass
class RequestContext:
    user_id: str


class SQLiteStore(CatalogStore[Any]):
    def __init__(self, db_path: str) -> None:
        self.db_path = db_path
        name = hashlib.sha256(db_path.encode()).hexdigest()
        path = Path(os.environ["CHATKIT_SUITE_FOLDER"]) / f"{name}.db"
        catalog = SessionCatalog.from_url(f"sqlite:///{path}", create_tables=True)
        super().__init__(catalog, scope=lambda context: {"owner_id": context.user_id})


def add(name: str, **names: Any) -> None:
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module


add("helpers")
add("helpers.mock_store", SQLiteStore=SQLiteStore)
add("tests", __path__=["tests"])
add("tests._types", RequestContext=RequestContext)
