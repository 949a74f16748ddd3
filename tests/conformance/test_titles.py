"""Titles that a model writes."""

from __future__ import annotations

import asyncio
import logging

import pytest
from agents import Runner
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message
from scaling import scale

from agents_session_metadata import SessionTitler, SessionTracker, keys
from conformance import raw
from conformance.running import agent

pytestmark = pytest.mark.logic

RACES = scale(10, 100)


def titler(*answers):
    steps = [[assistant_message(each)] if isinstance(each, str) else each for each in answers]
    return SessionTitler(model=ScriptedModel(steps))


async def run(session, answer, title):
    async with SessionTracker(session, titler=title) as hooks:
        await Runner.run(agent("a", answer), "Where is the tram?", session=session, hooks=hooks)


async def test_a_title_is_written_after_the_first_answered_turn(session):
    writer = titler(' "Trams  in\nLisbon" ', "Another")
    with pytest.raises(RuntimeError):
        await run(session, RuntimeError("the model is out"), writer)
    await writer.wait()
    assert keys.TITLE not in await session.get_metadata()
    await run(session, "In Lisbon.", writer)
    await writer.wait()
    stored = await session.get_metadata([keys.TITLE, keys.TITLE_AUTO])
    assert stored == {keys.TITLE: "Trams in Lisbon", keys.TITLE_AUTO: "Trams in Lisbon"}
    await run(session, "In Porto.", writer)
    assert await writer.title(session) is None
    assert (await session.get_metadata())[keys.TITLE] == "Trams in Lisbon"


async def test_what_has_no_answered_turn(session, catalog):
    writer = titler("Never")
    assert await writer.title(session) is None
    await session.add_items([raw.message("hello")])
    assert await writer.title(session) is None
    assert await writer.title(catalog.session("nobody")) is None
    assert await catalog.get_session("nobody") is None


async def test_through_encryption(session):
    encrypted = EncryptedSession("chat", session, encryption_key="a key of the tests")
    writer = titler("x" * 500)
    await run(encrypted, "In Lisbon.", writer)
    await writer.wait()
    assert (await session.get_metadata())[keys.TITLE] == "x" * 79 + "…"


async def test_a_titler_that_fails(session, caplog):
    with caplog.at_level(logging.WARNING, logger="agents_session_metadata"):
        for writer in (titler(RuntimeError("the model is out")), titler(" '' ")):
            await run(session, "In Lisbon.", writer)
            await writer.wait()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], keys.TITLE in stored, keys.ERROR_COUNT in stored) == (
        2,
        False,
        False,
    )


class Waiting(ScriptedModel):
    """A model that answers when it is told to."""

    def __init__(self):
        super().__init__([[assistant_message("By the model")]])
        self.asked, self.told = asyncio.Event(), asyncio.Event()

    async def get_response(self, *arguments, **options):
        self.asked.set()
        await self.told.wait()
        return await super().get_response(*arguments, **options)


async def test_what_happens_while_the_model_writes(session, catalog):
    for number, event in enumerate(("a title", "a deletion", "a reuse")):
        one = await catalog.create_session(f"s{number}")
        model = Waiting()
        writer = SessionTitler(model=model)
        await run(one, "In Lisbon.", writer)  # It does not wait for the titler.
        await model.asked.wait()
        if event == "a title":
            await one.set_metadata({"title": "By a person"})
        else:
            items = await one.get_items()
            await one.clear_session()
        if event == "a reuse":
            await one.add_items(items)
        model.told.set()
        await writer.wait()
        stored = await one.get_metadata()
        assert keys.TITLE_AUTO not in stored
        assert stored.get("title") == ("By a person" if event == "a title" else None)
        assert (await catalog.get_session(f"s{number}") is None) == (event == "a deletion")


@pytest.mark.scaled
async def test_the_title_of_a_person_wins_every_race(catalog):
    async def race(number):
        one = await catalog.create_session(f"s{number}")
        await one.add_items([raw.message("hello"), raw.message("hi", role="assistant")])
        writer = titler("By the model")
        await asyncio.gather(writer.title(one), one.set_metadata({"title": "By a person"}))
        return (await one.get_metadata())["title"]

    assert {await race(number) for number in range(RACES)} == {"By a person"}


def test_bad_models():
    with pytest.raises(TypeError, match="model must be"):
        SessionTitler(model=5)
