"""What is done to our sources on their way into the SDK. Every rule must match, or it is an error.

The SDK gets the session with its metadata and the search. Out of the package's other faces nothing
goes there, nor the scope that a catalog lays over a session: in these rules no scope is ever set,
and what then cannot happen is removed.
"""

from __future__ import annotations

from typing import NamedTuple


class RuleError(Exception):
    """A rule does not fit the sources any more, ours or the SDK's."""


class Target(NamedTuple):
    """A file to make, below `agents/extensions/memory`, and the modules of ours that go into it.

    Without a docstring for it, it keeps that of the one module that goes into it.
    """

    path: str
    modules: tuple[str, ...]
    docstring: str = ""
    public: bool = False


class Replacement(NamedTuple):
    """Text of a module that is replaced before anything else."""

    module: str
    old: str
    new: str
    times: int = 1


EXPORTS = {
    "InvalidFilterError": "errors",
    "InvalidMetadataError": "errors",
    "MetadataLimitError": "errors",
    "MetadataLimits": "types",
    "SQLAlchemyMetadataSession": "session",
    "SessionMetadataError": "errors",
    "SessionTables": "schema",
    "TablesMissingError": "errors",
    "UnsupportedDialectError": "errors",
    "session_tables": "schema",
}
"""What the SDK exports, and the module of ours that defines it."""

TARGETS = (
    Target(
        "_session_metadata/_types.py",
        ("types", "errors"),
        """Plain data and errors of session metadata.

Every error derives from `SessionMetadataError` and from the builtin that a caller would guess.
Database errors are not wrapped: they pass through as SQLAlchemy raises them.
""",
    ),
    Target("_session_metadata/_values.py", ("values",)),
    Target(
        "_session_metadata/_dialects.py",
        (
            *("dialect_types", "dialect_base"),
            *("dialect_sqlite", "dialect_postgresql", "dialect_mysql", "dialects"),
        ),
        """What differs between databases: types, statements, error codes.

Everything else asks a `Dialect` for a statement, an expression or a flag.
""",
    ),
    Target(
        "_session_metadata/_schema.py",
        ("schema", "creation"),
        """Tables, indexes and triggers: their definition, creation, and what is missing of them.

| table | one row |
|---|---|
| `agent_sessions`, `agent_messages` | those of `SQLAlchemySession`; made where missing |
| `agent_sessions_metadata` | a key of a session: its JSON text and its search key |
| `agent_sessions_metadata_elements` | a distinct scalar element of a list |

Metadata goes with its session by foreign keys. SQLite does not enforce them as `SQLAlchemySession`
connects, so triggers do it there, for every writer. Another trigger empties a new session's
metadata: `REPLACE` and a changed id go round the first.
""",
    ),
    Target(
        "_session_metadata/_filters.py",
        ("filters",),
        """The filter language: from plain JSON to a tree of conditions.

It knows nothing of SQL: `_queries` turns the tree into statements. What it does not understand, it
refuses.
""",
    ),
    Target(
        "_session_metadata/_queries.py",
        ("shapes", "builder", "queries"),
        """From a condition to a statement that finds sessions.

One condition drives: the most selective one by its kind, read through the covering index. The
others are looked up by primary key, one correlated subquery each, which no planner turns into a
join; so the plan is the same with and without statistics, and when PostgreSQL settles on a generic
one.

A statement is built once for all conditions of one shape and run with the parameters of each call.
Whatever decides about a statement's text is in the shape; keys and values never are.
""",
    ),
    Target("_session_metadata/_database.py", ("database",)),
    Target(
        "_session_metadata/_store.py",
        ("rows", "store"),
        """The metadata of sessions by their ids.

`SessionStore` checks a request before anything is written, `Database` runs it, and `Rows` has its
SQL. Every write begins by locking the session's row and reads only after that, in statements of
their own: a snapshot from before the lock would not show what another writer has just done. Lock
order is sessions first, then metadata, keys sorted.
""",
    ),
    Target(
        "sqlalchemy_metadata_session.py",
        ("session",),
        """`SQLAlchemyMetadataSession`: a `SQLAlchemySession` with metadata.

Of its parent it overrides

| member | because |
|---|---|
| `_ensure_tables` | the metadata tables are created with the others, once per engine |
| `_lock_session` | one statement that locks or creates |
| `_run_sqlite_write_with_retry` | mutations pass here: conflicts are retried everywhere |
| `_clear_session` | `on_clear="keep"` |
| `_get_compaction_snapshot` | it answers only for the exact type `SQLAlchemySession` |

and adds `_atomic_replace_items`, which compaction looks for: without it, compaction would clear the
session, and the metadata with it.
""",
        public=True,
    ),
)

ASSUMED = {
    "self.scope": False,
    "self._store.scope": False,
    "key in self.scope.values": False,
    # The parent may be asked to construct itself: they are released together.
    "_constructor_is_known(engine)": False,
    # Well-known keys are a matter of the package; the SDK names none.
    "condition.key in COARSE": False,
}
"""Expressions that are taken for true or false, and what then cannot happen is removed."""

REMOVED = ("scope",)
"""Parameters and attributes that are removed, and every argument for them."""

DROPPED: tuple[tuple[str, ...], ...] = (
    ("session", "SQLAlchemyMetadataSession", "catalog"),
    ("session", "SQLAlchemyMetadataSession", "_in_store"),
    # These share their names with other things.
    ("builder", "Builder", "ids"),
    ("queries", "Queries", "ids"),
    ("queries", "Queries", "where"),
    # Of these only PostgreSQL's is used, by itself.
    ("dialect_base", "Dialect", "utc"),
    ("dialect_sqlite", "SQLite", "utc"),
    ("dialect_mysql", "MySQL", "utc"),
)
"""What is left out although it, or an attribute of its name, is needed."""

REPLACED = (
    Replacement(
        "session",
        "import agents  "
        "# noqa: F401  # first and whole: its parts do not wait for another thread's import\n",
        "",
    ),
    Replacement(
        "session", "            items = await super().get_", "            return await super().get_"
    ),
    Replacement(
        "session", "            items = await self._again(", "            return await self._again("
    ),
    Replacement("session", "        return items\n", ""),
    Replacement(
        "session",
        "        typed = "
        "session_settings is None or isinstance(session_settings, SessionSettings)\n",
        "",
    ),
    Replacement(
        "session",
        """\
        if not await super()._lock_session(sess):
            return False
        if not self._store.scope:
            return True
        return await (await sess.connection()).run_sync(rows.is_inside, self.session_id)
""",
        "        return await super()._lock_session(sess)\n",
    ),
    Replacement("rows", "        self.scope.check_encoded(changed)\n", ""),
    Replacement(
        "rows",
        """\
        if not self._dialect.was_locked(result):
            return False
        return not self.scope or self.is_inside(connection, session_id)
""",
        "        return self._dialect.was_locked(result)\n",
    ),
    Replacement(
        "rows",
        """\
        queries: Queries,
        session_id: str,
        keys: Sequence""",
        """\
        session_id: str,
        keys: Sequence""",
    ),
    Replacement(
        "rows",
        """\
        parameters: dict[str, Any] = {}
        if self.scope:
            statement, parameters = queries.where(
                statement, self.scope.condition, rows.c.session_id
            )
        parameters["of_session"] = session_id
        found: Iterable[Any] = connection.execute(statement, parameters)
""",
        """\
        found: Iterable[Any] = connection.execute(statement, {"of_session": session_id})
""",
    ),
    Replacement(
        "store", "self.rows.get(connection, database.queries, ", "self.rows.get(connection, "
    ),
    # Nothing here walks in the order of ids, nor counts values.
    Replacement("builder", "        walk: bool = False,\n", ""),
    Replacement("builder", "        default: FromClause | None = None,\n", ""),
    Replacement(
        "builder", "            walk: Whether only rows in the order of their ids will do.\n", ""
    ),
    Replacement(
        "builder",
        "            default: What to read when no condition is worth driving; "
        "the sessions by default.\n",
        "",
    ),
    Replacement(
        "builder",
        "rows: FromClause = self._sessions if sessions or default is None else default",
        "rows: FromClause = self._sessions",
    ),
    Replacement("builder", " and not (walk and rank > IN_ORDER)", ""),
    Replacement("rows", "stored - self.scope.values.keys() if", "stored if"),
    Replacement("store", "        self.scope.check(values)\n", ""),
    Replacement("store", "self.scope.restrict(parse_filter(where))", "parse_filter(where)"),
)
"""Code that is replaced, each piece found once."""

PHRASES = {
    " (but those of the scope). `[]` means\n                none.": ". `[]` means none.",
    "; outside the scope it is empty": "",
    "; outside the scope there is none": "",
    " Within a scope it then has the scope's values.": "",
    " within a scope.": ".",
    " within the scope.": ".",
    "all but the scope's when": "all of them when",
    " database and scope.": " database.",
    ", or use `SessionCatalog`": "",
    ", with `agent-sessions ddl`,": "",
    "index of the catalog behind": "index behind",
    " and fits into a cursor": "",
    " that this package raises": " about session metadata",
    "that this package does not support": "that session metadata does not support",
    " as this package defines it": "",
    "An SDK session": "A session",
    "Name of the SDK's": "Name of the",
    "The SDK's `agent_": "The table `agent_",
    "the SDK's tables": "the sessions table",
    "The SDK's times": "The times",
    "unbounded as the SDK makes it": "of any length",
    "than the SDK would replace": "than is replaced",
    "The SDK answers for its own": "The parent answers for its own",
    "configured and guarded as the SDK's are": "guarded as those of its history",
    " take with the SDK.": " take.",
    "As in the SDK.": "As in `SQLAlchemySession`.",
    "as in the SDK": "as inherited",
}
"""Words about the package, which mean nothing within the SDK, replaced in this order.

A docstring may be reworded without a rule for it: what counts is that nothing of this is left over,
which `FOREIGN` sees to.
"""

FOREIGN = (
    r"(?i)scope|catalog|lifecycle|tracking|\bSDK\b|th(e|is) package\b"
    r"|agents[-_]session[-_]metadata|agent-sessions"
)
"""What must not be left anywhere in the generated code."""

LINTED = (
    *("E", "W", "F", "I", "B", "C4", "ASYNC", "UP"),
    *("DTZ005", "G004", "RUF006", "RUF012", "RUF100", "TRY201"),
)
"""The rules that the SDK's ruff checks; ignores of others are removed."""
