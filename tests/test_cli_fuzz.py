"""Whatever is typed: an answer, or a sentence and an exit code; never a traceback or a guess."""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import Any

import pytest
from commands import run
from conformance import corpus, junk
from conformance.corpus import Corpus
from hypothesis import example, given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata import SessionCatalog
from agents_session_metadata.text import escaped

dumped = (
    (junk.json | corpus.filters())
    .filter(lambda one: "\ud800" not in repr(one))
    .map(lambda one: json.dumps(one, ensure_ascii=False))
)
scratched = st.builds(
    lambda text, at, more: text[: at % (len(text) + 1)] + more + text[at % (len(text) + 1) + 1 :],
    dumped,
    st.integers(min_value=0, max_value=1_000),
    junk.texts,
)
typed = dumped | scratched | junk.texts | junk.spoiled(corpus.filters(), junk.json).map(json.dumps)


def to_bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


@pytest.fixture
async def catalog(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.set_metadata("chat", {"a": 1})
    return catalog


@pytest.fixture
async def everything(shared_database):
    return await Corpus.create(shared_database.engine())


async def call(database: Any, *args: str, stdin: str | bytes | None = None) -> Any:
    """Run a command; whatever it was given, it ends well."""
    result = await asyncio.to_thread(run, *args, stdin=stdin, url=database.url)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in {0, 1, 2}
    assert result.exit_code == 0 or (result.stderr.strip() and not result.stdout)
    assert escaped(result.stderr, "\n\t") == result.stderr
    return result


def no_constant(name: str) -> Any:
    raise ValueError(name)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)


def strict(text: str) -> Any:
    """What a text means as JSON; NaN, infinities and keys given twice mean nothing."""
    return json.loads(text, parse_constant=no_constant, object_pairs_hook=once)


def value_of(text: str) -> Any:
    """What a text means after `key=`."""
    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError:
        return text
    return strict(text)


@pytest.mark.logic
@examples(12)
@given(text=typed)
async def test_where(shared_database, everything, text):
    result = await call(shared_database, "count", "--json", f"--where={text}")
    try:
        where = strict(text)
        found = await everything.catalog.count_sessions(where)
    except ValueError:
        assert result.exit_code == 2
        return
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"count": found}
    assert found == len(everything.expected(where))


@pytest.mark.logic
@examples(12)
@given(key=junk.texts | st.just("v"), text=typed)
async def test_meta(shared_database, everything, key, text):
    result = await call(shared_database, "count", "--json", f"--meta={key}={text}")
    key, _, text = f"{key}={text}".partition("=")
    try:
        found = await everything.catalog.count_sessions({key: {"$eq": value_of(text)}})
    except ValueError:
        assert result.exit_code == 2
        return
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"count": found}


@pytest.mark.logic
@examples(12)
@given(session=junk.texts | st.just("chat"), key=junk.texts | st.just("a"), text=typed)
async def test_set(shared_database, catalog, session, key, text):
    before = await catalog.count_sessions()
    result = await call(shared_database, "set", "--create", "--", session, f"{key}={text}")
    if result.exit_code:
        assert await catalog.get_metadata("chat") == {"a": 1}
        assert await catalog.count_sessions() == before
        return
    key, _, text = f"{key}={text}".partition("=")
    assert (await catalog.get_metadata(session))[key] == value_of(text)
    await catalog.delete_session(session)
    await catalog.set_metadata("chat", {"a": 1})


requests = st.fixed_dictionaries(
    {"session_id": st.just("chat")},
    optional={
        "max_idle_minutes": st.integers() | st.floats(),
        "max_errors": st.integers(),
        "phases": st.lists(st.sampled_from(["approval", "planning"])),
    },
)


@pytest.mark.logic
@examples(12)
@given(
    text=requests.map(json.dumps).map(str.encode)
    | junk.spoiled(requests, junk.json).map(json.dumps).map(str.encode)
    | typed.map(to_bytes)
    | st.binary(max_size=20)
)
async def test_resume_check(shared_database, catalog, text):
    arguments = "resume-check", "--stdin"
    result = await asyncio.to_thread(run, *arguments, stdin=text, url=shared_database.url)
    assert isinstance(result.exception, SystemExit | None)
    answer = json.loads(result.stdout)
    if "error" in answer:
        assert result.exit_code == 2
        assert answer["error"]
    else:
        assert result.exit_code == 1
        assert not answer["should_resume"]
        assert answer["reason"] in {"not_found", "not_resumable_phase"}


@examples(12)
@example(lines=b"\x1c")
@given(lines=st.lists(typed, max_size=3).map("\n".join).map(to_bytes) | st.binary(max_size=20))
async def test_import(shared_database, catalog, lines):
    result = await call(shared_database, "import", stdin=lines)
    assert await catalog.count_sessions() == 1
    # No line, or a list of none, is nothing to import; whatever else this is, it is no record.
    written = b"".join(lines.removeprefix(codecs.BOM_UTF8).split())
    assert result.exit_code == (written not in {b"", b"[]"})


VALUES = {
    "1e999": "not JSON",
    '{"b": 1, "b": 2}': "duplicate key 'b'",
    "9" * 5_000: "an integer can have at most 4300 digits",
    "[" * 101 + "]" * 101: "nested",
    "[" * 50_000 + "]" * 50_000: "nested too deeply",
}


@pytest.mark.logic
@pytest.mark.parametrize("text", VALUES, ids=lambda text: text[:16])
async def test_json_that_is_no_value_is_not_taken_for_a_string(shared_database, catalog, text):
    result = await call(shared_database, "set", "chat", f"a={text}")
    assert result.exit_code
    assert VALUES[text] in result.stderr
    assert await catalog.get_metadata("chat") == {"a": 1}
