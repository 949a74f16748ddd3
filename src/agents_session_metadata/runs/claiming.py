"""Claims paused runs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from agents import Agent

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import RunClaimedError

from .claims import Claimable, ClaimedRun
from .records import Details, Encryption
from .states import ContextArguments, apply_decisions, context_to_write, deserialize, serialize
from .store import PausedStore, check_claim, check_history, nothing_paused

_ROUNDS = 10
"""Attempts to claim a run that others keep changing."""


async def claim_run(
    store: PausedStore,
    catalog: SessionCatalog,
    encryption: Encryption,
    session_id: str,
    agent: Agent[Any],
    context: ContextArguments,
    *,
    lease: timedelta,
    after_crash: bool,
    force: bool,
) -> ClaimedRun:
    """Restores the state before it takes the lease, so that a claim that fails changes nothing."""
    for _ in range(_ROUNDS):
        found = await store.read(session_id, state=True)
        if found is None:
            raise nothing_paused(session_id)
        row, end = found
        check_claim(row, after_crash=after_crash)
        check_history(row, end, force=force)
        text = row.state or ""
        if Details.of(row).encrypted:
            text = encryption.decrypted(text)
            if encryption.encrypt is None:
                raise ValueError(
                    "the paused run is stored encrypted, and its next state would not be; "
                    "pass encrypt= to PausedRuns"
                )
        state = await deserialize(session_id, agent, text, context)
        apply_decisions(state, json.loads(row.decisions))
        writing = context_to_write(context, text)
        written = serialize(state, writing)  # What cannot be stored again must not run.
        microseconds = lease // timedelta(microseconds=1)
        run = ClaimedRun(
            Claimable(
                *(store, row, state, agent, catalog, encryption, writing, microseconds),
                responses=len(written["model_responses"]),
            )
        )
        if await run._claim(after_crash=after_crash, force=force):
            return run
    raise RunClaimedError(session_id)
