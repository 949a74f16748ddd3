"""The page of runs that wait for an approval: what it shows, and the decisions made on it."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from agents import Runner
from agents.testing import function_call

from agents_session_metadata import PausedRuns, SessionCatalog

from .approving import Deployer, call, deploys
from .browsing import HOST, SCRIPT, client, link, sent, token

pytestmark = pytest.mark.logic


@pytest.fixture
def catalog(engine) -> SessionCatalog:
    return SessionCatalog(engine, create_tables=True)


async def pause(catalog, session_id, *calls, name="deployer", paused=None, **metadata):
    """A run of a new session that waits for these calls; its agent."""
    agent = Deployer().agent([*calls], "Done", name=name)
    session = await catalog.create_session(session_id, metadata=metadata)
    result = await Runner.run(agent, "Deploy", session=session)
    await (paused or PausedRuns(catalog)).pause(session, result)
    return agent


def runs(page) -> list[str]:
    """The runs of a page, by the titles of their sessions."""
    return re.findall(r"<h2 [^>]*><a [^>]*>([^<]*)<", page.text)


async def test_runs_are_listed_decided_and_resumed(catalog) -> None:
    agent = await pause(catalog, "a", *deploys("one", "two"), title="First", owner_id="u1")
    await pause(catalog, "b", call("deploy", "three", target="x" * 500), title="Second")

    async def who(request) -> str:
        return request.headers["X-User"]

    async with client(catalog, allow_write=True, by=who) as browser:
        browser.headers.update({"Origin": HOST, "X-User": "user_123"})
        page = await browser.get("/waiting")
        assert runs(page) == ["Second", "First"]
        assert page.text.count("Waiting for a decision") == 0
        assert page.text.count('action="/approve"') == 3
        # Long arguments are folded; all of them are there.
        assert "<details><summary><code>" in page.text
        assert "x" * 500 in page.text
        assert "{&#34;target&#34;:&#34;one&#34;}" in page.text.replace(": ", ":")
        assert runs(await browser.get("/waiting?owner_id=u1")) == ["First"]
        assert runs(await browser.get("/waiting?filter=owner_id%3Du2")) == []

        form = {"token": token(page), "id": "a", "state-owner_id": "u1"}
        answer = await browser.post("/approve", data={**form, "call": "one", "message": "no"})
        assert answer.status_code == 303
        assert re.fullmatch(r"/waiting\?owner_id=u1#run-\w+", answer.headers["location"])
        rejection = {**form, "call": "two", "message": "Not on Friday"}
        assert (await browser.post("/reject", data=rejection)).status_code == 303
        page = await browser.get("/waiting?owner_id=u1")
        for words in (
            *("<b>Approved</b> by user_123", "<b>Rejected</b> by user_123", "Not on Friday"),
            *("Decided", "Change the decision"),
        ):
            assert words in page.text
        decided = (await PausedRuns(catalog).get("a")).pending
        assert [(each.decision.approve, each.decision.message) for each in decided] == [
            (True, None),
            (False, "Not on Friday"),
        ]

        async with PausedRuns(catalog).claim("a", agent) as run:
            page = await browser.get("/waiting?owner_id=u1")
            assert "Claimed until" in page.text
            assert 'action="/approve"' not in page.text
            answer = await browser.post("/approve", data={**form, "call": "two"})
            assert answer.status_code == 409
            assert "being resumed by another process" in answer.text
            assert (await run.resume()).final_output == "Done"
        answer = await browser.post("/approve", data={**form, "call": "two"})
        assert answer.status_code == 404
        assert "does not wait for a decision any more" in answer.text
        assert runs(await browser.get("/waiting")) == ["Second"]
        # The call of another run, and no call.
        assert (
            await browser.post("/approve", data={**form, "id": "b", "call": "one"})
        ).status_code == 404
        assert (await browser.post("/approve", data={**form, "id": "b"})).status_code == 400
        # A state that is not one changes nothing.
        bad = {**form, "id": "b", "call": "three", "state-order": "x"}
        assert (await browser.post("/approve", data=bad)).status_code == 400
        assert (await PausedRuns(catalog).get("b")).undecided


async def test_a_page_that_shows_an_earlier_run_decides_nothing(catalog) -> None:
    await pause(catalog, "a", call("deploy", "one", target="staging"))
    paused = PausedRuns(catalog)
    async with client(catalog, allow_write=True) as browser:
        browser.headers.update({"Origin": HOST})
        page = await browser.get("/waiting")
        named = re.findall(r'name="(token|id|call|paused_at)" value="([^"]*)"', page.text)
        form = dict(named[:4])
        assert await paused.discard("a")
        # The model uses the id of the call again.
        agent = Deployer().agent([call("deploy", "one", target="production")], "Done")
        session = catalog.session("a")
        await paused.pause(session, await Runner.run(agent, "Deploy", session=session))
        answer = await browser.post("/approve", data=form)
        assert answer.status_code == 404
        assert "does not wait for a decision any more" in answer.text
        assert (await paused.get("a")).undecided
        wrong = {**form, "paused_at": "yesterday"}
        assert (await browser.post("/approve", data=wrong)).status_code == 400
        again = dict(
            re.findall(r'name="(\w+)" value="([^"]*)"', (await browser.get("/waiting")).text)
        )
        assert (await browser.post("/approve", data=again)).status_code == 303
        assert not (await paused.get("a")).undecided


async def test_forms_name_the_exact_call(catalog) -> None:
    names = ["c\n1", "c\r\n1", "c\r1"]
    for session_id in names:
        await pause(catalog, session_id, *deploys(*names), status=session_id)
    paused = PausedRuns(catalog)
    async with client(catalog, allow_write=True) as browser:
        browser.headers.update({"Origin": HOST})
        page = await browser.get("/waiting", params={"status": json.dumps(names[1])})
        for number, (call_id, action) in enumerate(
            zip(names, ("approve", "reject", "approve"), strict=True)
        ):
            answer = await browser.post(f"/{action}", data=sent(page, f"/{action}", number))
            status = quote(json.dumps(names[1]), safe="")
            assert answer.headers["location"].startswith(f"/waiting?status={status}#")
            pending = (await paused.get(names[1])).pending
            decided = {each.call_id: each.decision for each in pending}
            assert decided[call_id].approve is (action == "approve")
        assert None not in decided.values()
    for other in (names[0], names[2]):
        assert len((await paused.get(other)).undecided) == 3


async def test_a_history_that_a_run_waits_for_is_not_cut(catalog) -> None:
    await pause(catalog, "a", *deploys("one"))
    items = (await catalog.list_items("a")).items
    async with client(catalog, allow_write=True) as browser:
        browser.headers.update({"Origin": HOST})
        form = {"token": token(await browser.get("/session?id=a")), "id": "a"}
        cut = {"before": str(items[0].item_id), "last": str(items[-1].item_id)}
        answer = await browser.post("/rewind", data={**form, **cut})
    assert answer.status_code == 409
    assert "Resume it first, or give it up with PausedRuns.discard." in answer.text
    assert (await catalog.list_items("a")).items == items
    assert await PausedRuns(catalog).get("a")


async def test_pages_of_runs(catalog) -> None:
    for number in range(27):
        await pause(catalog, f"s{number:02}", *deploys("c"), title=f"Run {number:02}")
    async with client(catalog) as browser:
        first = await browser.get("/waiting")
        assert 'action="/approve"' not in first.text
        assert "Waiting for a decision" in first.text
        second = await browser.get(link(first, "Older"))
        assert runs(first) + runs(second) == [f"Run {each:02}" for each in reversed(range(27))]
        assert len(runs(first)) == 25
        assert runs(await browser.get(link(second, "← Newer"))) == runs(first)
        assert (await browser.get(link(first, "Older") + "&agent=x")).status_code == 400


async def test_stored_scripts_and_encrypted_arguments(catalog) -> None:
    await pause(catalog, SCRIPT, call("deploy", SCRIPT, target=SCRIPT), name=SCRIPT, title=SCRIPT)
    hidden = PausedRuns(catalog, encrypt=lambda text: text[::-1], decrypt=lambda text: text[::-1])
    await pause(catalog, "b", call("deploy", "c2", target="secret-target"), paused=hidden)
    await PausedRuns(catalog).decide(SCRIPT, SCRIPT, approve=False, message=SCRIPT, by=SCRIPT)
    async with client(catalog, allow_write=True) as browser:
        page = await browser.get("/waiting")
        assert "&lt;script&gt;" in page.text
        for word in ("<script>", "<img", "\u202e", "secret-target"):
            assert word not in page.text
        assert "Encrypted: only the application can read" in page.text


async def test_arguments_are_shown_as_the_model_wrote_them(catalog) -> None:
    """JSON is indented only if that changes nothing that a person decides about."""
    long = "x" * 90
    twice = f'{{"amount": 1, "amount": 1000, "note": "{long}"}}'
    number = f'{{"amount": 0.10000000000000000001, "note": "{long}"}}'
    plain = f'{{"amount": 1, "note": "{long}"}}'
    for session_id, arguments in (("a", twice), ("b", number), ("c", plain)):
        made = function_call("deploy", {"target": "x"}, call_id="c")
        made.arguments = arguments.replace('{"', '{"target": "x", "', 1)
        await pause(catalog, session_id, made)
    async with client(catalog) as browser:
        shown = (await browser.get("/waiting")).text.replace("&#34;", '"')
        assert '"amount": 1, "amount": 1000' in shown
        assert "0.10000000000000000001" in shown
        assert f'  "amount": 1,\n  "note": "{long}"' in shown


async def test_a_scope_holds(catalog) -> None:
    for owner in ("mine", "theirs"):
        await pause(catalog, f"{owner}-0", *deploys("c"), owner_id=owner, title=f"{owner} run")
    scope = {"scope": lambda request: {"owner_id": "mine"}}
    async with client(catalog, allow_write=True, **scope) as browser:
        page = await browser.get("/waiting")
        assert runs(page) == ["mine run"]
        assert "theirs" not in page.text
        for query in ("owner_id=theirs", "filter=%7B%22%24session_id%22%3A%22theirs-0%22%7D"):
            assert runs(await browser.get(f"/waiting?{query}")) == []
        form = {"token": token(page), "call": "c"}
        for path in ("/approve", "/reject"):
            answers = []
            for session_id in ("theirs-0", "missing0"):
                data = {**form, "id": session_id}
                answer = await browser.post(path, data=data, headers={"Origin": HOST})
                answers.append((answer.status_code, answer.text.replace(session_id, "it")))
            assert answers[0] == answers[1]
            assert answers[0][0] == 404
    assert (await PausedRuns(catalog).get("theirs-0")).undecided


async def test_a_database_without_the_table(engine, catalog) -> None:
    await catalog.create_session("a")
    async with client(SessionCatalog(engine)) as browser:
        page = await browser.get("/waiting")
        assert page.status_code == 200
        assert "table of paused runs is missing" in page.text
