"""The real Alembic, on databases that the SDK has made: one migration, and nothing after it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import alembic
import pytest
from agents.extensions.memory import SQLAlchemySession
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from conformance import raw
from documentation import DOCS, blocks
from servers import ignored_warnings
from sqlalchemy import Column, String, inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, session_tables
from agents_session_metadata.doctor import diagnose

pytestmark = pytest.mark.dialect

MIGRATIONS = blocks(DOCS / "migrations.md")


def documented(heading):
    """The block of Python under a heading of the documentation."""
    [source] = [block.source for block in MIGRATIONS if block.heading == heading]
    return source


ENV = f"""
import asyncio

from alembic import context
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


{documented("In env.py")}

async def main():
    engine = create_async_engine(context.config.get_main_option("sqlalchemy.url"))
    async with engine.connect() as connection:
        await connection.run_sync(run_migrations)
        await connection.commit()
    await engine.dispose()


asyncio.run(main())
"""


@pytest.fixture
async def engine(shared_database):
    engine = create_async_engine(shared_database.url)
    # Alembic's own table, and the migration's DROP TRIGGER IF EXISTS, warn on MariaDB and MySQL.
    with ignored_warnings():
        yield engine
        await engine.dispose()


@pytest.fixture
def config(shared_database, tmp_path):
    """An application's folder of migrations."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENV)
    template = Path(alembic.__file__).parent / "templates" / "generic" / "script.py.mako"
    (folder / "script.py.mako").write_text(template.read_text())
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", shared_database.url.replace("%", "%%"))
    return config


def read(path):
    return Path(path).read_text()


def write(path, text):
    Path(path).write_text(text)


async def revision(config, name):
    """Have Alembic compare and write a migration; its path and its text."""
    script = await asyncio.to_thread(command.revision, config, name, autogenerate=True)
    return Path(script.path), read(script.path)


async def upgraded(config, target="head"):
    await asyncio.to_thread(command.upgrade, config, target)


def with_triggers(text):
    """What the documentation says to add by hand."""
    added = documented("Triggers")
    upgrade, downgrade = added.split("def downgrade() -> None:")
    upgrade = upgrade.split("def upgrade() -> None:")[1].replace("    ...\n", "")
    downgrade = downgrade.replace("    ...\n", "")
    head = added.split("def upgrade")[0]
    start, rest = text.split("def upgrade() -> None:")
    up, down = rest.split("def downgrade() -> None:")
    return (
        f"{start}{head}def upgrade() -> None:{up.rstrip()}\n{upgrade.strip(chr(10))}\n\n\n"
        f"def downgrade() -> None:\n{downgrade.strip(chr(10))}{down}"
    )


async def test_an_sdk_database_gets_our_tables_once(engine, config, shared_database):
    if shared_database.kind == "mysql":
        async with engine.connect() as connection:
            mariadb = connection.dialect.is_mariadb
        exact = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        await raw.create_sdk_tables(engine, length=255, collation=exact)
    else:
        await raw.create_sdk_tables(engine)
    path, text = await revision(config, "first")
    print(text)  # noqa: T201  # shown with a failure
    for table in ("agent_sessions_metadata", "agent_sessions_metadata_elements", "orders"):
        assert text.count(f"op.create_table('{table}'") == 1
    assert "op.create_table('agent_sessions'" not in text
    assert "op.create_table('agent_messages'" not in text
    assert "alter_column" not in text
    write(path, with_triggers(text))
    await upgraded(config)
    findings = [finding for finding in await diagnose(engine) if finding.level == "error"]
    assert findings == []

    _, second = await revision(config, "second")
    assert "op." not in second.split("def upgrade")[1]

    catalog = SessionCatalog(engine)
    session = await catalog.create_session("chat", metadata={"tags": ["x"]})
    await session.add_items([raw.message("hello")])
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "x"}}) == ["chat"]
    await session.clear_session()
    assert await raw.metadata_rows(engine) == 0
    await catalog.create_index("$updated_at")
    await session.add_items([raw.message("hello")])
    await engine.dispose()
    await asyncio.to_thread(command.downgrade, config, "base")
    assert {"agent_sessions", "agent_messages"} <= await raw.table_names(engine)
    assert "agent_sessions_metadata" not in await raw.table_names(engine)
    for name in ("chat", "later"):
        plain = SQLAlchemySession(name, engine=engine)
        await plain.add_items([raw.message("hello")])
        await plain.clear_session()


async def test_a_migration_that_makes_the_tables_of_the_sdk_too(engine, config, shared_database):
    path, text = await revision(config, "first")
    print(text)  # noqa: T201  # shown with a failure
    ours = [table for group in session_tables().groups for table in group.tables]
    assert text.count("op.create_table(") == 1 + len(ours)
    text = with_triggers(text)
    if shared_database.kind == "mysql":
        # Alembic writes the line with the other quotation mark.
        line = documented("MariaDB and MySQL: downgrade").strip().replace('"', "'")
        assert text.count(line) == 1
        text = text.replace(line, "")
    write(path, text)
    await upgraded(config)
    await SessionCatalog(engine).create_session("chat", metadata={"tags": ["x"]})
    await engine.dispose()
    await asyncio.to_thread(command.downgrade, config, "base")
    assert await raw.table_names(engine) == {"alembic_version"}


ADDED = [
    "ALTER TABLE {table} ADD COLUMN note VARCHAR(50)",
    "CREATE INDEX {table}_i ON {table} (note)",
]
ADDED_ON_SERVERS = [
    *ADDED,
    "ALTER TABLE {table} ADD CONSTRAINT {table}_u UNIQUE (note, session_id)",
    "ALTER TABLE {table} ADD FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id)",
]
CHANGED = {
    "sqlite": ADDED,
    "postgresql": [
        *ADDED_ON_SERVERS,
        "ALTER TABLE {table} ALTER COLUMN created_at DROP DEFAULT",
        "ALTER TABLE {table} ALTER COLUMN created_at TYPE TEXT",
        "COMMENT ON TABLE {table} IS 'changed'",
    ],
    "mysql": [
        *ADDED_ON_SERVERS,
        "ALTER TABLE {table} MODIFY created_at DATETIME(6) NULL COMMENT 'changed'",
        "ALTER TABLE {table} COMMENT = 'changed'",
    ],
}
WIDENED = {"postgresql": "ALTER TABLE agent_messages ALTER COLUMN id TYPE BIGINT"}
TABLES = ("agent_sessions", "agent_messages", "agent_sessions_metadata")
DROPPED = "agent_sessions_metadata_search_idx"


async def definitions(engine):
    """The columns, indexes, constraints and comments of the tables, except for one index."""

    def read_all(connection):
        found = inspect(connection)
        comments = engine.dialect.supports_comments
        for name in TABLES:
            indexes = [each for each in found.get_indexes(name) if each["name"] != DROPPED]
            yield name, repr(found.get_columns(name)), repr(indexes)
            yield repr(found.get_unique_constraints(name)), repr(found.get_foreign_keys(name))
            yield found.get_table_comment(name) if comments else None

    async with engine.connect() as connection:
        return await connection.run_sync(lambda sync: [*read_all(sync)])


async def test_a_migration_keeps_what_others_added_to_the_tables(engine, config, shared_database):
    kind = shared_database.kind
    await SessionCatalog(engine, create_tables=True).create_session("chat", metadata={"a": 1})
    for table in TABLES:
        for statement in CHANGED[kind]:
            # MySQL refuses a foreign key from a table to itself here.
            if table != "agent_sessions" or "REFERENCES" not in statement:
                await raw.execute(engine, statement.format(table=table))
        await raw.execute(engine, f"UPDATE {table} SET note = 'kept'")
    if kind in WIDENED:
        await raw.execute(engine, WIDENED[kind])
    table = " ON agent_sessions_metadata" if kind == "mysql" else ""
    await raw.execute(engine, f"DROP INDEX {DROPPED}{table}")
    before = await definitions(engine)
    _, text = await revision(config, "later")
    print(text)  # noqa: T201  # shown with a failure
    upgrade = text.split("def upgrade")[1].split("def downgrade")[0]
    assert set(re.findall(r"op\.(\w+)", upgrade)) == {"create_table", "create_index"}
    assert f"op.create_index('{DROPPED}'" in upgrade
    assert "op.create_table('agent_sessions_metadata_usage'" in upgrade
    await upgraded(config)
    assert await definitions(engine) == before
    for table in ("agent_sessions", "agent_sessions_metadata"):
        assert await raw.execute(engine, f"SELECT note FROM {table}") == [("kept",)]
    _, second = await revision(config, "second")
    assert "op." not in second.split("def upgrade")[1]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("table", ["agent_sessions", "agent_messages", "agent_sessions_metadata"])
async def test_batch_mode_keeps_triggers_and_ids(engine, shared_database, table):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await session.add_items([raw.message("hello"), raw.message("removed")])
    await session.pop_item()
    source = documented("SQLite: batch mode").replace(
        "        ...", "        batch.add_column(NOTE)"
    )
    if table != "agent_messages":
        lines = [each for each in source.splitlines() if "last" not in each]
        source = "\n".join(lines).replace("agent_messages", table)
        source = source.replace("table_kwargs=kept, ", "")

    def migrate(connection):
        operations = Operations(MigrationContext.configure(connection))
        found = {"op": operations, "NOTE": Column("note", String)}
        exec(source, found)  # noqa: S102  # of the documentation
        found["upgrade"]()

    async with engine.begin() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()
    assert [each for each in await diagnose(engine) if each.level != "info"] == []
    await session.add_items([raw.message("again")])
    page = await catalog.list_items("chat")
    assert [each.item_id for each in page.items] == [1, 3]
    await session.clear_session()
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 0


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("foreign_keys", [False, True])
async def test_batch_mode_that_fails_changes_nothing(engine, shared_database, foreign_keys):
    session = await SessionCatalog(engine, create_tables=True).create_session("chat")
    await session.add_items([raw.message("hello")])
    query = "SELECT name, sql FROM sqlite_master ORDER BY name"
    before = await raw.execute(engine, query)
    source = documented("SQLite: batch mode").replace(
        "        ...", "        batch.add_column(BAD)"
    )

    def migrate(connection):
        operations = Operations(MigrationContext.configure(connection))
        found = {"op": operations, "BAD": Column("bad", String, nullable=False)}
        exec(source, found)  # noqa: S102  # of the documentation
        found["upgrade"]()

    async with engine.connect() as connection:
        await connection.exec_driver_sql(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        with pytest.raises(RuntimeError if foreign_keys else IntegrityError):
            await connection.run_sync(migrate)
    assert await raw.execute(engine, query) == before
    assert await raw.count_rows(engine, "agent_messages") == 1
