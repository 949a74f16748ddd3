"""Database URLs as hosts print them, and errors about drivers."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from agents_session_metadata import (
    SessionCatalog,
    SQLAlchemyMetadataSession,
    UnsupportedDialectError,
)
from agents_session_metadata.dialects.urls import create_engine, with_driver

PASSWORD = "s3cret"  # noqa: S105  # of no database


@pytest.mark.parametrize(
    ("printed", "used"),
    [
        ("sqlite:///chat.db", "sqlite+aiosqlite:///chat.db"),
        ("postgres://u:p@h/x", "postgresql+asyncpg://u:p@h/x"),
        ("postgresql://u:p@h/x", "postgresql+asyncpg://u:p@h/x"),
        ("mysql://u:p@h/x", "mysql+asyncmy://u:p@h/x"),
        ("mariadb://u:p@h/x", "mariadb+asyncmy://u:p@h/x"),
        ("postgres://h/x?sslmode=require", "postgresql+asyncpg://h/x?ssl=require"),
        (
            "postgresql://h/x?sslmode=verify-full&channel_binding=require&command_timeout=5",
            "postgresql+asyncpg://h/x?command_timeout=5&ssl=verify-full",
        ),
        ("postgresql+asyncpg://h/x?sslmode=disable", "postgresql+asyncpg://h/x?ssl=disable"),
        ("postgresql://h/x?sslmode=prefer&ssl=require", "postgresql+asyncpg://h/x?ssl=require"),
        (
            "postgresql+psycopg://h/x?channel_binding=require&sslmode=require",
            "postgresql+psycopg://h/x?channel_binding=require&sslmode=require",
        ),
    ],
)
def test_urls_as_hosts_print_them(printed, used):
    assert with_driver(printed).render_as_string(hide_password=False) == used
    assert with_driver(used) == with_driver(printed)


@pytest.mark.parametrize(
    ("driver", "extra", "advised"),
    [
        ("postgresql+psycopg2", "postgresql", "postgresql+asyncpg"),
        ("postgresql+pg8000", "postgresql", "postgresql+asyncpg"),
        ("postgresql+nothing", "postgresql", "postgresql+asyncpg"),
        ("mysql+pymysql", "mysql", "mysql+asyncmy"),
        ("mysql+mysqldb", "mysql", "mysql+asyncmy"),
        ("mariadb+mariadbconnector", "mysql", "mariadb+asyncmy"),
        ("sqlite+pysqlite", "sqlite", "sqlite+aiosqlite"),
        ("sqlite3", "sqlite", "sqlite+aiosqlite"),
    ],
)
def test_drivers_without_asyncio(driver, extra, advised):
    host = "" if "sqlite" in driver else f"u:{PASSWORD}@h"
    for make in (
        lambda url: SQLAlchemyMetadataSession.from_url("chat", url=url),
        SessionCatalog.from_url,
    ):
        with pytest.raises(ValueError, match="is not an installed asyncio driver") as caught:
            make(f"{driver}://{host}/x")
        message = str(caught.value)
        assert message.startswith(f"{driver} is not")
        assert f"use {advised}, and install agents-session-metadata[{extra}]" in message
        assert PASSWORD not in message


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("sqlite://", "aiosqlite", "sqlite"),
        ("postgres://h/x", "asyncpg", "postgresql"),
        ("postgresql+psycopg://h/x", "psycopg", "psycopg"),
        ("mysql://h/x", "asyncmy", "mysql"),
    ],
)
def test_a_missing_driver(url, module, extra, monkeypatch):
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f"the driver {module} is not installed") as error:
        create_engine(url)
    assert f"install agents-session-metadata[{extra}]" in str(error.value)


@pytest.mark.parametrize("mode", ["disable", "prefer"])
async def test_a_connection_with_sslmode(mode, servers):
    url = servers.url("postgresql").set(drivername="postgres")
    host = url.update_query_dict({"sslmode": mode, "channel_binding": "prefer"})
    async with SessionCatalog.from_url(host, create_tables=True) as catalog:
        assert await catalog.count_sessions() == 0


@pytest.mark.parametrize(
    "url", ["oracle+oracledb_async://host/name", "mssql+aioodbc://host/name", "mongodb://host"]
)
def test_another_database(url: str) -> None:
    for opened in (SessionCatalog.from_url, partial(SQLAlchemyMetadataSession.from_url, "s")):
        with pytest.raises(UnsupportedDialectError, match=url.partition(":")[0].partition("+")[0]):
            opened(url=url)
