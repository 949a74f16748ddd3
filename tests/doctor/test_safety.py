"""Nothing that `doctor` prints loses or changes what an application has.

Whatever it prints is run as a shell runs it that goes on after an error, in as many rounds as it
prints something, with foreign keys switched on in SQLite and without MariaDB's strict mode.
"""

from __future__ import annotations

import random

import pytest
from conformance import raw
from doctoring import (
    OPTIONAL,
    SAFE,
    complete,
    exact_collation,
    explained,
    printed,
    problems,
    run,
    run_on,
    sqlite_retyped,
    without_foreign_keys,
)
from scaling import scale
from sqlalchemy import MetaData, inspect

from agents_session_metadata.doctor.checks import lacking_indexes
from agents_session_metadata.doctor.inspection import inspect_database
from agents_session_metadata.storage.tables import query_tables, table_names

NAMES = table_names()
S, M, D, E = NAMES
DERIVED = ("_elements", "_activity", "_words", "_words_queue")
MARKED = {"_indexes": {"state"}, "_words_state": {"state", "last_item", "item_id", "session_id"}}
"""What says how far an index is complete, by the end of the table's name."""


async def snapshot(engine, names=NAMES, derived=True):
    """Tables, rows, columns, indexes and triggers, those of the application included.

    Rows of a table of elements follow from the others, so they count only if they are asked for.
    """

    def read(sync):
        inspector = inspect(sync)
        found = {}
        for table in sorted(inspector.get_table_names()):
            columns = [column["name"] for column in inspector.get_columns(table)]
            quote = sync.dialect.identifier_preparer.quote
            marked = {name for end in MARKED if table.endswith(end) for name in MARKED[end]}
            listed = ", ".join(quote(name) for name in columns if name not in marked)
            rows = ()
            if derived or not table.endswith(DERIVED):
                query = f"SELECT {listed} FROM {quote(table)}"
                rows = tuple(sorted(map(repr, sync.exec_driver_sql(query).all())))
            indexes = {
                each["name"] for each in inspector.get_indexes(table) if "app" in each["name"]
            }
            found[table] = (tuple(columns), rows, frozenset(indexes))
        return found

    async with engine.connect() as connection:
        tables = await connection.run_sync(read)
    return tables, await app_triggers(engine)


async def app_triggers(engine):
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'app%'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'app%'",
        "mysql": "SELECT trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = database() AND trigger_name LIKE 'app%'",
    }
    return {name for (name,) in await raw.execute(engine, queries[engine.dialect.name])}


def survives(before, after):
    """Whether everything is there that was there before; there may be more."""
    (tables, triggers), (later, later_triggers) = before, after
    for table, (columns, rows, indexes) in tables.items():
        assert table in later, f"{table} vanished"
        assert later[table][0] == columns, f"{table} has other columns"
        assert indexes <= later[table][2], f"{table} lost an index"
        if not table.endswith(DERIVED):
            assert later[table][1] == rows, f"{table} has other rows"
    assert triggers <= later_triggers


async def create(engine, names=NAMES):
    """All tables with rows, and what the application has added to them."""
    catalog = await complete(engine, names)
    kind = engine.dialect.name
    statements = []
    if kind == "postgresql":
        statements.append(
            "CREATE OR REPLACE FUNCTION noop() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RETURN NEW; END'"
        )
    body = {
        "sqlite": "BEGIN SELECT 1; END",
        "postgresql": "FOR EACH ROW EXECUTE FUNCTION noop()",
        "mysql": "FOR EACH ROW SET @app = 1",
    }[kind]
    tables = [each.name for group in query_tables(names).groups for each in group.tables]
    for table in (each for each in tables if not each.endswith(DERIVED)):
        statements += [
            f"ALTER TABLE {table} ADD COLUMN app VARCHAR(20) DEFAULT 'own'",
            f"CREATE INDEX app_{table} ON {table} (app)",
            f"CREATE TRIGGER app_{table} AFTER UPDATE ON {table} {body}",
        ]
    await run(engine, statements)
    return catalog


async def obey(engine, names=NAMES, rounds=8):
    """Run what is printed until nothing is; everything survives each round, and it ends."""
    before = await snapshot(engine, names)
    for _ in range(rounds):
        statements = printed(await problems(engine, names))
        if not statements:
            return
        await run_on(engine, statements)
        survives(before, await snapshot(engine, names))
    raise AssertionError(f"still printed after {rounds} rounds: {statements}")


# ---- names that do not belong together ----


@pytest.mark.parametrize(
    "typo", ["sessions", "messages", "metadata", "all swapped", "elements", "index"]
)
async def test_a_wrong_name_never_leads_to_a_loss(engine, shared_database, typo):
    await create(engine)
    wrong = {
        "sessions": table_names("agent_sesions"),
        "messages": table_names(S, "agent_mesages"),
        "metadata": table_names(S, M, "agent_metadata"),
        "all swapped": table_names(M, S, D),
        "elements": table_names(S, M, f"{D}_elements"),
        "index": table_names(S, M, f"{D}_activity"),
    }[typo]
    if typo not in ("messages", "metadata"):
        found = await problems(engine, wrong)
        assert {each.check for each in found} == {"names"}
        assert printed(found) == []
        assert "INSERT" not in str(found)
        assert "DELETE" not in str(found)
    await obey(engine, wrong)
    assert await problems(engine) == []


@pytest.mark.only_on("sqlite")  # Elsewhere, such a table is missing.
@pytest.mark.parametrize("names", [(S.upper(),), (S, M.upper()), (S, M, D.title())])
async def test_a_name_in_another_case_is_only_reported(engine, shared_database, names):
    await create(engine)
    wrong = table_names(*names)
    (finding,) = await problems(engine, wrong)
    assert (finding.level, finding.check, finding.repair) == ("error", "names", ())
    last = names[-1]
    assert f"{last} as {last.lower()}" in finding.problem
    assert await problems(engine) == []


async def test_a_sessions_table_that_was_renamed_or_emptied_is_only_reported(
    engine, shared_database
):
    await create(engine)
    before = await snapshot(engine)
    await run(engine, [f"ALTER TABLE {S} RENAME TO kept"])
    found = await explained(engine, "names", ["error"])
    assert {each.check for each in found} == {"names"}
    assert "probably not the names of tables that belong together" in found[0].problem
    # Somebody creates it again: it is empty, and the others' foreign keys lead to the old one.
    collation = await exact_collation(engine)
    text = f"VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation}" if collation else "VARCHAR"
    time = "TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL"
    await run(
        engine,
        [f"CREATE TABLE {S} (session_id {text} PRIMARY KEY, created_at {time}, updated_at {time})"],
    )
    found = await explained(engine, "names", ["error"])
    assert {each.check for each in found} == {"names"}
    assert any(f"leads to kept, not to {S}" in each.problem for each in found)
    assert any(f"{S} is empty, and {M} has rows" in each.problem for each in found)
    await run(engine, [f"DROP TABLE {S}", f"ALTER TABLE kept RENAME TO {S}"])
    if shared_database.kind != "sqlite":  # where it renames the tables in triggers as well
        assert await problems(engine) == []
    survives(before, await snapshot(engine))


@pytest.mark.parametrize("state", ["is missing", "is empty"])
async def test_rows_whose_parents_are_all_gone_are_only_reported(engine, shared_database, state):
    await create(engine)
    if shared_database.kind == "sqlite":
        for (name,) in await raw.execute(
            engine, "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name NOT LIKE 'app%'"
        ):
            await raw.execute(engine, f"DROP TRIGGER {name}")
    else:
        for table in (M, D, E, *OPTIONAL):
            await without_foreign_keys(engine, table)
    gone = f"DROP TABLE {S}" if state == "is missing" else f"DELETE FROM {S}"
    await raw.execute(engine, gone)
    before = await snapshot(engine)
    found = await explained(engine, "names", ["error"])
    assert [each.problem.partition(":")[0] for each in found] == [
        f"{S} {state}, and {M} has rows",
        f"{S} {state}, and {D} has rows",
    ]
    assert await snapshot(engine) == before


async def test_tables_of_two_sets_are_not_joined(engine, shared_database):
    other = table_names("chats", "chat_items")
    await create(engine)
    await create(engine, other)
    for mixed in (
        table_names("chats", M, other.metadata),
        table_names(S, M, other.metadata),
        table_names(S, "chat_items"),
    ):
        found = await problems(engine, mixed)
        assert {each.check for each in found} == {"names"}
        assert printed(found) == []


# ---- single dangers ----


@pytest.mark.only_on("sqlite")
async def test_sqlite_tables_are_never_rebuilt(engine, shared_database):
    await create(engine)
    await sqlite_retyped(engine, D, "value TEXT NOT NULL", "value TEXT")
    await sqlite_retyped(engine, M, " ON DELETE CASCADE", "")
    await raw.execute(engine, f"UPDATE {D} SET value = NULL WHERE session_id = 'a' AND key = 'n'")
    found = await explained(engine, "columns")
    assert {each.check for each in found} == {"columns", "foreign keys", "values"}
    # An export lacks paused runs, attachments, usage, and what has no session.
    assert "export" not in str(found)
    assert "by a migration of your own, on a copy of the file" in found[0].problem


@pytest.mark.only_on("mariadb")
async def test_long_ids_are_never_shortened(engine, shared_database):
    await create(engine)
    collation = await exact_collation(engine)
    for table in (M, D, E, *OPTIONAL):
        await without_foreign_keys(engine, table)
    # Ids of the SDK's tables are longer than metadata's, and one of them is in use.
    for table in (S, M):
        change = f"MODIFY session_id VARCHAR(400) COLLATE {collation} NOT NULL"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
        await raw.execute(engine, f"INSERT INTO {S} (session_id) VALUES ('{table * 20}')")
    await raw.execute(
        engine, f"INSERT INTO {M} (session_id, message_data) VALUES ('{S * 20}', '{{}}')"
    )
    await raw.execute(engine, f"ALTER TABLE {M} MODIFY message_data TEXT NOT NULL")
    await obey(engine)
    assert await problems(engine) == []


# ---- every kind of damage ----


def damages(kind, names):
    """Statements by name that damage tables; an application's mistakes and its intentions."""
    s, m, d, e = names
    key = "`key`" if kind == "mysql" else "key"
    on = {table: f" ON {table}" if kind == "mysql" else "" for table in names}
    found = {
        "no metadata": [f"DROP TABLE {e}", f"DROP TABLE {d}"],
        "no elements": [f"DROP TABLE {e}"],
        "no messages": [f"DROP TABLE {m}"],
        "elements deleted": [f"DELETE FROM {e}"],
        "renamed sessions": [f"ALTER TABLE {s} RENAME TO kept_{s}"],
        "renamed messages": [f"ALTER TABLE {m} RENAME TO kept_{m}"],
        "renamed metadata": [f"ALTER TABLE {d} RENAME TO kept_{d}"],
        "index": [f"DROP INDEX {d}_search_idx{on[d]}"],
        "other index": [
            f"DROP INDEX {e}_search_idx{on[e]}",
            f"CREATE INDEX {e}_search_idx ON {e} (session_id)",
        ],
        "corrupt value": [f"UPDATE {d} SET value = '{{bad' WHERE session_id = 'a'"],
        "search key": [f"UPDATE {d} SET search_key = search_rest, search_rest = search_key"],
        "no column": [f"ALTER TABLE {d} DROP COLUMN updated_at"],
        "no value": [f"ALTER TABLE {d} DROP COLUMN value"],
        "orphans": [f"DELETE FROM {s} WHERE session_id = 'a'"],
        "all orphans": [f"DELETE FROM {s}"],
        "elements of nothing": [f"DELETE FROM {d} WHERE {key} = 'tags' AND session_id = 'b'"],
        "extra column": [f"ALTER TABLE {m} ADD COLUMN more VARCHAR(9) NOT NULL DEFAULT 'x'"],
    }
    for group in query_tables(names).groups[1:]:
        for table in group.tables:
            last = table.name.removeprefix(d)
            found[f"no {last}"] = [f"DROP TABLE {table.name}"]
            found[f"nothing in {last}"] = [f"DELETE FROM {table.name}"]
            found[f"no index on {last}"] = [
                f"DROP INDEX {index.name}" + f" ON {table.name}" * (kind == "mysql")
                for index in table.indexes
            ]
            if kind != "sqlite":
                key = "PRIMARY KEY" if kind == "mysql" else f"CONSTRAINT {table.name}_pkey CASCADE"
                found[f"no key of {last}"] = [f"ALTER TABLE {table.name} DROP {key}"]
                found[f"doubled {last}"] = [
                    *found[f"no key of {last}"],
                    f"INSERT INTO {table.name} SELECT * FROM {table.name}",
                ]
                found[f"no foreign key of {last}"] = [
                    f"ALTER TABLE {table.name} DROP"
                    f" {'FOREIGN KEY' if kind == 'mysql' else 'CONSTRAINT'} {each.name}"
                    for each in table.foreign_key_constraints
                ]
            else:
                found[f"no foreign key of {last}"] = [
                    f"DROP TRIGGER IF EXISTS {trigger.name}"
                    for trigger in group.triggers
                    if trigger.emptied is table
                ]
    words, time = f"{d}_words", f"{d}_activity"
    found["words lost"] = [f"DELETE FROM {words} WHERE session_id = 'a'"]
    found["words of nothing"] = [
        f"INSERT INTO {words} SELECT session_id, item_id + 99, word, created_at FROM {words}"
    ]
    found["wrong entries"] = [f"UPDATE {time} SET of_list = 1 - of_list WHERE session_id = 'a'"]
    if kind == "sqlite":
        found["foreign keys"] = [
            f'DROP TRIGGER IF EXISTS "{table}_after_{event}"'
            for table in (d, e)
            for event in ("delete", "insert", "update")
        ]
        found["trigger"] = [
            f"DROP TRIGGER {d}_after_delete",
            f"CREATE TRIGGER {d}_after_delete AFTER DELETE ON {s} BEGIN SELECT 1; END",
        ]
    elif kind == "postgresql":
        found["foreign keys"] = [
            f"ALTER TABLE {m} DROP CONSTRAINT {m}_session_id_fkey",
            f"ALTER TABLE {d} DROP CONSTRAINT {d}_session_fk",
            f"ALTER TABLE {e} DROP CONSTRAINT {e}_key_fk",
        ]
        found["defaults"] = [
            f"ALTER TABLE {m} ALTER id DROP DEFAULT",
            f"ALTER TABLE {s} ALTER created_at DROP DEFAULT",
        ]
        found["nullable"] = [f"ALTER TABLE {d} ALTER value DROP NOT NULL"]
        found["null"] = [f"UPDATE {d} SET value = NULL WHERE session_id = 'b'"]
        found["narrow"] = [
            f"ALTER TABLE {m} ALTER message_data TYPE VARCHAR(900)",
            f"ALTER TABLE {d} ALTER session_id TYPE VARCHAR(20)",
            f"ALTER TABLE {e} ALTER key TYPE VARCHAR(30)",
        ]
        found["other types"] = [
            f"ALTER TABLE {s} ALTER updated_at TYPE TIMESTAMPTZ",
            f"ALTER TABLE {d} ALTER value TYPE JSONB USING value::JSONB",
        ]
        found["collation"] = [f'ALTER TABLE {d} ALTER session_id TYPE VARCHAR COLLATE "POSIX"']
        found["primary key"] = [f"ALTER TABLE {d} DROP CONSTRAINT {d}_pkey CASCADE"]
        found["duplicates"] = [f"INSERT INTO {d} SELECT * FROM {d} WHERE session_id = 'a'"]
        found["not deleting"] = [
            f"ALTER TABLE {m} DROP CONSTRAINT {m}_session_id_fkey",
            f"ALTER TABLE {m} ADD FOREIGN KEY (session_id) REFERENCES {s} (session_id)",
        ]
    else:
        found["foreign keys"] = [
            f"ALTER TABLE {m} DROP FOREIGN KEY {m}_ibfk_1",
            f"ALTER TABLE {d} DROP FOREIGN KEY {d}_session_fk",
            f"ALTER TABLE {e} DROP FOREIGN KEY {e}_key_fk",
        ]
        found["defaults"] = [
            f"ALTER TABLE {m} MODIFY id INTEGER NOT NULL",
            f"UPDATE {m} SET id = 0 WHERE id = 1",
            f"ALTER TABLE {s} ALTER created_at DROP DEFAULT",
        ]
        found["nullable"] = [f"ALTER TABLE {d} MODIFY value LONGTEXT NULL"]
        found["null"] = [f"UPDATE {d} SET value = NULL WHERE session_id = 'b'"]
        found["narrow"] = [
            f"ALTER TABLE {m} MODIFY message_data TEXT CHARACTER SET latin1 NOT NULL",
            f"ALTER TABLE {d} MODIFY search_key VARBINARY(100) NOT NULL",
        ]
        found["other types"] = [
            f"ALTER TABLE {s} MODIFY updated_at DATETIME(6) NOT NULL",
            f"ALTER TABLE {d} MODIFY value JSON NOT NULL",
        ]
        found["collation"] = [
            f"ALTER TABLE {d} MODIFY session_id VARCHAR(400) COLLATE utf8mb4_general_ci NOT NULL"
        ]
        found["primary key"] = [f"ALTER TABLE {d} DROP PRIMARY KEY"]
        found["duplicates"] = [f"INSERT INTO {d} SELECT * FROM {d} WHERE session_id = 'a'"]
        found["engine"] = [f"ALTER TABLE {s} ENGINE=MyISAM"]
    return found


# What `doctor` reports as wrong names hides all other damage.
HIDING = {"renamed sessions", "renamed messages", "all orphans", "no metadata"}


async def test_no_damage_makes_doctor_print_a_loss(engine, shared_database):
    kind = shared_database.kind
    chance = random.Random(11)
    every = list(damages(kind, NAMES))
    chance.shuffle(every)
    mixed = [name for name in every if name not in HIDING]
    # Without foreign keys, all the others go further.
    cases = [["foreign keys", *mixed[at::5]] for at in range(5)]
    cases += [[name] for name in scale([], every)]
    cases += [["foreign keys", *chance.sample(every, 3)] for _ in range(scale(0, 200))]
    for number, case in enumerate(cases):
        names = table_names(f"s{number}", f"m{number}")
        await create(engine, names)
        for name in case:
            await run_on(engine, damages(kind, names)[name], harsh=False)
        try:
            await obey(engine, names)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
        await drop_all(engine)


async def drop_all(engine):
    def drop(sync):
        metadata = MetaData()
        metadata.reflect(sync)
        metadata.drop_all(sync)

    if engine.dialect.name == "sqlite":
        for (name,) in await raw.execute(
            engine, "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ):
            await raw.execute(engine, f'DROP TRIGGER "{name}"')
    async with engine.begin() as connection:
        await connection.run_sync(drop)


async def test_every_repair_is_of_a_safe_kind(engine, shared_database):
    """Each method of the repairs, with all that it can be called with."""
    await create(engine)

    def statements(sync):
        inspection = inspect_database(sync, NAMES)
        for table in inspection.wanted:
            yield from inspection.create_table(table)
            yield from inspection.delete_derived(table, "NOT EXISTS (SELECT 1)")
            for column in table.c:
                if column.server_default is not None or column.autoincrement is True:
                    yield from inspection.set_default(column)
                yield from inspection.widen(column)
        inspection.indexes = {name: [] for name in inspection.indexes}
        inspection.keys = {name: [] for name in inspection.keys}
        for table in inspection.present:
            yield from inspection.key_to_add(table)
            for index in lacking_indexes(inspection, table):
                yield from inspection.create_index(index)
        for constraint in inspection.links:
            yield from inspection.add_foreign_key(constraint)

    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: list(statements(sync)))
    assert len(found) > 10
    for statement in found:
        assert SAFE.fullmatch(statement), statement
    deleted = {each.split()[2] for each in found if each.startswith("DELETE")}
    assert deleted == {E, f"{D}_activity", f"{D}_words", f"{D}_words_queue"}


def test_the_list_of_safe_kinds_refuses_others():
    for statement in (
        f"DROP TABLE {E}",
        f"DELETE FROM {M} WHERE NOT EXISTS (SELECT 1)",
        f"CREATE TABLE copy AS SELECT * FROM {M}",
        f"CREATE TABLE copy (\n) AS SELECT * FROM {M}",
        f"ALTER TABLE {M} DROP CONSTRAINT x",
        f"ALTER TABLE {M} ALTER COLUMN id TYPE SMALLINT",
        f"ALTER TABLE {M} MODIFY COLUMN `message_data` TEXT",
        f"ALTER TABLE {M} RENAME TO x",
        f"UPDATE {M} SET message_data = ''",
        "DROP TRIGGER IF EXISTS app",
    ):
        assert not SAFE.fullmatch(statement), statement
