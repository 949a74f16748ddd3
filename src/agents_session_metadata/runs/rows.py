"""The rows of paused runs, and the public classes that they are read as.

The caller locks the session before writing its row. All times come from the database's clock.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from agents_session_metadata.core.messages import Restriction
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement

from .feature import PAUSED


class HistoryEnd(NamedTuple):
    """Differs as soon as the history changes: the number of items and the newest id."""

    item_count: int
    last_item: int | None


class PausedRow(NamedTuple):
    """`now` is the time at which the row was read. `state` is None if it was not selected."""

    session_id: str
    details: str
    decisions: str
    item_count: int
    last_item: int | None
    revision: int
    paused_at: int
    token: str | None
    claimed_until: int | None
    now: int
    state: str | None = None

    @property
    def is_claimed(self) -> bool:
        return self.token is not None and (self.claimed_until or 0) > self.now

    @property
    def is_crashed(self) -> bool:
        return self.token is not None and not self.is_claimed

    @property
    def history_end(self) -> HistoryEnd:
        return HistoryEnd(self.item_count, self.last_item)


def paused_table(tables: SessionTables) -> Table:
    return tables.group(PAUSED).tables[0]


class PausedRows:
    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        self._table = paused_table(tables)
        self._sessions = tables.sessions
        self._messages = tables.messages
        self._dialect = dialect

    # ---- reading ----

    def _reading(self, *, state: bool = False) -> Any:
        columns: list[Any] = [
            self._table.c[name] for name in PausedRow._fields if name not in ("now", "state")
        ]
        columns.append(self._dialect.now().label("now"))
        if state:
            columns.append(self._table.c.state)
        return select(*columns)

    def of_session(self, session_id: str, *, state: bool = False) -> Statement:
        own_id = self._table.c.session_id
        statement: Statement = self._reading(state=state).where(own_id == session_id)
        return statement.where(self._has_session(own_id))

    def page(
        self, *, limit: int, after: tuple[int, str] | None, restrict: Restriction
    ) -> tuple[Statement, dict[str, Any]]:
        """Returns a statement that reads the latest rows first, and its parameters."""
        inner = self._table.alias("inner_runs")
        paused_at, session_id = inner.c.paused_at, inner.c.session_id
        page: Any = select(session_id).where(self._has_session(session_id))
        page = page.order_by(paused_at.desc(), session_id.desc()).limit(limit)
        if after is not None:
            time, last = after
            beyond = or_(paused_at < time, session_id < last)
            page = page.where(and_(paused_at <= time, beyond))
        page, parameters = restrict(page, session_id)
        # The index alone answers that; the long columns are read for the rows of the page only.
        ids = page.subquery("page")
        own = self._table.c
        statement = self._reading().join(ids, ids.c.session_id == own.session_id)
        return statement.order_by(own.paused_at.desc(), own.session_id.desc()), parameters

    def locked(self, connection: Connection, session_id: str) -> PausedRow | None:
        """The session must be locked."""
        own = self._table.c.session_id == session_id
        statement = self._dialect.locking(self._reading().where(own))
        row = connection.execute(statement).first()
        return None if row is None else PausedRow(*row)

    def history_end(self, connection: Connection, session_id: str) -> HistoryEnd:
        messages = self._messages
        found: Any = connection.execute(
            select(func.count(), func.max(messages.c.id)).where(messages.c.session_id == session_id)
        ).one()
        return HistoryEnd(int(found[0]), found[1])

    def _has_session(self, session_id: ColumnElement[str]) -> ColumnElement[bool]:
        """The session of a row may have been deleted without the foreign key."""
        own_id = self._sessions.c.session_id
        # No join, which a planner could begin with the sessions.
        return select(own_id).where(own_id == session_id).scalar_subquery().is_not(None)

    # ---- writing to a session that is locked ----

    def store(self, connection: Connection, session_id: str, values: dict[str, Any]) -> None:
        """Replaces a paused run that exists. The new one is not claimed."""
        connection.execute(delete(self._table).where(self._table.c.session_id == session_id))
        connection.execute(
            insert(self._table).values(
                session_id=session_id,
                # Nobody who has read an earlier run of the session takes this one for it.
                revision=secrets.randbits(30),
                paused_at=self._dialect.now(),
                token=None,
                claimed_until=None,
                **values,
            )
        )

    def change(
        self, connection: Connection, session_id: str, values: dict[str, Any], *conditions: Any
    ) -> None:
        changed = update(self._table).where(self._table.c.session_id == session_id, *conditions)
        connection.execute(changed.values(revision=self._table.c.revision + 1, **values))

    def until(self, lease: int) -> ColumnElement[Any]:
        """Returns the end of a lease of this many microseconds."""
        return self._dialect.now() + lease

    def claim(
        self, connection: Connection, row: PausedRow, token: str, lease: int, *, after_crash: bool
    ) -> PausedRow | None:
        """Claims a run in one statement, if it equals `row` and nobody holds a lease.

        `lease` is in microseconds. `after_crash` also claims a run whose lease has ended without a
        result. Returns the row afterwards, claimed if its token is `token`; None if the row is
        gone.
        """
        free: ColumnElement[bool] = self._table.c.token.is_(None)
        if after_crash:
            free = or_(free, self._table.c.claimed_until <= self._dialect.now())
        values = {"token": token, "claimed_until": self.until(lease)}
        is_same = self._table.c.revision == row.revision
        self.change(connection, row.session_id, values, is_same, free)
        return self.locked(connection, row.session_id)

    def delete(self, connection: Connection, session_id: str) -> None:
        connection.execute(delete(self._table).where(self._table.c.session_id == session_id))


Cipher: TypeAlias = Callable[[bytes], "bytes | str"]
"""A function that encrypts or decrypts, such as a method of `cryptography.fernet.Fernet`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Decision:
    """The decision about a call.

    Attributes:
        approve: Whether the call was approved.
        message: The text that the model receives for a rejected call.
        by: The person who decided.
        at: The time of the decision, by the database's clock; aware, UTC.
    """

    approve: bool
    message: str | None
    by: str | None
    at: datetime


@dataclass(frozen=True)
class PendingCall:
    """A call that waits for an approval.

    Attributes:
        call_id: The id of the call, for `decide`.
        tool: The name of the tool.
        arguments: The arguments of the call as text, usually JSON. None if there are none, if they
            are encrypted and there is no `decrypt`, or on a page if `decrypt` raises.
        agent: The name of the agent that made the call.
        decision: The decision, or None.
    """

    call_id: str
    tool: str | None
    arguments: str | None
    agent: str | None
    decision: Decision | None = None


@dataclass(frozen=True)
class PausedRun:
    """A run that waits to be resumed.

    Attributes:
        session_id: The id of its session.
        agent: The name of the agent that was running.
        pending: The calls that require an approval, including those with a decision. Empty if the
            run failed after all decisions were applied; it can still be claimed and resumed.
        paused_at: When it was paused, by the database's clock; aware, UTC.
        claimed_until: When the lease of the claim expires; None if the run is not claimed.
        crashed: Whether that lease has expired without a result.
    """

    session_id: str
    agent: str | None
    pending: tuple[PendingCall, ...]
    paused_at: datetime
    claimed_until: datetime | None = None
    crashed: bool = False

    @property
    def undecided(self) -> tuple[PendingCall, ...]:
        """The calls without a decision."""
        return tuple(call for call in self.pending if call.decision is None)


@dataclass(frozen=True)
class PausedPage:
    """A page of paused runs.

    Attributes:
        runs: The runs, newest first.
        next_cursor: The `cursor` of the next page, or None on the last page.
    """

    runs: list[PausedRun]
    next_cursor: str | None


@dataclass(frozen=True)
class Encryption:
    """Texts are not encrypted without the functions."""

    encrypt: Cipher | None = None
    decrypt: Cipher | None = None

    def encrypted(self, text: str) -> str:
        if self.encrypt is None:
            return text
        secret = self.encrypt(text.encode())
        return base64.b64encode(secret.encode() if isinstance(secret, str) else secret).decode()

    def decrypted(self, text: str) -> str:
        if self.decrypt is None:
            raise ValueError("the paused run is stored encrypted; pass decrypt= to PausedRuns")
        plain = self.decrypt(base64.b64decode(text))
        return plain if isinstance(plain, str) else plain.decode()


@dataclass(frozen=True)
class Details:
    """The JSON object in the `details` of a row.

    `encrypted` applies to the state and the arguments of calls, `wrapped` to a history in the SDK's
    `EncryptedSession`. `phase` is that before the pause, if the pause has changed it.
    """

    agent: str | None
    pending: list[dict[str, Any]]
    encrypted: bool
    wrapped: bool
    phase: str | None = None

    @classmethod
    def of(cls, row: PausedRow) -> Details:
        return cls(**json.loads(row.details))

    def text(self) -> str:
        return json.dumps(vars(self))


def pending_as_stored(calls: Iterable[Mapping[str, Any]], encryption: Encryption) -> Any:
    return [
        {
            **call,
            "arguments": call["arguments"] and encryption.encrypted(call["arguments"]),
        }
        for call in calls
    ]


def decisions_left(row: PausedRow, calls: Iterable[Mapping[str, Any]]) -> str:
    waiting = {call["call_id"] for call in calls}
    decided = json.loads(row.decisions)
    return json.dumps({call_id: each for call_id, each in decided.items() if call_id in waiting})


def paused_run(row: PausedRow, encryption: Encryption) -> PausedRun:
    """Raises any error that `decrypt` raises."""
    details = Details.of(row)
    decided = {
        call_id: Decision(**{**decision, "at": moment(decision["at"])})
        for call_id, decision in json.loads(row.decisions).items()
    }

    def pending(call: dict[str, Any]) -> PendingCall:
        found = PendingCall(**call, decision=decided.get(call["call_id"]))
        if not details.encrypted:
            return found
        is_readable = found.arguments is not None and encryption.decrypt is not None
        arguments = encryption.decrypted(found.arguments or "") if is_readable else None
        return replace(found, arguments=arguments)

    return PausedRun(
        row.session_id,
        details.agent,
        tuple(map(pending, details.pending)),
        moment(row.paused_at),
        None if row.claimed_until is None else moment(row.claimed_until),
        row.is_crashed,
    )


def encryption_missing() -> ValueError:
    return ValueError(
        "the history of the session is encrypted; pass encrypt= and decrypt= to PausedRuns"
    )


def moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
