"""The commands about the database as a whole: indexes, sizes, SQL and checks."""

from __future__ import annotations

import click

from agents_session_metadata.text import escaped
from agents_session_metadata.types import IndexInfo

from .app import DATABASE, TABLES, Target, app, command
from .options import argument, flag, option, usage
from .output import Answer, Table, counted, nothing, number, progress, shown

_KEY = argument("$updated_at for lists, $text for search.")

app.add_command(click.Group("index", help="Create, drop and list indexes."))


@command("index create '$updated_at'")
async def create_index(
    target: Target,
    key: str = _KEY,
    native: bool = flag("For '$text', also create the database's own full-text index."),
) -> Answer:
    """Create an index, for fast lists of sessions or for search.

    Creates missing tables. If the command is interrupted, run it again to continue.
    """
    _ = target.engine  # First: a misspelled file is not created.
    target.create_tables = True
    total = await target.catalog.count_sessions()
    with progress(f"Indexing {shown(key)}", total) as reach:
        created = await target.catalog.create_index(key, native=native, progress=reach)
    index = f"the index on {shown(key)}"
    message = f"created {index}" if created else f"{index} exists already"
    return Answer(document={"key": key, "created": created}, message=message)


@command("index refresh '$text'")
async def refresh_index(target: Target, key: str = _KEY) -> Answer:
    """Add the messages of other writers to the text index."""
    with progress("messages") as reach:
        added = await target.catalog.refresh_index(key, progress=reach)
    return Answer(document={"added": added}, text=f"added {counted(added, 'message')}")


@command("index drop '$text'")
async def drop_index(target: Target, key: str = _KEY) -> Answer:
    """Drop an index. Lists can be slower then.

    KEY can also be a metadata key that version 0.2.0 has created an index on.
    """
    dropped = await target.catalog.drop_index(key)
    document = {"key": key, "dropped": dropped}
    if not dropped:
        return nothing(f"there is no index on {shown(key)}", document)
    return Answer(document=document, message=f"dropped the index on {shown(key)}")


@command("index list --count")
async def list_indexes(
    target: Target, count: bool = flag("Count the entries, which takes time.")
) -> Answer:
    """List the indexes, and whether each is complete.

    Nothing uses an obsolete one, which version 0.2.0 has created: drop it.
    """
    indexes = await target.catalog.list_indexes(count=count)
    if not indexes:
        return Answer(document=[], message="there is no index")
    rows = [[each.key, _state(each), number(each.entries)] for each in indexes]
    return Answer(document=indexes, table=Table(("key", "complete", "entries"), rows))


def _state(index: IndexInfo) -> str:
    return "obsolete" if index.obsolete else "yes" if index.complete else "no"


@command("size --json")
async def size(target: Target) -> Answer:
    """Print the rows, and the bytes with indexes, of each table of the SDK and this package."""
    tables = await target.catalog.storage()
    if not tables:
        return nothing("there are no tables", [])
    rows = [(each.table, number(each.rows), number(each.bytes)) for each in tables]
    return Answer(document=tables, table=Table(("table", "rows", "bytes"), rows))


@command("ddl --dialect postgresql > tables.sql", ("url", "timeout", *TABLES))
async def ddl(
    target: Target,
    dialect: str | None = option("postgresql, mysql, mariadb or sqlite."),
    upgrade: bool = flag("Connect to the database, and print only what it lacks."),
    drop: bool = flag("Print DROP statements instead of CREATE statements."),
    everything: bool = flag("With --drop: the SDK's own tables too.", "--all"),
) -> Answer:
    """Print the SQL that creates the tables, drops them or upgrades a database.

    With --dialect, does not connect to a database. With --upgrade, prints the CREATE and ALTER
    TABLE statements for tables, columns, indexes and triggers that the database of --url lacks.
    """
    from agents_session_metadata.core.schema import create_statements, drop_statements

    if everything and not drop:
        usage("--all needs --drop")
    if upgrade:
        if dialect or drop:
            usage("pass --upgrade without --dialect and --drop")
        from agents_session_metadata import doctor

        missing = await doctor.upgrade(target.engine, target.names)
        if not missing:
            return Answer(message="nothing is missing")
        return Answer(text="\n".join(f"{statement};" for statement in missing))
    if not dialect:
        usage("pass --dialect, or --upgrade for the database of --url")
    if drop:
        statements = drop_statements(dialect, target.names, everything=everything)
    else:
        statements = create_statements(dialect, target.names)
    return Answer(text="\n".join(f"{statement};" for statement in statements))


@command("doctor --json", DATABASE)
async def doctor(
    target: Target,
    rewrite_search_keys: bool = flag(
        "Rewrite search keys and list elements that do not match the stored values."
    ),
) -> Answer:
    """Compare a database with what `ddl` would create, and print problems.

    Changes nothing, unless --rewrite-search-keys is given. Prints CREATE and ALTER TABLE statements
    for missing objects, in the order in which to run them, and explains other problems. The exit
    code is 1 if there is an error, and 0 if there are only warnings.
    """
    from agents_session_metadata import doctor

    if rewrite_search_keys:
        rewritten, skipped = await doctor.rewrite_search_keys(target.engine, target.names)
        hint = "; run `agent-sessions doctor` to see why" if skipped else ""
        return Answer(
            document={"rewritten": rewritten, "skipped": skipped},
            text=str(rewritten),
            message=f"values rewritten: {rewritten}, skipped: {skipped}{hint}",
        )
    findings = await doctor.diagnose(target.engine, target.names)
    lines = []
    for each in findings:
        lines.append(f"{each.level:7}  {each.check}: {escaped(each.problem)}")
        lines += (f"{statement};" for statement in each.repair)
    errors = sum(each.level == "error" for each in findings)
    return Answer(
        document={"healthy": not errors, "findings": findings},
        text="\n".join(lines),
        message=f"found {counted(errors, 'error')}" if errors else "healthy",
        code=1 if errors else 0,
    )
