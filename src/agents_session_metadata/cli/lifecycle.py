"""The commands about phases and resuming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.text import escaped, quoted

from . import command as registry
from .options import (
    META,
    SESSION,
    argument,
    checked,
    duration,
    flag,
    is_interactive,
    option,
    parse_json,
    parse_pairs,
    standard_input,
    takes,
    usage,
)
from .output import colored, no_session, nothing, say, shown, write, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.lifecycle import ResumeDecision, ResumePolicy
    from agents_session_metadata.types import Metadata

    from .connection import Calls, Place

_command = partial(registry.command, panel="Lifecycle")

_RESUME_TIMEOUT = 5.0
_REASONS = {
    "not_found": "the session does not exist",
    "not_ready": "it is marked as not ready",
    "not_resumable_phase": "its phase does not allow it",
    "too_old": "it has been idle for too long",
    "too_many_errors": "it has recorded too many errors",
    "resumable": "all conditions hold",
}
_FIELDS = ("session_id", "agent", "max_idle_minutes", "max_errors", "phases", "context")


@dataclass(frozen=True)
class _Session:
    """A session for `SessionLifecycle` without the SDK, which takes long to import."""

    session_id: str
    catalog: SessionCatalog

    async def edit_metadata(self, change: Callable[[Metadata], object], /) -> Metadata:
        return await self.catalog.edit_metadata(self.session_id, change)


@_command(
    "start", "start chat-1 --agent ai-engineer --purpose 'fix the build'", shared=registry.WRITES
)
@takes(
    argument("session", "[SESSION]", "The session id. Default: a random id.", required=False),
    option("--agent", required=True, metavar="NAME", help="The agent's name."),
    option("--purpose", help="The purpose of the work."),
    META,
)
async def start(
    place: Place, *, session: str | None, agent: str, purpose: str | None, meta: tuple[str, ...]
) -> None:
    """Start work in a session and print the session id."""
    from agents_session_metadata.keys import normalize_agent

    if not normalize_agent(agent):
        usage(f"--agent must be the name of an agent, got {quoted(agent)}")
    if session is None:
        import uuid

        session = str(uuid.uuid4())
    more = parse_pairs(meta, "--meta")
    async with place.open() as (catalog, wait):
        from agents_session_metadata.core.rows import check_id
        from agents_session_metadata.lifecycle import SessionLifecycle

        checked(check_id, session)
        metadata = await wait(
            SessionLifecycle(_Session(session, catalog)).start(agent, purpose, more)
        )
    if place.as_json:
        write_json({"session_id": session, "metadata": metadata})
    else:
        write(escaped(session))


@_command("phase", "phase chat-1 approval --meta ready=true", shared=registry.WRITES_ONE)
@takes(
    SESSION,
    argument("phase", "[PHASE]", "The phase to enter.", required=False),
    META,
    option("--error", metavar="MESSAGE", help="Record an error with this message."),
)
async def phase(
    place: Place, *, session: str, phase: str | None, meta: tuple[str, ...], error: str | None
) -> int:
    """Enter a phase or record an error. Without both, print the current phase."""
    from agents_session_metadata.keys import PHASE

    more = parse_pairs(meta, "--meta")
    if phase is None and more:
        usage("--meta needs a phase; use the command set to store metadata only")
    async with place.open() as (catalog, wait):
        from agents_session_metadata.lifecycle import SessionLifecycle

        found = await _existing(place, catalog, wait, session)
        if found is None:
            return 1
        metadata = found
        lifecycle = SessionLifecycle(_Session(session, catalog))
        if error is not None:
            metadata = await wait(lifecycle.record_error(error))
        if phase is not None:
            metadata = await wait(lifecycle.enter(phase, more))
    stored = metadata.get(PHASE)
    asks = phase is None and error is None
    if place.as_json:
        write_json({"session_id": session, "metadata": metadata})
    elif asks and isinstance(stored, str):
        write(colored(shown(stored)))
    if asks and not isinstance(stored, str):
        return nothing(f"session {shown(session)} has no phase")
    return 0


@_command(
    "finish", "finish chat-1 completed --summary 'the build is green'", shared=registry.WRITES_ONE
)
@takes(
    SESSION,
    argument("outcome", "OUTCOME", "completed, failed or abandoned."),
    option("--summary", help="The result, in a sentence."),
)
async def finish(place: Place, *, session: str, outcome: str, summary: str | None) -> int:
    """End the work of a session."""
    async with place.open() as (catalog, wait):
        from agents_session_metadata.lifecycle import SessionLifecycle

        if await _existing(place, catalog, wait, session) is None:
            return 1
        lifecycle = SessionLifecycle(_Session(session, catalog))
        metadata = await wait(lifecycle.finish(outcome, summary))
    if place.as_json:
        write_json({"session_id": session, "metadata": metadata})
    return 0


@_command("resume-check", "resume-check chat-1 --max-idle-minutes 10")
@takes(
    argument("session", "[SESSION]", "The session id.", required=False),
    option("--agent", metavar="NAME", help="Check this agent's last session instead."),
    option(
        "--max-idle-minutes",
        type=float,
        metavar="NUMBER",
        help="The maximum idle time in minutes. Default: 30.",
    ),
    option(
        "--max-errors",
        type=int,
        metavar="NUMBER",
        help="The number of errors that prevents resuming. Default: 3.",
    ),
    option(
        "--phase",
        "phases",
        metavar="PHASE",
        multiple=True,
        help="A phase that allows resuming; repeatable.",
    ),
    flag("--stdin", help="Read a JSON request from stdin."),
)
async def resume_check(
    place: Place,
    *,
    session: str | None,
    agent: str | None,
    max_idle_minutes: float | None,
    max_errors: int | None,
    phases: tuple[str, ...],
    stdin: bool,
) -> int:
    """Check whether a session can be resumed: exit code 0 if it can, 1 if not.

    With --agent, the command checks the agent's last session.

    With --stdin, or without SESSION and --agent if stdin is not a terminal, the command
    reads a JSON request: {"session_id": "chat-1", "max_idle_minutes": 30, "max_errors": 3,
    "phases": ["approval"], "context": {}}. Pass "agent" instead of "session_id" for an agent's last
    session. All other fields are optional. Options override them. The output is JSON and contains
    the context unchanged. If the request is invalid (exit code 2), or the database does not answer
    (exit code 1), the output is {"error": "..."}.
    """
    if place.timeout is None:
        place = replace(place, timeout=_RESUME_TIMEOUT)
    given = {
        "max_idle_minutes": max_idle_minutes,
        "max_errors": max_errors,
        "phases": phases or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    named = session is not None or agent is not None
    if not stdin and (named or is_interactive()):
        if not named:
            usage("pass SESSION, --agent or a JSON request on stdin")
        if session is not None and agent is not None:
            usage("pass a SESSION or --agent, not both")
        name, decision = await _decide(place, session, agent, _policy(options))
        if place.as_json:
            write_json(_answer(name, decision))
        else:
            _tell(name, decision)
        return 0 if decision.should_resume else 1
    try:
        if named:
            usage("pass only one of SESSION, --agent and a request on stdin")
        request = _read_request(standard_input().read())
        whose = request.get("session_id"), request.get("agent")
        name, decision = await _decide(place, *whose, _policy({**request, **options}))
    except click.ClickException as failure:
        write_json({"error": failure.message})
        raise
    answer = _answer(name, decision)
    if "context" in request:
        answer["context"] = request["context"]
    write_json(answer)
    return 0 if decision.should_resume else 1


def _read_request(text: bytes) -> dict[str, Any]:
    try:
        fields = parse_json(text.decode("utf-8-sig"), "the request")
    except UnicodeDecodeError as error:
        usage(f"the request is not valid UTF-8: {error}")
    if not isinstance(fields, dict):
        usage("the request must be a JSON object")
    for name in fields:
        if name not in _FIELDS:
            usage(f"unknown field '{name}' in the request; expected one of {', '.join(_FIELDS)}")
    session_id, agent, idle, errors, phases, context = (fields.get(name) for name in _FIELDS)
    if not isinstance(session_id if agent is None else agent, str):
        usage("the request must have a session_id or an agent, as a string")
    if session_id is not None and agent is not None:
        usage("the request must have either a session_id or an agent")
    if context is not None and not isinstance(context, dict):
        usage("context must be a JSON object")
    if idle is not None and (isinstance(idle, bool) or not isinstance(idle, (int, float))):
        usage("max_idle_minutes must be a number")
    if errors is not None and type(errors) is not int:
        usage("max_errors must be an integer")
    if phases is not None and not (
        isinstance(phases, list) and all(isinstance(each, str) for each in phases)
    ):
        usage("phases must be a list of strings")
    return {name: value for name, value in fields.items() if value is not None}


def _policy(conditions: dict[str, Any]) -> ResumePolicy:
    from agents_session_metadata.lifecycle import ResumePolicy

    chosen: dict[str, Any] = {}
    if "max_idle_minutes" in conditions:
        idle = conditions["max_idle_minutes"]
        chosen["max_idle"] = duration("max_idle_minutes", idle, "minutes")
    if "max_errors" in conditions:
        chosen["max_errors"] = conditions["max_errors"]
    if "phases" in conditions:
        chosen["phases"] = frozenset(conditions["phases"])
    return checked(lambda: ResumePolicy(**chosen))


async def _decide(
    place: Place, session: str | None, agent: str | None, policy: ResumePolicy
) -> tuple[str | None, ResumeDecision]:
    from agents_session_metadata.keys import AGENT
    from agents_session_metadata.lifecycle import ResumeDecision, SessionLifecycle

    async with place.open() as (catalog, wait):
        if session is None:
            last = await wait(catalog.last_session({AGENT: agent}))
            if last is None:
                return None, ResumeDecision(should_resume=False, reason="not_found")
            session = last.session_id
        lifecycle = SessionLifecycle(_Session(session, catalog), policy)
        return session, await wait(lifecycle.resume_decision())


def _answer(session: str | None, decision: ResumeDecision) -> dict[str, Any]:
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


def _tell(session: str | None, decision: ResumeDecision) -> None:
    verdict = "resume" if decision.should_resume else "do not resume"
    name = "the agent's last session" if session is None else shown(session)
    write(f"{verdict} {name}: {_REASONS[decision.reason]} ({decision.reason})")
    if decision.idle is None:
        return
    minutes = decision.idle // timedelta(minutes=1)
    moves = " > ".join(shown(move.phase) for move in decision.history)
    say(
        f"phase {shown(decision.phase or 'none')}, idle {minutes} min, "
        f"errors {decision.error_count}" + (f", moves {moves}" if moves else "")
    )


async def _existing(
    place: Place, catalog: SessionCatalog, wait: Calls, session: str
) -> Metadata | None:
    """Returns the metadata of a session. A misspelled id must not create a session."""
    info = await wait(catalog.get_session(session))
    if info is not None:
        return info.metadata
    if place.as_json:
        write_json(None)
    nothing(f"{no_session(session)}; the command start creates one")
    return None
