"""The commands about the database as a whole: indexes, sizes, SQL and checks."""

from __future__ import annotations

import click

from agents_session_metadata.text import escaped

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import flag, usage
from .output import NothingFoundError, Table, counted, show, shown

_key_argument = click.argument(
    "key",
    shell_complete=options.completing("$updated_at", "$text"),
    help="$updated_at for lists, $text for search.",
)


@cli.group()
def index() -> None:
    """Create, drop and list indexes."""


@index.command("create", epilog="Example: agent-sessions index create '$updated_at'")
@_key_argument
@flag("--native", help="For '$text', also create the database's own full-text index.")
@database_options()
async def create_index(database: ChosenDatabase, key: str, native: bool) -> None:
    """Create an index, for fast lists of sessions or for search.

    Creates missing tables. If the command is interrupted, run it again to continue.
    """
    catalog = database.open(create_tables=True)
    total = await catalog.count_sessions()
    with output.progress(f"Indexing {shown(key)}", total) as reach:
        created = await catalog.create_index(key, native=native, progress=reach)
    name = f"the index on {shown(key)}"
    message = f"created {name}" if created else f"{name} already exists"
    await show({"key": key, "created": created}, message=message)


@index.command("refresh", epilog="Example: agent-sessions index refresh '$text'")
@_key_argument
@database_options()
async def refresh_index(database: ChosenDatabase, key: str) -> None:
    """Add the messages of other writers to the text index."""
    with output.progress("messages") as reach:
        added = await database.catalog.refresh_index(key, progress=reach)
    await show({"added": added}, f"added {counted(added, 'message')}")


@index.command("drop", epilog="Example: agent-sessions index drop '$text'")
@_key_argument
@database_options()
async def drop_index(database: ChosenDatabase, key: str) -> None:
    """Drop an index. Without it, lists or searches can be slower.

    To remove an index of version 0.2.0, pass its metadata key.
    """
    dropped = await database.catalog.drop_index(key)
    document = {"key": key, "dropped": dropped}
    if not dropped:
        raise NothingFoundError(f"the index on {shown(key)} does not exist", document)
    await show(document, message=f"dropped the index on {shown(key)}")


@index.command("list", epilog="Example: agent-sessions index list --count")
@flag("--count", help="Count the entries, which takes time.")
@database_options()
async def list_indexes(database: ChosenDatabase, count: bool) -> None:
    """List the indexes, and whether each is complete.

    An obsolete index was created by version 0.2.0 and is not used: drop it.
    """
    indexes = await database.catalog.list_indexes(count=count)
    if not indexes:
        await show([], message="no index exists")
        return
    rows = []
    for each in indexes:
        state = "obsolete" if each.obsolete else "yes" if each.complete else "no"
        rows.append([each.key, state, output.number(each.entries)])
    await show(indexes, table=Table(("key", "complete", "entries"), rows))


@cli.command(epilog="Example: agent-sessions size --json")
@database_options()
async def size(database: ChosenDatabase) -> None:
    """Print the rows and the size, with indexes, of each table of the SDK and this package."""
    tables = await database.catalog.storage()
    if not tables:
        raise NothingFoundError("no tables exist", [])
    rows = [(each.table, output.number(each.rows), output.number(each.bytes)) for each in tables]
    await show(tables, table=Table(("table", "rows", "bytes"), rows))


@cli.command(epilog="Example: agent-sessions ddl --dialect postgresql > tables.sql")
@click.option("--dialect", help="postgresql, mysql, mariadb or sqlite.")
@flag("--upgrade", help="Connect to the database, and print only what it lacks.")
@flag("--drop", help="Print DROP statements instead of CREATE statements.")
@flag("--all", "everything", help="With --drop: also drop the SDK's own tables.")
@database_options(scope=False, has_json=False)
async def ddl(
    database: ChosenDatabase, dialect: str | None, upgrade: bool, drop: bool, everything: bool
) -> None:
    """Print the SQL that creates the tables, drops them or upgrades a database.

    With --dialect, does not connect to a database. With --upgrade, prints the CREATE and ALTER
    TABLE statements for tables, columns, indexes and triggers that the database of --url lacks.
    """
    from agents_session_metadata.core import schema

    if everything and not drop:
        usage("--all requires --drop")
    if upgrade:
        if dialect or drop:
            usage("pass --upgrade without --dialect and --drop")
        from agents_session_metadata import doctor

        statements = await doctor.upgrade(database.catalog.engine, database.names)
        if not statements:
            output.say("nothing is missing")
            return
    elif not dialect:
        usage("pass --dialect, or --upgrade for the database of --url")
    elif drop:
        statements = schema.drop_statements(dialect, database.names, everything=everything)
    else:
        statements = schema.create_statements(dialect, database.names)
    await show(text="\n".join(f"{statement};" for statement in statements))


@cli.command(epilog="Example: agent-sessions doctor --json")
@flag(
    "--rewrite-search-keys",
    help="Rewrite search keys and list elements that do not match the stored values.",
)
@database_options(scope=False)
async def doctor(database: ChosenDatabase, rewrite_search_keys: bool) -> None:
    """Compare a database with what `ddl` would create, and print problems.

    Changes nothing, unless --rewrite-search-keys is given. Prints CREATE and ALTER TABLE statements
    for missing objects, in the order in which to run them, and explains other problems. The exit
    code is 1 if there is an error, and 0 if there are only warnings.
    """
    from agents_session_metadata import doctor

    catalog = database.catalog
    if rewrite_search_keys:
        rewritten, skipped = await doctor.rewrite_search_keys(catalog.engine, database.names)
        hint = "; run `agent-sessions doctor` to see why" if skipped else ""
        message = f"values rewritten: {rewritten}, skipped: {skipped}{hint}"
        document = {"rewritten": rewritten, "skipped": skipped}
        await show(document, str(rewritten), message=message)
        return
    findings = await doctor.diagnose(catalog.engine, database.names)
    lines = []
    for each in findings:
        lines.append(f"{each.level:7}  {each.check}: {escaped(each.problem)}")
        lines += (f"{statement};" for statement in each.repair)
    errors = sum(each.level == "error" for each in findings)
    message = f"found {counted(errors, 'error')}" if errors else "healthy"
    await show(
        {"healthy": not errors, "findings": findings},
        "\n".join(lines),
        message=message,
        code=1 if errors else 0,
    )
