"""`doctor` on the settings of servers and connections."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import explained
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine


@pytest.mark.only_on("postgresql")
async def test_a_zone_other_than_utc_is_explained(filled, shared_database):
    name = make_url(shared_database.url).database
    await raw.execute(filled.engine, f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'")
    await filled.engine.dispose()
    (finding,) = await explained(filled.engine, "server", ["warning"])
    assert "Asia/Kolkata" in finding.problem
    assert "convert the stored times" in finding.problem
    settings = {"server_settings": {"timezone": "Europe/London"}}
    engine = create_async_engine(shared_database.url, connect_args=settings)
    (finding,) = await explained(engine, "server", ["warning"])
    assert "this client asks for the zone" in finding.problem
    await engine.dispose()


@pytest.mark.only_on("mariadb", "mysql")
async def test_a_server_that_is_not_strict_is_a_warning(filled, shared_database):
    loose = {"init_command": "SET sql_mode = ''"}
    engine = create_async_engine(shared_database.url, connect_args=loose)
    [finding] = await explained(engine, "server", ["warning"])
    assert "is not strict" in finding.problem
    await engine.dispose()


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
async def test_foreign_keys_that_are_switched_off_are_a_warning(filled, shared_database):
    options = {
        "mysql": {"init_command": "SET foreign_key_checks = 0"},
        "postgresql": {"server_settings": {"session_replication_role": "replica"}},
    }[shared_database.kind]
    engine = create_async_engine(shared_database.url, connect_args=options)
    [finding] = await explained(engine, "server", ["warning"])
    assert "metadata is not deleted with its session" in finding.problem
    await engine.dispose()
