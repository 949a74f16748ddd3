"""Doctor on the activity index: what is missing, extra or wrong, and repairs of entries alone."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import run

from agents_session_metadata import SessionCatalog
from agents_session_metadata.doctor import diagnose

ENTRIES = "agent_sessions_metadata_activity"


async def activity(engine):
    return [finding for finding in await diagnose(engine) if finding.check == "activity"]


async def test_wrong_entries_are_found_and_repaired(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "b", "it's 100%"):
        await catalog.create_session(name, metadata={"owner_id": "u1", "tags": ["x", "y"]})
    for key in ("owner_id", "tags", "$updated_at"):
        await catalog.create_index(key)
    assert await activity(engine) == []
    key = engine.dialect.identifier_preparer.quote("key")
    columns = f"session_id, {key}, position, of_list, search_key, updated_at"
    copied = f"session_id, {key}, 9, of_list, search_key, updated_at FROM {ENTRIES}"
    for damage in (
        f"DELETE FROM {ENTRIES} WHERE session_id = 'a'",
        f"UPDATE {ENTRIES} SET updated_at = NULL WHERE session_id = 'b'",
        f"UPDATE {ENTRIES} SET of_list = 1 - of_list WHERE position = 1",
        f"INSERT INTO {ENTRIES} ({columns}) SELECT {copied} WHERE position = 0",
    ):
        await raw.execute(engine, damage)
        found = await activity(engine)
        assert found
        for finding in found:
            assert finding.level == "error"
            assert all(
                each.startswith(("DELETE", "INSERT")) and ENTRIES in each.split("(")[0]
                for each in finding.repair
            )
            await run(engine, finding.repair)
        assert await activity(engine) == []
    assert len((await catalog.list_sessions({"owner_id": "u1"})).sessions) == 3


async def test_missing_triggers_and_indexes_that_are_not_complete(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"owner_id": "u1"})
    await catalog.create_index("owner_id")
    name = f"{ENTRIES}_session_time"
    on = " ON agent_sessions" if engine.dialect.name == "postgresql" else ""
    await raw.execute(engine, f"DROP TRIGGER {name}{on}")
    [finding] = await activity(engine)
    assert name in finding.problem
    await run(engine, finding.repair)
    assert await activity(engine) == []
    await raw.execute(engine, "UPDATE agent_sessions_metadata_indexes SET state = 0")
    [finding] = await activity(engine)
    assert finding.level == "warning"
    assert "agent-sessions index create owner_id continues it" in finding.problem


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("table", [ENTRIES, "agent_sessions_metadata_indexes"])
async def test_keys_of_another_collation_are_explained(whole, shared_database, table):
    engine = whole.engine
    change = "MODIFY `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
    if shared_database.kind == "postgresql":
        await raw.create_loose_collation(engine, "other")
        change = 'ALTER "key" TYPE VARCHAR(255) COLLATE other'
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = [finding for finding in await diagnose(engine) if finding.level == "error"]
    assert any(f"{table}.key" in finding.problem for finding in found)
    assert not any(table in statement for finding in found for statement in finding.repair)
