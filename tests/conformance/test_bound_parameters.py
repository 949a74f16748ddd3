"""What comes in is bound as a parameter, and never is part of a statement."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from proxy import proxy_to
from servers import ignored_warnings
from sqlalchemy import NullPool, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import (
    SessionCatalog,
    SQLAlchemyMetadataSession,
    UnsupportedDialectError,
)
from agents_session_metadata.doctor import diagnose, rewrite_search_keys
from conformance import raw
from conformance.junk import NASTY, attempt

# Nothing of the package's own contains these.
MARK = "x9q"
DAY = date(2026, 1, 1)
NUMBER = 918273645
YEAR = "2031"

TEXTS = {
    "printable": MARK + "".join(text for text in NASTY if text not in {"\0", "\ud800"}) + MARK,
    "nul": f"{MARK}'\0--",
    "surrogate": f"{MARK}'\ud800--",
}


def value(text: str) -> dict[str, Any]:
    return {text: [text, NUMBER, {text: text}], "number": NUMBER, "fraction": NUMBER / 1000}


def filters(text: str) -> list[dict[str, Any]]:
    every = [
        *({text: {operator: text}} for operator in ("$eq", "$ne", "$gt", "$lte", "$prefix")),
        *({text: {operator: NUMBER}} for operator in ("$eq", "$ne", "$gte", "$lt", "$contains")),
        *({text: {operator: [text, NUMBER, None, [text]]}} for operator in ("$in", "$nin")),
        {text: {text: text}},
        {text: {"$exists": True, "$contains": text}},
        {"$session_id": text},
        {"$session_id": {"$in": [text, "a"], "$prefix": text}},
        {"$created_at": {"$gt": f"{YEAR}-07-09T10:11:12.{NUMBER % 10**6}+00:00"}},
        {"$updated_at": {"$lte": f"{YEAR}-07-09T10:11:12+00:00"}},
    ]
    return [{"$or": every}, {"$not": {"$and": every}}, *every]


def record(text: str) -> dict[str, Any]:
    time = f"{YEAR}-07-09T10:11:12+00:00"
    items = [{"created_at": time, "item": raw.message(text)}, {"created_at": time, "text": text}]
    return {
        "format": 1,
        "session_id": f"{text[:200]} imported",
        "created_at": time,
        "updated_at": time,
        "metadata": value(text),
        "items": items,
    }


async def each(walk: Any) -> list[Any]:
    return [one async for one in walk]


def change(text: str) -> Callable[[Any], None]:
    return lambda metadata: metadata.update(value(text))


async def scoped(catalog: SessionCatalog, text: str) -> int:
    return await catalog.scoped({text: text}).count_sessions()


async def erase(catalog: SessionCatalog, text: str) -> None:
    await catalog.erase({"$session_id": {"$prefix": f"{text[:200]} no"}}, by=text)


async def readable(catalog: SessionCatalog, where: Any) -> int:
    return await catalog.readable(where).count_sessions()


async def fork(catalog: SessionCatalog, text: str) -> None:
    await catalog.fork_session(text, f"{text[:200]} forked", metadata=value(text))


Call = Callable[[Any, str], Awaitable[Any]]
BY_FILTER: dict[str, Call] = {
    "last_session": lambda catalog, where: catalog.last_session(where, count_items=True),
    "list_sessions": lambda catalog, where: catalog.list_sessions(where, limit=1, preview=True),
    "iter_sessions": lambda catalog, where: each(catalog.iter_sessions(where)),
    "count_sessions": lambda catalog, where: catalog.count_sessions(where),
    "count_values": lambda catalog, where: catalog.count_values("number", where),
    "statistics": lambda catalog, where: catalog.statistics(where),
    "export_sessions": lambda catalog, where: each(catalog.export_sessions(where)),
    "last_sessions": lambda catalog, where: catalog.last_sessions("number", where),
    "daily_statistics": lambda catalog, where: catalog.daily_statistics(where, since=DAY),
    "readable": readable,
    "delete_sessions": lambda catalog, where: catalog.delete_sessions(
        {"$and": [where, {"never": 1}]}, inactive_for=timedelta(seconds=1)
    ),
}
BY_TEXT: dict[str, Call] = {
    "create_session": lambda catalog, text: catalog.create_session(text, metadata=value(text)),
    "set_metadata": lambda catalog, text: catalog.set_metadata(text, value(text)),
    "get_metadata": lambda catalog, text: catalog.get_metadata(text, [text, "number"]),
    "edit_metadata": lambda catalog, text: catalog.edit_metadata(text, change(text)),
    "get_session": lambda catalog, text: catalog.get_session(text, keys=[text]),
    "get_or_create_session": lambda catalog, text: catalog.get_or_create_session(
        {text: text, "number": NUMBER}, metadata={"other": text}
    ),
    "count_values": lambda catalog, text: catalog.count_values(text),
    "fork_session": fork,
    "list_items": lambda catalog, text: catalog.list_items(text),
    "add_items": lambda catalog, text: catalog.add_items(
        text, [{**raw.message(text), "id": text}], key=text[:200], unique_ids=True
    ),
    "get_item": lambda catalog, text: catalog.get_item(text, text),
    "delete_item": lambda catalog, text: catalog.delete_item(text, text),
    "status_filter": lambda catalog, text: catalog.status_filter(text),
    "rewind_session": lambda catalog, text: catalog.rewind_session(text, turns=1),
    "import_sessions": lambda catalog, text: catalog.import_sessions([record(text)], "replace"),
    "delete_metadata": lambda catalog, text: catalog.delete_metadata(text, [text, "fraction"]),
    "delete_session": lambda catalog, text: catalog.delete_session(text),
    "scoped": scoped,
    "erase": erase,
    "feedback": lambda catalog, text: catalog.feedback(text),
    "last_sessions": lambda catalog, text: catalog.last_sessions(text),
    "usage": lambda catalog, text: catalog.usage(
        owner_id=text, session_id=text, by=["agent"], limit=9
    ),
}
# `watch` sends the statement of `list_sessions`, and `statuses` that of `status_filter`.
NO_STATEMENT = {"from_url", "engine", "session", "delete_usage", "storage", "watch", "statuses"}
NO_STATEMENT |= {"scope", "read_only"}
# Search needs an index: test_search has random texts.
WITH_INDEXES = {"create_index", "drop_index", "list_indexes", "refresh_index", "search"}

OF_A_SESSION: dict[str, Call] = {
    "add_items": lambda session, text: session.add_items([raw.message(text)] * 2),
    "get_items": lambda session, text: session.get_items(),
    "set_metadata": lambda session, text: session.set_metadata(value(text)),
    "get_metadata": lambda session, text: session.get_metadata([text]),
    "edit_metadata": lambda session, text: session.edit_metadata(change(text)),
    "find_sessions_by_metadata": lambda session, text: session.find_sessions_by_metadata(
        text, text
    ),
    "catalog": lambda session, text: session.catalog.get_metadata(text),
    "rewind": lambda session, text: session.rewind(turns=1),
    "pop_item": lambda session, text: session.pop_item(),
    "delete_metadata": lambda session, text: session.delete_metadata([text]),
    "clear_session": lambda session, text: session.clear_session(),
}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_every_method_is_called_here() -> None:
    found = {*BY_FILTER, *BY_TEXT, *NO_STATEMENT, *WITH_INDEXES}
    assert found == public(SessionCatalog)
    told = {"session_settings", "from_url", "engine"}
    assert {*OF_A_SESSION, *told} == public(SQLAlchemyMetadataSession)


@pytest.fixture
def statements(engine):
    """All statements that are sent, each with its parameters."""
    sent: list[Any] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: sent.append(call[2:4]))
    return sent


@pytest.fixture(params=[False, True], ids=["open", "scoped"])
async def catalog(request, engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("other", metadata={"number": NUMBER})
    if request.param:
        return catalog.scoped({TEXTS["printable"] + "1": TEXTS["printable"], f"{MARK} n": NUMBER})
    return catalog


def check(statements: list[Any]) -> int:
    """Gives the number of statements that had input among their parameters, and forgets all."""
    for text, _ in statements:
        for part in (MARK, MARK.encode().hex(), MARK.upper(), str(NUMBER), YEAR):
            assert part not in text, text
    bound = sum(MARK in repr(parameters) for _, parameters in statements)
    statements.clear()
    return bound


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.thorough
async def test_no_input_becomes_sql(catalog, statements, text):
    session = catalog.session(text)
    bound = 0
    for call in (*OF_A_SESSION.values(), *BY_TEXT.values()):
        subject = session if call in OF_A_SESSION.values() else catalog
        # NUL and lone surrogates are refused, in history by the driver; what was sent is seen.
        _, error = await attempt(call(subject, text), ValueError, LookupError, DBAPIError)
        assert error is None or text is not TEXTS["printable"]
        bound += check(statements)
    await attempt(catalog.create_session(text[:200] + " a", metadata=value(text)), ValueError)
    both, neither, *every = filters(text)
    # All methods have the same SQL for a condition: one of them gets every condition.
    asked = [(call, both) for call in BY_FILTER.values()]
    asked += [(BY_FILTER["list_sessions"], where) for where in (neither, *every)]
    for call, where in asked:
        _, error = await attempt(call(catalog, where), ValueError)
        assert error is None or text is not TEXTS["printable"]
        bound += check(statements)
    assert bound > 50 or text is not TEXTS["printable"]
    assert await SessionCatalog(catalog.engine).get_metadata("other") == {"number": NUMBER}


async def test_no_cursor_becomes_sql(catalog, statements):
    for name in ("a", "b", "c"):
        await catalog.create_session(f"{TEXTS['printable'][:200]} {name}")
    for order_by in ("session_id", "-updated_at", "created_at"):
        first = await catalog.list_sessions(order_by=order_by, limit=1)
        second = await catalog.list_sessions(order_by=order_by, limit=1, cursor=first.next_cursor)
        assert first.sessions != second.sessions
        check(statements)
        for text in TEXTS.values():
            forged = base64.urlsafe_b64encode(text.encode(errors="surrogatepass")).decode()
            for cursor in (text, forged):
                await attempt(catalog.list_sessions(order_by=order_by, cursor=cursor), ValueError)
    assert statements == []


async def test_what_is_no_number_is_no_limit(catalog, statements):
    # A limit is a number in the statement's text, so it has to be one.
    session = catalog.session("a")
    for limit in (f"{NUMBER}; --", f"{NUMBER}", float(NUMBER), True, -NUMBER, None):
        for call in (
            catalog.list_sessions(limit=limit),
            catalog.count_values("a", limit=limit),
            catalog.delete_sessions({"a": 1}, batch_size=limit),
            session.find_sessions_by_metadata({}, limit=limit if limit is not None else 0),
        ):
            with pytest.raises(ValueError, match=r"limit|batch_size"):
                await call
    assert statements == []


@pytest.mark.only_on("mariadb", "mysql")
@pytest.mark.parametrize("setting", ["NO_BACKSLASH_ESCAPES", "big5", "gbk", "sjis"])
async def test_settings_under_which_the_driver_does_not_escape(database, setting):
    # The first value ends the parameter in this mode, the others in these character sets.
    condition = "' FROM agent_sessions_metadata AS agent_sessions_metadata_1 LIMIT 1), false) = 1"
    condition += " OR coalesce((SELECT 1=1 -- "
    owner = SessionCatalog.from_url(database.url, create_tables=True)
    await owner.create_session("theirs", metadata={"owner_id": "u2", "title": "secret"})
    await owner.engine.dispose()
    url = make_url(database.url)
    if setting.islower():
        url = url.update_query_dict({"charset": setting})
        options = {}
    else:
        options = {"init_command": f"SET sql_mode = '{setting}'"}
    engine = create_async_engine(url, connect_args=options)
    try:
        mine = SessionCatalog(engine).scoped({"owner_id": "u1"})
        for text in ("", "\u0101", "\u20bf"):
            with pytest.raises(UnsupportedDialectError, match=setting):
                await mine.list_sessions({"title": text + condition})
    finally:
        await engine.dispose()


@pytest.fixture
def quiet():
    with ignored_warnings():  # MySQL has deprecated the name utf8.
        yield


@pytest.mark.only_on("mariadb", "mysql")
@pytest.mark.parametrize(
    "setting", ["utf8", "latin1", "SET character_set_results = latin1", "SET NAMES ascii"]
)
async def test_character_sets_that_lack_characters(database, quiet, setting):
    """The server would replace them by question marks, in ids too."""
    owner = SessionCatalog(database.engine(), create_tables=True)
    await owner.create_session("chat-\U0001f389", metadata={"owner_id": "u1"})
    theirs = await owner.create_session("chat-?", metadata={"owner_id": "u2"})
    await theirs.add_items([raw.message("secret")])
    url = make_url(database.url)
    if " " not in setting:
        url = url.update_query_dict({"charset": setting})
    engine = create_async_engine(url)
    if " " in setting:
        configure_new_connections(engine, setting)
    try:
        mine = SessionCatalog(engine).scoped({"owner_id": "u1"})
        for work in (
            lambda: anext(mine.export_sessions()),
            lambda: mine.session("chat-?").get_items(),
            lambda: diagnose(engine),
            lambda: rewrite_search_keys(engine),
        ):
            with pytest.raises(UnsupportedDialectError, match="instead of utf8mb4"):
                pytest.fail(repr(await work()))
    finally:
        await engine.dispose()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_another_name_of_the_encoding(database, driver):
    """PgBouncer tells clients the name that they have asked for."""
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    async with proxy_to(make_url(database.url)) as proxy:
        name, other = b"\x19client_encoding\0UTF8\0", b"\x1aclient_encoding\0utf-8\0"
        proxy.change = lambda chunk: chunk.replace(name, other)
        engine = create_async_engine(proxy.url.set(drivername=f"postgresql+{driver}"))
        assert await SessionCatalog(engine).get_metadata("chat") == {"owner_id": "u1"}
        async with engine.connect() as connection:
            driver_connection: Any = (await connection.get_raw_connection()).driver_connection
            if driver == "asyncpg":
                told = driver_connection.get_settings().client_encoding
            else:
                told = driver_connection.info.parameter_status("client_encoding")
        assert told == "utf-8"
        await engine.dispose()


async def compact(session: SQLAlchemyMetadataSession) -> None:
    snapshot = await session._get_compaction_snapshot(10)
    await snapshot.replace_suffix(0, [raw.message("summary")])


HISTORY_CALLS: list[Callable[[SQLAlchemyMetadataSession], Awaitable[Any]]] = [
    lambda session: session.get_items(),
    lambda session: session.get_items(limit=1),
    lambda session: session.pop_item(),
    lambda session: session.clear_session(),
    lambda session: session.add_items([raw.message("hello")]),
    lambda session: session._atomic_replace_items([]),
    compact,
]


def configure_new_connections(engine: AsyncEngine, statement: str) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()


@pytest.mark.only_on("mariadb", "mysql")
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("on_clear", ["delete", "keep"])
@pytest.mark.parametrize(
    "statement", ["SET NAMES gbk", "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'"]
)
async def test_no_session_id_becomes_sql(database, statement, on_clear, pooled):
    owner = SQLAlchemyMetadataSession("theirs", engine=database.engine(), create_tables=True)
    await owner.add_items([raw.message("secret")])
    engine = database.engine(**({} if pooled else {"poolclass": NullPool}))
    # The first call without a check, or the first one after the engine was disposed.
    for before in (False, True):
        if before:
            await SQLAlchemyMetadataSession("theirs", engine=engine).get_items()
            await engine.dispose()
        configure_new_connections(engine, statement)
        for session_id in ("mine", "' OR 1=1 -- ", "\u0101' OR 1=1 -- ", "\u20bf' OR 1=1 -- "):
            for call in HISTORY_CALLS:
                session = SQLAlchemyMetadataSession(session_id, engine=engine, on_clear=on_clear)
                with pytest.raises(UnsupportedDialectError, match=r"gbk|NO_BACKSLASH_ESCAPES"):
                    await call(session)
        engine = database.engine(**({} if pooled else {"poolclass": NullPool}))
    assert await owner.get_items() == [raw.message("secret")]


@pytest.mark.only_on("mariadb", "mysql")
async def test_settings_are_read_once_per_connection(database):
    engine = database.engine(pool_size=1, max_overflow=0)
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat")
    await catalog.get_metadata("chat")
    session = SQLAlchemyMetadataSession("chat", engine=engine)
    statements: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    for _ in range(2):
        await session.add_items([raw.message("hello")])
        await session.get_items()
        await session.pop_item()
        await catalog.set_metadata("chat", {"title": "first"})
        await session.clear_session()
    assert statements
    assert not [each for each in statements if "@@sql_mode" in each]
    await engine.dispose()
    await session.get_items()
    assert sum("@@sql_mode" in each for each in statements) == 1
    # The plain SDK on the same engine is not checked, and other sessions do not rely on it.
    await engine.dispose()
    configure_new_connections(engine, "SET NAMES gbk")
    assert await SQLAlchemySession("chat", engine=engine).get_items() == []
    with pytest.raises(UnsupportedDialectError, match="gbk"):
        await session.get_items()
