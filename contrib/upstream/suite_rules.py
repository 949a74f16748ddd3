"""Which of our tests go to the SDK, and what is done to them. Every rule must match."""

from __future__ import annotations

from typing import NamedTuple

from .rules import Replacement

PLACE = "tests/extensions/memory/sqlalchemy_metadata"


class Ported(NamedTuple):
    """Where a module of tests goes; of a helper, the names that are wanted."""

    path: str
    docstring: str
    names: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


HELPERS = {
    "raw": Ported(
        "raw.py",
        "What somebody with a database prompt, or with `SQLAlchemySession`, sees and does.",
        (
            *("message", "count_rows", "metadata_rows", "table_names", "set_times", "times"),
            *("execute", "create_sdk_tables", "Item"),
        ),
    ),
    "compaction": Ported("compaction.py", "A client that compacts without a network.", ("Client",)),
    "oracle": Ported(
        "oracle.py",
        "The filter language evaluated in plain Python: the answer that a database has to give.",
        ("matches",),
    ),
    "corpus": Ported(
        "corpus.py",
        "Forty sessions whose metadata is as awkward as can be.",
        ("VALUES", "sessions"),
        (
            "from datetime import datetime, timezone",
            "from agents.extensions.memory import SQLAlchemyMetadataSession",
        ),
    ),
}

TESTS = {
    f"test_{name}": Ported(
        f"test_sqlalchemy_metadata_{name}.py", docstring, imports=("import pytest_asyncio",)
    )
    for name, docstring in {
        "session": "The methods of a session, and that metadata is no activity.",
        "lifetime": "Metadata lives exactly as long as its session.",
        "values": "What goes in comes out; what cannot come out does not go in.",
        "limits": "Limits, and that nothing is written past them.",
        "ids": "Which session ids there are, and that each is itself only.",
        "edges": "Arguments that no key or id can be, and more of them than a statement holds.",
        "filters": "One filter language: every answer equals a plain Python evaluation.",
        "bad_filters": 'What a filter does not mean is an error, never "all rows".',
        "compaction": "Replacing a history is not ending the session.",
        "tables": "Beside the tables of `SQLAlchemySession`, under any names.",
        "races": "Concurrent callers, and callers that were cancelled.",
    }.items()
}

ADDED = {"corpus": "corpus_class.py"}
"""Templates that stand at the end of a file."""

UNAVAILABLE = {
    "catalog",
    "everyone",
    "mine",
    "hypothesis",
    "processes",
    "servers",
    "alembic",
}
"""Modules, fixtures and attributes that the SDK's tests have nothing of."""

TEST_ASSUMED = {
    'database.kind == "mysql"': False,
    'database.kind == "sqlite"': True,
    'engine.dialect.name == "sqlite"': True,
}

TEST_REPLACED = (
    # A catalog made these sessions.
    Replacement(
        "test_edges",
        """\
async def session(catalog):
    return await catalog.create_session("chat", metadata={"a": 1, "tags": ["x"]})
""",
        """\
async def session(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata({"a": 1, "tags": ["x"]})
    return session
""",
    ),
    Replacement(
        "test_edges",
        "test_more_keys_than_a_driver_takes_parameters(session, catalog)",
        "test_more_keys_than_a_driver_takes_parameters(session)",
    ),
    Replacement(
        "test_edges",
        "test_moments_within_a_second(catalog, session, engine)",
        "test_moments_within_a_second(session, engine)",
    ),
    Replacement(
        "test_edges",
        'moment = (await catalog.get_session("chat")).updated_at',
        "moment = datetime(2020, 2, 2, tzinfo=timezone.utc)",
    ),
    Replacement(
        "test_edges",
        'assert await catalog.count_sessions({"$updated_at": condition}) == count, condition',
        'found = await session.find_sessions_by_metadata({"$updated_at": condition})\n'
        "        assert len(found) == count, condition",
    ),
    Replacement(
        "test_edges",
        'assert await catalog.count_sessions({"$updated_at": text}) == count, condition',
        'found = await session.find_sessions_by_metadata({"$updated_at": text})\n'
        "        assert len(found) == count, condition",
    ),
    Replacement(
        "test_bad_filters",
        """\
async def catalog(database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1, "tags": ["x"]})
    return catalog
""",
        """\
async def session(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata({"a": 1, "tags": ["x"]})
    return session
""",
    ),
    Replacement(
        "test_bad_filters",
        "import InvalidFilterError, SessionCatalog",
        "import InvalidFilterError, SQLAlchemyMetadataSession",
    ),
    # A string stands for a key there, and is no filter.
    Replacement("test_bad_filters", '    ("a", []),\n    ("", []),\n', ""),
    Replacement("test_bad_filters", "name_the_place(catalog)", "name_the_place(session)"),
    Replacement(
        "test_bad_filters",
        "{await catalog.count_sessions(where)}",
        "{await session.find_sessions_by_metadata(where)}",
    ),
    Replacement(
        "test_bad_filters",
        "test_an_error_does_not_repeat_a_long_value(catalog)",
        "test_an_error_does_not_repeat_a_long_value(session)",
    ),
    Replacement(
        "test_bad_filters",
        "await catalog.list_sessions({",
        "await session.find_sessions_by_metadata({",
    ),
    Replacement(
        "test_filters",
        "import VALUES, Corpus, filters",
        "import VALUES, Corpus, sessions",
    ),
    Replacement(
        "test_filters",
        "from agents_session_metadata import SessionCatalog",
        "from agents_session_metadata import SQLAlchemyMetadataSession",
    ),
    Replacement(
        "test_filters",
        """\
    assert await raw.count_rows(corpus.catalog.session("x").engine, "agent_sessions") == len(
        corpus.infos
    )
""",
        """\
    assert await raw.count_rows(corpus.session.engine, "agent_sessions") == len(sessions())
""",
    ),
    Replacement(
        "test_filters",
        """\
    catalog: SessionCatalog = corpus.catalog
    long = "é" * 15_000
    await catalog.create_session("long", metadata={"long": long, "tags": [long, long + "x"]})
""",
        """\
    long = "é" * 15_000
    session = SQLAlchemyMetadataSession("long", engine=corpus.session.engine)
    await session.set_metadata({"long": long, "tags": [long, long + "x"]})
""",
    ),
    Replacement(
        "test_filters",
        'await catalog.session("any").find_sessions_by_metadata(where) == expected',
        "await session.find_sessions_by_metadata(where) == expected",
    ),
    Replacement(
        "test_filters",
        """\
    catalog: SessionCatalog = corpus.catalog
    for number in range(8):
        await catalog.set_metadata("bare", {"number": number, "tags": [str(number)]})
        assert await catalog.count_sessions({"number": number}) == 1
        assert await catalog.count_sessions({"number": {"$lt": number}}) == 0
        assert await catalog.count_sessions({"tags": {"$contains": str(number)}}) == 1
        assert await catalog.count_sessions({"tags": {"$contains": str(number - 1)}}) == 0
""",
        """\
    session = SQLAlchemyMetadataSession("bare", engine=corpus.session.engine)
    find = session.find_sessions_by_metadata
    for number in range(8):
        await session.set_metadata({"number": number, "tags": [str(number)]})
        assert await find({"number": number}) == ["bare"]
        assert await find({"number": {"$lt": number}}) == []
        assert await find({"tags": {"$contains": str(number)}}) == ["bare"]
        assert await find({"tags": {"$contains": str(number - 1)}}) == []
""",
    ),
    Replacement(
        "test_ids",
        """\
    catalog = SessionCatalog(engine, create_tables=True)
    for number, session_id in enumerate(LOOKALIKES):
        session = catalog.session(session_id)
        if number""",
        """\
    for number, session_id in enumerate(LOOKALIKES):
        session = SQLAlchemyMetadataSession(session_id, engine=engine, create_tables=True)
        if number""",
    ),
    Replacement(
        "test_ids",
        "    assert await catalog.count_sessions() == len(LOOKALIKES)\n",
        '    assert await raw.count_rows(engine, "agent_sessions") == len(LOOKALIKES)\n',
    ),
    Replacement(
        "test_ids",
        """\
    page = await catalog.list_sessions(order_by="session_id", limit=1_000, count_items=True)
    assert {info.session_id: info.metadata["number"] for info in page.sessions} == {
        session_id: number for number, session_id in enumerate(LOOKALIKES)
    }
    assert {info.item_count for info in page.sessions} == {1}
""",
        "",
    ),
    Replacement(
        "test_ids",
        """\
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1})
""",
        """\
    plain = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await plain.set_metadata({"a": 1})
""",
    ),
    Replacement(
        "test_ids",
        """\
            lambda name=session_id: catalog.set_metadata(name, {"a": 1}),
            lambda name=session_id: catalog.edit_metadata(name, change),
            lambda name=session_id: catalog.create_session(name, metadata={"a": 1}),
""",
        "",
    ),
    Replacement(
        "test_ids",
        """\
        assert await catalog.get_metadata(session_id) == {}
        assert await catalog.get_session(session_id) is None
        assert await catalog.delete_session(session_id) is False
    assert await catalog.count_sessions() == 1


""",
        """\
    assert await raw.count_rows(engine, "agent_sessions") == 1


""",
    ),
    Replacement(
        "test_tables",
        'other = session.catalog.session("other")',
        """\
names = session._store.database.names
    other = SQLAlchemyMetadataSession(
        "other",
        engine=session.engine,
        sessions_table=names.sessions,
        messages_table=names.messages,
        metadata_table=names.metadata,
    )""",
    ),
    Replacement(
        "test_tables",
        """\
    page = await session.catalog.list_sessions({"tags": {"$contains": "x"}}, count_items=True)
    assert {info.session_id: info.item_count for info in page.sessions} == {
        session.session_id: 1,
        "other": 1,
    }
""",
        """\
    found = await session.find_sessions_by_metadata({"tags": {"$contains": "x"}})
    assert sorted(found) == sorted([session.session_id, "other"])
""",
    ),
    Replacement(
        "test_tables",
        "    assert await session.catalog.count_sessions() == 2\n",
        "    assert len(await session.find_sessions_by_metadata({})) == 2\n",
    ),
    Replacement(
        "test_tables",
        """\
    page = await session.catalog.list_sessions()
    assert [(info.session_id, info.metadata) for info in page.sessions] == [("old", {})]
""",
        "",
    ),
    # What else is about MySQL, or in words of the package.
    Replacement(
        "test_tables",
        """\
@pytest.mark.parametrize(
    ("length", "charset", "collation"),
    [
        (190, "utf8mb4", "utf8mb4_bin"),
        (255, "utf8mb4", "utf8mb4_general_ci"),
        (255, "latin1", "latin1_swedish_ci"),
        (64, "ascii", "ascii_bin"),
        (512, "utf8mb4", "utf8mb4_bin"),
    ],
    ids=str,
)
async def test_a_database_that_the_sdk_filled(engine, length, charset, collation):
    # A foreign key follows the column that its owner declared, whatever that was.
    await raw.create_sdk_tables(engine, length=length, charset=charset, collation=collation)
""",
        """\
async def test_a_database_that_the_sdk_filled(engine):
    await raw.create_sdk_tables(engine)
""",
    ),
    Replacement(
        "raw",
        """\
async def create_sdk_tables(
    engine: AsyncEngine,
    *,
    length: int = 190,
    charset: str = "utf8mb4",
    collation: str = "utf8mb4_bin",
) -> None:
    \"\"\"The SDK's own two tables and nothing else, as its users have them.\"\"\"
""",
        """\
async def create_sdk_tables(engine: AsyncEngine) -> None:
    \"\"\"The tables of `SQLAlchemySession` and nothing else.\"\"\"
""",
    ),
    Replacement("test_session", "test_the_example_of_the_contract", "test_the_methods_together"),
)
"""Of our tests, what they do with a catalog, done with a session; and what is not for SQLite."""
