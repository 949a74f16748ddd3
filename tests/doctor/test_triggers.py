"""`doctor` on triggers, and on what version 0.2.0 has left."""

from __future__ import annotations

import pytest
from conformance import key_indexes, raw
from doctoring import explained, problems, repair, run

pytestmark = pytest.mark.dialect

ROWS = "agent_sessions_metadata"


@pytest.mark.only_on("sqlite")
async def test_a_missing_trigger_is_created(filled, shared_database):
    engine = filled.engine
    [(name, before)] = await raw.execute(
        engine,
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'agent_sessions'"
        " AND sql LIKE '%AFTER DELETE%'",
    )
    await raw.execute(engine, f"DROP TRIGGER {name}")
    [finding] = await repair(engine, "triggers")
    assert finding.problem == f"trigger {name} is missing"
    query = "SELECT sql FROM sqlite_master WHERE name = :name"
    assert await raw.execute(engine, query, name=name) == [(before,)]


@pytest.mark.only_on("sqlite")
async def test_a_trigger_of_another_version_is_replaced(filled, shared_database):
    engine = filled.engine
    [(current,)] = await raw.execute(
        engine,
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'agent_sessions'"
        " AND sql LIKE '%AFTER DELETE%agent_sessions_metadata%'",
    )
    await raw.execute(engine, f"DROP TRIGGER {current}")
    other = f"{ROWS}_after_delete_0123abcd"
    await raw.execute(
        engine,
        f"CREATE TRIGGER {other} AFTER DELETE ON agent_sessions"
        f" BEGIN DELETE FROM {ROWS} WHERE {ROWS}.session_id = OLD.session_id; END",
    )
    [finding] = await problems(engine)
    assert finding.level == "warning"
    drop, create = finding.repair
    assert drop == f"DROP TRIGGER IF EXISTS {other}"
    assert create.startswith(f"CREATE TRIGGER IF NOT EXISTS {current} ")
    await run(engine, finding.repair)
    assert await problems(engine) == []


async def test_what_0_2_made_for_keys_is_a_note(filled, shared_database):
    await key_indexes.create(filled.engine, "owner_id", "tags")
    found = await explained(filled.engine, "indexes", ["info", "info"])
    for finding, key in zip(found, ("owner_id", "tags"), strict=True):
        assert finding.problem.endswith(f"remove it by agent-sessions index drop {key}")
        assert await filled.drop_index(key)
    assert await problems(filled.engine) == []


async def test_servers_have_no_triggers_whatever_was_used(whole, shared_database):
    await whole.create_index("$text")
    await whole.create_index("$updated_at")
    found = await key_indexes.triggers(whole.engine)
    if shared_database.kind == "sqlite":
        assert found
        assert all(" AFTER DELETE ON " in create for _, create in found)
    else:
        assert found == []
