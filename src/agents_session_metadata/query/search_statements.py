"""The statements of a search, each built once per shape of the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    String,
    bindparam,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
)

from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.keys import TITLE
from agents_session_metadata.storage.words import TEXT, WORDS
from agents_session_metadata.values import upper_bound

from .builder import Builder, limit_of_call
from .conditions import UNLIMITED, bytes_of_call
from .logic import Condition, Context

QUEUE_READ = 1_000
"""Rows of a long queue that are read."""
_ONE: ColumnElement[int] = literal_column("1")


@dataclass(frozen=True)
class Shape:
    """What changes the statements that read the entries of a word or prefix.

    Attributes:
        by_prefix: Whether the entries are those of a prefix, not of a word.
        words: The number of other words that a text must have.
        prefixes: The number of other prefixes.
        after: Whether to begin after a place.
    """

    by_prefix: bool
    words: int
    prefixes: int
    after: bool


class SearchBuilder(Builder):
    """Builds the statements."""

    def __init__(self, context: Context, condition: Condition) -> None:
        super().__init__(context, condition)
        self._words, self._queue, self._state = self._tables.group(WORDS).tables

    def state(self, sessions: int | None, *, counted: bool) -> Statement:
        """The state of the index, whether something waits to be indexed, and the index's token.

        Args:
            sessions: The number of sessions to search in, if they are few.
            counted: Whether to count the entries of a word, up to a limit.
        """
        queue = self._queue
        waiting: ColumnElement[bool]
        if sessions is None:
            some = select(queue.c.session_id).limit(literal_column(str(QUEUE_READ)))
            part, whole = some.subquery("waiting"), some.subquery("queued")
            count = select(func.count()).select_from(whole).scalar_subquery()
            # With a long queue, of which none is in the part that is read, the answer is yes.
            waiting = or_(
                exists().where(self.truth(part.c.session_id)).select_from(part),
                count == literal_column(str(QUEUE_READ)),
            )
        elif sessions:
            waiting = exists().where(self._dialect.one_of(queue.c.session_id, "ids", sessions))
        else:
            waiting = false()
        columns: list[Any] = [self._state.c.state, waiting.label("waiting"), self._state.c.token]
        if counted:
            columns.append(self._count(self._words.c.word == bytes_of_call("word")))
        return select(*columns).where(self._state.c.key == literal_column(f"'{TEXT}'"))

    def counts(self, words: int) -> Statement:
        """How many entries each of so many words has, up to a limit."""
        return select(
            *(self._count(self._words.c.word == bytes_of_call(f"word_{n}")) for n in range(words))
        )

    def count_of_prefix(self) -> Statement:
        """How many entries a prefix has, up to a limit."""
        return select(self._count(_begins(self._words.c.word, "")))

    def sorted(self, shape: Shape, sessions: int | None) -> Statement:
        """The first places of all entries, with their texts.

        Args:
            shape: The shape.
            sessions: The number of sessions to read the entries of, if they are few. The condition
                is then returned for each place, and not part of what is sorted.
        """
        words = self._words.alias("entries")
        inner: Any = select(words.c.session_id, words.c.created_at, words.c.item_id).where(
            _begins(words.c.word, "") if shape.by_prefix else words.c.word == bytes_of_call("word")
        )
        if sessions is not None:
            inner = self._dialect.rows_of_each(inner, words.c.session_id, "ids", sessions)
        if shape.by_prefix:
            inner = inner.distinct()
        # With a limit, no planner walks in the order of the page instead.
        rows = inner.limit(UNLIMITED).subquery("entries_of_word")
        statement = self._narrowed(rows, shape)
        if sessions is None:
            statement = statement.where(self.truth(rows.c.session_id))
        statement = self._after(statement, rows, shape).order_by(*self._order(rows))
        return self._with_texts(statement, checked=sessions is None)

    def walked(self, shape: Shape) -> Statement:
        """The first places among the next entries of a word, with their texts."""
        rows = self._walk(shape).limit(limit_of_call("size")).subquery("walked")
        statement = self._narrowed(rows, shape).where(self.truth(rows.c.session_id))
        return self._with_texts(statement.order_by(*self._order(rows)), checked=True)

    def end_of_walk(self, shape: Shape) -> Statement:
        """The last of these entries, if there are as many."""
        return self._walk(shape).offset(limit_of_call("offset")).limit(_ONE)

    def titles(self, sessions: int) -> Statement:
        """The titles of some sessions."""
        rows, dialect = self._tables.metadata, self._dialect
        written = dialect.utc(dialect.local_time(rows.c.updated_at))
        return select(rows.c.session_id, written, rows.c.value).where(
            rows.c.key == literal_column(f"'{TITLE}'"),
            dialect.one_of(rows.c.session_id, "titled", sessions),
            self.truth(rows.c.session_id),
        )

    def _count(self, condition: ColumnElement[bool]) -> Any:
        some = select(self._words.c.item_id).where(condition).limit(limit_of_call()).subquery()
        return select(func.count()).select_from(some).scalar_subquery()

    def _walk(self, shape: Shape) -> Any:
        words = self._words.alias("entries")
        columns = words.c.session_id, self._time(words), words.c.item_id
        entries = select(*columns).where(words.c.word == bytes_of_call("word"))
        return self._after(entries, words, shape).order_by(*self._order(words))

    def _narrowed(self, rows: FromClause, shape: Shape) -> Any:
        """Only texts that have the other words as well; looked up by primary key, one by one."""
        statement: Any = select(rows.c.session_id, self._time(rows), rows.c.item_id)
        for number in range(shape.words):
            others = self._words.alias(f"word_{number}")
            found = select(_ONE).where(
                others.c.word == bytes_of_call(f"word_{number}"),
                others.c.session_id == rows.c.session_id,
                others.c.item_id == rows.c.item_id,
            )
            statement = statement.where(found.scalar_subquery() == _ONE)
        for number in range(shape.prefixes):
            others = self._words.alias(f"prefix_{number}")
            found = select(_ONE).where(
                others.c.session_id == rows.c.session_id,
                others.c.item_id == rows.c.item_id,
                _begins(others.c.word, f"_{number}"),
            )
            statement = statement.where(found.limit(_ONE).scalar_subquery() == _ONE)
        return statement

    def _with_texts(self, statement: Any, *, checked: bool) -> Statement:
        """Places up to the limit, with the stored messages and whether the condition holds."""
        page = statement.limit(limit_of_call()).subquery("page")
        messages = self._tables.messages
        holds = true() if checked else self.truth(page.c.session_id)
        return (
            select(
                page.c.session_id,
                page.c.created_at,
                page.c.item_id,
                messages.c.session_id.label("owner"),
                self._dialect.utc(messages.c.created_at).label("written"),
                messages.c.message_data.label("message_data"),
                holds.label("holds"),
            )
            .select_from(page.outerjoin(messages, messages.c.id == page.c.item_id))
            .order_by(*self._order(page))
        )

    def _time(self, rows: FromClause) -> Any:
        return type_coerce(rows.c.created_at, self._dialect.stored_time_type()).label("created_at")

    def _id(self, rows: FromClause) -> Any:
        return self._dialect.by_code_point(rows.c.session_id, native=False)

    def _order(self, rows: FromClause) -> list[Any]:
        return [rows.c.created_at.desc(), self._id(rows).desc(), rows.c.item_id.desc()]

    def _after(self, statement: Any, rows: FromClause, shape: Shape) -> Any:
        """What comes after a place: `a <= x AND (a < x OR …)`, which every index can follow."""
        if not shape.after:
            return statement
        time = bindparam("after_time", type_=self._dialect.stored_time_type())
        own_id, session_id = self._id(rows), bindparam("after_session_id", type_=String)
        item = rows.c.item_id < bindparam("after_item_id", type_=BigInteger)
        created_at = rows.c.created_at
        later = (own_id <= session_id) & ((own_id < session_id) | item)
        return statement.where(created_at <= time, (created_at < time) | later)


def prefix_parameters(prefix: bytes, name: str = "") -> dict[str, bytes]:
    """The parameters of a prefix."""
    return {f"begin{name}": prefix, f"end{name}": upper_bound(prefix)}


def _begins(word: ColumnElement[bytes], name: str) -> ColumnElement[bool]:
    return (word >= bytes_of_call(f"begin{name}")) & (word < bytes_of_call(f"end{name}"))
