"""The registry of optional features: what the core asks of each, without knowing it.

A feature is a folder beside this one, with a module `feature` that defines `FEATURE`. Without the
folder, the rest works as if nobody had used the feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection

from agents_session_metadata.types import IndexInfo

from .definitions import TableMaker, derived_name

if TYPE_CHECKING:
    from .database import Database

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


@dataclass(frozen=True)
class Feature:
    """The tables of a feature, and what it does when sessions and histories change.

    The functions are only called if the tables exist, but for `define`, `parse` and `insert_items`.

    Attributes:
        name: The name of its group of tables.
        suffixes: The ends of the names of its tables, which begin with that of the metadata table.
        define: Makes the tables.
        hold: Returns the error that a change of a locked session's history raises, if it must not
            change now.
        give_up: Ends what depends on the history of a locked session but does not hold it, before
            the history changes.
        end: Deletes what depends on the history of a locked session, before the history is deleted.
        spared: Returns the condition that retention may delete a session, given an age.
        fork: Copies its rows of a locked session to a new one, given the ids of the items that were
            copied; None if all were.
        field: The name of its part of an exported record.
        export: Returns its parts of the records of some sessions, as JSON, by session id.
        parse: Checks a part of a record, with a function that validates JSON as a type.
        load: Inserts parts that `parse` returned, by the id of a new session.
        count: Counts what `Statistics.feedback` contains, for the sessions of a condition.
        statuses: Returns the status of the runs of some sessions, by session id.
        insert_items: Inserts items of a locked session in place of the core, or returns False.
        added: Called with the ids of sessions that were imported with their items.
        index: Its index.
    """

    name: str
    suffixes: tuple[str, ...]
    define: Callable[[TableMaker], object]
    hold: Callable[[Database, Connection, str], Exception | None] | None = None
    give_up: Callable[[Database, Connection, str], None] | None = None
    end: Callable[[Database, Connection, str], None] | None = None
    spared: Callable[[timedelta], Any] | None = None
    fork: Callable[[Database, Connection, str, str, Sequence[int] | None], None] | None = None
    field: str | None = None
    export: Callable[[Database, Connection, Sequence[str]], Mapping[str, Any]] | None = None
    parse: Callable[[Any, Callable[..., Any]], Any] | None = None
    load: Callable[[Database, Connection, Mapping[str, Any]], None] | None = None
    count: Callable[[Database, Connection, Any], dict[str, int]] | None = None
    statuses: Callable[[Database, Connection, Sequence[str]], Mapping[str, str]] | None = None
    insert_items: Callable[[Database, Connection, str, Sequence[str]], bool] | None = None
    added: Callable[[Database, Connection, Sequence[str]], None] | None = None
    index: type[Index] | None = None

    def names(self, metadata_table: str) -> tuple[str, ...]:
        return tuple(derived_name(metadata_table, suffix) for suffix in self.suffixes)


@cache
def features() -> tuple[Feature, ...]:
    package = __name__.partition(".")[0]
    names = [f"{package}.{folder}" for folder in FOLDERS]
    return tuple(
        import_module(f"{name}.feature").FEATURE for name in names if find_spec(name) is not None
    )


def in_use(database: Database, connection: Connection) -> Iterator[Feature]:
    # One look, for all that nobody has used yet.
    used = database.having_tables(connection, [feature.name for feature in features()])
    yield from (feature for feature in features() if feature.name in used)


def hold(database: Database, connection: Connection, session_id: str) -> Exception | None:
    for feature in in_use(database, connection):
        problem = feature.hold and feature.hold(database, connection, session_id)
        if problem:
            return problem
    return None


def prepare_change(database: Database, connection: Connection, session_id: str) -> None:
    """Raises if the history of a locked session must not change now."""
    problem = hold(database, connection, session_id)
    if problem is not None:
        raise problem
    for feature in in_use(database, connection):
        if feature.give_up is not None:
            feature.give_up(database, connection, session_id)


def end_history(database: Database, connection: Connection, session_id: str) -> None:
    for feature in in_use(database, connection):
        if feature.end is not None:
            feature.end(database, connection, session_id)
