"""Transactions on paused runs. Each one that writes begins by locking the session."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

from sqlalchemy import Connection

from agents_session_metadata import keys
from agents_session_metadata.core.database import insist
from agents_session_metadata.core.rows import check_id_type, decoded, id_problem
from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    MetadataLimitError,
    RunClaimedError,
    ScopeError,
    SessionChangedError,
    SessionNotFoundError,
)
from agents_session_metadata.history.rewind import is_item_encrypted
from agents_session_metadata.lifecycle import KEPT, came_from, enter_phase
from agents_session_metadata.query.cursors import seal, unseal
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import Metadata

from .feature import PAUSED
from .rows import (
    Details,
    Encryption,
    HistoryEnd,
    PausedRow,
    PausedRows,
    PausedRun,
    decisions_left,
    encryption_missing,
    moment,
    paused_run,
    paused_table,
)

T = TypeVar("T")
logger: logging.Logger = logging.getLogger(__name__)

APPROVAL = "approval"


class PausedStore:
    def __init__(self, store: ScopedStore, encryption: Encryption) -> None:
        database = store.database
        self.store = store
        self.encryption = encryption
        self._database = database
        self._table = paused_table(database.tables)
        self.rows: PausedRows = PausedRows(database.tables, database.dialect)

    # ---- reading ----

    async def read(
        self, session_id: str, *, state: bool = False
    ) -> tuple[PausedRow, HistoryEnd] | None:
        """Returns the row and the current end of the history, or None if no run is paused."""
        check_id_type(session_id)
        if id_problem(session_id) is not None:
            return None

        def read(connection: Connection, queries: Queries) -> tuple[PausedRow, HistoryEnd] | None:
            statement, parameters = self.store.question(
                queries, self.rows.of_session(session_id, state=state), self._table.c.session_id
            )
            found = connection.execute(statement, parameters).first()
            if found is None:
                return None
            return PausedRow(*found), self.rows.history_end(connection, session_id)

        await self._database.ensure(PAUSED)
        return await self._database.read(read)

    async def page(
        self, condition: Condition, limit: int, cursor: str | None
    ) -> tuple[list[PausedRow], str | None]:
        """Returns rows, newest first, and the cursor of the next page."""
        question = ["paused", condition.encoded()]
        after = None if cursor is None else _position(unseal(cursor, question))

        def read(connection: Connection, queries: Queries) -> list[PausedRow]:
            statement, parameters = self.rows.page(
                limit=limit + 1,
                after=after,
                restrict=lambda page, session_id: queries.where(page, condition, session_id),
            )
            return [PausedRow(*row) for row in connection.execute(statement, parameters)]

        await self._database.ensure(PAUSED)
        rows = await self._database.read(read)
        if len(rows) <= limit:
            return rows, None
        last = rows[limit - 1]
        position = json.dumps([last.paused_at, last.session_id]).encode()
        return rows[:limit], seal(position, question)

    # ---- writing ----

    async def put(
        self, session_id: str, details: Details, state: str, stores: Sequence[ScopedStore] = ()
    ) -> PausedRun:
        """Replaces a run that is not claimed. The session must be in the scopes of `stores` too."""

        def put(connection: Connection, _: Queries) -> PausedRun:
            found = self.store.lock(connection, session_id)
            if not (found and all(each.admits(connection, session_id) for each in stores)):
                raise SessionNotFoundError(session_id)
            end = self.rows.history_end(connection, session_id)
            wrapped = details.wrapped or is_item_encrypted(
                *(self.store, connection, session_id, end.last_item or 0)
            )
            if wrapped and not details.encrypted:
                raise encryption_missing()
            row = self.rows.locked(connection, session_id)
            if row is not None and row.is_claimed:
                raise RunClaimedError(session_id)
            before = self._move(connection, session_id, APPROVAL)
            if row is not None and before == APPROVAL:
                before = Details.of(row).phase
            values = {
                "state": state,
                "details": replace(details, wrapped=wrapped, phase=before).text(),
                "decisions": "{}",
                **end._asdict(),
            }
            self.rows.store(connection, session_id, values)
            return self._written(connection, session_id)

        if id_problem(session_id) is not None:
            raise SessionNotFoundError(session_id)
        await self._database.ensure(PAUSED)
        return await self._database.write(put)

    async def decide(
        self,
        session_id: str,
        call_id: str,
        *,
        approve: bool,
        message: str | None,
        by: str | None,
        paused_at: datetime | None,
    ) -> PausedRun:
        def decide(connection: Connection, row: PausedRow) -> PausedRun:
            if row.is_claimed:
                raise RunClaimedError(session_id)
            waiting = [call["call_id"] for call in Details.of(row).pending]
            if paused_at not in (None, moment(row.paused_at)):
                raise LookupError(
                    f"the run of session {quoted(session_id)} that was paused at {paused_at} is not"
                    f" paused any more; another one has been since {moment(row.paused_at)}"
                )
            if call_id not in waiting:
                shown = ", ".join(map(quoted, waiting)) or "no call"
                raise LookupError(
                    f"the paused run of session {quoted(session_id)} does not wait for call "
                    f"{quoted(call_id)}; it waits for {shown}"
                )
            if waiting.count(call_id) > 1:
                raise ValueError(
                    f"several pending calls have the id {quoted(call_id)}; the SDK cannot tell "
                    "them apart"
                )
            decision = {"approve": approve, "message": message, "by": by, "at": row.now}
            decisions = {**json.loads(row.decisions), call_id: decision}
            self.rows.change(connection, session_id, {"decisions": json.dumps(decisions)})
            return self._written(connection, session_id)

        return await self._change(session_id, decide)

    async def claim(
        self, row: PausedRow, token: str, lease: int, *, after_crash: bool, force: bool
    ) -> bool:
        """Returns False if the row has changed since it was read."""

        def claim(connection: Connection, _: PausedRow) -> bool:
            after = self.rows.claim(connection, row, token, lease, after_crash=after_crash)
            if after is None:
                raise nothing_paused(row.session_id)
            end = self.rows.history_end(connection, row.session_id)
            if after.token == token:
                check_history(after, end, force=force)
                return True
            check_claim(after, after_crash=after_crash)
            connection.rollback()
            return False

        return await self._change(row.session_id, claim)

    async def renew(self, session_id: str, token: str, lease: int) -> bool:
        """Returns False if the lease is no longer held."""

        def renew(connection: Connection, row: PausedRow) -> bool:
            if row.token != token:
                connection.rollback()
                return False
            until = {"claimed_until": self.rows.until(lease)}
            self.rows.change(connection, session_id, until, self._table.c.token == token)
            return True

        try:
            return await self._change(session_id, renew)
        except LookupError:
            return False

    async def release(self, before: PausedRow, token: str) -> None:
        """Restores the row of a claim that did not resume its run."""

        def release(connection: Connection, row: PausedRow) -> None:
            if row.token != token:
                connection.rollback()
                return
            crashed = before.token is not None
            values = {
                # Not the token of whoever crashed: that one must not be able to write again.
                "token": secrets.token_hex(16) if crashed else None,
                "claimed_until": before.claimed_until if crashed else None,
            }
            self.rows.change(connection, before.session_id, values)

        with suppress(LookupError):
            await self._change(before.session_id, release)

    async def replace(
        self,
        session_id: str,
        token: str,
        state: str,
        details: Callable[[Details], Details],
        stores: Sequence[ScopedStore],
        *,
        history_is_known: bool,
    ) -> bool:
        """Stores a new state and ends the claim.

        Returns False if the run was deleted or has left the scope of one of the stores. Without
        `history_is_known`, the history may have a turn that the state lacks, so the next claim
        finds it changed.
        """
        stored: list[str] = []

        def store(connection: Connection, row: PausedRow) -> None:
            if row.token is None and row.details in stored:
                return  # It was committed, although an error was raised.
            if row.token != token:
                raise RunClaimedError(session_id, lost=True)
            if not all(each.admits(connection, session_id) for each in stores):
                raise nothing_paused(session_id)
            new = details(Details.of(row))
            stored.append(new.text())
            end = self.rows.history_end(connection, session_id)
            values = {
                "state": state,
                "details": new.text(),
                "decisions": decisions_left(row, new.pending),
                "token": None,
                "claimed_until": None,
                **(end._asdict() if history_is_known else {}),
            }
            self.rows.change(connection, session_id, values)

        try:
            await insist(lambda: self._change(session_id, store))
        except LookupError:
            return False
        return True

    async def finish(self, session_id: str, token: str) -> None:
        """Deletes the run and restores the phase from before the pause."""

        def finish(connection: Connection, row: PausedRow) -> None:
            if row.token != token:
                raise RunClaimedError(session_id, lost=True)
            self._delete(connection, row)

        # Whoever deleted the session or cleared its history deleted the run with it.
        with suppress(LookupError):
            await insist(lambda: self._change(session_id, finish))

    async def discard(self, session_id: str) -> bool:
        """Returns False if no run is paused."""

        def discard(connection: Connection, row: PausedRow) -> None:
            if row.is_claimed:
                raise RunClaimedError(session_id)
            self._delete(connection, row)

        try:
            await self._change(session_id, discard)
        except LookupError:
            return False
        return True

    # ---- parts of transactions ----

    def check_token(self, connection: Connection, session_id: str, token: str) -> None:
        """Raises if the lease is lost. Must be called while the session is locked."""
        row = self.rows.locked(connection, session_id)
        if row is None or row.token != token:
            raise RunClaimedError(session_id, lost=True)
        if not self.store.admits(connection, session_id):
            raise SessionNotFoundError(session_id)

    async def check_held(self, session_id: str, token: str, stores: Sequence[ScopedStore]) -> None:
        """Calls `check_token` in a transaction of its own; checks the scopes of `stores` too."""

        def check(connection: Connection, _: Queries) -> None:
            self.store.rows.lock_session(connection, session_id)
            self.check_token(connection, session_id, token)
            if not all(each.admits(connection, session_id) for each in stores):
                raise SessionNotFoundError(session_id)

        await self._database.write(check)

    async def _change(self, session_id: str, change: Callable[[Connection, PausedRow], T]) -> T:
        """Calls `change` with the locked row. Raises `LookupError` if no run is paused."""
        check_id_type(session_id)

        def run(connection: Connection, _: Queries) -> T:
            row = None
            if self.store.lock(connection, session_id):
                row = self.rows.locked(connection, session_id)
            if row is None:
                raise nothing_paused(session_id)
            return change(connection, row)

        if id_problem(session_id) is not None:
            raise nothing_paused(session_id)
        await self._database.ensure(PAUSED)
        return await self._database.write(run)

    def _written(self, connection: Connection, session_id: str) -> PausedRun:
        """Raises if the run cannot be read as it will be stored, so that nothing is committed."""
        row = self.rows.locked(connection, session_id)
        if row is None:
            raise nothing_paused(session_id)
        return paused_run(row, self.encryption)

    def _delete(self, connection: Connection, row: PausedRow) -> None:
        self.rows.delete(connection, row.session_id)
        before = Details.of(row).phase
        if before is not None and before != APPROVAL:
            self._move(connection, row.session_id, before, only_from=APPROVAL)

    def _move(
        self, connection: Connection, session_id: str, phase: str, only_from: str | None = None
    ) -> str | None:
        """Moves an active lifecycle into a phase; with `only_from`, back from that phase.

        Returns the previous phase, or None if no lifecycle is active or the phase cannot be stored.
        """
        reading = self.store.rows.reading([keys.PHASE, keys.STATUS, keys.PHASE_HISTORY])
        found = connection.execute(reading, {"of_session": session_id})
        try:
            stored = decoded(session_id, found)
            before = stored.get(keys.PHASE)
            if not isinstance(before, str) or stored.get(keys.STATUS) != "active":
                return None
            # Work that was begun after the pause can be in that phase as well.
            is_back = only_from == before and came_from(stored, before) in (None, phase)
            if before != phase and (only_from is None or is_back):
                self._edit(connection, session_id, phase)
        except (CorruptMetadataError, MetadataLimitError, ScopeError) as error:
            # The run matters more than the phase.
            logger.warning("the phase of session %s stays: %s", quoted(session_id), error)
            return None
        return before

    def _edit(self, connection: Connection, session_id: str, phase: str) -> None:
        now = datetime.now(timezone.utc)
        for kept in KEPT:

            def change(stored: Metadata, kept: int = kept) -> None:
                enter_phase(stored, phase, now, kept)

            try:
                self.store.edit_locked(connection, session_id, change, must_exist=True)
            except MetadataLimitError as error:
                if error.key != keys.PHASE_HISTORY or kept == KEPT[-1]:
                    raise
            else:
                return


def check_claim(row: PausedRow, *, after_crash: bool) -> None:
    if row.is_claimed or (row.is_crashed and not after_crash):
        raise RunClaimedError(row.session_id, crashed=row.is_crashed)


def check_history(row: PausedRow, end: HistoryEnd, *, force: bool) -> None:
    if row.history_end != end and not force:
        raise SessionChangedError(
            row.session_id,
            "its history has changed since the pause (pass force=True to resume it anyway)",
        )


def nothing_paused(session_id: str) -> LookupError:
    return LookupError(f"session {quoted(session_id)} has no paused run")


def _position(body: bytes) -> tuple[int, str]:
    try:
        paused_at, session_id = json.loads(body)
        if type(paused_at) is int and abs(paused_at) < 2**63 and id_problem(session_id) is None:
            return paused_at, session_id
    except (ValueError, TypeError, RecursionError):
        pass
    raise InvalidCursorError
