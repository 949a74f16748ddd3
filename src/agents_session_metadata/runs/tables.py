"""The table of paused runs: one row per session whose run waits to be resumed.

| column | content |
|---|---|
| `state` | the SDK's `RunState`, as JSON or encrypted |
| `details` | JSON: the agent, the calls that it waits for, and how the state is stored |
| `decisions` | JSON: what was decided about calls, by call id |
| `item_count`, `last_item` | the history that the state belongs to |
| `revision` | counts the changes of the row, from a random number |
| `paused_at` | microseconds since 1970 |
| `token`, `claimed_until` | who has claimed the run, and until when |

A row is deleted with its session. All times come from the database's clock. The caller locks the
session before writing its row.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table

from agents_session_metadata.core.definitions import (
    ColumnTypes,
    TableGroup,
    derived_name,
    ending_with_session,
    session_link,
    table_options,
)

PAUSED = "paused"


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    [name] = names
    options = table_options(types)
    sessions = core.tables[0]
    table = metadata.tables.get(name)
    if table is None:
        table = Table(
            name,
            metadata,
            Column("session_id", types.own_id, primary_key=True),
            Column("state", types.text, nullable=False),
            Column("details", types.text, nullable=False),
            Column("decisions", types.text, nullable=False),
            Column("item_count", Integer, nullable=False),
            Column("last_item", BigInteger, nullable=True),
            Column("revision", Integer, nullable=False),
            Column("paused_at", BigInteger, nullable=False),
            Column("token", String(32), nullable=True),
            Column("claimed_until", BigInteger, nullable=True),
            session_link(name, sessions),
            Index(derived_name(name, "_order_idx"), "paused_at", "session_id"),
            **options,
        )
    return TableGroup(PAUSED, (table,), (ending_with_session(sessions, table),))
