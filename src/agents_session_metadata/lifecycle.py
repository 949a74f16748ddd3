"""Phases of a session's work, and the decision whether to resume it.

All state is plain metadata, under the keys in `keys`, so filters can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from agents_session_metadata import keys

from .catalog import SessionCatalog
from .errors import InvalidMetadataError, InvalidPhaseError, SessionNotFoundError
from .query.filters import Where, check_filter
from .scope import ScopedStore
from .text import parse_time, quoted
from .types import JSONValue, Metadata, SessionInfo
from .values import json_text

if TYPE_CHECKING:
    from .session import SQLAlchemyMetadataSession

PHASES = ("initializing", "investigating", "planning", "approval", "executing", "validating")
"""The default phases of active work. `start` enters the first one."""

FINAL_PHASES = ("completed", "failed", "abandoned")
"""The default phases of finished work."""

HISTORY_LENGTH = 50
"""The number of newest phase changes and tool calls to keep; fewer if the value limit is small."""

ResumeReason: TypeAlias = Literal[
    "not_found", "not_ready", "not_resumable_phase", "too_old", "too_many_errors", "resumable"
]
"""`resumable`, or the first condition that failed."""


class Forwarding(Protocol):
    """A wrapper around a session that forwards attributes to it, as `EncryptedSession` does."""

    session_id: str

    def __getattr__(self, name: str, /) -> Any: ...


AnySession: TypeAlias = "SQLAlchemyMetadataSession | Forwarding"
"""A session with metadata, or a wrapper around it."""


@dataclass(frozen=True)
class ResumePolicy:
    """The conditions for resuming a session: `ResumePolicy(max_idle=timedelta(hours=1))`.

    Attributes:
        phases: The phases in which a session may be resumed.
        max_idle: The session must have been idle for less than this. Zero resumes nothing.
        max_errors: The session must have fewer errors since its last start. Zero resumes nothing.

    Raises:
        TypeError: If `phases` is a bare string, or contains something that is not a string.
        ValueError: If a phase is empty, or `max_idle` or `max_errors` is negative.
    """

    phases: Collection[str] = frozenset({"approval", "investigating", "planning"})
    max_idle: timedelta = timedelta(minutes=30)
    max_errors: int = 3

    def __post_init__(self) -> None:
        _check_phases("phases", self.phases)
        if self.max_idle < timedelta(0):
            raise ValueError(f"max_idle must not be negative, got {self.max_idle}")
        if self.max_errors < 0:
            raise ValueError(f"max_errors must not be negative, got {self.max_errors}")


@dataclass(frozen=True)
class PhaseChange:
    """One phase change.

    Attributes:
        phase: The phase that was entered.
        at: When it was entered; aware, UTC.
    """

    phase: str
    at: datetime


@dataclass(frozen=True)
class ResumeDecision:
    """Whether a session may be resumed, and why.

    Attributes:
        should_resume: The decision.
        reason: `resumable`, or the first condition that failed.
        phase: The current phase, or None.
        idle: The time since the last activity, or None if the session does not exist.
        error_count: The number of errors since the last start.
        metadata: All metadata of the session.
        history: The phase changes, oldest first.
    """

    should_resume: bool
    reason: ResumeReason
    phase: str | None = None
    idle: timedelta | None = None
    error_count: int = 0
    metadata: Metadata = field(default_factory=dict)
    history: tuple[PhaseChange, ...] = ()


class SessionLifecycle:
    """Moves a session through phases of work. Each call is one `edit_metadata`.

    ```python
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@planner", purpose="plan a trip")
    await lifecycle.enter("approval")
    decision = await lifecycle.resume_decision()
    await lifecycle.finish("completed", summary="Booked.")
    ```

    Concurrent calls for the same session are serialized, and each is checked against the current
    phase. Times come from the clock of the process. In addition to the listed errors, each method
    raises those of `edit_metadata`, and of the database, such as for a full disk. (A
    `SessionTracker` logs them.)

    Args:
        session: The session, or an `EncryptedSession` around it.
        policy: The conditions for resuming; `ResumePolicy()` by default.
        phases: The phases of active work. `start` enters the first one.
        final_phases: The phases of finished work. Only `start` leaves them.
        moves: For each phase, the phases that may follow it, final ones included. A phase that is
            not a key may be followed by any phase. By default there is no restriction.
        clock: Returns the current time as an aware datetime; for tests.

    Attributes:
        session: The session.
        policy: The conditions for resuming.

    Raises:
        TypeError: If phases are a bare string, or contain something that is not a string.
        ValueError: If there are no phases, one is empty or also final, or `moves` names an unknown
            phase.
    """

    def __init__(
        self,
        session: AnySession,
        policy: ResumePolicy | None = None,
        *,
        phases: Collection[str] = PHASES,
        final_phases: Collection[str] = FINAL_PHASES,
        moves: Mapping[str, Collection[str]] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        named = (("phases", phases), ("final_phases", final_phases), *(moves or {}).items())
        for name, given in named:
            _check_phases(name, given)
        self.session = session
        self.policy: ResumePolicy = policy or ResumePolicy()
        self._phases = tuple(phases)
        self._final = tuple(final_phases)
        self._moves = {phase: frozenset(allowed) for phase, allowed in (moves or {}).items()}
        self._clock = clock or (lambda: datetime.now(timezone.utc))
        if not self._phases or set(self._phases) & set(self._final):
            raise ValueError("phases must not be empty, and must not contain a final phase")
        known = {*self._phases, *self._final}
        unknown = set(self._moves) - known
        unknown.update(*(allowed - known for allowed in self._moves.values()))
        if unknown:
            raise ValueError(f"moves names unknown phases: {', '.join(sorted(unknown))}")

    async def start(
        self,
        agent: str,
        purpose: str | None = None,
        metadata: Mapping[str, JSONValue] | None = None,
    ) -> Metadata:
        """Start work: enter the first phase, with status `active` and no errors.

        A finished session can be started again. Its phase history is kept.

        Args:
            agent: The name of the agent. It is stored as `normalize_agent` returns it.
            purpose: Why the work is started.
            metadata: More metadata to store.

        Returns:
            The metadata afterwards.

        Raises:
            InvalidMetadataError: If `metadata` has a key that this call writes itself.
            InvalidPhaseError: If the session is active.
            ValueError: If the name is blank.
        """
        name = keys.normalize_agent(agent)
        if not name:
            raise ValueError(f"agent must be the name of an agent, got {quoted(agent)}")
        now, first = self._now(), self._phases[0]

        def change(stored: Metadata) -> None:
            phase = stored.get(keys.PHASE)
            if phase is not None and phase not in self._final:
                raise InvalidPhaseError(
                    f"the session is active, in phase {quoted(phase)}; "
                    "finish it before you start it again",
                    phase=first,
                )
            for key in (keys.LAST_ERROR, keys.OUTCOME, keys.FINISHED_AT, keys.DURATION_MS):
                stored.pop(key, None)
            stored.update(metadata or {})
            stored[keys.AGENT] = name
            if purpose is not None:
                stored[keys.PURPOSE] = purpose
            stored[keys.ERROR_COUNT] = 0
            stored[keys.STARTED_AT] = now.isoformat()
            enter_phase(stored, first, now, self.session)
            _check_kept(stored, metadata or {})

        return await self.session.edit_metadata(change)

    async def enter(
        self, phase: str, metadata: Mapping[str, JSONValue] | None = None, error: str | None = None
    ) -> Metadata:
        """Enter a phase.

        The session need not have been started.

        Args:
            phase: The phase. A final phase finishes the work.
            metadata: More metadata to store in the same transaction.
            error: An error to count and store in the same transaction, as `record_error` does.

        Returns:
            The metadata afterwards.

        Raises:
            InvalidMetadataError: If `metadata` has a key that this call writes itself.
            InvalidPhaseError: If the phase is unknown, or cannot be reached from the current phase.
        """
        self._check_known(phase, self._phases + self._final)
        return await self._move(phase, metadata or {}, error)

    async def record_error(self, message: str) -> Metadata:
        """Count an error and store its message, in any phase.

        Args:
            message: The error message. It replaces the previous one.

        Returns:
            The metadata afterwards.
        """
        now = self._now()
        return await self.session.edit_metadata(lambda stored: count_error(stored, message, now))

    async def finish(self, outcome: str, summary: str | None = None) -> Metadata:
        """Finish work: enter a final phase and store the duration since `start`.

        Args:
            outcome: The final phase, such as `completed`.
            summary: The result of the work.

        Returns:
            The metadata afterwards.

        Raises:
            InvalidPhaseError: If the outcome is not a final phase, or the session is finished.
        """
        self._check_known(outcome, self._final)
        return await self._move(outcome, {} if summary is None else {keys.SUMMARY: summary})

    async def resume_decision(self) -> ResumeDecision:
        """Decide whether the session may be resumed.

        The conditions are checked in this order: the session exists, `ready` is not stored as
        False, the phase may be resumed, the session has not been idle for too long, and it does not
        have too many errors. Idle time is measured from the last activity or the last lifecycle
        call, whichever is later.

        Returns:
            The decision. `reason` is the first condition that failed.
        """
        info = await self.session.catalog.get_session(self.session.session_id)
        return decide(self.policy, info, self._now())

    async def resume(self) -> ResumeDecision:
        """Decide whether the session may be resumed, and count the attempt.

        `resume_attempts` is increased by one. If the session may be resumed, `resumes` is too, and
        the session counts as active from then on. Both are written in the transaction that decides.
        A session that does not exist is not created.

        Returns:
            The decision, with the metadata afterwards.
        """
        catalog, session_id = self.session.catalog, self.session.session_id
        info = await catalog.get_session(session_id, keys=[])
        missing = decision = decide(self.policy, None)
        if info is None:
            return missing

        def change(stored: Metadata) -> None:
            nonlocal decision
            now = self._now()
            decision = decide(self.policy, replace(info, metadata=dict(stored)), now)
            add_to(stored, keys.RESUME_ATTEMPTS, 1)
            if decision.should_resume:
                add_to(stored, keys.RESUMES, 1)
                stored[keys.LIFECYCLE_AT] = now.isoformat()

        try:
            metadata = await catalog.edit_metadata(session_id, change, must_exist=True)
        except SessionNotFoundError:
            return missing
        return replace(decision, metadata=metadata)

    async def _move(
        self, phase: str, metadata: Mapping[str, JSONValue], error: str | None = None
    ) -> Metadata:
        now = self._now()

        def change(stored: Metadata) -> None:
            current = stored.get(keys.PHASE)
            known = isinstance(current, str)
            if current in self._final:
                raise InvalidPhaseError(
                    f"the session is finished, in phase {quoted(current)}; call start() first",
                    phase=phase,
                )
            if known and current in self._moves and phase not in self._moves[current]:
                raise InvalidPhaseError(
                    f"phase {quoted(phase)} cannot follow phase {quoted(current)}", phase=phase
                )
            stored.update(metadata)
            if error is not None:
                count_error(stored, error, now)
            if phase in self._final:
                stored[keys.OUTCOME] = phase
                stored[keys.FINISHED_AT] = now.isoformat()
                started = parse_time(stored.get(keys.STARTED_AT))
                if started is not None:
                    duration = max(now - started, timedelta(0))  # Clocks are set back.
                    stored[keys.DURATION_MS] = duration // timedelta(milliseconds=1)
            enter_phase(stored, phase, now, self.session, final=phase in self._final)
            _check_kept(stored, metadata)

        return await self.session.edit_metadata(change)

    def _check_known(self, phase: object, known: tuple[str, ...]) -> None:
        if phase not in known:
            raise InvalidPhaseError(
                f"unknown phase {quoted(phase)}; expected one of {', '.join(known)}", phase=phase
            )

    def _now(self) -> datetime:
        return self._clock().astimezone(timezone.utc)


async def resumable_sessions(
    catalog: SessionCatalog, where: Where | None = None, policy: ResumePolicy | None = None
) -> list[SessionInfo]:
    """Return the sessions that may be resumed now. Nothing is counted.

    Args:
        catalog: The catalog; a scope applies.
        where: A filter; all sessions by default.
        policy: The conditions for resuming; `ResumePolicy()` by default.

    Returns:
        The sessions, most recently active first.

    Raises:
        InvalidFilterError: If the filter is invalid.
        TablesMissingError: If tables are missing and `create_tables` is off.
    """
    check_filter(where)  # Errors name positions in `where`.
    policy, now = policy or ResumePolicy(), datetime.now(timezone.utc)
    in_phases: dict[str, Any] = {keys.PHASE: {"$in": sorted(policy.phases)}}
    found = [
        (decision.idle, info)
        async for info in catalog.iter_sessions({"$and": [where or {}, in_phases]})
        if (decision := decide(policy, info, now)).should_resume
    ]
    return [info for _, info in sorted(found, key=lambda each: (each[0], each[1].session_id))]


def decide(
    policy: ResumePolicy, info: SessionInfo | None, now: datetime | None = None
) -> ResumeDecision:
    if info is None:
        return ResumeDecision(should_resume=False, reason="not_found")
    stored = info.metadata
    phase = stored.get(keys.PHASE)
    last_active = max(info.updated_at, parse_time(stored.get(keys.LIFECYCLE_AT)) or info.updated_at)
    idle = max((now or datetime.now(timezone.utc)) - last_active, timedelta(0))
    error_count = count_of(stored, keys.ERROR_COUNT)
    reason: ResumeReason = "resumable"
    if stored.get(keys.READY) is False:
        reason = "not_ready"
    elif not isinstance(phase, str) or phase not in policy.phases:
        reason = "not_resumable_phase"
    elif idle >= policy.max_idle:
        reason = "too_old"
    elif error_count >= policy.max_errors:
        reason = "too_many_errors"
    return ResumeDecision(
        should_resume=reason == "resumable",
        reason=reason,
        phase=phase if isinstance(phase, str) else None,
        idle=idle,
        error_count=error_count,
        metadata=stored,
        history=tuple(history_of(stored)),
    )


def count_error(stored: Metadata, message: str, now: datetime) -> None:
    add_to(stored, keys.ERROR_COUNT, 1)
    stored[keys.LAST_ERROR] = message
    stored[keys.LIFECYCLE_AT] = now.isoformat()


def enter_phase(
    stored: Metadata, phase: str, now: datetime, session: AnySession, *, final: bool = False
) -> None:
    entry: JSONValue = {"phase": phase, "at": now.isoformat()}
    moves = [*list_of(stored, keys.PHASE_HISTORY), entry]
    stored[keys.PHASE_HISTORY] = newest(session, moves)
    stored[keys.PHASE] = phase
    stored[keys.STATUS] = phase if final else "active"
    stored[keys.LIFECYCLE_AT] = now.isoformat()


def newest(session: AnySession, entries: Sequence[JSONValue]) -> list[JSONValue]:
    """Returns the newest entries whose JSON is within the session's limit for a value."""
    limits = store_of(session).limits
    kept = list(entries[-HISTORY_LENGTH:])
    while len(kept) > 1 and len(json_text("", kept).encode()) > limits.max_value_bytes:
        del kept[0]
    return kept


def store_of(session: object) -> ScopedStore:
    """Returns the store of a session, also of one inside a wrapper."""
    catalog = getattr(session, "catalog", None)
    if not isinstance(catalog, SessionCatalog):
        raise TypeError(
            "session must be a session with metadata, such as a SQLAlchemyMetadataSession, "
            f"got {quoted(type(session).__name__)}"
        )
    return catalog._store


def count_of(stored: Mapping[str, Any], key: str) -> int:
    """Returns 0 if the stored value is missing or not a whole number."""
    value = stored.get(key)
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else 0


def add_to(stored: Metadata, key: str, number: int) -> None:
    stored[key] = count_of(stored, key) + number


def list_of(stored: Mapping[str, Any], key: str) -> list[Any]:
    """Returns an empty list if the stored value is missing or not a list."""
    value = stored.get(key)
    return value if isinstance(value, list) else []


def _check_phases(name: str, phases: Collection[object]) -> None:
    if isinstance(phases, str):
        raise TypeError(f"{name} must be a collection of phases, got the string {quoted(phases)}")
    for phase in phases:
        if not isinstance(phase, str) or not phase:
            error = ValueError if phase == "" else TypeError
            raise error(f"a phase must be a string that is not empty, got {quoted(phase)}")


def _check_kept(stored: Metadata, metadata: Mapping[str, JSONValue]) -> None:
    for key, value in metadata.items():
        if stored[key] is not value and stored[key] != value:
            raise InvalidMetadataError("is written by this call and cannot be passed", key=key)


def history_of(stored: Mapping[str, Any]) -> list[PhaseChange]:
    found = []
    for entry in list_of(stored, keys.PHASE_HISTORY):
        at = parse_time(entry.get("at")) if isinstance(entry, dict) else None
        if at is not None and isinstance(entry.get("phase"), str):
            found.append(PhaseChange(entry["phase"], at))
    return found
