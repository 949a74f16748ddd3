"""Erasing a person: nothing stays of them, nothing of others changes, and a receipt says so."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from datetime import datetime, timezone

import pytest
from agents.extensions.memory import SQLAlchemySession
from scaling import scale
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    Erasure,
    LeaseLostError,
    SessionCatalog,
    SessionRuns,
)
from agents_session_metadata.core.features import Feature, features
from conformance import raw
from conformance.approving import Deployer, deploys
from conformance.killing import run_and_kill, until_alone
from conformance.persons import all_rows, rows_with, use_everything

ZOYA = {"owner_id": "zoya"}


@pytest.fixture(
    params=[
        pytest.param(False, id="rows"),
        pytest.param(True, id="native", marks=pytest.mark.not_on("mariadb", "mysql")),
    ]
)
async def people(request, catalog):
    await catalog.create_index("$text", native=request.param)
    await use_everything(catalog, "zoya", members=["bruno"])
    await use_everything(catalog, "bruno", members=["zora"])
    return catalog


@pytest.mark.dialect
async def test_nothing_stays_of_the_person_and_others_keep_every_row(people):
    before = await all_rows(people.engine)
    hers = rows_with(before, "zoya")
    receipt = await people.scoped(ZOYA).erase()
    after = await all_rows(people.engine)
    assert rows_with(after, "zoya") == {}
    # Words of the index have no name of a session: the rest is compared by number.
    texts = {name for name in before if "_text" in name}
    for table in before.keys() - texts:
        assert after[table] == [row for row in before[table] if row not in hers.get(table, ())]
    assert isinstance(receipt, Erasure)
    assert (receipt.sessions, receipt.complete) == (5, True)
    for table in before.keys() - texts:
        assert receipt.rows[table] == len(before[table]) - len(after[table]), table
    [rows] = [name for name in texts if name.endswith("_text")]
    assert receipt.rows[rows] == len(before[rows]) - len(after[rows]) > 0
    assert json.loads(json.dumps(receipt.to_dict()))["rows"] == receipt.rows
    assert datetime.now(timezone.utc) >= receipt.at
    assert (await people.search("zoya")).hits == []
    assert (await people.search("bruno")).hits != []
    # The second call finds nothing.
    again = await people.scoped(ZOYA).erase()
    assert (again.sessions, again.complete, set(again.rows.values())) == (0, True, {0})


@pytest.mark.only_on("sqlite")
async def test_the_native_index_contains_no_word_of_the_person(people):
    names = await raw.execute(
        people.engine, "SELECT name FROM sqlite_master WHERE name LIKE '%fts_data'"
    )
    await people.scoped(ZOYA).erase()
    for [name] in names:
        blocks = await raw.execute(people.engine, f"SELECT block FROM {name}")
        text = b"".join(bytes(block) for [block] in blocks)
        assert b"oya" not in text
        assert b"runo" in text


async def test_no_feature_forgets_itself(catalog, monkeypatch):
    await catalog.create_index("$text")
    await use_everything(catalog, "zoya", members=[])
    tables = {name for name in await all_rows(catalog.engine) if not name.endswith("_text_state")}
    receipt = await catalog.scoped(ZOYA).erase()
    assert tables == set(receipt.rows)
    # Without its part, its tables are missing from the receipt.
    for number, feature in enumerate(features()):
        await use_everything(catalog, f"zoya{number}", members=[])
        with monkeypatch.context() as patch:
            patch.setattr(type(feature), "erase", lambda *_: {})
            patch.setattr(type(feature), "erase_rest", lambda *_: {})
            receipt = await catalog.scoped({"owner_id": f"zoya{number}"}).erase()
        assert set(receipt.rows) < tables, feature.name
    assert type(features()[0]).erase is Feature.erase


@pytest.mark.logic
async def test_usage_can_keep_its_numbers_without_the_person(catalog):
    await use_everything(catalog, "zoya", members=[])
    before = await catalog.usage(by=())
    receipt = await catalog.scoped(ZOYA).erase(usage="anonymize")
    assert receipt.complete
    assert receipt.rows["agent_sessions_metadata_usage"] == 2
    assert await catalog.usage(by=()) == before
    [row] = await catalog.usage(by=("owner_id", "session_id", "item_id"))
    assert (row.owner_id, row.session_id, row.item_id) == (None, None, None)
    assert await catalog.scoped(ZOYA).usage() == []


@pytest.mark.logic
async def test_a_name_is_cleared_in_decisions_about_sessions_of_others(catalog):
    await use_everything(catalog, "zoya", members=[])
    await use_everything(catalog, "bruno", members=[])
    runs = SessionRuns(catalog)
    await runs.decide("bruno-waiting", "bruno-call", approve=True, by="zoya@x")
    receipt = await catalog.scoped(ZOYA).erase(by="zoya@x")
    assert receipt.complete
    assert [each.by for each in await runs.decisions("bruno-waiting")] == ["bruno@x", None]
    assert rows_with(await all_rows(catalog.engine), "zoya") == {}


@pytest.mark.logic
async def test_decisions_about_deleted_sessions_are_seen_and_deleted_in_the_scope(catalog):
    for owner in ("zoya", "bruno"):
        await use_everything(catalog, owner, members=[])
    mine = SessionRuns(catalog.scoped(ZOYA))
    found = [(each.session_id, each.by) for each in await mine.decisions()]
    assert found == [("zoya-waiting", "zoya@x"), ("zoya-decided", "zoya@x"), (None, "zoya@x")]
    assert len(await mine.decisions("zoya-waiting")) == 1
    assert await mine.delete_decisions(before=datetime(2100, 1, 1, tzinfo=timezone.utc)) == 3
    assert len(await SessionRuns(catalog).decisions()) == 3


async def decide_and_delete(catalog, owner, name: str) -> None:
    """A decision by this name about a session of the owner that is then deleted."""
    runs = SessionRuns(catalog)
    await catalog.create_session(name, metadata={"owner_id": owner})
    await runs.run(name, Deployer().agent(deploys("call")), "hello")
    await runs.decide(name, "call", approve=True, by=name)
    await catalog.delete_session(name)


async def names(catalog) -> list[str | None]:
    return [each.by for each in await SessionRuns(catalog).decisions()]


@pytest.mark.dialect
async def test_names_that_differ_in_case_accents_or_spaces_are_other_people(catalog):
    for name in ("anna", "Anna", "änna", "anna "):
        await decide_and_delete(catalog, name, name)
    mine = catalog.scoped({"owner_id": "anna"})
    assert await names(mine) == ["anna"]
    assert (await catalog.scoped({"owner_id": "Anna"}).erase(by="anna")).complete
    assert await names(catalog) == [None, "änna", "anna "]
    future = datetime(2100, 1, 1, tzinfo=timezone.utc)
    assert await SessionRuns(mine).delete_decisions(before=future) == 1
    assert await names(catalog) == ["änna", "anna "]


@pytest.mark.logic
@pytest.mark.parametrize(
    ("owner", "equal", "other"),
    [(5.0, 5, "5"), ({"b": [1e22, "é"], "a": 0.5}, {"a": 0.5, "b": [10**22, "é"]}, {"a": 0.5})],
)
async def test_decisions_about_deleted_sessions_belong_to_an_equal_owner(
    catalog, owner, equal, other
):
    for number, each in enumerate((owner, equal, other)):
        await decide_and_delete(catalog, each, f"{number}")
    mine = catalog.scoped({"owner_id": equal})
    assert await names(mine) == await names(catalog.scoped({"owner_id": owner})) == ["0", "1"]
    assert (await mine.erase()).complete
    assert await names(catalog) == ["2"]


@pytest.mark.logic
@pytest.mark.parametrize("text", ['{"a', '"\\ud800"', "[" * 600 + "]" * 600])
async def test_a_call_of_a_session_with_a_corrupt_owner_can_be_decided(catalog, text):
    runs = SessionRuns(catalog)
    await catalog.create_session("chat", metadata={"owner_id": "anna"})
    await runs.run("chat", Deployer().agent(deploys("call")), "hello")
    change = "UPDATE agent_sessions_metadata SET value = :text WHERE value = :was"
    await raw.execute(catalog.engine, change, text=text, was='"anna"')
    assert await runs.decide("chat", "call", approve=True, by="bob")
    assert await names(catalog) == ["bob"]


@pytest.mark.logic
async def test_a_filter_erases_sessions_only(catalog):
    await use_everything(catalog, "zoya", members=[])
    mine = catalog.scoped(ZOYA)
    receipt = await mine.erase({"$session_id": "zoya-chat"})
    assert (receipt.sessions, receipt.complete) == (1, True)
    assert await mine.count_sessions() == 4
    found = await all_rows(catalog.engine)
    assert any("unsent" in row for row in found["agent_sessions_metadata_attachments"])
    assert len(found["agent_sessions_metadata_usage"]) == 2
    with pytest.raises(ValueError, match="a scope, or a filter"):
        await catalog.erase()
    with pytest.raises(ValueError, match="a scope, or a filter"):
        await catalog.erase({})
    with pytest.raises(ValueError, match="usage must be"):
        await mine.erase(usage="keep")


@pytest.mark.logic
async def test_rows_of_a_session_that_belongs_to_another_one_now_lose_the_owner(catalog):
    await use_everything(catalog, "zoya", members=[])
    await catalog.set_metadata("zoya-decided", {"owner_id": "bruno"})
    receipt = await catalog.scoped(ZOYA).erase()
    assert receipt.complete
    assert await catalog.get_session("zoya-decided") is not None
    assert len(await SessionRuns(catalog).decisions()) == 1
    found = (await all_rows(catalog.engine))["agent_sessions_metadata_run_decisions"]
    assert not any('"zoya"' in row for row in found)


@pytest.mark.logic
async def test_a_run_that_works_cannot_write_any_more(catalog):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> str:
        begun.set()
        await ended.wait()
        return "answered zoya"

    mine = catalog.scoped(ZOYA)
    model = Deployer().agent("answered zoya")
    answer = model.model.get_response

    async def answers(*args, **kwargs):
        await wait(None)
        return await answer(*args, **kwargs)

    model.model.get_response = answers
    run = asyncio.ensure_future(SessionRuns(mine).run("zoya-1", model, "hello zoya"))
    await begun.wait()
    receipt = await mine.erase()
    assert (receipt.sessions, receipt.complete) == (1, True)
    ended.set()
    with pytest.raises(LeaseLostError):
        await run
    assert rows_with(await all_rows(catalog.engine), "zoya") == {}


async def test_the_receipt_says_if_others_wrote_in_the_meantime(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_session("zoya-1", metadata=ZOYA, items=[raw.message("zoya")])

    async def write() -> None:
        engine = create_async_engine(catalog.engine.url)
        await SQLAlchemySession("zoya-1", engine=engine).add_items([raw.message("zoya")])
        await engine.dispose()

    def progress(_: int) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(write()))
        thread.start()
        thread.join()

    receipt = await catalog.scoped(ZOYA).erase(progress=progress)
    assert (receipt.sessions, receipt.complete) == (1, False)
    assert await catalog.count_sessions() == 1


ERASE = """
async def work(catalog, arguments):
    await catalog.scoped({"owner_id": "zoya"}).erase(batch_size=1, progress=emit)
    await asyncio.sleep(60)
"""


@pytest.mark.scaled
async def test_erasing_that_is_killed_goes_on_when_it_is_called_again(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_index("$text")
    await use_everything(catalog, "bruno", members=[])
    others = await all_rows(catalog.engine)
    dice = random.Random(4)
    for _ in range(scale(2, 100)):
        await use_everything(catalog, "zoya", members=[])
        values, delay = dice.randrange(6), dice.random() / 30
        await run_and_kill(ERASE, [shared_database.url], values=values, delay=delay)
        await until_alone(catalog.engine)
        receipt = await catalog.scoped(ZOYA).erase()
        assert receipt.complete
        found = await all_rows(catalog.engine)
        assert rows_with(found, "zoya") == {}
        states = {name for name in found if name.endswith("_state")}
        assert {name: found[name] for name in found.keys() - states} == {
            name: others[name] for name in others.keys() - states
        }
