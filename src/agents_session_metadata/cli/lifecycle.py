"""The commands about phases and resuming."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.keys import PHASE
from agents_session_metadata.runs.lifecycle import ResumeDecision, ResumePolicy, SessionLifecycle
from agents_session_metadata.types import Metadata

from .command import command, explain
from .options import (
    Failure,
    JsonOption,
    MetaOption,
    Place,
    SessionArgument,
    is_asked,
    parse_json,
    parse_pairs,
    standard_input,
    usage,
)
from .output import printable, say, shown, write, write_json

_REASONS = {
    "not_found": "there is no such session",
    "not_ready": "it is marked as not ready",
    "not_resumable_phase": "its phase is not one to resume in",
    "too_old": "it has been idle for too long",
    "too_many_errors": "it has recorded too many errors",
    "resumable": "all conditions hold",
}
_FIELDS = ("session_id", "max_idle_minutes", "max_errors", "phases")


@dataclass(frozen=True)
class _Session:
    """What a lifecycle needs of a session, without the SDK's, which takes long to import."""

    session_id: str
    catalog: SessionCatalog

    async def edit_metadata(self, change: Callable[[Metadata], object], /) -> Metadata:
        return await self.catalog.edit_metadata(self.session_id, change)


@command("start", "start chat-1 --agent ai-engineer --purpose 'fix the build'")
async def start(
    place: Place,
    *,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Its id; made when left out.")
    ] = None,
    agent: Annotated[str, typer.Option(help="The agent's name.")],
    purpose: Annotated[str | None, typer.Option(help="Why it is started.")] = None,
    meta: MetaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Begin work in a session and print the session's id."""
    name = session if session is not None else str(uuid.uuid4())
    more = parse_pairs(meta, "--meta")
    async with place.catalog() as catalog:
        metadata = await SessionLifecycle(_Session(name, catalog)).start(agent, purpose, more)
    if as_json:
        write_json({"session_id": name, "metadata": metadata})
    else:
        write(printable(name))
    return 0


@command("phase", "phase chat-1 approval --meta ready=true")
async def phase(
    place: Place,
    *,
    session: SessionArgument,
    phase: Annotated[str | None, typer.Argument(help="The phase to enter.")] = None,
    meta: MetaOption = None,
    error: Annotated[str | None, typer.Option(help="Record an error with this message.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Move a session to a phase, or record an error; with neither, print its phase."""
    more = parse_pairs(meta, "--meta")
    if phase is None and more:
        usage("--meta goes with a phase; to store metadata alone there is `set`")
    async with place.catalog() as catalog:
        metadata = await _existing(catalog, session, as_json=as_json)
        lifecycle = SessionLifecycle(_Session(session, catalog))
        if error is not None:
            metadata = await lifecycle.record_error(error)
        if phase is not None:
            metadata = await lifecycle.enter(phase, more)
    stored = metadata.get(PHASE)
    asks = phase is None and error is None
    if as_json:
        write_json({"session_id": session, "metadata": metadata})
    elif asks and isinstance(stored, str):
        write(shown(stored))
    if asks and not isinstance(stored, str):
        raise Failure(f"session {shown(session)} has no phase")
    return 0


@command("finish", "finish chat-1 completed --summary 'the build is green'")
async def finish(
    place: Place,
    *,
    session: SessionArgument,
    outcome: Annotated[str, typer.Argument(help="completed, failed or abandoned.")],
    summary: Annotated[str | None, typer.Option(help="What came out of it.")] = None,
    as_json: JsonOption = False,
) -> int:
    """End the work of a session."""
    async with place.catalog() as catalog:
        await _existing(catalog, session, as_json=as_json)
        metadata = await SessionLifecycle(_Session(session, catalog)).finish(outcome, summary)
    if as_json:
        write_json({"session_id": session, "metadata": metadata})
    return 0


@command("resume-check", "resume-check chat-1 --max-idle-minutes 10")
async def resume_check(
    place: Place,
    *,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    max_idle_minutes: Annotated[
        float | None, typer.Option(help="It must have been idle for less; 30 by default.")
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option(help="It must have recorded fewer; 3 by default.")
    ] = None,
    phases: Annotated[
        list[str] | None, typer.Option("--phase", help="A phase to resume in; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read a JSON request.")] = False,
) -> int:
    """Decide whether a session may be resumed: exit code 0 if it may, 1 if not.

    With --stdin, or without SESSION when standard input is no terminal, a JSON request is read
    there, and the answer is JSON: {"session_id": "chat-1", "max_idle_minutes": 30, "max_errors": 3,
    "phases": ["approval"]}, all but the id optional. A request that is not understood, or a
    database that does not answer, gives {"error": "..."}, with exit code 2 or 1.
    """
    options = (max_idle_minutes, max_errors, phases)
    if not stdin and (session is not None or is_asked()):
        if session is None:
            usage("pass a SESSION, or a JSON request on standard input")
        given = [None if each is None or each == [] else each for each in options]
        decision = await _decide(place, _Request(session, _policy(*given)))
        if as_json:
            write_json(_answer(session, decision))
        else:
            _tell(session, decision)
        return 0 if decision.should_resume else 1
    try:
        if session is not None or any(options):
            usage("a request on standard input says everything; pass no SESSION and no conditions")
        request = _read_request(standard_input().read())
        decision = await _decide(place, request)
    except Exception as error:
        failure = error if isinstance(error, Failure) else explain(error, place)
        if failure is None:
            raise
        write_json({"error": failure.sentence})
        raise failure from None
    write_json(_answer(request.session_id, decision))
    return 0 if decision.should_resume else 1


@dataclass(frozen=True)
class _Request:
    session_id: str
    policy: ResumePolicy


def _read_request(text: str) -> _Request:
    """Understand a JSON request.

    Raises:
        Failure: If it is not understood.
    """
    fields = parse_json(text, "the request")
    if not isinstance(fields, dict):
        usage("the request must be a JSON object")
    for name in fields:
        if name not in _FIELDS:
            usage(f"the request has an unknown field {name!r}; there are {', '.join(_FIELDS)}")
    session_id, idle, errors, phases = (fields.get(name) for name in _FIELDS)
    if not isinstance(session_id, str):
        usage("the request needs a session_id, a string")
    if idle is not None and (isinstance(idle, bool) or not isinstance(idle, (int, float))):
        usage("max_idle_minutes must be a number")
    if errors is not None and type(errors) is not int:
        usage("max_errors must be a whole number")
    if phases is not None and not (
        isinstance(phases, list) and all(isinstance(each, str) for each in phases)
    ):
        usage("phases must be a list of strings")
    return _Request(session_id, _policy(idle, errors, phases))


def _policy(idle: Any, errors: Any, phases: Any) -> ResumePolicy:
    chosen: dict[str, Any] = {}
    if idle is not None:
        try:
            chosen["max_idle"] = timedelta(minutes=idle)
        except (OverflowError, ValueError):
            usage(f"max_idle_minutes is out of bounds: {idle}")
    try:
        if errors is not None:
            chosen["max_errors"] = errors
        if phases is not None:
            chosen["phases"] = frozenset(phases)
        return ResumePolicy(**chosen)
    except ValueError as error:
        usage(str(error))


async def _decide(place: Place, request: _Request) -> ResumeDecision:
    async with place.catalog() as catalog:
        session = _Session(request.session_id, catalog)
        return await SessionLifecycle(session, request.policy).resume_decision()


def _answer(session: str, decision: ResumeDecision) -> dict[str, Any]:
    idle = decision.idle
    return {
        "session_id": session,
        "should_resume": decision.should_resume,
        "reason": decision.reason,
        "phase": decision.phase,
        "idle_seconds": None if idle is None else idle.total_seconds(),
        "error_count": decision.error_count,
        "metadata": decision.metadata,
        "history": [{"phase": move.phase, "at": move.at.isoformat()} for move in decision.history],
    }


def _tell(session: str, decision: ResumeDecision) -> None:
    verdict = "resume" if decision.should_resume else "do not resume"
    write(f"{verdict} {shown(session)}: {_REASONS[decision.reason]} ({decision.reason})")
    if decision.idle is None:
        return
    minutes = decision.idle // timedelta(minutes=1)
    moves = " > ".join(shown(move.phase) for move in decision.history)
    say(
        f"phase {shown(decision.phase or 'none')}, idle {minutes} min, "
        f"errors {decision.error_count}" + (f", moves {moves}" if moves else "")
    )


async def _existing(catalog: SessionCatalog, session: str, *, as_json: bool) -> Metadata:
    """The metadata of a session that is to be moved; a misspelt id must not make a session.

    With `as_json`, the answer is null where there is none.

    Raises:
        Failure: If there is no such session.
    """
    info = await catalog.get_session(session)
    if info is None:
        if as_json:
            write_json(None)
        raise Failure(f"there is no session {shown(session)}; `start` begins one")
    return info.metadata
