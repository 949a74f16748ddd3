"""The statements of a search.

Each reads the newest candidates after a position. One expression per item tests its words, which no
planner reorders; what is sorted has no text; and the texts of the few rows that are left are read
last. Limits are in the text of statements, where planners see them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    String,
    and_,
    bindparam,
    exists,
    func,
    not_,
    null,
    or_,
    select,
    true,
)

from agents_session_metadata.core.messages import in_order
from agents_session_metadata.dialects._dialect import Statement, literal_number, literal_parameter
from agents_session_metadata.dialects.sqltypes import Words
from agents_session_metadata.keys import TITLE
from agents_session_metadata.query.statements import Builder
from agents_session_metadata.values import SEARCH_KEY_BYTES

from .feature import TEXT

_ZERO = literal_number(0)
_ONE = literal_number(1)


class Way(Enum):
    """The items that are candidates.

    All in scope; of all items, the newest; those in the database's own index; and those that cannot
    be in it, because they have no row.
    """

    ALL = "all"
    NEWEST = "newest"
    NATIVE = "native"
    MISSING = "missing"


class Shape(NamedTuple):
    """The parts of a question that change the text of its statement.

    `patterns` has, for each substring, whether it is excluded.
    `sessions` is the number of ids; if it is None, the condition is tested for each item. With
    `strict`, items without a row are no candidates. With `by_session`, hits are left out that have
    a newer one in their session, unless only an item without a row can be newer.
    """

    way: Way
    patterns: tuple[bool, ...]
    sessions: int | None
    after: bool
    by_session: bool
    strict: bool


class SearchBuilder(Builder):
    def scope(self) -> Statement:
        """Reads the state, and ids, titles and numbers of items of some sessions.

        A row without a session is returned if there are none, or if all are searched.
        """
        state = self._tables.group(TEXT)["_text_state"]
        if self._condition.constant is True:
            return select(state.c.native, state.c.filled, null(), null(), null())
        source, messages = self.source(), self._tables.messages
        items = select(func.count()).where(messages.c.session_id == source.session_id)
        title, counted = (
            self._title(source.session_id).label("title"),
            items.correlate_except(messages).scalar_subquery().label("items"),
        )
        columns = source.session_id.label("session_id"), title, counted
        own = source.select(*columns).limit(literal_parameter("limit")).subquery("own")
        return select(state.c.native, state.c.filled, *own.c).select_from(
            state.outerjoin(own, true())
        )

    def hits(self, shape: Shape) -> Statement:
        items = self._items(shape)
        truths = [self._test(items.c.id, shape, missing=not shape.strict)]
        if shape.way is Way.NEWEST:
            truths.append(self._in_scope(items.c.session_id, shape))
        elif shape.way is not Way.ALL:
            truths = [] if shape.way is Way.NATIVE else [self._has_row(items.c.id) == _ZERO]
        place = [items.c.created_at, items.c.id, items.c.session_id]
        before = [] if shape.way is Way.NEWEST else self._before(items, shape)
        if shape.by_session and shape.way is Way.NEWEST:
            newer = self._tables.messages.alias("newer")
            later = or_(
                newer.c.created_at > items.c.created_at,
                and_(newer.c.created_at == items.c.created_at, newer.c.id > items.c.id),
            )
            is_hit = self._test(newer.c.id, shape, missing=False)
            same = newer.c.session_id == items.c.session_id
            truths.append(not_(exists().where(same, later, is_hit)))
        elif shape.by_session:
            order = in_order(items, newest_first=True)
            own: Any = {"partition_by": items.c.session_id, "order_by": order, "rows": (None, -1)}
            newer_hits = func.coalesce(func.sum(self._has_row(items.c.id)).over(**own), _ZERO)
            items = select(*place, newer_hits.label("newer")).where(*truths).subquery("ranked")
            place = [items.c.created_at, items.c.id, items.c.session_id]
            truths, before = [items.c.newer == _ZERO], self._before(items, shape)
        time: Any = items.c.created_at
        if shape.way is Way.ALL:
            # A planner could read all items in the order of an index, to find a few of them.
            time = self._dialect.stored_time.of(self._dialect.unindexed(time))
        found = select(*place).where(*truths, *before).order_by(time.desc(), items.c.id.desc())
        return self._with_texts(found.limit(literal_parameter("limit")).subquery("page"))

    def count_candidates(self, shape: Shape) -> Statement:
        """Also reads the newest item."""
        newest: Any = select(func.max(self._tables.messages.c.id)).scalar_subquery()
        return select(func.count(), newest).select_from(self._native(shape).subquery("candidates"))

    def titles(self, shape: Shape) -> Statement:
        """Reads titles that can match, at the position of the newest item of each session."""
        messages, sessions = self._tables.messages, self._tables.sessions
        titled, stored = self._tables.metadata.alias("titled"), self._dialect.stored_time
        own_id = titled.c.session_id
        newest = select(messages.c.id).where(messages.c.session_id == own_id).limit(_ONE)
        newest = newest.order_by(*in_order(messages, newest_first=True)).correlate(titled)
        at = newest.with_only_columns(messages.c.created_at).scalar_subquery()
        titles = (
            select(
                own_id,
                titled.c.value,
                func.coalesce(at, sessions.c.updated_at).label("created_at"),
                func.coalesce(newest.scalar_subquery(), _ZERO).label("id"),
            )
            .join_from(titled, sessions, self._dialect.looked_up(sessions.c.session_id, own_id))
            .where(
                titled.c.key == _title_key(),
                self._can_match(titled.c.search_key),
                self._in_scope(own_id, shape),
            )
        )
        found = self._dialect.text_search.fenced(titles).subquery("titles")
        time, sorted_id = stored.of(found.c.created_at), self._context.sorted_id(found.c.session_id)
        place = time, found.c.id, found.c.session_id
        statement = select(*place, self._dialect.moment.of(found.c.created_at), found.c.value)
        if shape.after:
            end, item = _after(stored), bindparam("after_title", type_=BigInteger)
            last = and_(found.c.id == item, sorted_id < bindparam("after_session", type_=String))
            later = or_(time < end, and_(time == end, or_(found.c.id < item, last)))
            statement = statement.where(later)
        order = time.desc(), found.c.id.desc(), sorted_id.desc()
        return statement.order_by(*order).limit(literal_parameter("limit"))

    # ---- parts ----

    def _items(self, shape: Shape) -> FromClause:
        messages = self._tables.messages
        found = select(messages.c.created_at, messages.c.id, messages.c.session_id)
        if shape.way is Way.NEWEST:
            if shape.after:
                # From there, an index of items in their order is read.
                reaches = self._dialect.reaches(messages.c.created_at, descending=True)
                found = found.where(reaches, *self._before(messages, shape))
            window = found.order_by(*in_order(messages, newest_first=True))
            return window.limit(literal_parameter("window")).subquery("items")
        if shape.way is Way.NATIVE:
            candidates = self._native(shape).cte("candidates").prefix_with("MATERIALIZED")
            found = found.where(self._dialect.looked_up(messages.c.id, candidates.c.id))
        elif shape.way is Way.MISSING:
            # With both ends, PostgreSQL expects few items, even without statistics. If it expected
            # many, it would compile the statement, which takes a tenth of a second.
            first, last = (bindparam(name, type_=BigInteger) for name in ("filled", "newest"))
            found = found.where(messages.c.id > first, messages.c.id <= last)
        in_scope = found.where(self._in_scope(messages.c.session_id, shape))
        return self._dialect.text_search.fenced(in_scope).subquery("items")  # type: ignore[no-any-return]

    def _native(self, shape: Shape) -> Any:
        group = self._tables.group(TEXT)
        rows, index = group["_text"], group.virtual[0]
        condition = self._dialect.text_search.native_condition(rows, index)
        found = select(rows.c.id).where(condition, self._contained(rows, shape))
        return found.limit(literal_parameter("candidates"))

    def _test(self, item_id: Any, shape: Shape, *, missing: bool) -> ColumnElement[bool]:
        """Holds if stored words match; without a row, if `missing`."""
        rows = self._tables.group(TEXT)["_text"]
        test: Any = select(self._contained(rows, shape)).where(rows.c.id == item_id)
        found = test.correlate_except(rows).scalar_subquery()
        default = true() if missing else not_(true())
        result: ColumnElement[bool] = func.coalesce(found, default, type_=Boolean)
        return result

    def _has_row(self, item_id: Any) -> ColumnElement[int]:
        """Returns 0 or 1."""
        rows = self._tables.group(TEXT)["_text"]
        found = select(_ONE).where(rows.c.id == item_id).correlate_except(rows)
        return func.coalesce(found.scalar_subquery(), _ZERO, type_=Integer)

    def _contained(self, rows: FromClause, shape: Shape) -> ColumnElement[bool]:
        truths = []
        for number, excluded in enumerate(shape.patterns):
            pattern: Any = bindparam(f"pattern_{number}", type_=Words())
            found = self._dialect.text_search.contains(rows.c.words, pattern)
            truths.append(not_(found) if excluded else found)
        return and_(*truths)

    def _in_scope(self, session_id: Any, shape: Shape) -> ColumnElement[bool]:
        if shape.sessions is None:
            return self.truth(session_id)
        return self._dialect.one_of(session_id, "ids", shape.sessions)

    def _can_match(self, search_key: Any) -> ColumnElement[bool]:
        """Holds for titles with a word of the query. Titles that are not ASCII all count."""
        lower, is_ascii = self._dialect.text_search.plain(search_key)
        is_whole = func.length(search_key) < literal_number(SEARCH_KEY_BYTES)
        word: Any = bindparam("title_word", type_=String)
        found = self._dialect.text_search.contains(lower, word)
        return or_(not_(and_(is_ascii, is_whole)), found)

    def _with_texts(self, page: FromClause) -> Statement:
        """Adds texts; whether the session is in scope, and the item has a row; and the title."""
        texts, time = self._tables.messages.alias("texts"), page.c.created_at
        return (
            select(
                self._dialect.stored_time.of(time),
                page.c.id,
                page.c.session_id,
                self._dialect.moment.of(time),
                texts.c.message_data,
                self.truth(page.c.session_id),
                self._has_row(page.c.id),
                self._title(page.c.session_id),
            )
            .join_from(page, texts, texts.c.id == page.c.id)
            .order_by(*in_order(page, newest_first=True))
        )

    def _title(self, session_id: Any) -> Any:
        rows = self._tables.metadata.alias("title")
        own = select(rows.c.value).where(
            rows.c.session_id == session_id, rows.c.key == _title_key()
        )
        return own.correlate_except(rows).scalar_subquery()

    def _before(self, items: FromClause, shape: Shape) -> list[ColumnElement[bool]]:
        if not shape.after:
            return []
        stored = self._dialect.stored_time
        time, end = stored.of(items.c.created_at), _after(stored)
        is_next = items.c.id < bindparam("after_item", type_=BigInteger)
        return [time <= end, or_(time < end, is_next)]


def _after(stored: Any) -> Any:
    return bindparam("after_time", type_=stored)


def _title_key() -> Any:
    return bindparam("title_key", TITLE, type_=String)
