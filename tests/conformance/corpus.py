"""Many sessions, and forty whose metadata is as awkward as the limits allow."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog, SessionInfo
from conformance import strategies
from conformance.oracle import matches

# Values of one key `v`, so that each is compared with each.
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -0.0,
    1,
    1.0,
    -1,
    2,
    10,
    9.5,
    0.1,
    0.1 + 0.2,
    5e-324,
    -5e-324,
    1e308,
    1e23,
    10**23,
    2**53,
    2**53 + 1,
    2**63,
    10**400,
    -(10**400),
    "",
    "1",
    "a",
    "A",
    "a ",
    "a\0",
    "ab",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "100%",
    "100_",
    "\uffff",
    "\U00010000",
    "z" * 600,
    "z" * 600 + "a",
    [],
    [1, "a", None, True],
    [1.0, "a", None, True],
    ["a", ["a"], {"a": "a"}],
    ["z" * 600, 2**63, ""],
    ["a", "b", "b", "c", "z" * 600, "z" * 601],
    {},
    {"a": 1, "b": [0]},
    {"b": [0.0], "a": 1.0},
    {"$gt": 1},
]
NAMES = ["v", "w", "kind", "V", "100%", "it's", "a.b", "missing"]


def sessions() -> dict[str, dict[str, Any]]:
    """Ids and metadata: one value each, and a few more keys in a pattern that is not regular."""
    found: dict[str, dict[str, Any]] = {"bare": {}}
    for number, value in enumerate(VALUES):
        metadata = {"v": value, "kind": type(value).__name__}
        if number % 2:
            metadata["w"] = VALUES[(number * 7) % len(VALUES)]
        if number % 3 == 0:
            metadata["V"] = value
        if number % 5 == 0:
            metadata |= {"100%": number, "it's": str(number), "a.b": [number, str(number)]}
        found[f"{'chat' if number % 2 else 'Chat'} {number:02}"] = metadata
    return found


async def create_sessions(catalog: SessionCatalog, found: Mapping[str, dict[str, Any]]) -> None:
    """Sessions by id with their metadata, at other times, in a few transactions."""
    await catalog.import_sessions(
        {
            "format": 1,
            "session_id": session_id,
            "created_at": f"2020-01-{number % 7 + 1:02}T00:00:00+00:00",
            "updated_at": f"2020-02-{number % 9 + 1:02}T12:00:00+00:00",
            "metadata": metadata,
            "items": [],
        }
        for number, (session_id, metadata) in enumerate(found.items())
    )


class Corpus:
    """The sessions in a database, and what the catalog says of their columns."""

    def __init__(self, catalog: SessionCatalog, infos: list[SessionInfo]) -> None:
        self.catalog = catalog
        self.infos = infos

    @classmethod
    async def create(cls, engine: AsyncEngine) -> Corpus:
        catalog = SessionCatalog(engine, create_tables=True)
        await create_sessions(catalog, sessions())
        page = await catalog.list_sessions(limit=1_000, order_by="session_id")
        assert {info.session_id: info.metadata for info in page.sessions} == sessions()
        return cls(catalog, page.sessions)

    def expected(self, where: Any) -> list[str]:
        return sorted(
            info.session_id
            for info in self.infos
            if matches(
                where,
                info.metadata,
                session_id=info.session_id,
                created_at=info.created_at,
                updated_at=info.updated_at,
            )
        )

    async def check(self, where: Any, like: Any = None) -> list[str]:
        """Finding and counting agree with plain Python; `like` is the same filter, shorter."""
        expected = self.expected(like or where)
        found = await self.catalog.session("anyone").find_sessions_by_metadata(where)
        assert len(found) == len(set(found))
        assert sorted(found) == expected
        assert await self.catalog.count_sessions(where) == len(expected)
        return expected


def filters() -> Any:
    """Random filters over the corpus; its times are whole days in the zone of UTC."""
    moments = [f"2020-0{month}-{day:02}T12:00:00+00:00" for month in (1, 2) for day in range(1, 10)]
    return strategies.filters(NAMES, VALUES, list(sessions()), moments)
