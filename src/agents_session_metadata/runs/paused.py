"""`PausedRuns`: runs that wait for an approval, stored beside their sessions."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.store import LONGEST_PAGE, check_limit
from agents_session_metadata.query.filters import Where
from agents_session_metadata.text import quoted

from .rows import (
    Cipher,
    Details,
    Encryption,
    PausedPage,
    PausedRow,
    PausedRun,
    encryption_missing,
    paused_run,
    pending_as_stored,
)
from .store import PausedStore

if TYPE_CHECKING:
    from agents import Agent, RunResult, RunResultStreaming

    from .claims import ClaimedRun

logger: logging.Logger = logging.getLogger(__name__)

LEASE = timedelta(minutes=15)
"""The duration of a claim that is not renewed."""
LONGEST_LEASE = timedelta(days=3_650)


class PausedRuns:
    """Runs that wait for an approval: pause, list, decide, claim and resume.

    ```python
    paused = PausedRuns(catalog)
    result = await Runner.run(agent, "Apply the plan", session=session)
    if result.interruptions:
        await paused.pause(session, result)
    # In any process, without the agent:
    await paused.decide("chat-1", call_id, approve=True, by="user_123")
    # In any process that has the agent:
    async with paused.claim("chat-1", agent) as run:
        result = await run.resume()
    ```

    A session has at most one paused run, which is deleted with the session or its history. With a
    scoped catalog, all methods are restricted to the scope. The state of a run is stored in the
    database and never exported. All methods raise `TablesMissingError` if tables are missing and
    the catalog's `create_tables` is off.

    Args:
        catalog: The catalog of the sessions.
        encrypt: A function that encrypts the state and the arguments of pending calls. It takes
            bytes and returns bytes or text, such as `cryptography.fernet.Fernet(key).encrypt`.
            Required for sessions in an `EncryptedSession`. Names of tools and agents, call ids and
            decisions are not encrypted.
        decrypt: The reverse function. Without it, encrypted pending calls have no arguments. An
            encrypted run can be claimed only with both functions.

    Raises:
        TypeError: If `catalog` is not a `SessionCatalog`.
    """

    def __init__(
        self,
        catalog: SessionCatalog,
        *,
        encrypt: Cipher | None = None,
        decrypt: Cipher | None = None,
    ) -> None:
        if not isinstance(catalog, SessionCatalog):
            raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
        self.catalog: SessionCatalog = catalog
        self._store = PausedStore(catalog._store, Encryption(encrypt, decrypt))

    async def pause(
        self,
        session: Any,
        result: RunResult | RunResultStreaming,
        *,
        context_serializer: Callable[[Any], Mapping[str, Any]] | None = None,
        strict_context: bool = True,
    ) -> PausedRun:
        """Store an interrupted run. It replaces a paused run that is not claimed.

        If a lifecycle is active, the session enters the phase `approval`.

        Args:
            session: The session of the run, or a wrapper around it.
            result: The result with the interruptions. A stream must have been read to its end.
            context_serializer: As in the SDK's `RunState.to_json`.
            strict_context: Whether to refuse a context that is neither None nor a plain dict of
                JSON values if there is no `context_serializer`. If False, the SDK drops objects
                that it cannot store, or stores them as plain dicts.

        Returns:
            The paused run.

        Raises:
            RunClaimedError: If a run of the session is paused and claimed.
            SessionNotFoundError: If the session does not exist, or is outside the scope of the
                catalog or of `session`.
            TypeError: If `session` is not a session, or `result` not the result of a run.
            UserError: If the context or the state cannot be stored.
            ValueError: If the run was not interrupted, `session` is in another database or other
                tables than the catalog or wrapped around a session with another id, or it is an
                `EncryptedSession` or has an encrypted history and there is no `encrypt`.
        """
        from .fencing import check_schema, is_encrypted, sessions_inside
        from .states import ContextArguments, check_context, pending_calls, restorable, serialize

        if not isinstance(getattr(session, "session_id", None), str):
            raise TypeError(f"session must be the session of the run, got {type(session).__name__}")
        if not hasattr(result, "interruptions"):
            raise TypeError(f"result must be the result of a run, got {type(result).__name__}")
        if not result.interruptions:
            raise ValueError("the run was not interrupted: result.interruptions is empty")
        wrapped = is_encrypted(session)
        if wrapped and self._store.encryption.encrypt is None:
            raise encryption_missing()
        # A session can be in a narrower scope than the catalog.
        stores = [each._store for each in sessions_inside(session, self._store.store)]
        await check_schema(session, self._store.store)
        context = ContextArguments(context_serializer, strict=strict_context)
        state = result.to_state()
        written = serialize(state, context)
        check_context(result.context_wrapper.context, context, written)
        calls = pending_calls(state.get_interruptions())
        details = Details(
            agent=result.last_agent.name,
            pending=pending_as_stored(calls, self._store.encryption),
            encrypted=self._store.encryption.encrypt is not None,
            wrapped=wrapped,
        )
        text = self._store.encryption.encrypted(json.dumps(restorable(written)))
        return await self._store.put(session.session_id, details, text, stores)

    async def list(
        self, where: Where | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> PausedPage:
        """Return a page of paused runs, newest first.

        If `decrypt` raises for a run, a warning is logged and its calls have no arguments.

        Args:
            where: A filter for the sessions.
            limit: The maximum number of runs per page, 1 to 1,000.
            cursor: The `next_cursor` of the previous page, for the same filter and scope.

        Returns:
            The page.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another question.
            InvalidFilterError: If the filter is invalid.
            ValueError: If `limit` is out of range.
        """
        check_limit(limit, LONGEST_PAGE)
        condition = self._store.store.condition(where)
        rows, next_cursor = await self._store.page(condition, limit, cursor)
        return PausedPage(list(map(self._listed, rows)), next_cursor)

    def _listed(self, row: PausedRow) -> PausedRun:
        """Returns the run without arguments if they cannot be decrypted."""
        try:
            return paused_run(row, self._store.encryption)
        except Exception:
            logger.warning(
                "the arguments of the paused run of session %s could not be decrypted",
                quoted(row.session_id),
                exc_info=True,
            )
            return paused_run(row, Encryption())

    async def get(self, session_id: str) -> PausedRun | None:
        """Return the paused run of a session.

        Args:
            session_id: The session's id.

        Returns:
            The run, or None if nothing is paused.

        Raises:
            TypeError: If the id is not a string.
        """
        found = await self._store.read(session_id)
        return None if found is None else paused_run(found[0], self._store.encryption)

    async def decide(
        self,
        session_id: str,
        call_id: str,
        *,
        approve: bool,
        message: str | None = None,
        by: str | None = None,
        paused_at: datetime | None = None,
    ) -> PausedRun:
        """Approve or reject a call. The decision is applied when the run is claimed.

        Until then, a later decision replaces it. If `decrypt` raises, nothing is stored.

        Some models use the id of a call again in a later turn. If a person decides about a run that
        was read earlier, pass its `paused_at`, so that the decision cannot reach another run.

        Args:
            session_id: The session's id.
            call_id: The call, as in `PausedRun.pending`.
            approve: Whether to run the call.
            message: The text that the model receives for a rejected call.
            by: The person who decided.
            paused_at: `PausedRun.paused_at` of the run that was shown; any run by default.

        Returns:
            The paused run.

        Raises:
            LookupError: If nothing is paused, the run was paused at another time than `paused_at`,
                or it does not wait for this call.
            RunClaimedError: If the run is claimed.
            TypeError: If an argument has the wrong type.
            ValueError: If a call is approved with a message, several pending calls have the id, or
                `paused_at` has no time zone.
        """
        if not isinstance(approve, bool):
            raise TypeError(f"approve must be True or False, got {type(approve).__name__}")
        for name, text in (("message", message), ("by", by)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} must be a string, got {type(text).__name__}")
        if paused_at is not None and not isinstance(paused_at, datetime):
            raise TypeError(f"paused_at must be a datetime, got {type(paused_at).__name__}")
        if paused_at is not None and paused_at.utcoffset() is None:
            raise ValueError(f"paused_at must have a time zone, got {paused_at.isoformat()}")
        if approve and message is not None:
            raise ValueError("message is for calls that are rejected, got one with approve=True")
        return await self._store.decide(
            session_id, call_id, approve=approve, message=message, by=by, paused_at=paused_at
        )

    @asynccontextmanager
    async def claim(
        self,
        session_id: str,
        agent: Agent[Any],
        *,
        lease: timedelta = LEASE,
        after_crash: bool = False,
        force: bool = False,
        context: Any = None,
        context_serializer: Callable[[Any], Mapping[str, Any]] | None = None,
        context_deserializer: Callable[[Mapping[str, Any]], Any] | None = None,
        strict_context: bool = True,
    ) -> AsyncIterator[ClaimedRun]:
        """Claim a paused run and resume it inside the block.

        Only one process at a time can claim a run. The lease is renewed while the block runs,
        unless the event loop is blocked. A process that has lost the lease cannot store anything.
        If the block does not resume the run, the stored run does not change.

        If the process dies, the state from before the claim stays stored. Tools that ran since then
        run again when the run is resumed, and their outputs are in the history twice if they were
        stored before.

        Args:
            session_id: The session's id.
            agent: The agent that the run was started with.
            lease: The duration of the claim if it is not renewed, by the database's clock.
            after_crash: Whether to claim a run whose claiming process has crashed.
            force: Whether to claim a run even if the history of its session has changed.
            context: The context for the run, instead of the stored one. Without a
                `context_serializer`, an object given here is not stored again.
            context_serializer: As in `pause`, for when the run pauses again.
            context_deserializer: As in the SDK's `RunState.from_json`.
            strict_context: As in the SDK: whether to refuse to restore a context that is not a
                plain dict without `context` or `context_deserializer`; and as in `pause`.

        Yields:
            The claimed run.

        Raises:
            LookupError: If nothing is paused.
            RunClaimedError: If the run is claimed. `crashed` is True if the claiming process has
                crashed.
            SessionChangedError: If the history has changed since the pause.
            StateVersionError: If the SDK does not know the version of the state. It stays stored.
            TypeError: If `lease` is not a timedelta.
            UserError: If the SDK cannot restore the state with this agent or context.
            ValueError: If `lease` is not positive or is more than 3,650 days, or the state is
                encrypted and there is no `decrypt` or no `encrypt`.
        """
        from .claims import claim_run
        from .states import ContextArguments

        if not isinstance(lease, timedelta):
            raise TypeError(f"lease must be a timedelta, got {type(lease).__name__}")
        if lease <= timedelta(0):
            raise ValueError(f"lease must be positive, got {lease}")
        if lease > LONGEST_LEASE:
            raise ValueError(f"lease must be at most {LONGEST_LEASE.days} days, got {lease}")
        run = await claim_run(
            self.catalog,
            self._store,
            session_id,
            agent,
            ContextArguments(context_serializer, context, context_deserializer, strict_context),
            lease=lease,
            after_crash=after_crash,
            force=force,
        )
        cancelled = False
        try:
            yield run
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            await run._close(cancelled=cancelled)

    async def discard(self, session_id: str) -> bool:
        """Delete a paused run without resuming it. History and metadata are kept.

        The history can end with calls that have no output. Rewind it before the next run, or, if
        it is encrypted, remove these items with `pop_item`.

        Args:
            session_id: The session's id.

        Returns:
            Whether there was one.

        Raises:
            RunClaimedError: If the run is claimed.
            TypeError: If the id is not a string.
        """
        return await self._store.discard(session_id)
