"""Optional features: what the core asks of each, without knowing it, and the names of all tables.

A feature is a folder beside this one, with a module `feature` that defines `FEATURE`. Without the
folder, the rest works as if the feature had never been used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, MetaData

from agents_session_metadata.text import quoted
from agents_session_metadata.types import IndexInfo, JSONValue

from .database import Database
from .definitions import CREATE_TYPES, FeatureTables, TableNames, derived_name
from .rows import delete_rows
from .tables import SessionTables, build_tables

FOLDERS = ("runs", "usage", "threads", "idempotency", "search")
"""In the order in which their tables are created."""


class Index(ABC):
    """An index of a feature, for `create_index` and the methods beside it."""

    key: ClassVar[str]
    """The key with which it is created."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    async def create(self, progress: Callable[[int], object] | None) -> bool:
        """Returns False if it was complete."""

    @abstractmethod
    async def drop(self) -> bool:
        """Returns False if it does not exist."""

    @abstractmethod
    def info(self, connection: Connection, *, count: bool) -> IndexInfo | None:
        """Returns None if it does not exist."""


class Erased(NamedTuple):
    """What `erase` removes besides sessions.

    Attributes:
        values: The values that each session of a person has; empty if only sessions are erased.
        owner: The `owner_id` of the person as canonical text, or None.
        by: A name to clear in decisions, or None.
        keeps_usage: Whether the ledger keeps its numbers.
    """

    values: Mapping[str, JSONValue]
    owner: str | None
    by: str | None
    keeps_usage: bool


class Feature(FeatureTables):
    """The part of a feature in changes of sessions and histories: by default, nothing.

    Methods that take a connection are called only if the tables of the feature exist, except `load`
    and `insert_items`.
    """

    field: ClassVar[str | None] = None
    """The name of its part of an exported record."""

    def index(self, database: Database) -> Index | None:
        return None

    # ---- changes of a history; the session is locked ----

    def hold(self, database: Database, connection: Connection, session_id: str) -> Exception | None:
        """Returns the error that a change of the history raises, if it must not change now."""
        return None

    def give_up(self, database: Database, connection: Connection, session_id: str) -> None:
        """Ends what depends on the history but does not hold it, before the history changes."""

    def end(self, database: Database, connection: Connection, session_id: str) -> None:
        """Deletes what depends on the history, before the history is deleted."""

    def insert_items(
        self, database: Database, connection: Connection, session_id: str, texts: Sequence[str]
    ) -> bool:
        """Inserts items in place of the core, or returns False."""
        return False

    def added(self, database: Database, connection: Connection, ids: Sequence[str]) -> None:
        """Called with new sessions whose items were copied or imported."""

    def fork(
        self,
        database: Database,
        connection: Connection,
        session_id: str,
        new_id: str,
        kept: Sequence[int] | None,
    ) -> None:
        """Copies its rows to a new session. `kept` has the ids of copied items; None means all."""
        self.added(database, connection, [new_id])

    # ---- erasing; both return the numbers of rows by table ----

    def erase(
        self, database: Database, connection: Connection, ids: Sequence[str], erased: Erased
    ) -> Mapping[str, int]:
        """Deletes the rows of locked sessions, before the sessions: of all its tables, by default.

        A feature with a table that has no session id must do this itself.
        """
        return {
            table.name: delete_rows(database, connection, table.c.session_id, ids)
            for table in reversed(database.tables.group(self.name).tables)
        }

    def erase_rest(
        self, database: Database, connection: Connection, erased: Erased
    ) -> Mapping[str, int]:
        """Deletes rows of a person that belong to no session. Called until there are none."""
        return {}

    # ---- records, statistics and retention ----

    def export(
        self, database: Database, connection: Connection, ids: Sequence[str]
    ) -> Mapping[str, Any]:
        """Returns its parts of the records of some sessions, as JSON, by session id."""
        return {}

    def parse(self, part: Any, validated: Callable[..., Any]) -> Any:
        """Checks a part of a record, with a function that validates JSON as a type."""

    def load(self, database: Database, connection: Connection, parts: Mapping[str, Any]) -> None:
        """Inserts parts that `parse` returned, by the id of a new session."""

    def count(
        self, database: Database, connection: Connection, condition: Any
    ) -> Mapping[str, int]:
        """Counts what `Statistics.feedback` contains, for the sessions of a condition."""
        return {}

    def statuses(
        self, database: Database, connection: Connection, ids: Sequence[str]
    ) -> Mapping[str, str]:
        """Returns the status of the runs of some sessions, by session id."""
        return {}

    def spared(self, age: timedelta) -> Any:
        """Returns the condition that retention may delete a session, or None."""


@cache
def features() -> tuple[Feature, ...]:
    package = __name__.partition(".")[0]
    names = [f"{package}.{folder}" for folder in FOLDERS]
    return tuple(
        import_module(f"{name}.feature").FEATURE for name in names if find_spec(name) is not None
    )


def table_names(
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    metadata_table: str | None = None,
) -> TableNames:
    if "" in (sessions_table, messages_table, metadata_table):
        raise ValueError("the name of a table must not be empty")
    if metadata_table is None:
        metadata_table = derived_name(sessions_table, "_metadata")
    elements = derived_name(metadata_table, "_elements")
    names = TableNames(sessions_table, messages_table, metadata_table, elements, features())
    core = names[:4]
    everything = [*core, *(name for each in features() for name in each.names(metadata_table))]
    if len(set(everything)) < len(everything):
        raise ValueError(
            f"the tables must have different names, got {', '.join(map(quoted, core))}"
        )
    return names


def session_tables(
    metadata: MetaData | None = None,
    *,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    metadata_table: str | None = None,
) -> SessionTables:
    """Put the tables into a `MetaData`, such as that of Alembic: `session_tables(Base.metadata)`.

    `MetaData.create_all` then creates everything, SQLite's triggers included. For Alembic, use the
    `include_object` of "Migrations" in the documentation. Without it, Alembic drops columns and
    indexes that your application added to the tables.

    Args:
        metadata: Where the tables go; a new `MetaData` by default. Calling again with the same one
            gives the same tables.
        sessions_table: Name of the SDK's sessions table.
        messages_table: Name of the SDK's messages table.
        metadata_table: Name of the metadata table; the sessions table's and `_metadata` by default.

    Returns:
        The tables.

    Raises:
        ValueError: If two of them have one name.
    """
    names = table_names(sessions_table, messages_table, metadata_table)
    return build_tables(metadata if metadata is not None else MetaData(), names, CREATE_TYPES)


def in_use(database: Database, connection: Connection) -> Iterator[Feature]:
    # One statement for all features that have not been used yet.
    used = database.having_tables(connection, [feature.name for feature in features()])
    yield from (feature for feature in features() if feature.name in used)


def hold(database: Database, connection: Connection, session_id: str) -> Exception | None:
    found = in_use(database, connection)
    problems = (feature.hold(database, connection, session_id) for feature in found)
    return next(filter(None, problems), None)


def prepare_change(database: Database, connection: Connection, session_id: str) -> None:
    """Raises if the history of a locked session must not change now."""
    used = list(in_use(database, connection))
    for feature in used:
        problem = feature.hold(database, connection, session_id)
        if problem is not None:
            raise problem
    for feature in used:
        feature.give_up(database, connection, session_id)


def end_history(database: Database, connection: Connection, session_id: str) -> None:
    for feature in in_use(database, connection):
        feature.end(database, connection, session_id)
