"""The pages of the browser on every database: what they show, change and refuse."""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime, timedelta, timezone
from html import unescape
from urllib.parse import urlencode

import pytest
from agents import Agent, Runner
from agents.extensions.memory import SQLAlchemySession
from agents.testing import ModelStep, ScriptedModel, assistant_message
from agents.usage import Usage
from sqlalchemy import event

from agents_session_metadata import ModelPrice, SessionCatalog, SessionRuns, SessionTracker, keys
from agents_session_metadata.web.list_page import ListState, read_facets
from conformance import raw
from conformance.approving import Deployer, deploys

from .browsing import HOST, SCRIPT, client, edit_form, link, names, sent, token

pytestmark = pytest.mark.logic


async def test_facets_read_the_values_and_nothing_else(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    for number, metadata in enumerate(
        (
            {"owner_id": "u1", "tags": ["a", "a", "b", 1, ["a"]], "status": "open"},
            {"owner_id": "u2", "tags": ["b"], "status": 7},
            {"owner_id": "u1", "tags": "b", "status": ""},
            {"owner_id": "u1", "tags": {"a": 1}, "status": "open", "other": "open"},
        )
    ):
        await catalog.create_session(f"chat-{number}", metadata=metadata)
    await raw.execute(
        engine,
        "UPDATE agent_sessions_metadata SET value = 'no JSON'"
        " WHERE session_id = 'chat-3' AND value = '\"u1\"'",
    )
    await catalog.list_sessions({"status": "open"}, keys=[])
    sent: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: sent.append(call[2]))
    facets = await read_facets(catalog, ListState.of({}))
    assert {key: values for key, _, values in facets.groups} == {
        "status": [("open", 2, False)],
        "owner_id": [("u1", 2, False), ("u2", 1, False)],
        "tags": [("b", 3, False), ("a", 1, False)],
    }
    assert (facets.number, facets.complete) == (4, True)
    assert len(sent) == 1
    sent.clear()
    facets = await read_facets(catalog, ListState.of({"owner_id": "u2"}))
    assert (facets.number, facets.complete) == (1, True)
    assert len(sent) == 1


async def test_lists_pages_facets_and_sessions(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(30):
        metadata = {"owner_id": f"u{number % 2}", "tags": ["x"], "title": f"Chat {number}"}
        if number == 29:
            metadata |= {"title": {"not": "text"}, "tags": "none", "cost": "free", "status": [1]}
        session = await catalog.create_session(f"chat-{number:02}", metadata=metadata)
    await session.add_items(
        [
            raw.message("Hello\r\nthere"),
            {"type": "function_call", "name": "look", "call_id": "c1", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
            {"type": "reasoning", "summary": []},
            raw.message("Hi", role="assistant"),
            {"__enc__": 1, "v": 1, "kid": "k", "payload": "p"},
        ]
    )
    async with client(catalog) as browser:
        first = await browser.get("/")
        assert first.status_code == 200
        assert len(names(first)) == 25
        assert "30 sessions" in first.text
        assert "Counts of all matching sessions" in first.text
        second = await browser.get(link(first, "Older"))
        assert {*names(first), *names(second)} == {f"chat-{each:02}" for each in range(30)}
        assert len(names(second)) == 5
        assert names(await browser.get(link(second, "← Newer"))) == names(first)

        mine = await browser.get("/", params={"filter": "owner_id=u1 tags:x", "order": "title"})
        assert names(mine) == [f"chat-{each:02}" for each in sorted(range(1, 28, 2), key=str)]
        assert names(await browser.get("/?owner_id=u1&tags=x&order=title")) == names(mine)
        # A cursor of another list says where to begin in nothing.
        stolen = await browser.get(link(first, "Older") + "&owner_id=u1")
        assert stolen.status_code == 400
        assert "belongs to another list" in stolen.text

        found = await browser.get("/?filter=chat-29", follow_redirects=True)
        assert found.url.path == "/session"
        for word in ("Hello\nthere", "look", "seen", "Hi", "Encrypted", "{&#34;not&#34;"):
            assert word in found.text
        items = (await browser.get("/session.json?id=chat-29")).json()
        assert [each["item"] for each in items["items"]] == await session.get_items()

        statistics = await browser.get("/statistics?owner_id=u1")
        assert statistics.status_code == 200
        assert "<dt>Sessions</dt><dd>15</dd>" in statistics.text


async def test_the_items_around_one(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    session = catalog.session("chat")
    await session.add_items([raw.message(f"item {number}.") for number in range(50)])
    first, *_, last = [each.item_id for each in (await catalog.list_items("chat")).items]
    # The clock of the client that has added the first item is ahead.
    await raw.execute(
        engine,
        f"UPDATE agent_messages SET created_at = '2030-01-01 00:00:00' WHERE id = {first}",
    )
    async with client(catalog) as browser:

        async def shown(item: int) -> tuple[list[int], str]:
            page = (await browser.get(f"/session?id=chat&item={item}")).text
            return [
                int(number) for number in re.findall(r"class=.text. dir=.auto.>item (\d+)\.", page)
            ], page

        assert (await shown(first))[0] == [*range(30, 50), 0]
        found, page = await shown(last)
        assert found == [*range(29, 50), 0]
        assert "does not exist any more" not in page
        found, page = await shown(last + 1)
        assert found == [*range(1, 50), 0]
        assert f"Item {last + 1} does not exist any more" in page


async def test_a_scope_holds_on_every_page(mine, everyone) -> None:
    """What a page says of another owner's session is what it says of one that does not exist."""
    scope = {"scope": lambda request: {"owner_id": "mine"}}
    async with client(everyone, allow_write=True, **scope) as browser:
        for path in ("/", "/?count=all", "/?owner_id=theirs", "/statistics?count=all"):
            page = await browser.get(path)
            assert page.status_code == 200
            assert "theirs-" not in page.text
        form = {"token": token(await browser.get("/session?id=mine-0")), "title": "x"}
        theirs = (await everyone.list_items("theirs-0")).items[0].item_id
        for method, path, more in (
            ("GET", "/session", {}),
            ("GET", "/session.json", {}),
            ("GET", "/delete", {}),
            ("GET", "/rewind", {"before": theirs}),
            ("POST", "/edit", {}),
            ("POST", "/fork", {}),
            ("POST", "/fork", {"before": theirs}),
            ("POST", "/rewind", {"before": theirs, "last": theirs}),
            ("POST", "/delete", {}),
        ):
            answers = []
            for session_id in ("theirs-0", "missing0"):
                sent = {"id": session_id, **more}
                headers = {"Origin": HOST}
                data = {"data": {**form, **sent}, "headers": headers} if method == "POST" else {}
                params = sent if method == "GET" else None
                answer = await browser.request(method, path, params=params, **data)
                answers.append((answer.status_code, answer.text.replace(session_id, "it")))
            assert answers[0] == answers[1], path
            assert answers[0][0] == 404, path
    for values in (None, {}, {"owner_id": None}):
        async with client(everyone, scope=lambda request, values=values: values) as browser:
            assert (await browser.get("/")).status_code == 403


async def test_changes(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session(
        "a", metadata={"title": "Old", "kept": 1, "pinned": True}
    )
    await session.add_items([raw.message("One"), raw.message("Two")])
    second = (await catalog.list_items("a")).items[1].item_id
    async with client(catalog, allow_write=True) as browser:
        browser.headers["Origin"] = HOST
        form = {"token": token(await browser.get("/session?id=a")), "id": "a"}
        edit = {
            **form,
            "title": "New",
            "tags": "x\r\n\r\n y, z\r\nx",
            "shown_pinned": "yes",
            "archived": "yes",
        }
        assert (await browser.post("/edit", data=edit)).status_code == 303
        changed = {"title": "New", "tags": ["x", "y, z"], "archived": True, "kept": 1}
        assert await session.get_metadata() == changed

        copy = await browser.post("/fork", data={**form, "before": second})
        copied = copy.headers["location"].partition("id=")[2]
        assert await catalog.session(copied).get_items() == [raw.message("One")]

        asked = await browser.get(f"/rewind?id=a&before={second}")
        last = re.findall(r'name="last" value="(\d+)"', asked.text)[0]
        await session.add_items([raw.message("Three")])
        rewind = {**form, "before": second, "last": last}
        assert (await browser.post("/rewind", data=rewind)).status_code == 409
        assert len(await session.get_items()) == 3
        rewind["last"] = str((await catalog.list_items("a")).items[-1].item_id)
        assert (await browser.post("/rewind", data=rewind)).status_code == 303
        assert await session.get_items() == [raw.message("One")]
        for before in ("", "x", "-1", "9" * 30):
            answer = await browser.post("/rewind", data={**rewind, "before": before})
            assert answer.status_code == 400

        assert "Delete this session?" in (await browser.get("/delete?id=a")).text
        assert await catalog.get_session("a") is not None
        assert (await browser.post("/delete", data=form)).status_code == 303
        assert await catalog.get_session("a") is None


async def test_editing_a_session_that_cannot_have_metadata(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a")
    long = "y" * 305
    can_exist = engine.dialect.name != "mysql"
    if can_exist:
        await SQLAlchemySession(long, engine=engine).add_items([raw.message("One")])
    async with client(catalog, allow_write=True) as browser:
        browser.headers["Origin"] = HOST
        form = {"token": token(await browser.get("/session?id=a")), "title": "New"}
        for name, status in {"nope": 404, "x" * 256: 404, "a\0": 404, long: 409}.items():
            answer = await browser.post("/edit", data={**form, "id": name})
            assert answer.status_code == (status if can_exist else 404), name


@pytest.mark.parametrize("ids", [("a\n1", "a\r\n1", "a\r1"), ("a\u202e%41+", "a\\u202eA+")])
async def test_forms_name_the_exact_session(engine, ids) -> None:
    """Also if ids differ only in characters that pages or browsers change."""
    catalog = SessionCatalog(engine, create_tables=True)
    for session_id in ids:
        session = await catalog.create_session(session_id, metadata={"owner_id": session_id})
        await session.add_items([raw.message("One"), raw.message("Two")])

    async def read() -> dict[str, tuple[str | None, int]]:
        found = await catalog.list_sessions({"forked_from": {"$exists": False}}, count_items=True)
        return {
            each.session_id: (each.metadata.get("title"), each.item_count)
            for each in found.sessions
        }

    async with client(catalog, allow_write=True) as browser:
        browser.headers["Origin"] = HOST
        expected = await read()
        for session_id in ids:
            at = {"id": session_id}
            page = await browser.get("/session", params=at)
            await browser.post("/edit", data={**sent(page, "/edit"), "title": "New"})
            expected[session_id] = ("New", 2)
            assert await read() == expected
            for number in range(3):  # before either message, and all of it
                await browser.post("/fork", data=sent(page, "/fork", number))
            assert await catalog.count_sessions({"forked_from": session_id}) == 3
            second = (await catalog.list_items(session_id)).items[1].item_id
            asked = await browser.get("/rewind", params={**at, "before": second})
            await browser.post("/rewind", data=sent(asked, "/rewind"))
            expected[session_id] = ("New", 1)
            assert await read() == expected
            # The form of the filter keeps the values of facets.
            listed = await browser.get("/", params={"owner_id": json.dumps(session_id)})
            again = await browser.get("/", params=sent(listed, "/"))
            listed = [each for each in ids if f"/session?{urlencode({'id': each})}" in again.text]
            assert listed == [session_id]
            await browser.post(
                "/delete", data=sent(await browser.get("/delete", params=at), "/delete")
            )
            del expected[session_id]
            assert await read() == expected


async def test_a_form_changes_only_the_fields_that_were_edited(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    kept = {"title": "a\n\u202eb ", "tags": ["x, y", 7], "pinned": 3}
    odd = {"title": {"en": "A"}, "tags": "work", "pinned": "since May"}
    plain = {"title": "Old", "tags": ["x"], "pinned": True}
    async with client(catalog, allow_write=True) as browser:
        browser.headers["Origin"] = HOST
        for number, metadata in enumerate((kept, odd, plain)):
            session = await catalog.create_session(f"chat-{number}", metadata=metadata)
            fields = edit_form(await browser.get(f"/session?id=chat-{number}"))
            # A browser keeps what a person can edit in one line.
            fields["title"] = fields["title"].replace("\n", "")
            saved = await browser.post("/edit", data={**fields, "archived": "yes"})
            assert saved.status_code == 303
            assert await session.get_metadata() == {**metadata, "archived": True}
        # Meanwhile another writer renames the session.
        await session.set_metadata({"title": "New"})
        fields.pop("pinned")
        assert (await browser.post("/edit", data={**fields, "tags": ""})).status_code == 303
        assert await session.get_metadata() == {"title": "New", "archived": True}


async def test_editing_tags_changes_only_the_tags_that_were_edited(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    hidden = [7, None, True, {"a": 1}, ["work"], " spaces ", "two\nlines", "\u202e", ""]
    shown = ["work", "Food, Drinks", "1", "a\tb"]
    session = await catalog.create_session("a", metadata={"tags": [*hidden, *shown, "work"]})
    async with client(catalog, allow_write=True) as browser:
        browser.headers["Origin"] = HOST
        fields = edit_form(await browser.get("/session?id=a"))
        assert fields["tags"] == fields["shown_tags"] == "\n".join(shown)
        await session.edit_metadata(lambda metadata: metadata["tags"].append("meanwhile"))
        fields["tags"] = "Food, Drinks\r\na\tb\r\nnew, too\r\nmeanwhile\r\n1"
        assert (await browser.post("/edit", data=fields)).status_code == 303
        kept = [*hidden, "Food, Drinks", "1", "a\tb", "meanwhile", "new, too"]
        assert await session.get_metadata() == {"tags": kept}
        # The key goes with the last tag.
        await session.set_metadata({"tags": ["one"]})
        fields = edit_form(await browser.get("/session?id=a"))
        assert (await browser.post("/edit", data={**fields, "tags": ""})).status_code == 303
        assert await session.get_metadata() == {}
        # However long the list is, the form can be sent.
        tags = [f"東京 {number:03}" * 10 for number in range(600)]
        await session.set_metadata({"tags": tags})
        fields = edit_form(await browser.get("/session?id=a"))
        changed = {**fields, "tags": f"{fields['tags']}\r\none more"}
        assert (await browser.post("/edit", data=changed)).status_code == 303
        assert await session.get_metadata() == {"tags": [*tags, "one more"]}
        await session.delete_metadata()
        for other in ("work", {"work": True}, None):
            await session.set_metadata({"tags": other, "title": "Old"})
            page = await browser.get("/session?id=a")
            assert "is not a list" in page.text
            assert not {"tags", "shown_tags"} & edit_form(page).keys()
            late = {**fields, "tags": "two", "title": "New"}
            assert (await browser.post("/edit", data=late)).status_code == 409
            assert await session.get_metadata() == {"tags": other, "title": "Old"}


@pytest.mark.only_on("sqlite-memory")  # The pages show what was read.
async def test_no_value_of_a_well_known_key_breaks_a_page(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    well_known = [each for name, each in vars(keys).items() if name.isupper() and type(each) is str]
    values = (None, True, "", "approval", -1, 1e308, 10**40, [], [None, {}], {}, {"a": [1]})
    names = [
        (await catalog.create_session(f"{key} {number}", metadata={key: value})).session_id
        for key in well_known
        for number, value in enumerate(values)
    ]
    async with client(catalog, allow_write=True) as browser:
        for name in names:
            assert (await browser.get("/session", params={"id": name})).status_code == 200, name
        listed = await browser.get("/")
        while "Older" in listed.text:
            assert listed.status_code == 200
            names = [name for name in names if urlencode({"id": name}) not in listed.text]
            listed = await browser.get(link(listed, "Older"))
        assert listed.status_code == 200
        assert not [name for name in names if urlencode({"id": name}) not in listed.text]
        for path in ("/statistics", "/runs"):
            assert (await browser.get(path)).status_code == 200


async def test_stored_scripts_are_text(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    values = dict.fromkeys(("title", "owner_id", "agent", "status", "phase", "x"), SCRIPT)
    metadata = {**values, "tags": [SCRIPT], SCRIPT: SCRIPT, "nested": [{SCRIPT: SCRIPT}]}
    history = [{"phase": SCRIPT, "at": "2026-01-01T00:00:00+00:00"}]
    metadata |= {"phase_history": history, "tool_calls": [[SCRIPT, 1, 2]]}
    session = await catalog.create_session(SCRIPT, metadata=metadata)
    call = {"type": "function_call", "name": SCRIPT, "call_id": "c", "arguments": SCRIPT}
    output = {"type": "function_call_output", "call_id": "c", "output": SCRIPT}
    await session.add_items(
        [raw.message(SCRIPT), call, output, {"role": SCRIPT, "content": [{"type": SCRIPT}]}]
    )
    async with client(catalog, allow_write=True) as browser:
        for path in ("/", "/session", "/statistics", "/delete", f"/?status={SCRIPT}"):
            page = await browser.get(path, params={"id": SCRIPT} if "?" not in path else None)
            assert page.status_code == 200, path
            assert "&lt;script&gt;" in page.text
            assert "<script>" not in page.text
            assert "<img" not in page.text
            assert "\u202e" not in page.text
        answer = await browser.get("/session.json", params={"id": SCRIPT})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        refused = await browser.get("/", params={"filter": SCRIPT})
        assert refused.status_code == 400
        assert "<img" not in refused.text


BAD = {
    "filter=word": 400,
    "filter=%7B": 400,
    "filter=%22open": 400,
    "filter=$x=1": 400,
    "filter=" + "a" * 5000: 400,
    "filter=a%3D" + "[" * 3000: 200,
    "filter=%7B%22a%22%3A" + "[" * 3000: 400,
    "x=" + "a" * 20_000: 414,
    "cursor=nonsense": 400,
    "order=owner_id": 200,
    "order=-$x": 400,
    "since=yesterday": 400,
    "trail=" + "a." * 2000: 200,
    "agent=1e999": 400,
    "status=NaN&owner_id=%00": 200,
}


async def test_bad_parameters(engine) -> None:
    async with client(SessionCatalog(engine, create_tables=True)) as browser:
        for query, status in BAD.items():
            answer = await browser.get(f"/?{query}")
            assert answer.status_code == status, query
            assert "Traceback" not in answer.text


async def test_searching(engine) -> None:
    """One row per session with its newest hit, and facets of what was found."""
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(30):
        metadata = {"title": f"Chat {number}", "agent": f"a{number % 2}"}
        session = await catalog.create_session(f"chat-{number:02}", metadata=metadata)
        word = "tram" if number < 28 else "bus"
        await session.add_items([raw.message(f"a {word} & {each}") for each in ("old", "new")])
    async with client(catalog) as browser:
        without = await browser.get("/", params={"q": "tram"})
        assert without.status_code == 400
        assert "The text index does not exist; an operator can create it." in without.text
        assert 'value="tram"' in without.text
        await catalog.create_index("$text")
        page = await browser.get("/", params={"q": "tram"})
        assert len(names(page)) == 25
        assert page.text.count("a <mark>tram</mark> &amp; new") == 25
        assert "<mark>tram</mark> &amp; old" not in page.text
        assert "28 sessions found" in page.text
        assert re.findall('class="count">(\\d+)', page.text) == ["14", "14"]
        assert len(names(await browser.get(link(page, "Older")))) == 3
        assert len(names(await browser.get("/?q=tram&agent=a1"))) == 14
        assert (await browser.get("/", params={"q": "-tram"})).status_code == 400


async def test_an_invalid_filter_stays_beside_its_box(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"tags": ["x"]})
    async with client(catalog) as browser:
        for path in ("/", "/runs", "/statistics"):
            page = await browser.get(path, params={"filter": "owner_id"})
            assert page.status_code == 400
            assert 'id="filter" name="filter" value="owner_id"' in page.text
            assert 'role="alert">Write a filter as key=value' in page.text
        page = await browser.get("/", params={"filter": '{"tags": {"contains": "x"}}'})
        assert "write $contains instead of contains" in page.text


async def test_answers_are_markdown_without_html(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a")
    image = "data:image/png;base64,iVBORw0KGgo="
    text = (
        f"# Plan\n**bold** <b>raw</b> [a](https://x.example) [b](javascript:alert(1)) "
        f"[c]({image}) ![d]({image}) ![e](https://x.example/p.png) &#8238;\n\n"
        "```python\ndef f(): ...\n```\n"
    )
    part = {"type": "input_image", "image_url": image}
    large = {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * (3 << 20)}"}
    await session.add_items(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "**see**"}, part, large]},
            raw.message(text, role="assistant"),
        ]
    )
    async with client(catalog) as browser:
        page = (await browser.get("/session?id=a")).text
        images = re.findall('<img src="([^"]*)"', page)
        assert len(set(images)) == 2
        for each in images:
            shown = await browser.get(unescape(each))
            assert shown.headers["content-type"] == "image/png"
            assert shown.content == base64.b64decode("iVBORw0KGgo=")
        assert (await browser.get("/item?id=a&item=1&image=0")).status_code == 404
    assert "**see**" in page
    assert page.count("<img") == 2
    assert page.count("not shown") == 1
    assert '<h3 dir="auto">Plan</h3>' in page
    assert "<strong>bold</strong> &lt;b&gt;raw&lt;/b&gt;" in page
    assert '<a href="https://x.example" rel=' in page
    assert '<a href="https://x.example/p.png" rel=' in page
    assert 'href="javascript' not in page
    assert 'href="data:' not in page
    assert '<span class="c-k">def</span>' in page
    assert "\u202e" not in page


async def test_images_of_up_to_2_mib_are_shown(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    for size in range((2 << 20) - 2, (2 << 20) + 2):
        url = f"data:image/png;base64,{base64.b64encode(bytes(size)).decode()}"
        parts = [{"type": "input_image", "image_url": url}]
        await catalog.create_session(f"{size}", items=[{"role": "user", "content": parts}])
        async with client(catalog) as browser:
            page = (await browser.get(f"/session?id={size}")).text
            images = re.findall('<img src="([^"]*)"', page)
            sizes = [len((await browser.get(unescape(each))).content) for each in images]
        assert sizes == ([size] if size <= 2 << 20 else [])


async def test_a_session_says_why_it_failed_and_how_its_tools_ended(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    details = [{"id": "c1", "tool": "look", "ms": 1500, "ok": False, "at": None}]
    metadata = {"status": "failed", "last_error": "it <broke>", "invocation_details": details}
    session = await catalog.create_session("a", metadata={**metadata, "cost": 1.5})
    call = {"type": "function_call", "name": "look", "call_id": "c1", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "no"}
    await session.add_items([raw.message("One"), call, output, raw.message("Two")])
    first = (await catalog.list_items("a")).items[0].item_id
    async with client(catalog, allow_write=True, currency="EUR") as browser:
        page = (await browser.get("/session?id=a")).text
        assert "Failed because it &lt;broke&gt;" in page
        assert '<span class="outcome bad">failed</span>' in page
        assert '<span class="took">1.5 s</span>' in page
        assert "EUR\u00a01.50" in page
        asked = (await browser.get(f"/rewind?id=a&before={first}")).text
        assert "<blockquote>One</blockquote>" in asked
        assert "4 items are removed" in asked


async def test_a_turn_shows_its_tokens_and_its_cost(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    usage = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
    model = ScriptedModel([ModelStep(output=[assistant_message("Done")], usage=usage)])
    session = catalog.session("a")
    async with SessionTracker(session, prices=ModelPrice(1000, 1000), model="m") as hooks:
        await Runner.run(Agent(name="a", model=model), "Hi", session=session, hooks=hooks)
    async with client(catalog) as browser:
        page = (await browser.get("/session?id=a")).text
        turn = page.partition('id="turns"')[2].partition("</section>")[0]
        assert "110 tokens" in turn
        assert "$0.11" in turn


async def test_encrypted_texts_are_not_shown(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    runs = SessionRuns(catalog, encrypt=lambda text: text[::-1], decrypt=lambda text: text[::-1])
    await runs.run("waits", Deployer().agent(deploys("c1")), "Go")
    with pytest.raises(Exception, match="no scripted steps"):
        await runs.run("failed", Agent(name="a", model=ScriptedModel([])), "Go")
    async with client(catalog) as browser:
        page = (await browser.get("/runs")).text
        assert "Encrypted: only the application can read the arguments." in page
        session = (await browser.get("/session?id=failed")).text
        assert "Failed. Only the application can read the reason." in session
        assert "encrypted:" not in page + session


async def test_a_range_of_days(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a")
    async with client(catalog) as browser:
        today = datetime.now(timezone.utc).date()
        week = f"since={today - timedelta(days=6)}&until={today}"
        page = await browser.get(f"/statistics?{week}")
        assert len(re.findall(r'<th scope="row">\d{4}-\d\d-\d\d</th>', page.text)) == 7
        assert "<dt>Sessions</dt><dd>1</dd>" in page.text
        old = await browser.get("/statistics?since=2026-01-01&until=2026-01-07")
        assert "Nothing was recorded in these days" in old.text
        assert 'role="img"' not in old.text
        for query in ("since=x", "since=2026-01-01&until=2027-01-01", "since=9999-12-31"):
            assert (await browser.get(f"/statistics?{query}")).status_code == 400


async def test_status_and_agent_agree_on_all_pages(engine) -> None:
    """Of sessions with runs and a tracker only, and of those with a lifecycle."""
    catalog = SessionCatalog(engine, create_tables=True)
    await SessionRuns(catalog).run("waits", Deployer().agent(deploys("c1")), "Go")
    await catalog.create_session("failed", metadata={"run": "failed", "agent": "deployer"})
    await catalog.create_session("active", metadata={"run": "completed", "status": "active"})
    await catalog.create_session("tracked", metadata={"runs": 1, "agent": "deployer"})
    expected = {"waits": "waiting", "failed": "failed", "active": "active", "tracked": "completed"}
    async with client(catalog) as browser:
        listed = (await browser.get("/")).text
        facets = listed.partition('id="facets"')[2]
        for name, status in expected.items():
            row = listed.partition(f'<span class="id">{name}')[2].partition("</tr>")[0]
            assert f'<span class="status {status}" dir="auto">{status}</span>' in row
            for query in (f"status={status}", f"filter=status%3D{status}"):
                assert names(await browser.get(f"/?{query}")) == [name]
            assert f'<span class="value" dir="auto">{status}</span>' in facets
            page = (await browser.get(f"/session?id={name}")).text
            assert f'<span class="status {status}" dir="auto">' in page
        assert names(await browser.get("/?errors=1")) == ["failed"]
        statistics = (await browser.get("/statistics")).text
        assert '<div class="bad"><dt>Failed</dt><dd>1</dd>' in statistics
        # Columns that no session of the page fills are left out.
        assert "deployer</a>" in listed
        for heading in ("Owner", "Tags", "Cost"):
            assert f'data-label="{heading}"' not in listed
    assert (await catalog.statistics()).by_status == dict.fromkeys(expected.values(), 1)


async def test_a_list_is_sorted_by_the_heading_of_a_column(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(30):
        metadata = {"owner_id": f"u{number:02}", "priority": number}
        await catalog.create_session(f"chat-{number:02}", metadata=metadata)
    async with client(catalog) as browser:
        page = await browser.get(link(await browser.get("/"), "Owner"))
        assert names(page) == [f"chat-{number:02}" for number in range(25)]
        assert '<th scope="col" class="owner" aria-sort="ascending">' in page.text
        assert names(await browser.get(link(page, "Next")))[0] == "chat-25"
        assert names(await browser.get(link(page, "Owner")))[0] == "chat-29"
        assert names(await browser.get("/?order=-priority"))[0] == "chat-29"
        assert '<option value="owner_id=u00">' in page.text
        assert '<option value="priority=">' in page.text


async def test_a_list_of_a_range_of_dates(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    for day in (1, 2, 3):
        at = f"2026-03-0{day}T23:59:59+00:00"
        record = {"format": 1, "session_id": f"s{day}", "created_at": at, "updated_at": at}
        await catalog.import_sessions([{**record, "metadata": {}, "items": []}])
    async with client(catalog) as browser:
        assert names(await browser.get("/?since=2026-03-02")) == ["s3", "s2"]
        page = await browser.get("/?since=2026-03-02&until=2026-03-02")
        assert names(page) == ["s2"]
        assert 'name="since" value="2026-03-02"' in page.text


async def test_a_fork_and_its_original_link_to_each_other(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"title": "Plan"})
    await catalog.fork_session("a", "b")
    async with client(catalog) as browser:
        assert 'href="/session?id=a">Plan</a>' in (await browser.get("/session?id=b")).text
        assert 'href="/session?id=b"' in (await browser.get("/session?id=a")).text


async def test_a_turn_has_a_timeline_of_model_and_tools(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    call = {"type": "function_call", "name": "look", "call_id": "c1", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    items = [raw.message("Hi"), call, output, raw.message("Done", role="assistant")]
    times = [f"2026-03-01T00:00:{second:02}+00:00" for second in (0, 4, 6, 10)]
    record = {"format": 1, "session_id": "a", "created_at": times[0], "updated_at": times[3]}
    timed = [{"created_at": at, "item": each} for at, each in zip(times, items, strict=True)]
    details = [{"id": "c1", "tool": "look", "ms": 1000, "ok": True, "at": None}]
    metadata = {"invocation_details": details}
    await catalog.import_sessions([{**record, "metadata": metadata, "items": timed}])
    async with client(catalog) as browser:
        page = (await browser.get("/session?id=a")).text
        assert 'aria-label="Timeline of the turn: model 5.0 s, look 1.0 s, model 4.0 s"' in page
        assert 'class="of-tool" x="50.0%" y="0" width="10.0%"' in page
        for odd in ({"id": [1]}, {"id": "c1", "ms": "long"}, {"id": "c1", "ms": 10**400}):
            await catalog.set_metadata("a", {"invocation_details": [odd]})
            assert (await browser.get("/session?id=a")).status_code == 200


async def test_texts_have_their_own_direction_and_files_their_name(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a", metadata={"title": "سؤال"})
    file = {"type": "input_file", "filename": "report.pdf", "file_data": "data:a"}
    table = "| a | b |\n|---|--:|\n| c | 1 |\n\nمرحبا"  # noqa: RUF001
    long = json.dumps([{"key": "value"}] * 2_500)
    call = {"type": "function_call", "name": "look", "call_id": "c", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": long}
    await session.add_items(
        [{"role": "user", "content": [file]}, call, output, raw.message(table, role="assistant")]
    )
    async with client(catalog) as browser:
        page = (await browser.get("/session?id=a")).text
        assert (
            '<a data-key dir="auto" href="/session?id=a">سؤال</a>' in (await browser.get("/")).text
        )
    assert '<h1 dir="auto">سؤال</h1>' in page
    assert '<div class="text" dir="auto">(file report.pdf)</div>' in page
    assert '<p dir="auto">مرحبا</p>' in page
    assert '<div class="scroll" tabindex="0" dir="auto"><table>' in page
    assert '<td class="right">1</td>' in page
    output = re.sub("<[^>]*>", "", page.partition("Output of look")[2])
    assert '[\n  {\n    "key": "value"\n  },\n' in unescape(output)
