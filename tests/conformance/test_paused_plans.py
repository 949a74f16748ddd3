"""What a page of paused runs reads of many: the rows of the page, by an index."""

from __future__ import annotations

from typing import Any

from scaling import scale
from servers import Database
from sqlalchemy import insert

from agents_session_metadata import PausedRuns, SessionCatalog
from agents_session_metadata.core.tables import query_tables, table_names
from agents_session_metadata.runs.feature import PAUSED
from conformance.test_plans import _plan, _rows_read

RUNS = scale(2_000, 10_000)


def _row(number: int) -> dict[str, Any]:
    return {
        "session_id": f"s{number:06}",
        "state": "{}" * 500,
        "details": '{"agent": "a", "pending": [], "encrypted": false, "wrapped": false}',
        "decisions": "{}",
        "item_count": 0,
        "last_item": None,
        "revision": 1,
        # Many at the same time: the id decides between them.
        "paused_at": 1_700_000_000_000_000 + number // 7,
        "token": None,
        "claimed_until": None,
    }


async def _load(database: Database, engine: Any) -> None:
    tables = query_tables(table_names())
    [paused] = tables.group(PAUSED).tables
    rows = [_row(number) for number in range(RUNS)]
    async with engine.begin() as connection:
        sessions = [{"session_id": row["session_id"]} for row in rows]
        await connection.execute(insert(tables.sessions), sessions)
        await connection.execute(insert(paused), rows)
    if database.kind != "sqlite":
        analyze = "ANALYZE" if database.kind == "postgresql" else "ANALYZE TABLE"
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"{analyze} {paused.name}")


async def test_a_page_reads_its_own_rows(shared_database: Database):
    engine = shared_database.engine()
    paused = PausedRuns(SessionCatalog(engine, create_tables=True))
    await paused.list()
    await _load(shared_database, engine)
    first = await paused.list(limit=20)
    assert [run.session_id for run in first.runs] == [
        f"s{number:06}" for number in range(RUNS - 1, RUNS - 21, -1)
    ]
    middle = (await paused.list(limit=500)).next_cursor
    for cursor in (None, first.next_cursor, middle):

        def page(cursor: Any = cursor) -> Any:
            return paused.list(limit=20, cursor=cursor)

        plan = await _plan(shared_database, engine, page)
        # 21 rows in the index, in the sessions and in the table, and on MariaDB in the sorted page;
        # the index is entered at the time of the cursor, which up to 6 other runs have as well.
        read = await _rows_read(shared_database, engine, page, whole=True)
        assert read <= 7 * (21 + 6), plan
        if shared_database.kind == "sqlite":
            assert "inner_runs USING COVERING INDEX" in plan
            assert "SCAN agent_" not in plan
