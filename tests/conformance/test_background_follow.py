"""`SessionRuns.start` and `follow`: what is shown of a run while it works, in any process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ToolGuardrailFunctionOutput,
    function_tool,
    output_guardrail,
    tool_output_guardrail,
)
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message, function_call
from cryptography.fernet import Fernet

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance import raw
from conformance.following import TEXT, Client, Speaker, plain, speaking, until

STEPS_TABLE = "agent_sessions_metadata_run_steps"


@function_tool
async def look() -> str:
    return "saw it"


@function_tool(needs_approval=True)
async def pay() -> str:
    return "paid"


def gated(agent: Agent[Any], word: str) -> asyncio.Event:
    """The model of an agent waits before this word until the event is set."""
    gate = asyncio.Event()
    agent.model.gates[word] = gate  # type: ignore[union-attr]  # a Speaker
    return gate


async def following(runs: SessionRuns, session_id: str = "chat", **options: Any) -> Any:
    """A client and the task in which it follows."""
    client = Client()
    return client, asyncio.ensure_future(client.follow(runs, session_id, **options))


async def items_of(catalog: SessionCatalog) -> list[Any]:
    return plain(await catalog.session("chat").get_items())


async def test_a_follower_sees_the_answer_as_it_is_written(catalog, database, runs) -> None:
    agent = speaking(["one two three four"])
    gate = gated(agent, "three")
    assert await runs.start("chat", agent, "Count") is True
    elsewhere = SessionRuns(SessionCatalog(database.engine()))
    client, task = await following(elsewhere)
    await until(lambda: client.text == "one two")
    gate.set()
    await task
    assert client.shown == [("user", "Count"), ("assistant", "one two three four")]
    assert client.status == {
        "type": "status",
        "status": "finished",
        "output": "one two three four",
    }
    assert await items_of(catalog) == client.shown


@pytest.mark.logic
async def test_events_have_the_shapes_that_are_documented(catalog, runs) -> None:
    agent = speaking(["Let us see", "=look"], ["Done"], tools=[look])
    gate = gated(agent, "see")
    await runs.start("chat", agent, "Look")
    client, task = await following(runs)
    await until(lambda: client.text == "Let us")
    gate.set()
    await task
    by_type = {event["type"]: event for event in client.events}
    assert set(by_type["snapshot"]) == {"type", "after", "items", "item_ids", "events"}
    assert by_type["response.created"] == {"type": "response.created"}
    assert set(by_type[TEXT]) == {"type", "item_id", "output_index", "content_index", "delta"}
    assert set(by_type["item"]) == {"type", "item", "item_id"}
    assert [event["type"] for event in client.events][-1] == "status"


@pytest.mark.dialect
async def test_items_come_in_the_order_of_the_history_and_once(catalog, runs) -> None:
    agent = speaking(["See", "=look", "=look"], ["Again", "=look"], ["Done"], tools=[look])
    gate = gated(agent, "See")
    await runs.start("chat", agent, "Look")
    client, task = await following(runs)
    await until(lambda: client.events)
    gate.set()
    await task
    assert client.shown == await items_of(catalog)
    kinds = [each[0] for each in client.shown]
    outputs = ["function_call_output"]
    assert kinds == [
        *["user", "assistant", "function_call", "function_call", *outputs * 2],
        *["assistant", "function_call", *outputs, "assistant"],
    ]


@pytest.mark.logic
async def test_a_reload_gets_a_snapshot_of_the_answer_in_progress(catalog, runs) -> None:
    agent = speaking(["one two three four"])
    gate = gated(agent, "three")
    await runs.start("chat", agent, "Count")
    first, task = await following(runs)
    await until(lambda: first.text == "one two")
    second, other = await following(runs)
    await until(lambda: second.events)
    assert [event["delta"] for event in second.events[0]["events"] if "delta" in event] == [
        "one two"
    ]
    gate.set()
    await asyncio.gather(task, other)
    assert first.shown == second.shown == await items_of(catalog)


@pytest.mark.dialect
async def test_a_snapshot_begins_after_an_item(catalog, runs) -> None:
    await runs.run("chat", speaking(["Hello"]), "Hi")
    page = await catalog.list_items("chat")
    agent = speaking(["one two"])
    gate = gated(agent, "two")
    await runs.start("chat", agent, "Count")
    client, task = await following(runs, after=page.items[0].item_id)
    await until(lambda: client.text == "one")
    gate.set()
    await task
    assert client.events[0]["after"] == page.items[0].item_id
    assert client.shown == (await items_of(catalog))[1:]


async def test_whoever_comes_after_the_end_gets_one_snapshot_with_after(catalog, runs) -> None:
    await runs.run("chat", speaking(["Hello"]), "Hi")
    client, task = await following(runs, after=0)
    await task
    assert [event["type"] for event in client.events] == ["snapshot"]
    assert client.shown == await items_of(catalog)
    client, task = await following(runs)
    await task
    assert client.events == []


async def test_without_a_session_or_tables_nothing_is_shown(catalog) -> None:
    for after in (None, 0):
        client, task = await following(SessionRuns(catalog), "nope", after=after)
        await task
        assert client.events == []


@pytest.mark.dialect
async def test_a_waiting_run_is_shown_with_its_calls(catalog, runs) -> None:
    agent = speaking(["I pay", "=pay"], ["Done"], tools=[pay])
    await runs.start("chat", agent, "Pay")
    client, task = await following(runs)
    await task
    (call,) = (await runs.get("chat")).pending
    pending = {"call_id": call.call_id, "tool": "pay", "arguments": "{}", "agent": "speaker"}
    assert client.status == {"type": "status", "status": "waiting", "pending": [pending]}
    late, task = await following(runs)
    await task
    assert late.status == client.status
    assert late.shown == client.shown == await items_of(catalog)


@pytest.mark.dialect
async def test_forever_goes_on_with_the_resumed_and_the_next_run(catalog, runs) -> None:
    agent = speaking(["I pay", "=pay"], ["Done"], tools=[pay])
    client, task = await following(runs, forever=True)
    await runs.start("chat", agent, "Pay")
    await until(lambda: client.status and client.status["status"] == "waiting")
    await runs.decide("chat", client.status["pending"][0]["call_id"], approve=True)
    assert await runs.start("chat", agent) is True
    await until(lambda: client.status and client.status["status"] == "finished")
    assert client.shown == await items_of(catalog)
    await runs.start("chat", speaking(["Bye"]), "Bye")
    await until(lambda: client.shown[-1:] == [("assistant", "Bye")])
    await catalog.session("chat").add_items([raw.message("by another writer")])
    await until(lambda: client.shown[-1:] == [("user", "by another writer")])
    assert client.shown == await items_of(catalog)
    task.cancel()


@pytest.mark.logic
async def test_a_run_between_two_polls_is_a_snapshot_after_the_end_of_the_one_before(
    catalog, runs
) -> None:
    agent = speaking(["one two"])
    gate = gated(agent, "two")
    await runs.start("chat", agent, "Count", key="k1")
    events = runs.follow("chat", forever=True)
    await anext(events)
    gate.set()
    await runs.aclose()
    await runs.run("chat", speaking(["Bye"]), "Bye", key="k2")
    found = [await anext(events)]
    while found[-1]["type"] != "snapshot":
        found.append(await anext(events))
    *shown, status, snapshot = found
    assert status == {"type": "status", "status": "finished", "output": "one two"}
    items = plain([each["item"] for each in shown if each["type"] == "item"])
    assert items[-1] == ("assistant", "one two")
    assert plain(snapshot["items"]) == [("user", "Bye"), ("assistant", "Bye")]
    await events.aclose()


@pytest.mark.logic
async def test_a_failed_run_is_shown_with_the_type_and_text_of_its_error(
    catalog, caplog, runs
) -> None:
    @function_tool(failure_error_function=None)
    async def fail() -> str:
        raise ValueError("no: really")

    agent = speaking(["See", "=fail"], tools=[fail])
    await runs.start("chat", agent, "Go", key="k")
    client, task = await following(runs)
    await task
    assert client.status["status"] == "failed"
    assert "no: really" in client.status["error"]["message"]
    assert client.status["error"]["type"]
    late, task = await following(runs)
    await task
    assert late.status == client.status
    assert "has failed" in caplog.text


@pytest.mark.logic
async def test_an_output_that_a_guardrail_refused_never_reaches_a_follower(catalog, runs) -> None:
    @tool_output_guardrail
    def refuse(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("not allowed")

    @function_tool(tool_output_guardrails=[refuse])
    async def secret() -> str:
        return "the secret"

    release = asyncio.Event()

    @function_tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    agent = speaking(["See", "=secret", "=wait"], ["Done"], tools=[secret, wait])
    await runs.start("chat", agent, "Go")
    client, task = await following(runs)
    await until(lambda: len(client.items) == 4)
    rows = await raw.execute(catalog.engine, f"SELECT value FROM {STEPS_TABLE}")
    while not any("the secret" in row[0] for row in rows):  # recorded before the guardrail
        rows = await raw.execute(catalog.engine, f"SELECT value FROM {STEPS_TABLE}")
    late, other = await following(runs)
    await until(lambda: late.events)
    release.set()
    await asyncio.gather(task, other)
    for each in (client, late):
        assert "the secret" not in str(each.events)
        assert "not allowed" in str(each.events)
        assert each.shown == await items_of(catalog)


@pytest.mark.logic
async def test_a_last_answer_that_a_guardrail_refused_is_no_item(catalog, runs) -> None:
    @output_guardrail
    async def refuse(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = speaking(["bad words"], output_guardrails=[refuse])
    await runs.start("chat", agent, "Go")
    client, task = await following(runs)
    await task
    assert client.status["error"]["type"] == "OutputGuardrailTripwireTriggered"
    assert client.shown == [("user", "Go")]
    late, task = await following(runs)
    await task
    assert "bad" not in str(late.events)


@pytest.mark.logic
async def test_the_text_of_a_last_answer_is_whole_before_the_run_has_ended(catalog, runs) -> None:
    release = asyncio.Event()

    @output_guardrail
    async def wait(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        await release.wait()
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    agent = speaking(["one two three four"], output_guardrails=[wait])
    gate = gated(agent, "three")
    await runs.start("chat", agent, "Count")
    client, task = await following(runs)
    await until(lambda: client.text == "one two")
    gate.set()
    await until(lambda: client.text == "one two three four")
    assert client.shown == [("user", "Count")]
    release.set()
    await task
    assert client.shown == await items_of(catalog)


@pytest.mark.only_on("sqlite-file")
async def test_followers_of_tables_with_other_names_do_not_see_each_other(database) -> None:
    engine = database.engine()
    names = {"sessions_table": "other_sessions", "messages_table": "other_messages"}
    catalogs = [
        SessionCatalog(engine, create_tables=True),
        SessionCatalog(engine, create_tables=True, **names),
    ]
    both = [SessionRuns(catalog) for catalog in catalogs]
    agents = [speaking([f"one {number} end"]) for number in range(2)]
    gates = [gated(agent, "end") for agent in agents]
    for runs, agent in zip(both, agents, strict=True):
        await runs.start("chat", agent, "Count")
    followed = [await following(runs) for runs in both]
    await until(lambda: [client.text for client, _ in followed] == ["one 0", "one 1"])
    for gate in gates:
        gate.set()
    for catalog, (client, task) in zip(catalogs, followed, strict=True):
        await task
        assert client.shown == await items_of(catalog)


@pytest.mark.dialect
async def test_outside_the_scope_nothing_is_shown(everyone) -> None:
    runs, agent = SessionRuns(everyone), speaking(["one two"])
    gate = gated(agent, "two")
    await runs.start("theirs-0", agent, "Count")
    other = SessionRuns(everyone.scoped({"owner_id": "mine"}))
    own = SessionRuns(everyone.scoped({"owner_id": "theirs"}))
    outside, task = await following(other, "theirs-0", after=0, forever=True)
    inside, inner = await following(own, "theirs-0")
    unscoped, third = await following(runs, "theirs-0")
    # The polls of all three are shared.
    await until(lambda: inside.text == unscoped.text == "one")
    gate.set()
    await asyncio.gather(inner, third)
    assert inside.shown == unscoped.shown
    assert inside.status["status"] == "finished"
    task.cancel()
    assert outside.events == []


async def test_a_session_that_leaves_the_scope_is_not_shown_any_more(catalog, runs) -> None:
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    agent = speaking(["one two three"])
    gate, last = gated(agent, "two"), gated(agent, "three")
    await runs.start("chat", agent, "Count")
    scoped = SessionRuns(catalog.scoped({"owner_id": "u1"}))
    client, task = await following(scoped)
    await until(lambda: client.text == "one")
    await catalog.set_metadata("chat", {"owner_id": "u2"})
    gate.set()
    await task
    assert "two" not in str(client.events)
    assert client.status == {"type": "status", "status": "ended"}
    last.set()
    await runs.aclose()


@pytest.mark.logic
async def test_an_encrypted_run_is_shown_decrypted_and_stored_encrypted(catalog) -> None:
    fernet = Fernet(Fernet.generate_key())
    runs = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)

    def wrap(session: Any) -> Any:
        return EncryptedSession("chat", session, "a key of the application")

    agent = speaking(["one two three", "=look"], ["Done"], tools=[look])
    gate = gated(agent, "three")
    await runs.start("chat", agent, "Count", session=wrap)
    client, task = await following(runs, session=wrap)
    await until(lambda: client.text == "one two")
    rows = await raw.execute(catalog.engine, f"SELECT value FROM {STEPS_TABLE}")
    assert rows
    assert not any("two" in row[0] for row in rows)
    gate.set()
    await task
    items = await wrap(catalog.session("chat")).get_items()
    assert client.shown == plain(items)
    assert client.status["output"] == "Done"
    gated(agent, "three")
    await runs.start("chat", agent, "Again", session=wrap)
    with pytest.raises(ValueError, match="decrypt="):
        await Client().follow(SessionRuns(catalog), "chat")
    await runs.aclose(wait=0)


async def test_a_follower_that_leaves_in_the_middle_disturbs_nobody(shared_database) -> None:
    engine = shared_database.engine(pool_size=2, max_overflow=0)
    catalog = SessionCatalog(engine, create_tables=True)
    runs, agent = SessionRuns(catalog), speaking(["one two three four five"], pause=0.02)
    await runs.start("chat", agent, "Count")
    stayed, task = await following(runs)
    for number in range(30):
        _, leaving = await following(runs, after=0, forever=True)
        await asyncio.sleep(0.003 * (number % 7))
        leaving.cancel()
    await task
    assert stayed.shown == await items_of(catalog)
    assert await catalog.count_sessions() == 1


@pytest.mark.logic
async def test_a_run_that_is_not_live_shows_its_items_without_deltas(catalog, runs) -> None:
    agent = speaking(["one two", "=look"], ["Done"], tools=[look])
    client, task = await following(runs, forever=True)
    await runs.run("chat", agent, "Count")
    await until(lambda: client.shown[-1:] == [("assistant", "Done")])
    task.cancel()
    assert client.shown == await items_of(catalog)


@pytest.mark.logic
async def test_each_attempt_of_an_answer_begins_with_an_event_that_voids_the_last(
    catalog, runs
) -> None:
    class Breaking(Speaker):
        tries = 0

        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            self.tries += 1
            broken = self.tries == 1
            async for event in super().stream_response(*args, **kwargs):
                if broken and getattr(event, "delta", "") == " two":
                    await asyncio.sleep(0.3)
                    raise ConnectionError
                yield event

    model = Breaking(["one two three"])
    agent = Agent("speaker", model=model)
    await runs.start("chat", agent, "Count", key="k")
    client, task = await following(runs)
    await task
    assert client.status["status"] == "failed"
    assert client.text == "one"
    gate = gated(agent, "three")
    assert await runs.start("chat", agent, "Count", key="k") is True
    again, task = await following(runs)
    await until(lambda: again.text == "one two")
    gate.set()
    await task
    assert (
        again.shown
        == await items_of(catalog)
        == [("user", "Count"), ("assistant", "one two three")]
    )


@pytest.mark.logic
async def test_compaction_within_a_followed_run_shows_the_history_anew(catalog, runs) -> None:
    class Compacting:
        """Replaces the history after the first turn, as compaction does."""

        def __init__(self, session: Any) -> None:
            self.session, self.session_id = session, session.session_id
            self.session_settings = None
            self.writes = 0

        async def get_items(self, limit: int | None = None) -> Any:
            return await self.session.get_items(limit)

        async def add_items(self, items: Any) -> None:
            await self.session.add_items(items)
            self.writes += 1
            if self.writes == 2:
                await self.session.clear_session()
                await self.session.add_items([raw.message("a summary")])

        async def pop_item(self) -> Any:
            return await self.session.pop_item()

        async def clear_session(self) -> None:
            await self.session.clear_session()

    release = asyncio.Event()

    @function_tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    await runs.run("chat", speaking(["Hello"]), "Hi")
    agent = Agent(
        "speaker",
        model=ScriptedModel(
            [
                [assistant_message("See"), function_call("wait", {}, call_id="wait-1")],
                [assistant_message("Done")],
            ]
        ),
        tools=[wait],
    )
    await runs.start("chat", agent, "Look", session=Compacting)
    client, task = await following(runs)
    await until(lambda: client.events)
    release.set()
    await task
    assert client.shown == await items_of(catalog) == [("user", "a summary"), ("assistant", "Done")]
