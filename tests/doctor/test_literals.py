"""Texts in statements are the same texts whatever the settings of the server and the client."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import every_table, printed, problems, run
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog
from agents_session_metadata.quoting import escaped
from agents_session_metadata.storage.tables import table_names

NAMES = table_names()
HOSTILE = [
    "\\', 0)); drop table agent_messages; -- ",
    "縗\\', 0)); drop table agent_messages; -- ",
    "\\",
    "\\u0041\\x41",
    "it's 100% é 😀\n",
    ")));\nDELETE FROM agent_messages;\n--",
    " \r\nerror    b\x1b[2J\x85\u2028\u202e",
]
SETTINGS = {
    "sqlite": [[]],
    "postgresql": [
        ["SET standard_conforming_strings = off", "SET backslash_quote = on"],
        ["SET standard_conforming_strings = on"],
    ],
    "mysql": [
        ["SET sql_mode = ''"],
        ["SET sql_mode = 'NO_BACKSLASH_ESCAPES'"],
        ["SET sql_mode = '', character_set_client = gbk"],
        ["SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', character_set_client = sjis"],
    ],
}


async def hostile(engine, names=NAMES):
    """Sessions and indexed keys whose names are SQL, in a healthy database."""
    catalog = await every_table(engine, names)
    for name in HOSTILE:
        session = await catalog.create_session(name, metadata={"title": name, name: 1})
        await session.add_items([raw.message("hello")])
    for key in (*HOSTILE, "$updated_at", "$text"):
        await catalog.create_index(key)
    assert await problems(engine, names) == []
    return catalog


async def test_repairs_with_ids_and_keys_that_look_like_sql(engine, shared_database):
    catalog = await hostile(engine)
    for settings in SETTINGS[shared_database.kind]:
        for table in ("words", "activity"):
            await raw.execute(engine, f"DELETE FROM agent_sessions_metadata_{table}")
        statements = printed(await problems(engine))
        await run(engine, [*settings, *statements])
        # As the command line prints them.
        assert [escaped(each, "\n") for each in statements] == statements
        lines = [line for each in statements for line in each.splitlines()]
        assert not [each for each in lines if each.startswith(("DELETE FROM agent_mess", "error"))]
        # The settings end with the connection.
        await engine.dispose()
        await catalog.refresh_index("$text")
        assert await problems(engine) == []
    assert await raw.count_rows(engine, "agent_messages") == len(HOSTILE)


async def test_control_characters_are_spelled_out(engine, shared_database):
    numbers = [*range(1, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F)]
    # As many as a key or an id has characters.
    text = "".join(map(chr, numbers)).ljust(255, "\n")
    dialect = SessionCatalog(engine)._store.database.dialect
    literal = dialect.literal(text)
    assert literal.isprintable()
    async with engine.connect() as connection:
        for settings in SETTINGS[shared_database.kind]:
            for each in settings:
                await connection.exec_driver_sql(each)
            assert (await connection.exec_driver_sql(f"SELECT {literal}")).scalar() == text


async def test_names_with_line_breaks_are_not_printed(engine):
    names = table_names(metadata_table="facts\nDELETE FROM agent_messages; --")
    found = await problems(engine, names)
    lacking = [each for each in found if names.metadata in each.problem]
    assert lacking
    assert printed(lacking) == []
    assert "names that have line breaks" in lacking[0].problem
    assert printed(found)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.only_on("postgresql")
async def test_triggers_of_keys_with_percent_signs(shared_database, driver):
    url = make_url(shared_database.url).set(drivername=f"postgresql+{driver}")
    engine = create_async_engine(url)
    catalog = await hostile(engine, table_names("100%", metadata_table="50% of them"))
    name = '"50% of them_activity_value_insert"'
    await run(engine, [f'DROP TRIGGER {name} ON "50% of them"'])
    names = catalog._store.database.names
    [finding] = await problems(engine, names)
    assert "%%" not in str(finding.repair)
    await run(engine, finding.repair)
    assert await problems(engine, names) == []
    await engine.dispose()


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("collation", ["latin1_bin", "utf8mb4_general_ci", "utf8mb4_bin"])
async def test_texts_compare_as_the_column_does(engine, shared_database, collation):
    catalog = SessionCatalog(engine, create_tables=True)
    literal = catalog._store.database.dialect.literal
    charset = collation.partition("_")[0]
    kind = f"VARCHAR(99) CHARSET {charset} COLLATE {collation}"
    await raw.execute(engine, f"CREATE TABLE hx (t {kind})")
    texts = ["\\", "é\\", "It's"]
    values = ", ".join(f"({literal(each)})" for each in texts)
    await run(engine, [f"INSERT INTO hx VALUES {values}"])
    upper = "É\\"
    is_exact = not collation.endswith("_ci")
    found = await raw.execute(engine, f"SELECT t FROM hx WHERE t = {literal(upper)}")
    assert len(found) == (not is_exact)
    listed = ", ".join(map(literal, texts))
    pair = f"(t, 1) IN (({literal(texts[1])}, 1))"
    await run(engine, [f"DELETE FROM hx WHERE {pair} OR t IN ({listed})"])
    assert await raw.count_rows(engine, "hx") == 0


@pytest.mark.only_on("postgresql")
async def test_triggers_of_keys_that_look_like_sql(engine, shared_database):
    await hostile(engine)
    columns = "key, value, search_key, search_rest, created_at, updated_at"
    select = f"SELECT DISTINCT ON (key) 'new', {columns} FROM agent_sessions_metadata"
    await run(
        engine,
        [
            "SET standard_conforming_strings = off",
            "INSERT INTO agent_sessions (session_id) VALUES ('new')",
            f"INSERT INTO agent_sessions_metadata (session_id, {columns}) {select}",
        ],
    )
    await engine.dispose()
    assert [each for each in await problems(engine) if each.check == "activity"] == []
    query = "SELECT count(*) FROM agent_sessions_metadata_activity WHERE session_id = 'new'"
    assert await raw.execute(engine, query) == [(len(HOSTILE) + 1,)]
