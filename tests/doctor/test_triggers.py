"""`doctor` on triggers."""

from __future__ import annotations

import re

import pytest
from conformance import raw
from doctoring import explained, printed, problems, repair, run
from sqlalchemy.exc import DBAPIError

pytestmark = pytest.mark.dialect

ROWS = "agent_sessions_metadata"


@pytest.fixture
async def indexed(filled):
    await filled.create_index("tags")
    return filled


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
async def test_triggers_of_0_1_are_replaced(filled, shared_database):
    engine = filled.engine
    of_session = "ON agent_sessions BEGIN DELETE FROM agent_sessions_metadata WHERE session_id ="
    former = {
        "DELETE": f"{of_session} OLD.session_id; END",
        "INSERT": f"{of_session} NEW.session_id; END",
    }
    [(current,)] = await raw.execute(
        engine,
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'agent_sessions'"
        " AND sql LIKE '%AFTER DELETE%agent_sessions_metadata%'",
    )
    await raw.execute(engine, f"DROP TRIGGER {current}")
    for event, text in former.items():
        name = f"{ROWS}_after_{event.lower()}"
        await raw.execute(engine, f"CREATE TRIGGER {name} AFTER {event} {text}")
    [finding] = await problems(engine)
    assert finding.level == "warning"
    drops = [f"DROP TRIGGER IF EXISTS {ROWS}_after_{each.lower()}" for each in former]
    assert finding.repair[:2] == tuple(drops)
    assert finding.repair[2].startswith(f"CREATE TRIGGER IF NOT EXISTS {current} ")
    await run(engine, finding.repair)
    assert await problems(engine) == []


async def index_triggers(engine, kind):
    """The triggers of indexes: their names and tables."""
    query = {
        "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": (
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        ),
        "mysql": (
            "SELECT trigger_name, event_object_table FROM information_schema.triggers"
            " WHERE trigger_schema = database()"
        ),
    }[kind]
    found = [(row[0], row[1]) for row in await raw.execute(engine, query)]
    return [each for each in found if each[0].startswith(f"{ROWS}_activity")]


async def test_missing_triggers_of_an_index_are_created(indexed, shared_database):
    engine, kind = indexed.engine, shared_database.kind
    triggers = await index_triggers(engine, kind)
    for name, table in triggers:
        on = f" ON {table}" if kind == "postgresql" else ""
        await raw.execute(engine, f"DROP TRIGGER {name}{on}")
    await indexed.set_metadata("a", {"tags": ["x", "z"]})
    [finding] = await repair(engine, "triggers")
    assert all(name in finding.problem for name, _ in triggers)
    assert sorted(await index_triggers(engine, kind)) == sorted(triggers)
    # What the words say about what was written in the meantime.
    assert "drop each index and create it again: agent-sessions index drop" in finding.problem
    await indexed.drop_index("tags")
    await indexed.create_index("tags")
    assert await indexed.count_sessions({"tags": {"$contains": "z"}}) == 1


async def test_the_text_index_requires_no_triggers_of_keys(filled):
    await filled.create_index("$text")
    assert await problems(filled.engine) == []


@pytest.mark.only_on("mariadb", "mysql")
async def test_triggers_whose_user_is_gone_are_replaced(indexed, shared_database):
    engine = indexed.engine
    name, own = f"{ROWS}_activity_session_time", "audit"
    await raw.execute(
        engine, f"CREATE TRIGGER {own} AFTER INSERT ON agent_messages FOR EACH ROW SET @a = 1"
    )
    for each in (name, own):
        [row] = await raw.execute(engine, f"SHOW CREATE TRIGGER {each}")
        create = re.sub(r"DEFINER=\S+", "DEFINER=`gone`@`%`", row[2], count=1)
        await run(engine, [f"DROP TRIGGER {each}", create])
    with pytest.raises(DBAPIError, match="1449"):
        await indexed.session("a").add_items([raw.message("hello")])
    found = await problems(engine)
    assert [each.problem.split(",")[0] for each in found] == [
        f"the user gone@% of trigger {name} does not exist",
        f"the user gone@% of trigger {own} does not exist",
    ]
    await run(engine, printed(found))
    [finding] = await explained(engine, "triggers", ["error"])
    assert finding.problem.endswith("create the user, or create the trigger again as another one")
    await raw.execute(engine, f"DROP TRIGGER {own}")
    await indexed.session("a").add_items([raw.message("hello")])
    assert await problems(engine) == []
