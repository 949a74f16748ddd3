"""Reads and writes metadata by session id, for sessions and for catalogs.

Requests are checked here before anything is written. `database` runs them, and `rows` has the SQL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, get_args

from sqlalchemy import Connection

from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue, Metadata, MetadataLimits, OnClear
from agents_session_metadata.values import (
    EncodedValue,
    check_count,
    check_id,
    check_key,
    decode_elements,
    encode_metadata,
    encode_text,
    id_problem,
    is_text,
    json_text,
)

from .database import Database
from .definitions import CORE
from .features import features
from .rows import Claim, Rows, decoded, session_rows, storable_keys


class SessionStore:
    """Metadata by session id. A subclass can restrict it by `admits`, called after each lock."""

    fixed: Mapping[str, EncodedValue] = {}
    """Values that every new session gets, and that cannot be deleted."""

    def __init__(self, database: Database, limits: MetadataLimits) -> None:
        if not isinstance(limits, MetadataLimits):
            raise TypeError(f"metadata_limits must be MetadataLimits, got {type(limits).__name__}")
        self.database = database
        self.limits = limits
        self.rows: Rows = session_rows(database.tables, database.dialect, limits)

    # ---- what a restricted store overrides ----

    def admits(self, connection: Connection, session_id: str) -> bool:
        return True

    def admits_new(self, connection: Connection, session_id: str) -> bool:
        """Like `admits`, for a session that the same transaction has just created."""
        return True

    def check_written(self, encoded: Mapping[str, EncodedValue], removed: Collection[str]) -> None:
        """Rejects a change that this store does not allow."""

    def encode_new(self, metadata: Mapping[str, JSONValue]) -> dict[str, EncodedValue]:
        return encode_metadata(metadata, self.limits)

    def question(self, statement: Any, session_id: Any) -> tuple[Any, dict[str, Any]]:
        """Restricts a statement by the column `session_id`; returns it and its new parameters."""
        return statement, {}

    # ---- requests ----

    async def get_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> Metadata:
        """Returns all stored keys of a session, or the given keys, with `None` for missing ones."""
        if isinstance(keys, Iterable) and not isinstance(keys, (str, bytes)):
            keys = list(keys)
        wanted = storable_keys(keys)
        found: Metadata = {}
        if id_problem(session_id) is None and wanted != ():
            own_id = self.database.tables.metadata.c.session_id

            def read(connection: Connection) -> Metadata:
                statement, parameters = self.question(self.rows.reading(wanted), own_id)
                parameters["session"] = session_id
                return decoded(session_id, connection.execute(statement, parameters), wanted)

            found = await self.database.read(read)
        return found if keys is None else {key: found.get(key) for key in keys}

    async def set_metadata(
        self,
        session_id: str,
        values: Mapping[str, JSONValue],
        *,
        must_exist: bool = False,
        remove: Iterable[str] = (),
    ) -> None:
        """Reads no stored value, so that corrupt values can be replaced and deleted."""
        encoded, removed = encode_metadata(values, self.limits), storable_keys(remove) or ()
        check_id(session_id)
        for key in removed:
            if key in encoded:
                raise ValueError(f"{quoted(key)} is both in values and in remove")
        self.check_written(encoded, removed)
        if not (encoded or removed):
            if must_exist and not await self.exists(session_id):
                raise SessionNotFoundError(session_id)
            return

        def write(connection: Connection) -> None:
            read = self.rows.lists if removed else self.rows.before_upsert
            create = bool(encoded) and not must_exist
            found = self.rows.claim(connection, session_id, read, create=create)
            if found is None and not must_exist:
                return
            claim = self._admitted(connection, session_id, found)
            if claim.created:
                new = dict(sorted({**encoded, **self.fixed}.items()))
                check_count((), new, self.limits)
                self.rows.write_new(connection, session_id, new)
                return
            gone = sorted(claim.stored.keys() & set(removed))
            if gone:
                self.rows.delete_keys(connection, session_id, gone)
            if encoded:
                kept = {key: stored for key, stored in claim.stored.items() if key not in gone}
                self.rows.upsert(connection, session_id, encoded, claim._replace(stored=kept))

        await self.database.write(write)

    async def edit_metadata(
        self,
        session_id: str,
        change: Callable[[Metadata], object],
        *,
        must_exist: bool = False,
        also: Callable[[Connection, Metadata], None] | None = None,
    ) -> Metadata:
        """Calls `change` on the metadata while the session is locked.

        `also` writes in the same transaction and receives the changed metadata. It creates the
        session even if `change` did nothing.
        """
        check_id(session_id)
        return await self.database.write(
            lambda connection: self.edit_locked(
                connection, session_id, change, must_exist=must_exist, also=also
            )
        )

    async def delete_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> int:
        wanted = storable_keys(keys)
        self.check_written({}, wanted or ())
        if id_problem(session_id) is not None or wanted == ():
            return 0

        def write(connection: Connection) -> int:
            claim = self.rows.claim(connection, session_id, self.rows.lists, create=False)
            if claim is None:
                return 0
            claim = self._admitted(connection, session_id, claim)
            if wanted is None:
                removed = sorted(claim.stored.keys() - self.fixed.keys())
            else:
                removed = sorted(claim.stored.keys() & set(wanted))
            if removed:
                self.rows.delete_keys(connection, session_id, removed)
            return len(removed)

        return await self.database.write(write)

    async def delete(self, session_id: str) -> bool:
        def write(connection: Connection) -> bool:
            exists = self.lock(connection, session_id)
            if exists:
                self.rows.delete_session(connection, session_id)
            return exists

        return await self.database.write(write)

    async def exists(self, session_id: str) -> bool:
        if id_problem(session_id) is not None:
            return False
        return await self.database.read(lambda connection: self.finds(connection, session_id))

    # ---- parts of transactions ----

    def finds(self, connection: Connection, session_id: str) -> bool:
        own_id = self.database.tables.sessions.c.session_id
        statement, parameters = self.question(self.rows.looking, own_id)
        parameters["session"] = session_id
        return connection.execute(statement, parameters).first() is not None

    def lock(self, connection: Connection, session_id: str) -> bool:
        """Locks a session at the beginning of a transaction and returns whether it exists."""
        return self.rows.lock_session(connection, session_id) and self.admits(
            connection, session_id
        )

    def require(self, connection: Connection, session_id: str) -> None:
        """Locks a session at the beginning of a transaction; raises if it does not exist."""
        if not (is_text(session_id) and self.lock(connection, session_id)):
            raise SessionNotFoundError(session_id)

    def create_locked(
        self, connection: Connection, session_id: str, encoded: Mapping[str, EncodedValue]
    ) -> bool:
        """Creates a session at the beginning of a transaction. Returns whether the id was free."""
        if not self.rows.create(connection, session_id):
            return False
        self.rows.write_new(connection, session_id, encoded)
        if self.admits_new(connection, session_id):
            return True
        connection.rollback()
        return False

    def edit_locked(
        self,
        connection: Connection,
        session_id: str,
        change: Callable[[Metadata], object],
        *,
        must_exist: bool,
        also: Callable[[Connection, Metadata], None] | None = None,
    ) -> Metadata:
        """Rolls back if nothing changed and there is nothing else to write."""
        read, create = self.rows.texts, not must_exist
        found = self.rows.claim(connection, session_id, read, create=create)
        claim = self._admitted(connection, session_id, found)
        texts: dict[str, str] = claim.stored
        new = self.fixed if claim.created else {}
        texts.update((key, value.text) for key, value in new.items())
        metadata = decoded(session_id, sorted(texts.items()))
        result = change(metadata)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                "edit_metadata takes a plain function: "
                "nothing is awaited while the session is locked"
            )
        changed = self._changed(metadata, texts)
        removed = sorted(texts.keys() - metadata.keys())
        self.check_written(changed, removed)
        if changed or removed:
            check_count(texts.keys() - set(removed), changed, self.limits)
            if removed:
                self.rows.delete_keys(connection, session_id, removed)
            lists = [
                key
                for key in changed
                if key in texts and (changed[key].elements or decode_elements(texts[key]))
            ]
            self.rows.write(connection, session_id, {**new, **changed}, lists)
            texts.update((key, value.text) for key, value in changed.items())
        else:
            _check_result(result, metadata)
            if also is None:
                connection.rollback()
            else:
                self.rows.write(connection, session_id, new, ())
        if also is not None:
            also(connection, metadata)
        keys = map(str.__str__, metadata)
        return decoded(session_id, ((key, texts[key]) for key in keys))

    def insert_items(self, connection: Connection, session_id: str, texts: Sequence[str]) -> None:
        """Inserts items, as JSON text, of a session that is locked."""
        inserted = (
            feature.insert_items(self.database, connection, session_id, texts)
            for feature in features()
        )
        if texts and not any(inserted):
            self.rows.insert_items(connection, session_id, texts)

    def enter_history(self, connection: Connection, session_id: str, *, must_exist: bool) -> None:
        """Locks a session at the beginning of a transaction that then writes its history.

        History can be written without our tables, and under every id that the SDK allows.
        """
        created = not must_exist and self.rows.lock_or_create(connection, session_id)
        admits = self.admits_new if created else self.lock if must_exist else self.admits
        if not admits(connection, session_id):
            raise SessionNotFoundError(session_id)
        if created and self.database.has_tables(connection, CORE):
            self.rows.delete_leftovers(connection, session_id)
            self.rows.write_new(connection, session_id, self.fixed)

    def _admitted(self, connection: Connection, session_id: str, claim: Claim | None) -> Claim:
        admits = self.admits_new if claim is not None and claim.created else self.admits
        if claim is None or not admits(connection, session_id):
            raise SessionNotFoundError(session_id)
        return claim

    def _changed(
        self, metadata: Mapping[str, JSONValue], texts: Mapping[str, str]
    ) -> dict[str, EncodedValue]:
        """Only changed values must be within the limits."""
        changed = {}
        for key, value in metadata.items():
            name = key if key in texts else check_key(key, self.limits)
            text = json_text(name, value)
            if text != texts.get(name):
                changed[name] = encode_text(name, value, text, self.limits)
        return dict(sorted(changed.items()))


def _check_result(result: object, metadata: Metadata) -> None:
    """Rejects a new mapping that a function returned instead of changing its argument."""
    if isinstance(result, Mapping) and not _is_part(result, metadata):
        raise TypeError(
            "the function given to edit_metadata changed nothing and returned a new mapping, which "
            "is ignored; change the dict that it is given in place"
        )


def _is_part(wanted: object, value: object) -> bool:
    if value is wanted:
        return True
    if isinstance(value, Mapping):
        return any(_is_part(wanted, item) for item in value.values())
    return isinstance(value, list) and any(_is_part(wanted, item) for item in value)


def check_options(options: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted({*options} - {*known})
    if unknown:
        names = ", ".join(sorted(known))
        raise TypeError(f"unknown argument {quoted(unknown[0])}; expected one of {names}")


def check_on_clear(on_clear: str) -> None:
    if on_clear not in get_args(OnClear):
        raise ValueError(f"on_clear must be 'delete' or 'keep', got {quoted(on_clear)}")
