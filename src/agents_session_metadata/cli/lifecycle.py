"""The commands about phases and resuming, for people and for hooks of an orchestrator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidPhaseError,
    SessionNotFoundError,
)
from agents_session_metadata.keys import AGENT, PHASE
from agents_session_metadata.text import ascii_json, escaped
from agents_session_metadata.values import id_problem

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import Whole, flag, usage
from .output import NoSessionError, NothingFoundError, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.lifecycle import ResumeDecision, ResumePolicy, SessionLifecycle
    from agents_session_metadata.types import JSONObject, SessionInfo

_REASONS = {
    "not_found": "the session does not exist",
    "not_ready": "it is marked as not ready",
    "not_resumable_phase": "its phase does not allow it",
    "too_old": "it has been idle for too long",
    "too_many_errors": "it has recorded too many errors",
    "resumable": "all conditions hold",
}
_FIELDS: dict[str, tuple[str, Any]] = {
    "session_id": ("a string", str),
    "agent": ("a string", str),
    "max_idle_minutes": ("a number", (int, float)),
    "max_errors": ("an integer", int),
    "phases": ("a list of strings", list),
    "context": ("an object", dict),
}
# A request with one of these fields is one of an orchestrator's hook.
_HOOK_FIELDS = {"agent_id": ("a string", str), "agent_name": ("a string", str)}


@cli.command(
    epilog="Example: agent-sessions start chat-1 --agent ai-engineer --purpose 'fix the build'"
)
@options.optional_session
@click.option("--agent", required=True, help="The agent's name.")
@click.option("--purpose", help="The purpose of the work.")
@options.meta
@database_options(by=True, limits=True)
async def start(
    database: ChosenDatabase,
    session: str | None,
    agent: str,
    purpose: str | None,
    meta: Sequence[str],
) -> None:
    """Start work in a session and print the session id."""
    import uuid

    options.agent_name(agent, "--agent")
    name = str(uuid.uuid4()) if session is None else session
    more = options.parse_pairs(meta, "--meta")
    metadata = await _lifecycle(database.catalog, name).start(agent, purpose, more)
    await show({"session_id": name, "metadata": metadata}, escaped(name))


@cli.command(epilog="Example: agent-sessions phase chat-1 approval --meta ready=true")
@options.session
@click.argument("phase", required=False, help="The phase to enter.")
@options.meta
@click.option("--error", help="Record an error with this message.")
@database_options(by=True, limits=True)
async def phase(
    database: ChosenDatabase,
    session: str,
    phase: str | None,
    meta: Sequence[str],
    error: str | None,
) -> None:
    """Enter a phase or record an error. Without both, print the current phase."""
    more = options.parse_pairs(meta, "--meta")
    if phase is None and more:
        usage("--meta requires PHASE; to store metadata only, use the command set")
    catalog = database.catalog
    info = await catalog.get_session(session)
    if info is None:
        raise NoSessionError(session, None)
    lifecycle, metadata = _lifecycle(catalog, session, must_exist=True), info.metadata
    if phase is not None:
        metadata = await lifecycle.enter(phase, more, error)
    elif error is not None:
        metadata = await lifecycle.record_error(error)
    document = {"session_id": session, "metadata": metadata}
    stored = metadata.get(PHASE)
    if phase is not None or error is not None:
        await show(document)
    elif isinstance(stored, str):
        await show(document, shown(stored))
    else:
        raise NothingFoundError(f"session {shown(session)} has no phase", document)


def _history(moves: Sequence[tuple[str, Any]]) -> list[JSONObject]:
    """Returns phase changes with our names, and with those that hooks use."""
    before = [None, *(phase for phase, _ in moves)]
    return [
        {"phase": phase, "at": at, "from_phase": before[n], "to_phase": phase, "timestamp": at}
        for n, (phase, at) in enumerate(moves)
    ]


_AT = "2026-01-02T03:04:05+00:00"
_MOVES = [("initializing", _AT), ("approval", _AT)]
_STORED: JSONObject = {"agent": "ai-engineer", "error_count": 0, "lifecycle_at": _AT}
_STORED |= {
    "phase": "approval",
    "phase_history": [{"phase": each, "at": at} for each, at in _MOVES],
}
_STORED |= {"purpose": "fix the build", "resume_attempts": 1, "resumes": 1, "started_at": _AT}
_STORED |= {"status": "active", "task_id": "task-7"}
_REQUEST = {"agent_name": "ai-engineer", "task_id": "task-7", "prompt": "Fix the build"}
_ANSWER = {
    "should_resume": True,
    "reason": "session_resumable",
    "agent_id": "chat-1",
    "resume_metadata": {
        "previous_phase": "approval",
        "created_at": _AT,
        "last_updated": _AT,
        "history": _history(_MOVES),
        "session_metadata": _STORED,
    },
    "original_context": _REQUEST,
}


@cli.command(epilog="Example: agent-sessions resume-check chat-1 --max-idle-minutes 10")
@options.optional_session
@click.option("--agent", help="Check this agent's last session instead.")
@click.option(
    "--max-idle-minutes", type=float, help="The maximum idle time in minutes. Default: 30."
)
@click.option(
    "--max-errors", type=Whole(0), help="The number of errors that prevents resuming. Default: 3."
)
@click.option(
    "--phase",
    "phases",
    metavar="PHASE",
    multiple=True,
    help="A phase that allows resuming; repeatable.",
)
@flag("--stdin", help="Read a JSON request from stdin.")
@flag("--test", help="Print the request of a hook and its answer, without a database.")
@database_options(by=True, timeout=5.0)
async def resume_check(
    database: ChosenDatabase,
    session: str | None,
    agent: str | None,
    phases: Sequence[str],
    stdin: bool,
    test: bool,
    **limits: Any,
) -> None:
    """Check whether a session can be resumed: exit code 0 if it can, 1 if not.

    With --agent, the command checks the agent's last session.

    With --stdin, or without SESSION and --agent if stdin is not a terminal, the command
    reads a JSON request: {"session_id": "chat-1", "max_idle_minutes": 30, "max_errors": 3,
    "phases": ["approval"], "context": {}}. Pass "agent" instead of "session_id" for an agent's last
    session. All other fields are optional. Options override them. The output is JSON and contains
    the context unchanged. If the request is invalid (exit code 2), or the database does not answer
    (exit code 1), the output is {"error": "..."}.

    A request of an orchestrator's hook has "agent_id", the session id, or "agent_name", for that
    agent's last session, with that "task_id" if it is given. All other fields are allowed. The
    answer has the fields should_resume, reason, agent_id, resume_metadata and original_context, is
    counted in the session, and has exit code 0 if the session can be resumed and if not.
    """
    if test:
        texts = (ascii_json(each, indent=2) for each in (_REQUEST, _ANSWER))
        await show({"request": _REQUEST, "answer": _ANSWER}, "\n".join(texts))
        return
    given: JSONObject = {"session_id": session, "agent": agent, "phases": phases or None, **limits}
    request = {name: each for name, each in given.items() if each is not None}
    is_named = session is not None or agent is not None
    if stdin or not (is_named or (sys.stdin is not None and sys.stdin.isatty())):
        output.answer_in_json()
        database.json_errors = True
        if is_named:
            usage("pass only one of SESSION, --agent and a request on stdin")
        read = await _read_json()
        if not isinstance(read, dict):
            usage("the request must be a JSON object")
        if _HOOK_FIELDS.keys() & read.keys():
            await show(await _hook_answer(database, read, _policy(request)))
            return
        for field in read.keys() - _FIELDS.keys():
            usage(f"unknown field '{field}' in the request; expected one of {', '.join(_FIELDS)}")
        request = {**_checked(read, _FIELDS), **request}
    if ("session_id" in request) is ("agent" in request):
        usage("pass either a session or an agent")
    from agents_session_metadata.lifecycle import decide

    policy, name = _policy(request), request.get("session_id")
    info = await _find(database.catalog, name, request.get("agent"))
    decision = decide(policy, info)
    answer = {"session_id": name if info is None else info.session_id, **vars(decision)}
    idle = answer.pop("idle")
    answer["idle_seconds"] = idle and idle.total_seconds()
    if "context" in request:
        answer["context"] = request["context"]
    verdict = "resume" if decision.should_resume else "do not resume"
    what = shown(answer["session_id"] or "the agent's last session")
    await show(
        answer,
        f"{verdict} {what}: {_REASONS[decision.reason]} ({decision.reason})",
        message=None if idle is None else _state(decision),
        code=0 if decision.should_resume else 1,
    )


@cli.command(
    epilog="Example: agent-sessions finish chat-1 completed --summary 'the build is green'"
)
@options.optional_session
@click.argument(
    "outcome",
    required=False,
    shell_complete=options.completing("completed", "failed", "abandoned"),
    help="completed, failed or abandoned.",
)
@click.option("--summary", help="The result, in a sentence.")
@flag("--hook", help="Read the JSON of an orchestrator's stop hook from stdin.")
@database_options(by=True, limits=True)
async def finish(
    database: ChosenDatabase,
    session: str | None,
    outcome: str | None,
    summary: str | None,
    hook: bool,
) -> None:
    """End the work of a session.

    With --hook, the command reads {"agent_id": "chat-1", "exit_code": 0} from stdin. agent_id is
    the session id; exit_code can also be inside workflow_metrics, and is 0 if it is missing. The
    session is completed if the exit code is 0; otherwise it failed. Without agent_id, or if the
    session is unknown or finished, nothing changes and the exit code is 0.
    """
    if hook:
        await _finish_by_hook(database, session, summary)
        return
    if session is None or outcome is None:
        usage("pass SESSION and OUTCOME, or --hook")
    try:
        lifecycle = _lifecycle(database.catalog, session, must_exist=True)
        metadata = await lifecycle.finish(outcome, summary)
    except SessionNotFoundError:
        raise NoSessionError(session, None) from None
    await show({"session_id": session, "metadata": metadata})


async def _finish_by_hook(
    database: ChosenDatabase, session: str | None, summary: str | None
) -> None:
    output.answer_in_json()
    if session is not None:
        usage("pass only one of SESSION and --hook")
    try:
        request = await _read_json()
    except click.UsageError as error:  # Exit code 2 would block the orchestrator.
        raise click.ClickException(error.message) from None
    fields = request if isinstance(request, dict) else {}
    name, metrics = fields.get("agent_id"), fields.get("workflow_metrics")
    code = fields.get("exit_code")
    if code is None and isinstance(metrics, dict):
        code = metrics.get("exit_code")
    answer: JSONObject = {"agent_id": name, "outcome": None}
    if not isinstance(name, str) or id_problem(name) is not None:
        await show(answer | {"unchanged": "agent_id is not a session id"})
        return
    outcome = "completed" if code in (None, 0, "0") else "failed"
    try:
        await _lifecycle(database.catalog, name, must_exist=True).finish(outcome, summary)
        answer["outcome"] = outcome
    except Exception as error:
        if not (
            isinstance(error, (SessionNotFoundError, InvalidPhaseError)) or database.is_new(error)
        ):
            raise
        answer["unchanged"] = str(error)
    await show(answer)


async def _hook_answer(
    database: ChosenDatabase, request: JSONObject, policy: ResumePolicy
) -> JSONObject:
    """Answers a request in the names of the hook's request, and counts the answer."""
    checked = _checked(request, _HOOK_FIELDS)
    session, agent = checked.get("agent_id"), checked.get("agent_name")
    if not (session or agent):
        usage("the request must have agent_id or agent_name")
    answer: JSONObject = {"should_resume": False, "reason": "not_found", "agent_id": None}
    answer |= {"resume_metadata": None, "original_context": request}
    try:
        catalog = database.catalog
        info = await _find(catalog, session or None, agent, request.get("task_id"))
        if info is None:
            return answer
        decision = await _lifecycle(catalog, info.session_id, policy=policy).resume()
    except CorruptMetadataError as error:
        return answer | {"reason": "corrupt_metadata", "agent_id": error.session_id}
    except Exception as error:
        if not database.is_new(error):
            raise
        return answer
    moves = [(move.phase, move.at) for move in decision.history]
    about = {
        "previous_phase": decision.phase,
        "created_at": info.created_at,
        "last_updated": info.updated_at,
        "history": _history(moves),
        "session_metadata": decision.metadata,
    }
    reason = "session_resumable" if decision.should_resume else decision.reason
    answer |= {"should_resume": decision.should_resume, "reason": reason}
    return answer | {"agent_id": info.session_id, "resume_metadata": about}


async def _read_json() -> Any:
    text = await output.blocking(options.standard_input().read)
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        usage("the request is not UTF-8")
    return options.parse_json(decoded, "the request")


def _checked(fields: JSONObject, expected: dict[str, tuple[str, Any]]) -> JSONObject:
    """Returns the expected fields that are not null."""
    given = {name: fields[name] for name in expected if fields.get(name) is not None}
    for name, value in given.items():
        what, kind = expected[name]
        each = value if kind is list and isinstance(value, list) else [""]
        is_right = isinstance(value, kind) and not isinstance(value, bool)
        if not is_right or not all(isinstance(one, str) for one in each):
            usage(f"{name} in the request must be {what}")
    return given


def _policy(request: JSONObject) -> ResumePolicy:
    from agents_session_metadata.lifecycle import ResumePolicy

    names = {"max_errors", "phases"} & {*request}
    chosen: dict[str, Any] = {name: request[name] for name in names}
    if "max_idle_minutes" in request:
        idle = request["max_idle_minutes"]
        chosen["max_idle"] = options.duration("max_idle_minutes", idle, "minutes")
    return ResumePolicy(**chosen)


async def _find(
    catalog: SessionCatalog, session: str | None, agent: str | None, task: Any = None
) -> SessionInfo | None:
    """Returns a session, or the last one of an agent, with that task if it is given."""
    if session is not None:
        return await catalog.get_session(session)
    return await catalog.last_session(
        {AGENT: agent, **({} if task is None else {"task_id": {"$eq": task}})}
    )


def _state(decision: ResumeDecision) -> str:
    moves = " > ".join(shown(move.phase) for move in decision.history)
    idle = 0 if decision.idle is None else decision.idle // timedelta(minutes=1)
    phase, count = shown(decision.phase or "none"), decision.error_count
    return f"phase {phase}, idle {idle} min, errors {count}" + (f", moves {moves}" if moves else "")


def _lifecycle(
    catalog: SessionCatalog,
    session: str,
    *,
    must_exist: bool = False,
    policy: ResumePolicy | None = None,
) -> SessionLifecycle:
    from agents_session_metadata.lifecycle import SessionLifecycle

    # A session of the SDK, which takes long to import, is not needed.
    edit = partial(catalog.edit_metadata, session, must_exist=must_exist)
    own: Any = SimpleNamespace(session_id=session, catalog=catalog, edit_metadata=edit)
    return SessionLifecycle(own, policy)
