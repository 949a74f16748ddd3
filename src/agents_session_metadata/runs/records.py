"""Paused runs as callers see them, and as they are stored in a row."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from .rows import PausedRow

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
