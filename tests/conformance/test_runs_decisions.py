"""Decisions about calls: the newest counts, and the approver sees what the tool gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.exceptions import UserError
from agents.testing import ScriptedModel, UnexpectedModelCall, assistant_message, function_call
from agents.tool import CustomTool
from cryptography.fernet import Fernet
from openai.types.responses import ResponseCustomToolCall

from agents_session_metadata import RunNotFoundError, SessionChangedError, SessionRuns
from conformance import raw
from conformance.failing import DECISIONS_TABLE, RUNS_TABLE, Turns, move, status

HOUR = 3_600


class Payer:
    """A tool `pay` that needs an approval."""

    def __init__(self) -> None:
        self.paid: list[str] = []

        @function_tool(needs_approval=True)
        async def pay() -> str:
            self.paid.append("pay")
            return "paid"

        self.pay = pay

    def agent(self, *steps: Any, name: str = "payer") -> Agent[Any]:
        return Agent(name, tools=[self.pay], model=Turns(*steps))


@pytest.fixture
def payer():
    return Payer()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


async def pause(runs: SessionRuns, agent: Agent[Any]) -> str:
    run = await runs.run("chat", agent, "Hi")
    [call] = run.interruptions
    return call.call_id


# ---- whatever the clocks say ----


@pytest.mark.dialect
@pytest.mark.parametrize("last", [True, False])
async def test_the_newest_decision_counts_although_the_clock_stepped_back(
    runs, payer, last
) -> None:
    agent = payer.agent(["pay"], "Done")
    call_id = await pause(runs, agent)
    await runs.decide("chat", call_id, approve=not last, by="ana")
    await move(runs.catalog.engine, DECISIONS_TABLE, "decided_at", HOUR)
    info = await runs.decide("chat", call_id, approve=last, by="ben")
    assert info.pending[0].decision.approve is last
    assert (await runs.get("chat")).pending[0].decision.by == "ben"
    await runs.resume("chat", agent)
    assert payer.paid == ["pay"] * last


@pytest.mark.dialect
async def test_a_decision_counts_although_the_clock_stepped_back_since_the_pause(
    runs, payer
) -> None:
    agent = payer.agent(["pay"], "Done")
    call_id = await pause(runs, agent)
    await move(runs.catalog.engine, RUNS_TABLE, "paused_at", HOUR)
    info = await runs.decide("chat", call_id, approve=True)
    assert info.undecided == ()
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert payer.paid == ["pay"]


@pytest.mark.dialect
async def test_a_decision_does_not_count_for_a_later_call_with_the_same_id(runs, payer) -> None:
    """The clock was ahead when the first one was decided."""

    def outer() -> Agent[Any]:
        inner = Agent("inner", tools=[payer.pay], model=ScriptedModel(steps))
        asking = inner.as_tool("ask", "Asks.")
        return Agent("outer", tools=[asking], model=ScriptedModel(outer_steps))

    def ask(call_id: str) -> list[Any]:
        return [function_call("ask", {"input": call_id}, call_id=call_id)]

    same = [function_call("pay", {}, call_id="c1")]
    steps, outer_steps = [same], [ask("a1")]
    run = await runs.run("chat", outer(), "Hi")
    assert [call.call_id for call in run.interruptions] == ["c1"]
    await runs.decide("chat", "c1", approve=True)
    await move(runs.catalog.engine, DECISIONS_TABLE, "decided_at", HOUR)
    steps, outer_steps = [[assistant_message("paid")], same], [ask("a2")]
    run = await runs.resume("chat", outer())
    [call] = run.interruptions
    assert (call.call_id, payer.paid) == ("c1", ["pay"])
    [info] = (await runs.list("waiting")).runs
    assert info.pending[0].decision is None
    again = await runs.resume("chat", outer())
    assert len(again.interruptions) == 1
    assert payer.paid == ["pay"]


@pytest.mark.logic
@pytest.mark.parametrize("always", [True, False])
async def test_a_decision_that_always_holds_leaves_the_newest_one_about_another_call(
    runs, payer, always
) -> None:
    agent = payer.agent(["pay", "pay"], "Done")
    run = await runs.run("chat", agent, "Hi")
    first, second = (call.call_id for call in run.interruptions)
    await runs.decide("chat", second, approve=always, always=True)
    info = await runs.decide("chat", first, approve=not always)
    assert [call.decision.approve for call in info.pending] == [not always, always]
    await runs.resume("chat", agent)
    items: list[Any] = await runs.catalog.session("chat").get_items()
    paid = [item["call_id"] for item in items if item.get("output") == "paid"]
    assert paid == [second if always else first]
    assert len(payer.paid) == 1


@pytest.mark.logic
async def test_a_replaced_decision_does_not_hold_for_other_calls(runs, payer) -> None:
    agent = payer.agent(["pay", "pay"], "Done")
    run = await runs.run("chat", agent, "Hi")
    first, second = (call.call_id for call in run.interruptions)
    await runs.decide("chat", first, approve=True, always=True)
    info = await runs.decide("chat", first, approve=False)
    assert [call.call_id for call in info.undecided] == [second]
    assert (await runs.list("ready")).runs == []
    run = await runs.resume("chat", agent)
    assert [call.call_id for call in run.interruptions] == [second]
    assert payer.paid == []


async def test_decisions_are_returned_in_the_order_in_which_they_were_stored(runs, payer) -> None:
    call_id = await pause(runs, payer.agent(["pay"]))
    for by in ("ana", "ben", "cleo"):
        await runs.decide("chat", call_id, approve=True, by=by)
        await move(runs.catalog.engine, DECISIONS_TABLE, "decided_at", HOUR)
    assert [each.by for each in await runs.decisions("chat")] == ["ana", "ben", "cleo"]


# ---- what the approver sees ----

SEALED = [
    "encrypted:rm -rf /",
    "encrypted:",
    "encrypted:Z2FyYmFnZQ==",
    '{"encrypted": "Z2FyYmFnZQ=="}',
    '"encrypted:x"',
    "plain",
    " \n",
]


@pytest.mark.logic
@pytest.mark.parametrize("text", SEALED)
@pytest.mark.parametrize("encrypts", [False, True])
async def test_the_approver_sees_the_text_that_a_custom_tool_gets(catalog, text, encrypts) -> None:
    fernet = Fernet(Fernet.generate_key())
    ciphers = {"encrypt": fernet.encrypt, "decrypt": fernet.decrypt} if encrypts else {}
    runs = SessionRuns(catalog, **ciphers)
    given: list[str] = []

    async def invoke(context: Any, arguments: str) -> str:
        given.append(arguments)
        return text

    tool = CustomTool(name="edit", description="Edits.", on_invoke_tool=invoke, needs_approval=True)
    call = ResponseCustomToolCall(call_id="e1", input=text, name="edit", type="custom_tool_call")

    def agent(*steps: Any) -> Agent[Any]:
        return Agent("editor", tools=[tool], model=ScriptedModel(list(steps)))

    run = await runs.run("chat", agent([call]), text, key="k")
    [info] = (await runs.list("waiting")).runs
    assert [each.arguments for each in info.pending] == [text]
    assert [each.arguments for each in run.interruptions] == [text]
    await runs.decide("chat", "e1", approve=True)
    run = await runs.resume("chat", agent([assistant_message(text)]))
    assert (run.final_output, given) == (text, [text])
    repeated = await runs.run("chat", agent(), text, key="k")
    assert (repeated.final_output, repeated.repeated) == (text, True)


@pytest.mark.logic
async def test_encrypted_arguments_are_not_shown_without_the_key(
    catalog,
) -> None:
    fernet = Fernet(Fernet.generate_key())
    sealed = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)
    plain = SessionRuns(catalog)

    @function_tool(needs_approval=True)
    async def pay(place: str) -> str:
        return "paid"

    calling = [function_call("pay", {"place": "encrypted:x"}, call_id="c1")]
    for runs, session_id in ((sealed, "sealed"), (plain, "plain")):
        agent = Agent("a", tools=[pay], model=ScriptedModel([calling]))
        await runs.run(session_id, agent, "Hi")
    shown = {info.session_id: info.pending[0].arguments for info in (await plain.list()).runs}
    assert shown["sealed"] is None
    assert json.loads(shown["plain"]) == {"place": "encrypted:x"}
    shown = {info.session_id: info.pending[0].arguments for info in (await sealed.list()).runs}
    assert {json.loads(each)["place"] for each in shown.values()} == {"encrypted:x"}


@pytest.mark.logic
async def test_an_error_that_looks_encrypted_is_shown_as_it_is(runs) -> None:
    class encrypted(Exception):  # noqa: N801, N818  # the type's name is the beginning of the text
        pass

    agent = Agent("a", model=Turns(encrypted("no answer")))
    with pytest.raises(encrypted):
        await runs.run("chat", agent, "Hi")
    assert await status(runs) == "failed"
    assert (await runs.get("chat")).error == "encrypted: no answer"
    rows = await raw.execute(runs.catalog.engine, f"SELECT error FROM {RUNS_TABLE}")
    assert len(rows) == 1


@pytest.mark.logic
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_resume_that_cannot_decrypt_leaves_the_run_as_it_was(catalog, payer, key) -> None:
    fernet = Fernet(Fernet.generate_key())
    runs = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)
    agent = payer.agent(["pay"], "Done")
    [call] = (await runs.run("chat", agent, "Hi", key=key)).interruptions
    with pytest.raises(ValueError, match="decrypt="):
        await SessionRuns(catalog).resume("chat", agent)
    assert await status(runs) == "waiting"
    await runs.decide("chat", call.call_id, approve=True)
    assert (await runs.resume("chat", agent)).final_output == "Done"


# ---- input that is added when a run goes on ----


def asking(payer: Payer, *steps: Any, **arguments: Any) -> Agent[Any]:
    """An agent whose model gives these answers: text, or the id of a call of `pay`."""
    answers = [
        [function_call("pay", {}, call_id=step[0])]
        if isinstance(step, list)
        else [assistant_message(step)]
        for step in steps
    ]
    return Agent("payer", model=ScriptedModel(answers), tools=[payer.pay], **arguments)


async def approve(runs: SessionRuns, agent: Agent[Any]) -> None:
    """Runs an agent until its call waits, and approves that."""
    await runs.run("chat", agent, "Pay")
    await runs.decide("chat", "call-1", approve=True)


@pytest.mark.logic
async def test_resume_adds_a_message_to_a_run_that_waits(catalog, runs, payer) -> None:
    agent = asking(payer, ["call-1"], "Done")
    await approve(runs, agent)
    run = await runs.resume("chat", agent, input="And be quick")
    assert run.final_output == "Done"
    items = await catalog.session("chat").get_items()
    kinds = [item.get("role") or item["type"] for item in items]
    assert kinds == ["user", "function_call", "function_call_output", "user", "assistant"]
    assert items[3]["content"] == "And be quick"


@pytest.mark.logic
async def test_an_added_message_is_added_again_after_a_failure_and_stays_once(
    catalog, runs, payer
) -> None:
    await approve(runs, asking(payer, ["call-1"]))
    with pytest.raises(UnexpectedModelCall):
        await runs.resume("chat", asking(payer), input="And be quick")
    with pytest.raises(ValueError, match="failed"):
        await runs.resume("chat", asking(payer, "Done"), input="Again")
    assert (await runs.resume("chat", asking(payer, "Done"))).final_output == "Done"
    contents = [item.get("content") for item in await catalog.session("chat").get_items()]
    assert contents.count("And be quick") == 1
    assert payer.paid == ["pay"]


@pytest.mark.logic
async def test_a_refused_resume_keeps_its_input_and_others_can_add_more(
    catalog, runs, payer
) -> None:
    await approve(runs, asking(payer, ["call-1"]))
    renamed = Agent("payer", model=ScriptedModel([]))
    for text in ("Be quick", "Be quick", "Be kind"):
        with pytest.raises(SessionChangedError, match="pay"):
            await runs.resume("chat", renamed, input=text)
        assert (await runs.get("chat")).status == "waiting"
    run = await runs.resume("chat", asking(payer, "Done"), input="Thanks")
    assert (run.final_output, payer.paid) == ("Done", ["pay"])
    items: list[Any] = await catalog.session("chat").get_items()
    said = [item["content"] for item in items if item.get("role") == "user"]
    assert said == ["Pay", "Be quick", "Be kind", "Thanks"]


@pytest.mark.logic
async def test_input_that_a_run_cannot_take_is_refused_before_anything_is_written(
    runs, payer
) -> None:
    agent = asking(payer, ["call-1"], "Done", tool_use_behavior="stop_on_first_tool")
    await approve(runs, agent)
    with pytest.raises(UserError, match="Cannot add input"):
        await runs.resume("chat", agent, input="And be quick")
    assert (await runs.get("chat")).status == "waiting"
    with pytest.raises(TypeError, match="input"):
        await runs.resume("chat", agent, input=7)  # type: ignore[arg-type]
    await runs.resume("chat", agent)
    with pytest.raises(RunNotFoundError):
        await runs.resume("chat", agent, input="Too late")


@pytest.mark.logic
async def test_added_input_is_stored_encrypted(catalog, payer) -> None:
    fernet = Fernet(Fernet.generate_key())
    runs = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)
    await approve(runs, asking(payer, ["call-1"]))
    with pytest.raises(UnexpectedModelCall):
        await runs.resume("chat", asking(payer), input="And be quick")
    table = "agent_sessions_metadata_run_steps"
    rows = await raw.execute(catalog.engine, f"SELECT value FROM {table}")
    assert rows
    assert not any("quick" in row[0] for row in rows)
