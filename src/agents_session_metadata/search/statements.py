"""The statements of a search.

A statement reads the newest candidates after a position, in four ways. In each, one expression per
item tests its words, which no planner reorders; what is sorted has no text; and the texts of the
few rows that are left are read last. Limits are in the text of statements, where planners see them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    String,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
)

from agents_session_metadata.core.messages import in_order
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.dialects.sqltypes import Words
from agents_session_metadata.keys import TITLE
from agents_session_metadata.query.statements import Builder
from agents_session_metadata.values import SEARCH_KEY_BYTES

from .table import TEXT

ONE: Any = literal_column("1")


class Way(Enum):
    """How candidates are read: by session, newest first, all, or by the database's own index."""

    SESSIONS = "sessions"
    NEWEST = "newest"
    ALL = "all"
    NATIVE = "native"


class Shape(NamedTuple):
    """What changes the text of a statement.

    `patterns` has, for each term, whether it is excluded and how many substrings stand for it.
    `sessions` is the number of ids, None if they are not known; without ids, the condition is
    tested for each item unless `everything` is to be searched. With `strict`, items without a row
    are no candidates. `titles` adds the title of each hit's session.
    """

    way: Way
    patterns: tuple[tuple[bool, int], ...]
    sessions: int | None
    everything: bool
    after: bool
    by_session: bool
    strict: bool
    titles: bool


class SearchBuilder(Builder):
    def sessions(self) -> Statement:
        """Reads ids, titles, and the id of an item of each session that has many."""
        messages, values = self._tables.messages, self._tables.metadata.alias("titled")
        source, key = self.source(), bindparam("title_key", TITLE, type_=String)
        own_id = source.session_id
        title = select(values.c.value).where(values.c.session_id == own_id, values.c.key == key)
        many = select(messages.c.id).where(messages.c.session_id == own_id)
        many = many.order_by(messages.c.created_at).limit(ONE).offset(_given("few"))
        inner = (
            title.correlate_except(values).scalar_subquery(),
            many.correlate_except(messages).scalar_subquery(),
        )
        return source.select(own_id, *inner).limit(_given("limit"))

    def state(self, sessions: int | None) -> Statement:
        """Reads the state, and counts the items of some sessions up to a limit."""
        state = self._tables.group(TEXT)["_text_state"]
        count: Any = null()
        if sessions is not None:
            messages = self._tables.messages
            some = select(ONE).where(self._among(messages.c.session_id, sessions))
            counted = some.limit(_given("most")).subquery("some")
            count = select(func.count()).select_from(counted).scalar_subquery()
        newest: Any = select(func.max(self._tables.messages.c.id)).scalar_subquery()
        return select(state.c.native, state.c.filled, newest, count)

    def hits(self, shape: Shape) -> Statement:
        items, before = self._items(shape)
        truths = [self._test(items.c.id, shape, strict=shape.strict), *self._of_scope(items, shape)]
        columns = [items.c.created_at, items.c.id, items.c.session_id]
        if not shape.by_session:
            found = select(*columns).where(*truths, *before)
        elif shape.way is Way.NEWEST:
            newer = self._tables.messages.alias("newer")
            later = or_(
                newer.c.created_at > items.c.created_at,
                and_(newer.c.created_at == items.c.created_at, newer.c.id > items.c.id),
            )
            is_hit = self._test(newer.c.id, shape, strict=shape.strict)
            has_newer = exists().where(newer.c.session_id == items.c.session_id, later, is_hit)
            found = select(*columns).where(*truths, not_(has_newer))
        else:
            place = func.row_number().over(
                partition_by=items.c.session_id, order_by=in_order(items, newest_first=True)
            )
            placed = select(*columns, place.label("place")).where(*truths).subquery("placed")
            columns = [placed.c.created_at, placed.c.id, placed.c.session_id]
            before = self._before(placed, shape)
            found = select(*columns).where(placed.c.place == ONE, *before)
        found = found.order_by(*self._order(columns[0], columns[1], shape)).limit(_given("limit"))
        return self._with_texts(found.subquery("page"), shape)

    def count_candidates(self, shape: Shape) -> Statement:
        return select(func.count()).select_from(self._candidates(shape).subquery("candidates"))

    def missing(self, shape: Shape) -> Statement:
        """Reads items without a row."""
        items, before = self._items(shape, missing=True)
        columns = [items.c.created_at, items.c.id, items.c.session_id]
        found = select(*columns).where(
            not_(self._has_row(items.c.id)), *self._of_scope(items, shape), *before
        )
        found = found.order_by(*self._order(columns[0], columns[1], shape)).limit(_given("limit"))
        return self._with_texts(found.subquery("page"), shape)

    def end(self, *, after: bool) -> Statement:
        """Reads the position at which a window of the newest items ends."""
        messages = self._tables.messages
        place = select(self._dialect.stored_time.of(messages.c.created_at), messages.c.id)
        if after:
            place = place.where(*self._reaching(messages))
        ordered = place.order_by(*in_order(messages, newest_first=True))
        return ordered.limit(ONE).offset(_given("offset"))

    def titles(self, shape: Shape, words: int, *, only_ascii: bool) -> Statement:
        """Reads titles, at the position of the newest item of each session."""
        values, sessions = self._tables.metadata, self._tables.sessions
        messages, stored = self._tables.messages, self._dialect.stored_time
        # By the index of search keys: values are read where a title can have the words.
        titled = values.alias("titled")
        scope: Any = true()
        if shape.sessions is not None:
            scope = self._among(titled.c.session_id, shape.sessions)
        elif not shape.everything:
            scope = self.truth(titled.c.session_id)
        key = bindparam("title_key", TITLE, type_=String)
        own_ids = select(titled.c.session_id).where(
            titled.c.key == key,
            self._title_test(titled.c.search_key, words, only_ascii=only_ascii),
            scope,
        )
        of_titles = self._dialect.text_search.fenced(own_ids).subquery("of_titles")
        own_id = of_titles.c.session_id
        newest = select(messages.c.created_at, messages.c.id).where(messages.c.session_id == own_id)
        newest = newest.order_by(*in_order(messages, newest_first=True)).limit(ONE)
        newest = newest.correlate(of_titles)
        at = newest.with_only_columns(messages.c.created_at).scalar_subquery()
        item_id = newest.with_only_columns(messages.c.id).scalar_subquery()
        titles = (
            select(
                own_id,
                values.c.value,
                func.coalesce(at, sessions.c.updated_at).label("created_at"),
                func.coalesce(item_id, literal_column("0")).label("id"),
            )
            .join_from(of_titles, sessions, self._dialect.looked_up(sessions.c.session_id, own_id))
            .join(
                values,
                and_(self._dialect.looked_up(values.c.session_id, own_id), values.c.key == key),
            )
        )
        found = self._dialect.text_search.fenced(titles).subquery("titles")
        time, sorted_id = stored.of(found.c.created_at), self._context.sorted_id(found.c.session_id)
        statement = select(
            time,
            found.c.id,
            found.c.session_id,
            self._dialect.moment.of(found.c.created_at),
            found.c.value,
        )
        if shape.after:
            end, item, name = _after(stored)
            last = and_(found.c.id == item, sorted_id < name)
            statement = statement.where(
                or_(time < end, and_(time == end, or_(found.c.id < item, last)))
            )
        order = time.desc(), found.c.id.desc(), sorted_id.desc()
        return statement.order_by(*order).limit(_given("limit"))

    # ---- parts ----

    def _items(
        self, shape: Shape, *, missing: bool = False
    ) -> tuple[FromClause, list[ColumnElement[bool]]]:
        """Returns the items to test, and the condition that they are after the position."""
        messages = self._tables.messages
        columns = [messages.c.created_at, messages.c.id, messages.c.session_id]
        if shape.way is Way.SESSIONS:
            own = select(*columns).where(self._among(messages.c.session_id, shape.sessions or 0))
            items: FromClause = self._dialect.text_search.fenced(own).subquery("items")
        elif shape.way is Way.NEWEST:
            window = select(*columns).order_by(*in_order(messages, newest_first=True))
            if shape.after:
                window = window.where(*self._reaching(messages))
            return window.limit(_given("window")).subquery("items"), []
        elif shape.way is Way.ALL:
            items = messages.alias("items")
        elif missing:
            filled: Any = bindparam("filled", type_=BigInteger)
            items = select(*columns).where(messages.c.id > filled).subquery("items")
        else:
            candidates = self._candidates(shape).cte("candidates").prefix_with("MATERIALIZED")
            by_key = self._dialect.looked_up(messages.c.id, candidates.c.id)
            items = select(*columns).where(by_key).subquery("items")
        return items, self._before(items, shape)

    def _candidates(self, shape: Shape) -> Any:
        rows = self._tables.group(TEXT)["_text"]
        native = self._dialect.text_search.native_condition(rows)
        found = select(rows.c.id).where(native, self._contained(rows, shape))
        return found.limit(_given("candidates"))

    def _of_scope(self, items: FromClause, shape: Shape) -> list[ColumnElement[bool]]:
        if shape.way is Way.SESSIONS or shape.everything:
            return []
        if shape.sessions is not None:
            return [self._among(items.c.session_id, shape.sessions)]
        return [self.truth(items.c.session_id)]

    def _test(self, item_id: Any, shape: Shape, *, strict: bool) -> ColumnElement[bool]:
        if shape.way is Way.NATIVE:
            return true()
        rows = self._tables.group(TEXT)["_text"]
        test = select(self._contained(rows, shape)).where(rows.c.id == item_id)
        return self._dialect.text_search.or_else(
            test.correlate_except(rows).scalar_subquery(), default=not strict
        )

    def _contained(self, rows: FromClause, shape: Shape) -> ColumnElement[bool]:
        contains = self._dialect.text_search.contains
        truths = []
        for term, (excluded, count) in enumerate(shape.patterns):
            names = (f"pattern_{term}_{place}" for place in range(count))
            any_of = or_(
                *(contains(rows.c.words, bindparam(each, type_=Words())) for each in names)
            )
            truths.append(not_(any_of) if excluded else any_of)
        return and_(*truths)

    def _title_test(self, search_key: Any, words: int, *, only_ascii: bool) -> ColumnElement[bool]:
        """Holds for each title that can have the words, whose ASCII ones are parameters."""
        text_search = self._dialect.text_search
        lower, is_ascii = text_search.plain(search_key)
        is_whole = func.length(search_key) < literal_column(str(SEARCH_KEY_BYTES))
        names = (bindparam(f"title_{place}", type_=String) for place in range(words))
        has_words = and_(true(), *(text_search.contains(lower, name) for name in names))
        other = not_(and_(is_ascii, is_whole))
        return or_(other, has_words) if only_ascii else other

    def _with_texts(self, page: FromClause, shape: Shape) -> Statement:
        """Adds texts; whether the session is in scope; whether the item has no row; and a title."""
        messages, stored = self._tables.messages, self._dialect.stored_time
        values = self._tables.metadata
        title: Any = null()
        if shape.titles:
            title = (
                select(values.c.value)
                .where(
                    values.c.session_id == page.c.session_id,
                    values.c.key == bindparam("title_key", TITLE, type_=String),
                )
                .correlate(page)
                .scalar_subquery()
            )
        holds = true() if shape.everything else self.truth(page.c.session_id)
        texts = messages.alias("texts")
        return (
            select(
                stored.of(page.c.created_at),
                page.c.id,
                page.c.session_id,
                self._dialect.moment.of(page.c.created_at),
                texts.c.message_data,
                self._has_row(page.c.id),
                holds,
                title,
            )
            .join_from(page, texts, texts.c.id == page.c.id)
            .order_by(*in_order(page, newest_first=True))
        )

    def _has_row(self, item_id: Any) -> ColumnElement[bool]:
        rows = self._tables.group(TEXT)["_text"]
        found: Any = select(ONE).where(rows.c.id == item_id).correlate_except(rows)
        has: ColumnElement[bool] = (
            func.coalesce(found.scalar_subquery(), literal_column("0")) == ONE
        )
        return has

    def _among(self, session_id: Any, sessions: int) -> ColumnElement[bool]:
        return self._dialect.one_of(session_id, "ids", sessions)

    def _order(self, time: Any, item_id: Any, shape: Shape) -> list[Any]:
        if shape.way in (Way.ALL, Way.SESSIONS) and not shape.by_session:
            # A planner could read all items in the order of an index, to find a few of them.
            time = self._dialect.stored_time.of(self._dialect.unindexed(time))
        return [time.desc(), item_id.desc()]

    def _before(self, items: FromClause, shape: Shape) -> list[ColumnElement[bool]]:
        if not shape.after:
            return []
        time, (end, item, _) = (
            self._dialect.stored_time.of(items.c.created_at),
            _after(self._dialect.stored_time),
        )
        return [or_(time < end, and_(time == end, items.c.id < item))]

    def _reaching(self, messages: FromClause) -> list[ColumnElement[bool]]:
        """As `_before`, so that an index of items in their order is read from there."""
        time, (end, item, _) = (
            self._dialect.stored_time.of(messages.c.created_at),
            _after(self._dialect.stored_time),
        )
        reaches = self._dialect.reaches(messages.c.created_at, descending=True)
        return [reaches, time <= end, or_(time < end, messages.c.id < item)]


def _after(kind: Any) -> tuple[Any, Any, Any]:
    return (
        bindparam("after_time", type_=kind),
        bindparam("after_item", type_=BigInteger),
        bindparam("after_session", type_=String),
    )


def _given(name: str) -> Any:
    return bindparam(name, type_=Integer, literal_execute=True)
