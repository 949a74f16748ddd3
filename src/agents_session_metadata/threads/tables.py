"""The tables of threads, as a chat interface shows them: items and attachments.

| table | one row |
|---|---|
| `…_thread_items` | an item of a thread; the thread is a session |
| `…_attachments` | a file that was uploaded, before or after it belongs to a session |
| `…_feedback` | the newest vote of a user on an item; neither copied nor exported |

Items are opaque here: each has a kind and a JSON text.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    text,
)

from agents_session_metadata.core.definitions import (
    ColumnTypes,
    TableGroup,
    derived_name,
    ending_with_session,
    session_link,
    table_options,
)

THREADS = "threads"


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    items_name, attachments_name, feedback_name = names
    sessions = core.tables[0]
    items = Table(
        items_name,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("item_id", types.key, primary_key=True),
        # Grows with every item that is added to the session.
        Column("position", BigInteger, nullable=False),
        Column("kind", types.key, nullable=False),
        Column("data", types.text, nullable=False),
        # Of a user message: the newest row of the history when it was added, or 0.
        Column("history_end", BigInteger, nullable=True),
        session_link(items_name, sessions),
        Index(derived_name(items_name, "_order_idx"), "session_id", "position"),
        **table_options(types),
        keep_existing=True,
    )
    attachments = Table(
        attachments_name,
        metadata,
        Column("attachment_id", types.key, primary_key=True),
        # NULL until the attachment belongs to a session.
        Column("session_id", types.own_id, nullable=True),
        # The values that a session of its owner has, as a JSON object.
        Column("owner", types.text, nullable=False),
        Column("data", types.text, nullable=False),
        Column("created_at", TIMESTAMP(), server_default=text("CURRENT_TIMESTAMP"), nullable=False),
        session_link(attachments_name, sessions),
        # For the foreign key. A migration that drops indexes first leaves a constraint alone.
        UniqueConstraint(
            "session_id",
            "attachment_id",
            name=derived_name(attachments_name, "_session_key"),
        ),
        **table_options(types),
        keep_existing=True,
    )
    feedback = Table(
        feedback_name,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("item_id", types.key, primary_key=True),
        Column("kind", types.key, nullable=False),
        # Microseconds since 1970.
        Column("voted_at", BigInteger, nullable=False),
        session_link(feedback_name, sessions),
        **table_options(types),
        keep_existing=True,
    )
    triggers = (
        ending_with_session(sessions, items),
        ending_with_session(sessions, attachments),
        ending_with_session(sessions, feedback),
    )
    return TableGroup(THREADS, (items, attachments, feedback), triggers)
