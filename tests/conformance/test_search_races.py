"""Several processes write, delete, index and search at the same time."""

from __future__ import annotations

from contextlib import suppress

from processes import run_processes
from scaling import scale

from agents_session_metadata import SessionCatalog
from conformance import raw
from conformance.test_races import HEAD
from conformance.test_search_oracle import ask, stored

WRITER = (
    HEAD
    + """
import random
from contextlib import suppress

async def work(engine):
    catalog = SessionCatalog(engine)
    rnd = random.Random(arguments[0])
    for turn in range(int(arguments[1])):
        name = f"busy {rnd.randrange(4)}"
        items = [
            {"role": "user", "content": f"word{rnd.randrange(3)} and {rnd.random()}"}
            for _ in range(rnd.randrange(1, 4))
        ]
        session = catalog.session(name)
        kind = rnd.randrange(8)
        if kind < 3:
            await session.add_items(items)
        elif kind == 3:
            await session.pop_item()
        elif kind == 4:
            await session.set_metadata({"title": f"word{rnd.randrange(3)}"})
        elif kind == 5:
            await session._atomic_replace_items(items)
        elif kind == 6:
            await session.clear_session()
        else:
            with suppress(SessionNotFoundError):
                await session.rewind(turns=1)

run()
"""
)

# What the plain SDK raises without our triggers, it may raise with them: it does not retry.
OTHER = (
    HEAD
    + """
import random

async def work(engine):
    rnd = random.Random(arguments[0])
    done = 0
    for turn in range(int(arguments[1])):
        session = SQLAlchemySession(f"plain {rnd.randrange(3)}", engine=engine)
        if rnd.randrange(4):
            await session.add_items([{"role": "user", "content": f"word{rnd.randrange(3)}"}])
        else:
            await session.pop_item()
        done += 1
    return done

run()
"""
)

INDEXER = (
    HEAD
    + """
async def work(engine):
    catalog = SessionCatalog(engine)
    for turn in range(int(arguments[1]) // 2):
        await catalog.refresh_index("$text")
        for hit in (await catalog.search("word1")).hits:
            assert "word1" in hit.snippet

run()
"""
)


async def test_what_is_stored_is_what_is_found(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_index("$text")
    url, rounds = shared_database.url, scale(15, 1_000)
    sources = [WRITER, WRITER, OTHER, INDEXER]
    script = f"import sys\nexec({sources!r}[int(sys.argv.pop())])"
    arguments = [[url, place, rounds, place] for place in range(len(sources))]
    results = await run_processes(script, arguments)
    assert results[2] == [rounds]
    await catalog.refresh_index("$text")
    texts = await stored(engine)
    for word in ("word0", "word1", "word2"):
        hits = await ask(catalog, word, None, 50)
        found = {(hit.session_id, hit.item_id) for hit in hits}
        assert found == {key for key, text in texts.items() if word in text}
    # Nothing is left of what is gone.
    rows = await raw.execute(
        engine, "SELECT DISTINCT session_id, item_id FROM agent_sessions_metadata_words"
    )
    assert {(name, item_id or None) for name, item_id in rows} == set(texts)


async def test_an_interrupted_index_is_continued(engine, monkeypatch):
    catalog = SessionCatalog(engine, create_tables=True)
    for name in "abc":
        session = await catalog.create_session(name, metadata={"title": f"title {name}"})
        await session.add_items([raw.message(f"word {number}") for number in range(4)])
    monkeypatch.setattr("agents_session_metadata.maintenance.text_index.STEP", 5)

    class StoppedError(Exception):
        pass

    def stop(done):
        seen.append(done)
        raise StoppedError

    seen = []
    for expected in (5, 5, 2):
        with suppress(StoppedError):
            await catalog.create_index("$text", progress=stop)
        assert seen[-1] == expected
        page = await catalog.search("word")
        assert not page.complete
        assert [(each.key, each.complete) for each in await catalog.list_indexes()] == [
            ("$text", False)
        ]
    await catalog.session("a").add_items([raw.message("word meanwhile")])
    assert await catalog.create_index("$text", progress=seen.append)
    assert seen[-1] == 3
    page = await catalog.search("word", limit=100)
    assert (len(page.hits), page.complete) == (13, True)
    assert len((await catalog.search("title")).hits) == 3
