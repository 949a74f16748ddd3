"""`doctor` on triggers of ours that exist, but fire at other times or run something else."""

from __future__ import annotations

import re

import pytest
from conformance import raw
from doctoring import mended, problems, repair, run
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

ACTIVITY = "agent_sessions_metadata_activity"
TIME = f"{ACTIVITY}_session_time"
ITEM = "agent_sessions_metadata_words_of_item_update"

IN_TRIGGERS = {
    "before": (" AFTER ", " BEFORE "),
    "another event": (r"UPDATE ON (.*) WHEN \(.*\) EXECUTE", r"INSERT ON \1 EXECUTE"),
    "some columns": ("AFTER UPDATE ON", "AFTER UPDATE OF created_at ON"),
    "a constraint": ("CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER"),
    "never": (r"WHEN \(.*\) EXECUTE", "WHEN (false) EXECUTE"),
    "always": (r"WHEN \(.*\) EXECUTE", "EXECUTE"),
    "other changes": ("old.updated_at IS", "old.created_at IS"),
    "statements": (r"EACH ROW WHEN \(.*\) EXECUTE", "EACH STATEMENT EXECUTE"),
    "an argument": (r"\(\)$", "('x')"),
    "another function": ("EXECUTE FUNCTION .*", "EXECUTE FUNCTION other()"),
}
IN_FUNCTIONS = {
    "the rights of the caller": ("SECURITY DEFINER", ""),
    "any search path": ("SET search_path TO .*", ""),
    "another setting": ("SET search_path", "SET row_security TO 'off' SET search_path"),
    "no writes": ("SECURITY DEFINER", "STABLE SECURITY DEFINER"),
    "another text": ("session_id = NEW.session_id", "session_id = 'NEW.SESSION_ID'"),
}
BODY = "LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"


@pytest.mark.only_on("postgresql")
async def test_triggers_that_fire_otherwise_are_replaced(whole, shared_database):
    engine = whole.engine
    await raw.execute(engine, f"CREATE FUNCTION other() RETURNS trigger {BODY}")
    healthy = await described(engine)
    every = [(0, damage) for damage in IN_TRIGGERS] + [(1, damage) for damage in IN_FUNCTIONS]
    for place, damage in every:
        old, new = (IN_FUNCTIONS if place else IN_TRIGGERS)[damage]
        create, replaced = re.subn(old, new, healthy[place])
        assert replaced, damage
        drop = () if place else (f"DROP TRIGGER {TIME} ON agent_sessions",)
        await run(engine, [*drop, create])
        (finding,) = await repair(engine, "activity")
        assert f"trigger {TIME} does something else" in finding.problem, damage
        assert await described(engine) == healthy


async def described(engine):
    query = (
        "SELECT pg_get_triggerdef(oid), pg_get_functiondef(tgfoid) FROM pg_trigger"
        f" WHERE tgname = '{TIME}'"
    )
    [(trigger, function)] = await raw.execute(engine, query)
    return trigger, function


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (TIME, "AFTER UPDATE", "BEFORE UPDATE"),
        (f"{ACTIVITY}_session_insert", "AFTER INSERT", "AFTER UPDATE"),
        (ITEM, "AFTER UPDATE", "BEFORE UPDATE"),
    ],
)
async def test_triggers_of_another_event_are_found(whole, shared_database, name, old, new):
    engine = whole.engine
    [row] = await raw.execute(engine, f"SHOW CREATE TRIGGER {name}")
    await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, row[2].replace(old, new, 1))
    (finding,) = await problems(engine)
    assert f"trigger {name} does something else" in finding.problem
    if name == ITEM:
        await whole.drop_index("$text")
        await whole.create_index("$text")
    assert await mended(engine) == []
    [repaired] = await raw.execute(engine, f"SHOW CREATE TRIGGER {name}")
    assert old in repaired[2]


@pytest.mark.only_on("postgresql")
async def test_owners_of_functions_that_may_not_write_are_named(whole, shared_database):
    engine, role = whole.engine, f"Owner {make_url(shared_database.url).database}"[:30]
    functions = await raw.execute(
        engine,
        "SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_trigger t ON t.tgfoid = p.oid"
        " WHERE t.tgrelid IN ('agent_sessions'::regclass, 'agent_messages'::regclass)"
        " AND NOT t.tgisinternal",
    )
    await raw.execute(engine, f'CREATE ROLE "{role}"')
    try:
        grants = [f'GRANT ALL ON SCHEMA public TO "{role}"']
        await run(
            engine, grants + [f'ALTER FUNCTION {each} OWNER TO "{role}"' for (each,) in functions]
        )
        with pytest.raises(DBAPIError, match="permission denied"):
            await whole.session("a").add_items([raw.message("hello")])
        found = await problems(engine)
        tables = (ACTIVITY, *(f"agent_sessions_metadata_words{end}" for end in ("", "_queue")))
        assert {(each.check, each.level, each.repair) for each in found} == {
            ("privileges", "error", ())
        }
        for table, finding in zip(tables, found, strict=True):
            assert (
                f'the owner "{role}" of trigger functions may not use {table}, ' in finding.problem
            )
            await run(engine, [re.search("run (GRANT .*), or", finding.problem)[1]])
        assert await problems(engine) == []
        await whole.session("a").add_items([raw.message("hello")])
    finally:
        await run(
            engine, [f'REASSIGN OWNED BY "{role}" TO CURRENT_USER', f'DROP OWNED BY "{role}"']
        )
        await raw.execute(engine, f'DROP ROLE "{role}"')
