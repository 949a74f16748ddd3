"""The activity index and the text index: their triggers and their rows.

Repairs add and delete rows of the indexes only. Of the text index, the words of the newest messages
and of the titles are compared; what belongs to nothing is found in all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any

from sqlalchemy import (
    and_,
    delete,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    type_coerce,
)

from agents_session_metadata.dialects._triggers import RowTrigger
from agents_session_metadata.dialects.sqltypes import ID_LENGTH
from agents_session_metadata.keys import TITLE
from agents_session_metadata.quoting import quoted
from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.activity_check import activity_triggers, compare
from agents_session_metadata.storage.definitions import TableGroup
from agents_session_metadata.storage.index_states import COMPLETE, DROPPING, FILLING
from agents_session_metadata.storage.shapes import (
    CONFLICTS,
    MERGING,
    conflict_problems,
    merging_indexes,
    unique_keys,
)
from agents_session_metadata.storage.word_index import Queued, WordIndex, item_text, title_text
from agents_session_metadata.storage.words import TEXT, TITLE_ITEM, WORDS, word_triggers

from .findings import Finding
from .inspection import Inspection

BATCH = 200
COMPARED = 10_000
"""How many of the newest messages, and how many titles, are compared with their words."""
REQUEUED = 500
"""How many of them are queued again by one statement."""

_CREATE = "agent-sessions index create '$text'"
_MAY_FAIL = "no index needs it, and it can make writes fail or change an index of other tables"
_AGAIN = f"run agent-sessions index drop '$text', and then {_CREATE}"


def check_merging(inspection: Inspection) -> Iterator[Finding]:
    """Keys by which a write could change or replace the row of another session."""
    connection = inspection.connection
    for _, clause in conflict_problems(connection, inspection.present):
        yield Finding("error", "indexes", f"{clause}: {CONFLICTS}")
    own = [table for table in inspection.own if table in inspection.present]
    for table, name, _ in merging_indexes(connection, unique_keys(connection, own)):
        problem = f"{table.name} has the unique index {name}: {MERGING}"
        yield Finding("error", "indexes", problem)


def trigger_problem(inspection: Inspection, name: str, create: tuple[str, ...]) -> str | None:
    """What is wrong with a trigger that these statements create; None if nothing is."""
    found = inspection.triggers.get(name)
    if found is None:
        return f"trigger {name} is missing"
    problem = "does something else or is switched off, or its user does not exist"
    return None if found.is_created_by(create) else f"trigger {name} {problem}"


def _unfinished(key: str, state: int | None) -> str:
    """What to do about an index that is not complete; the state is None if only rows are left."""
    index = "the text index" if key == TEXT else f"the index on {quoted(key)}"
    create, drop = (f"agent-sessions index {verb} {quote(key)}" for verb in ("create", "drop"))
    if state is None:
        return f"{index} does not exist, and there are rows of it; {create} creates it again"
    if state == DROPPING:
        return f"dropping {index} was interrupted; {drop} completes it, {create} creates it again"
    return f"{index} is not complete; {create} continues it, {drop} deletes it"


def _is_comparable(inspection: Inspection, group: TableGroup) -> bool:
    """Whether all tables are there, so that a query on them does not fail."""
    names = {table.name for table in (*inspection.core, *group.tables)}
    tables = [table for table in inspection.present if table.name in names]
    expected = inspection.expected
    owners = {"session_id": expected.sessions.c.session_id, "key": expected.metadata.c.key}
    return len(tables) == len(names) and all(
        inspection.is_readable(table, table.c.keys())
        and all(
            inspection.is_joinable(table.c[name], own)
            for name, own in owners.items()
            if name in table.c
        )
        for table in tables
    )


def check_activity(inspection: Inspection) -> Iterator[Finding]:
    """Whether every index has exactly the entries that it should have."""
    connection, tables = inspection.connection, inspection.tables
    group = tables.group(ACTIVITY)
    if not _is_comparable(inspection, group):
        return
    indexes, entries = group.tables
    states = connection.execute(
        select(indexes.c.key, indexes.c.state).order_by(indexes.c.key)
    ).all()
    triggers = activity_triggers(connection, tables, [key for key, _ in states])
    effect = "the activity index is not maintained"
    if not states:
        # They stay when the last index is dropped.
        triggers, effect = _existing(inspection, triggers), _MAY_FAIL
    yield from _open(inspection, "activity", triggers)
    for trigger, create, problem in _wrong_triggers(inspection, triggers):
        is_there = trigger.plain in inspection.triggers
        repair = (*(_drop(inspection, trigger) if is_there else ()), *create)
        yield Finding("error", "activity", f"{problem}: {effect}", repair)
    for key, state in states:
        if state != COMPLETE:
            yield Finding("warning", "activity", _unfinished(key, state))
            continue
        if not all(map(inspection.has_key, inspection.core)):
            # Of two rows with equal keys, only one can have an entry.
            continue
        wrong, missing, repair = compare(connection, tables, key)
        if wrong or missing:
            yield Finding(
                "error",
                "activity",
                f"the index on {quoted(key)} has {wrong} wrong or extra entries, "
                f"and {missing} are missing",
                tuple(inspection.sql(statement, literals=True) for statement in repair),
            )
    yield from _extra(
        inspection, "activity", entries, ~exists().where(indexes.c.key == entries.c.key)
    )


def check_words(inspection: Inspection) -> Iterator[Finding]:
    """Whether the text index has the words of all messages and titles that do not wait for it."""
    connection, tables = inspection.connection, inspection.tables
    group = tables.group(WORDS)
    if not _is_comparable(inspection, group):
        return
    words, queue, state = group.tables
    found = connection.execute(select(state.c.state).where(state.c.key == TEXT)).scalar()
    triggers = word_triggers(connection, tables.tables, group)
    if found is None:
        for trigger, _, problem in _wrong_triggers(inspection, _existing(inspection, triggers)):
            drop = _drop(inspection, trigger)
            yield Finding("error", "words", f"{problem}: {_MAY_FAIL}", drop)
        if not inspection.is_filled(words) and not inspection.is_filled(queue):
            return
    if found != COMPLETE:
        yield Finding("warning", "words", _unfinished(TEXT, found))
    if found not in (COMPLETE, FILLING):
        return
    if found == FILLING:
        # Triggers that are missing are created when the index is continued.
        triggers = _existing(inspection, triggers)
    yield from _open(inspection, "words", triggers)
    for trigger, _, problem in _wrong_triggers(inspection, triggers):
        advice = f"; {_CREATE} creates it and indexes what was missed"
        if trigger.plain in inspection.triggers:
            advice = f"; {_AGAIN}"
        yield Finding("error", "words", problem + advice)
    if found == FILLING:
        return
    _, messages, rows, _ = tables.tables
    of_items = f"{words.c.item_id.name} <> {TITLE_ITEM}"
    if not inspection.is_filled(messages) and inspection.count(words, of_items):
        problem = (
            f"{words.name} has rows of messages, and {messages.name} is empty; {_AGAIN}, if the"
            " name is right"
        )
        yield Finding("error", "words", problem)
        return
    for table in (words, queue):
        item = and_(messages.c.id == table.c.item_id, messages.c.session_id == table.c.session_id)
        title = and_(rows.c.key == TITLE, rows.c.session_id == table.c.session_id)
        is_title = table.c.item_id == TITLE_ITEM
        gone = or_(and_(~is_title, ~exists().where(item)), and_(is_title, ~exists().where(title)))
        yield from _extra(inspection, "words", table, gone)
    yield from _different(inspection, WordIndex(tables, inspection.ways))


def _wrong_triggers(
    inspection: Inspection, triggers: list[RowTrigger]
) -> Iterator[tuple[RowTrigger, tuple[str, ...], str]]:
    """The triggers that are missing or wrong, with what creates them and what is wrong."""
    for trigger in triggers:
        create = inspection.typed(inspection.ways.triggers.create(trigger))
        problem = trigger_problem(inspection, trigger.plain, create)
        if problem is not None:
            yield trigger, create, problem


def _existing(inspection: Inspection, triggers: list[RowTrigger]) -> list[RowTrigger]:
    return [each for each in triggers if each.plain in inspection.triggers]


def _drop(inspection: Inspection, trigger: RowTrigger) -> tuple[str, ...]:
    drop = inspection.ways.triggers.drop(trigger.schema, trigger.name, trigger.table)
    return inspection.typed([drop])


def _open(inspection: Inspection, check: str, triggers: list[RowTrigger]) -> Iterator[Finding]:
    """Functions of triggers that other users may attach to tables of their own."""
    found = [each for each in triggers if each.plain in inspection.open_triggers]
    if found:
        problem = (
            "every database user may execute trigger functions that write to an index with the"
            f" rights of their owner: {', '.join(each.plain for each in found)}"
        )
        repair = [each for one in found for each in inspection.ways.triggers.revoke(one)]
        yield Finding("warning", check, problem, inspection.typed(repair))


def _extra(inspection: Inspection, check: str, table: Any, condition: Any) -> Iterator[Finding]:
    """Rows of an index that belong to nothing."""
    count = inspection.connection.scalar(select(func.count()).select_from(table).where(condition))
    if count:
        problem = f"{count} {'row' if count == 1 else 'rows'} of {table.name} belong to nothing"
        repair = inspection.sql(delete(table).where(condition), literals=True)
        yield Finding("error", check, problem, (repair,))


def _different(inspection: Inspection, index: WordIndex) -> Iterator[Finding]:
    """Messages and titles whose words are not what they should be; they are queued again."""
    sessions, messages, rows, _ = inspection.tables.tables
    ways, queue, wrong = inspection.ways, index.queue, list[Queued]()
    time = type_coerce(ways.stored_time(messages.c.created_at), ways.stored_time_type())
    title_time = ways.stored_time(ways.local_time(rows.c.updated_at))
    title: Any = literal_column(str(TITLE_ITEM))
    # The time of a title depends on the zone of the client.
    sources: Any = (
        (
            messages.c.id,
            messages.c.id,
            messages.c.message_data,
            time,
            and_(messages.c.id > TITLE_ITEM, time.is_not(None)),
        ),
        (
            rows.c.session_id,
            title,
            rows.c.value,
            null(),
            and_(rows.c.key == TITLE, title_time.is_not(None)),
        ),
    )
    for key, item, stored, at, condition in sources:
        session_id, done = key.table.c.session_id, 0
        waits = exists().where(queue.c.session_id == session_id, queue.c.item_id == item)
        has_session = exists().where(sessions.c.session_id == session_id)
        fits = func.length(session_id) <= ID_LENGTH
        batch = select(session_id, item, stored, at, key).order_by(key.desc()).limit(BATCH)
        batch = batch.where(condition, ~waits, has_session, fits)
        found = inspection.connection.execute(batch).all()
        while found and done < COMPARED:
            done += len(found)
            wrong += _wrong(inspection, index, found)
            found = inspection.connection.execute(batch.where(key < found[-1][4])).all()
    if wrong:
        some = wrong[:REQUEUED]
        key = tuple_(index.words.c.session_id, index.words.c.item_id)
        repair = (
            delete(index.words).where(key.in_(some)),
            ways.insert_missing(queue).values([each._asdict() for each in some]),
        )
        problem = f"{len(wrong)} messages or titles have missing or wrong words"
        if len(some) < len(wrong):
            problem += f", of which these statements repair {len(some)}"
        problem += (
            "; the statements queue them, and agent-sessions index refresh '$text' indexes them"
        )
        statements = tuple(inspection.sql(each, literals=True) for each in repair)
        yield Finding("error", "words", problem, statements)


def _wrong(inspection: Inspection, index: WordIndex, found: Any) -> list[Queued]:
    """Those of some messages or titles that have other words than they should have."""
    texts: dict[Queued, tuple[str | None, Any]] = {}
    for session_id, item_id, stored, at, _ in found:
        text = item_text(stored) if item_id else title_text(stored)
        texts[Queued(session_id, item_id)] = text, at or TITLE
    wanted: dict[Queued, set[Any]] = {each: set() for each in texts}
    actual: dict[Queued, set[Any]] = {each: set() for each in texts}
    for row in index.rows(texts):
        own = Queued(row["session_id"], row["item_id"])
        wanted[own].add((row["word"], row["created_at"]))
    words = index.words
    created_at = type_coerce(words.c.created_at, inspection.ways.stored_time_type())
    columns = words.c.session_id, words.c.item_id, words.c.word, created_at
    statement: Any = select(*columns).where(
        words.c.session_id.in_({each.session_id for each in texts}),
        words.c.item_id.in_({each.item_id for each in texts}),
    )
    found_rows: Any = inspection.connection.execute(statement)
    for session_id, item_id, word, at in found_rows:
        if (own := Queued(session_id, item_id)) in actual:
            actual[own].add((bytes(word), at if item_id else TITLE))
    return [each for each in texts if wanted[each] != actual[each]]
