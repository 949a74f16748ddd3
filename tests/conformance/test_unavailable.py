"""Errors of the database that a later attempt may not meet: each door says "try again later"."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from commands import run, said
from mcp import Client
from servers import SHARED_DATABASES
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog
from agents_session_metadata.http import sessions_app
from agents_session_metadata.mcp import make_server
from conformance import raw

from . import browsing

pytestmark = pytest.mark.dialect

TEMPORARY = {"08006": 1160, "53100": 1021, "53300": 1040, "57P01": 1053, "57P03": 1114}
LASTING = {"22023": 1210, "57014": 1317, "P0001": 1644}
"""SQLSTATEs, and codes of MySQL."""

TRIGGERS = {
    "postgresql": """
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'no' USING ERRCODE = '{state}'; END $$;
        CREATE TRIGGER failing BEFORE INSERT ON agent_sessions_metadata
        FOR EACH ROW EXECUTE FUNCTION fail()
    """,
    "mysql": """
        CREATE TRIGGER failing BEFORE INSERT ON agent_sessions_metadata FOR EACH ROW
        SIGNAL SQLSTATE '{sqlstate}' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'no'
    """,
}
OF_MYSQL = {1160: "08S01", 1040: "08004", 1053: "08S01", 1317: "70100"}
"""The states of these codes. The others have that of all other errors."""

drivers = pytest.mark.parametrize(
    ("database", "driver"),
    [(name, None) for name in SHARED_DATABASES if not name.startswith("sqlite")]
    + [("postgresql", "postgresql+psycopg")],
    indirect=["database"],
)


async def told(catalog: SessionCatalog) -> tuple[int, int, str]:
    """What HTTP, the browser and MCP answer to a change of metadata."""
    app = Starlette(routes=[Mount("/v1", sessions_app(catalog, scope=None))])
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test/v1"
    ) as client:
        http = await client.post("/conversations/a", json={"metadata": {"new": "x" * 60_000}})
    async with browsing.client(catalog, allow_write=True) as browser:
        page = await browser.get("/session?id=a")
        form = {**browsing.edit_form(page), "title": "x" * 60_000}
        headers = {"Origin": browsing.HOST}
        changed = await browser.post("/edit", data=form, headers=headers)
    async with Client(make_server(catalog, allow_write=True)) as client:
        arguments = {"session": "a", "key": "k", "value": "x" * 60_000}
        answer = await client.call_tool("set_metadata", arguments)
    if http.status_code == 503:
        assert http.headers["retry-after"] == "1"
        assert http.json()["error"]["code"] == "unavailable"
    return http.status_code, changed.status_code, answer.content[0].text


@drivers
@pytest.mark.parametrize("state", [*TEMPORARY, *LASTING])
async def test_errors_are_told_by_sqlstate(database, driver, state):
    url = make_url(database.url)
    engine = create_async_engine(url.set(drivername=driver) if driver else url)
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"title": "A"})
    code = {**TEMPORARY, **LASTING}[state]
    given = {"state": state, "code": code, "sqlstate": OF_MYSQL.get(code, "HY000")}
    for each in TRIGGERS[engine.dialect.name].split("$$;"):
        suffix = "$$" if "RETURNS" in each else ""
        await raw.execute(engine, each.format(**given) + suffix)
    try:
        http, page, tool = await told(catalog)
        shown = engine.url.render_as_string(hide_password=False)
        command = await asyncio.to_thread(run, "set", "a", "k=v", url=shown)
    finally:
        await engine.dispose()
    assert command.exit_code == 1
    if state in TEMPORARY:
        assert (http, page) == (503, 503)
        assert "try again later" in tool
        assert "try again later" in said(command.stderr)
    else:
        assert (http, page) == (500, 500)
        assert "do not try again" in tool
        assert "try again later" not in said(command.stderr)


@pytest.mark.only_on("sqlite-memory")
async def test_a_full_database_of_sqlite(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"title": "A"})
    async with engine.connect() as connection:
        await connection.execute(text("PRAGMA max_page_count = 1"))
    http, page, tool = await told(catalog)
    assert (http, page) == (503, 503)
    assert "try again later" in tool


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg"])
@pytest.mark.parametrize(
    "refused", ["CONNECTION LIMIT 0", "SET default_transaction_read_only = on"]
)
async def test_a_server_without_a_free_connection_or_a_primary(engine, database, driver, refused):
    await raw.execute(engine, "DROP ROLE IF EXISTS nobody")
    await raw.execute(engine, "CREATE ROLE nobody LOGIN")
    await raw.execute(engine, f"ALTER ROLE nobody {refused}")
    url = make_url(database.url).set(drivername=driver, username="nobody")
    url = url.update_query_dict({"target_session_attrs": "read-write"})
    catalog = SessionCatalog(create_async_engine(url))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(sessions_app(catalog, scope=None)), base_url="http://test"
    ) as client:
        assert (await client.get("/conversations")).status_code == 503
    with pytest.raises(DBAPIError):  # also with SQLAlchemy 2.0, which passes on asyncpg's error
        await catalog.count_sessions()
