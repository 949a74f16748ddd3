"""Imports and exports work in batches, and answer as if they went record by record."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from sqlalchemy import event

from agents_session_metadata import (
    InvalidMetadataError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.transfer.exports import EXPORTED
from conformance import raw

TIME = "2020-01-01T00:00:00+00:00"


def record(number: int, **changed) -> dict:
    return {
        "format": 1,
        "session_id": f"chat {number:04}",
        "created_at": TIME,
        "updated_at": TIME,
        "metadata": {"number": number, "tags": ["x", str(number)]},
        "items": [{"created_at": TIME, "item": raw.message(f"{number}")}],
        **changed,
    }


async def numbers(catalog) -> list[int]:
    return [info.metadata["number"] async for info in catalog.iter_sessions()]


@pytest.mark.parametrize("position", [0, 57, 99])
async def test_an_error_within_a_batch_leaves_what_was_before_it(catalog, position):
    records = [record(number) for number in range(100)]
    records[position]["metadata"] = {"number": {1, 2}}
    with pytest.raises(InvalidMetadataError, match=f"record {position + 1} "):
        await catalog.import_sessions(records)
    assert await numbers(catalog) == list(range(position))


async def test_a_conflict_within_a_batch_leaves_what_was_before_it(catalog):
    await catalog.create_session("chat 0070", metadata={"number": -1})
    with pytest.raises(SessionExistsError, match=r"record 71 .*chat 0070"):
        await catalog.import_sessions(record(number) for number in range(100))
    assert await numbers(catalog) == [*range(70), -1]


@pytest.mark.logic
async def test_the_first_of_two_errors_is_told(catalog):
    await catalog.create_session("chat 0070", metadata={"number": -1})
    records = [record(number) for number in range(100)]
    records[72]["items"] = 5
    with pytest.raises(SessionExistsError, match="record 71 "):
        await catalog.import_sessions(records)


async def test_conflicts_are_skipped_or_replaced_in_batches(catalog):
    await catalog.import_sessions(record(number) for number in range(0, 100, 3))
    changed = [record(number, metadata={"number": -number}) for number in range(100)]
    assert await catalog.import_sessions(changed, "skip") == 66
    assert await numbers(catalog) == [n if n % 3 == 0 else -n for n in range(100)]
    assert await catalog.import_sessions(changed, "replace") == 100
    assert await numbers(catalog) == [-number for number in range(100)]
    assert await raw.count_rows(catalog.engine, "agent_messages") == 100
    assert await raw.count_rows(catalog.engine, "agent_sessions_metadata_elements") == 0


async def test_a_record_that_comes_twice_in_a_batch(catalog):
    twice = [record(1), record(2), record(1, metadata={"number": 10}), record(3)]
    with pytest.raises(SessionExistsError, match="record 3 "):
        await catalog.import_sessions(twice)
    assert await catalog.import_sessions(twice, "replace") == 4
    assert await numbers(catalog) == [10, 2, 3]


@pytest.mark.logic
async def test_replacing_in_a_batch_stays_within_the_scope(catalog):
    mine = catalog.scoped({"owner_id": "mine"})
    await mine.import_sessions(record(number) for number in range(50))
    await catalog.create_session("chat 0060", metadata={"number": 60, "owner_id": "theirs"})
    with pytest.raises(SessionNotFoundError, match="record 61 "):
        await mine.import_sessions((record(number) for number in range(100)), "replace")
    assert await numbers(mine) == list(range(60))
    theirs = await catalog.get_metadata("chat 0060")
    assert theirs == {"number": 60, "owner_id": "theirs"}


@pytest.mark.logic
async def test_records_that_cannot_be_written_are_told_and_skipped(catalog):
    await catalog.create_session("chat 0005", metadata={"number": -1})
    records = [record(number) for number in range(40)]
    records[7]["metadata"] = {"": 1}
    records[20] = "not a record"
    told: list[str] = []
    written = await catalog.import_sessions(
        records, on_invalid=lambda error: told.append(str(error).partition(":")[0])
    )
    assert written == 37
    assert sorted(told) == ["record 21 (index 20)", "record 6 (index 5)", "record 8 (index 7)"]
    assert len(await numbers(catalog)) == 38


@pytest.mark.logic
async def test_progress_ends_with_the_number_of_records(catalog):
    done: list[int] = []
    await catalog.import_sessions((record(number) for number in range(60)), progress=done.append)
    assert done == sorted(done)
    assert done[-1] == 60
    await catalog.import_sessions([], progress=done.append)
    assert done[-1] == 0


async def test_two_imports_of_the_same_records_write_each_once(shared_database):
    one, other = (SessionCatalog(shared_database.engine(), create_tables=True) for _ in range(2))
    await one.count_sessions()
    records = [record(number) for number in range(200)]
    written = await asyncio.gather(
        one.import_sessions(records, "skip"), other.import_sessions(records[::-1], "skip")
    )
    assert sum(written) == 200
    assert await numbers(one) == list(range(200))
    assert await raw.count_rows(one.engine, "agent_messages") == 200


async def test_long_histories_are_exported_whole(catalog):
    records = [
        record(number, items=[{"created_at": TIME, "item": {"n": n}} for n in range(number % 11)])
        for number in range(EXPORTED + 11)
    ]
    await catalog.import_sessions(records)
    assert [each async for each in catalog.export_sessions()] == records


@pytest.mark.logic
async def test_times_may_end_in_z(catalog):
    await catalog.import_sessions([record(1, created_at="2020-01-01T00:00:00Z")])
    (info,) = (await catalog.list_sessions()).sessions
    assert info.created_at.isoformat() == TIME


async def test_strings_that_are_special_in_lists(catalog):
    odd = [
        "NULL",
        "",
        "null",
        "{a,b}",
        '"q"',
        "\\",
        "\\N",
        ",",
        " ",
        "'",
        "$1",
        ":a",
        "%s",
        "\n",
        "é",
    ]
    records = [
        record(
            number,
            session_id=f"{number:02} {text}",
            metadata={f"key {text}": text, "tags": [text, "x"], "long": text * 1_000},
            items=[
                {"created_at": TIME, "item": raw.message(each)} for each in (text, text * 1_000)
            ],
        )
        for number, text in enumerate(odd)
    ]
    # The first batches have one record each.
    assert await catalog.import_sessions([record(99, session_id="a"), *records]) == len(odd) + 1
    exported = {each["session_id"]: each async for each in catalog.export_sessions()}
    assert [exported[each["session_id"]] for each in records] == records


@pytest.mark.only_on("postgresql")
async def test_a_batch_takes_one_execution_per_table(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.count_sessions()
    repeated: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def _note(_connection, _cursor, statement, _parameters, _context, executemany):
        if executemany:
            repeated.append(statement)

    await catalog.import_sessions(record(number) for number in range(50))
    assert repeated == []


@pytest.mark.not_on("sqlite")
@pytest.mark.parametrize("on_conflict", ["error", "skip"])
async def test_an_import_keeps_the_time_zone_of_the_connection(shared_database, on_conflict):
    zone = "Asia/Kathmandu" if shared_database.kind == "postgresql" else "+05:45"
    engine = shared_database.engine(pool_size=1, max_overflow=0)
    read = "SHOW TIME ZONE" if shared_database.kind == "postgresql" else "SELECT @@time_zone"

    @event.listens_for(engine.sync_engine, "connect")
    def _set_zone(connection, _):
        cursor = connection.cursor()
        setting = "TIME ZONE" if shared_database.kind == "postgresql" else "time_zone ="
        cursor.execute(f"SET {setting} '{zone}'")
        connection.commit()

    catalog = SessionCatalog(engine, create_tables=True)
    records = [record(number) for number in range(20)]
    await catalog.import_sessions(records[:10])
    assert await raw.execute(engine, read) == [(zone,)]
    with contextlib.suppress(SessionExistsError):
        await catalog.import_sessions([*records[10:], records[3]], on_conflict)
    assert await raw.execute(engine, read) == [(zone,)]
    assert [each async for each in catalog.export_sessions()] == records


@pytest.mark.only_on("postgresql")
async def test_an_import_reads_no_table_again_and_again(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    metadata = {"tags": ["x", "y"], "note": "n" * 1_500}
    await catalog.import_sessions(record(number, metadata=metadata) for number in range(2_000))
    await engine.dispose()  # The server counts what a connection has read when it ends.
    reader = shared_database.engine()
    counts = (
        "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes"
        " WHERE relname = 'agent_sessions_metadata'"
    )
    scans: dict[str, int] = {}
    for _ in range(100):
        scans = dict(await raw.execute(reader, counts))
        if scans["agent_sessions_metadata_pkey"]:
            break
        await asyncio.sleep(0.1)
    # While the table is small, either index is as good for the 4,000 elements.
    assert scans["agent_sessions_metadata_search_idx"] < 2_500, scans
    read = "SELECT sum(seq_tup_read) FROM pg_stat_user_tables"
    assert (await raw.execute(reader, read))[0][0] < 10_000
