"""Sessions that callers pass to `pause` and `resume`: wrappers, scopes and other databases."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from agents import Agent, Runner, SQLiteSession, function_tool
from agents.exceptions import ModelBehaviorError, UserError
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from agents.testing import ScriptedModel, assistant_message
from agents.testing.model import ModelStep
from cryptography.fernet import Fernet
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    ClaimedRun,
    PausedRuns,
    RunClaimedError,
    SessionCatalog,
    SessionNotFoundError,
    SQLAlchemyMetadataSession,
)
from conformance import raw
from conformance.approving import Deployer, call, deploys, kinds, pause, paused_runs

pytestmark = pytest.mark.logic

FERNET = Fernet(Fernet.generate_key())
CIPHERS = {"encrypt": FERNET.encrypt, "decrypt": FERNET.decrypt}


class Logged:
    """A wrapper of an application's own, which forwards what it does not know."""

    def __init__(self, session: Any) -> None:
        self.inner = session
        self.session_id = session.session_id

    async def add_items(self, items: list[Any]) -> None:
        await self.inner.add_items(items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Slots(Logged):
    __slots__ = ("_hidden",)

    def __init__(self, session: Any) -> None:
        object.__setattr__(self, "_hidden", session)

    @property
    def inner(self) -> Any:
        return self._hidden

    @property
    def session_id(self) -> str:
        return str(self._hidden.session_id)


def closed(session: Any) -> Any:
    """A wrapper that shows nothing of what it is wrapped around."""

    class Closed:
        session_id = session.session_id
        session_settings = None

        async def get_items(self, limit: int | None = None) -> list[Any]:
            return list(await session.get_items(limit))

        async def add_items(self, items: list[Any]) -> None:
            await session.add_items(items)

        async def pop_item(self) -> Any:
            return await session.pop_item()

        async def clear_session(self) -> None:
            await session.clear_session()

    return Closed()


def encrypted(session: Any) -> EncryptedSession:
    return EncryptedSession(session.session_id, session, "a key")


def of_the_sdk(session: Any) -> SQLAlchemySession:
    return SQLAlchemySession(session.session_id, engine=session.engine)


def with_tool(tool: Any, *steps: Any) -> Agent[Any]:
    return Agent("deployer", model=ScriptedModel(list(steps)), tools=[tool])


async def resume(paused: PausedRuns, agent: Agent[Any], session: Any, *, streamed: bool) -> str:
    """Claim the run of `chat`, resume it, and give its answer."""
    async with paused.claim("chat", agent) as run:
        result = await finish(run, session, streamed=streamed)
    return str(result.final_output)


async def finish(run: ClaimedRun, session: Any = None, *, streamed: bool) -> Any:
    """Resume a claimed run, and give its result."""
    if not streamed:
        return await run.resume(session=session)
    result = run.resume_streamed(session=session)
    async for _ in result.stream_events():
        pass
    return result


WRAPPERS = {
    "logged": Logged,
    "slots": Slots,
    "closed": closed,
    "sdk": of_the_sdk,
    "encrypted": encrypted,
    "encrypted logged": lambda session: encrypted(Logged(session)),
    "logged encrypted": lambda session: Logged(encrypted(session)),
    "encrypted sdk": lambda session: encrypted(of_the_sdk(session)),
    "closed encrypted": lambda session: closed(encrypted(session)),
}


@pytest.fixture(params=WRAPPERS)
def wrapped(request):
    return WRAPPERS[request.param]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_wrapped_session_is_resumed(engine, wrapped, streamed):
    paused, deployer = paused_runs(engine, **CIPHERS), Deployer()
    session = wrapped(await paused.catalog.create_session("chat"))
    # What is inside cannot be seen, but that the history is encrypted can.
    await pause(paused, deployer.agent(deploys("c1")), session=session)
    await paused.decide("chat", "c1", approve=True)
    given = session
    if wrapped is WRAPPERS["closed encrypted"]:
        given = encrypted(paused.catalog.session("chat"))
    assert await resume(paused, deployer.agent("Done"), given, streamed=streamed) == "Done"
    assert deployer.calls == ["deploy c1"]
    assert len(await session.get_items()) == 4
    assert await paused.get("chat") is None


@pytest.mark.parametrize("streamed", [False, True])
async def test_it_does_not_write_into_the_session_of_another_owner(engine, wrapped, streamed):
    paused = paused_runs(engine, **CIPHERS)
    catalog = paused.catalog

    @function_tool(needs_approval=True)
    async def deploy(target: str) -> str:
        # Somebody else takes the id meanwhile.
        await catalog.delete_session("chat")
        await catalog.create_session("chat", metadata={"owner_id": "u2"})
        return f"the secret of {target}"

    session = wrapped(await catalog.create_session("chat", metadata={"owner_id": "u1"}))
    await pause(paused, with_tool(deploy, [call("deploy", "c1", target="u1")]), session=session)
    await paused.decide("chat", "c1", approve=True)
    given = session
    if wrapped is WRAPPERS["closed encrypted"]:
        given = encrypted(closed(catalog.session("chat")))
    resuming = with_tool(deploy, [assistant_message("Done")])
    with pytest.raises(RunClaimedError, match="no longer claimed"):
        await resume(paused, resuming, given, streamed=streamed)
    assert await raw.count_rows(engine, "agent_messages") == 0
    assert (await catalog.get_metadata("chat")) == {"owner_id": "u2"}


@pytest.mark.parametrize("wrap", [lambda session: session, Logged, encrypted])
async def test_a_run_is_not_stored_in_a_session_outside_the_scope_of_its_session(engine, wrap):
    paused, deployer = paused_runs(engine, **CIPHERS), Deployer()
    catalog = paused.catalog
    await catalog.create_session("chat", metadata={"owner_id": "u2"})
    await pause(paused, deployer.agent(deploys("c1")))
    before = await paused.decide("chat", "c1", approve=False, message="u2 says no")
    mine = wrap(catalog.scoped({"owner_id": "u1"}).session("chat"))
    result = await Runner.run(deployer.agent(deploys("c2")), "Of u1")
    with pytest.raises(SessionNotFoundError):
        await paused.pause(mine, result)
    assert await paused.get("chat") == before
    # Of the same owner.
    theirs = wrap(catalog.scoped({"owner_id": "u2"}).session("chat"))
    assert (await paused.pause(theirs, result)).pending[0].call_id == "c2"


async def refuse_to_resume(paused: PausedRuns, deployer: Deployer, wrong: Any) -> None:
    """A wrong session is refused before anything runs; then the right one resumes the run."""
    await pause(paused, deployer.agent(deploys("c1")))
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", deployer.agent("Done")) as run:
        with pytest.raises(ValueError, match="another database"):
            await run.resume(session=wrong)
        assert deployer.calls == []
        assert (await run.resume(session=paused.catalog.session("chat"))).final_output == "Done"


async def test_a_session_of_another_database(engine, tmp_path):
    paused, deployer = paused_runs(engine), Deployer()
    other = SessionCatalog.from_url(f"sqlite:///{tmp_path}/other.db", create_tables=True)
    for catalog in (paused.catalog, other):
        await catalog.create_session("chat")
    elsewhere = other.session("chat")
    result = await Runner.run(deployer.agent(deploys("c1")), "Go", session=elsewhere)
    for session in (elsewhere, Logged(elsewhere)):
        with pytest.raises(ValueError, match="another database"):
            await paused.pause(session, result)
    await refuse_to_resume(paused, deployer, elsewhere)
    await other.engine.dispose()


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize(
    "found", ["translated", pytest.param("connected", marks=pytest.mark.only_on("postgresql"))]
)
@pytest.mark.parametrize(
    "kind", [SessionCatalog.session, lambda catalog, name: of_the_sdk(catalog.session(name))]
)
async def test_a_session_of_another_schema(database, kind, found):
    """As of another tenant: the server, the tables and the id are the same."""
    engine, is_postgresql = database.engine(), database.kind == "postgresql"
    names = [f"{make_url(database.url).database}_{tenant}" for tenant in ("a", "b")]
    for name in names:
        await raw.execute(engine, f"CREATE SCHEMA {name}")
    try:
        engines = [
            engine.execution_options(schema_translate_map={None: name})
            if found == "translated"
            else create_async_engine(
                database.url, connect_args={"server_settings": {"search_path": name}}
            )
            for name in names
        ]
        catalog, other = (SessionCatalog(each, create_tables=True) for each in engines)
        paused, theirs, deployer = PausedRuns(catalog), PausedRuns(other), Deployer()
        for each in (catalog, other):
            await each.create_session("chat")
        agent = deployer.agent(deploys("c1"), deploys("c2"))
        await pause(theirs, agent, session=other.session("chat"))
        result = await Runner.run(agent, "Go", session=catalog.session("chat"))
        with pytest.raises(ValueError, match="another database, schema"):
            await paused.pause(kind(other, "chat"), result)
        await paused.pause(kind(catalog, "chat"), result)
        await paused.decide("chat", "c2", approve=True)
        for streamed in (False, True):
            with pytest.raises(ValueError, match="another database, schema"):
                await resume(paused, agent, kind(other, "chat"), streamed=streamed)
        assert deployer.calls == []
        assert len(await other.session("chat").get_items()) == 2
        await resume(paused, deployer.agent("Done"), kind(catalog, "chat"), streamed=False)
        assert deployer.calls == ["deploy c2"]
        for each in engines:
            await each.dispose()
    finally:
        for name in names:
            await raw.execute(engine, f"DROP SCHEMA {name}{' CASCADE' if is_postgresql else ''}")


async def test_a_session_with_another_metadata_table(engine):
    paused, deployer = paused_runs(engine), Deployer()
    await paused.catalog.create_session("chat")
    other = SQLAlchemyMetadataSession("chat", engine=engine, metadata_table="other")
    await refuse_to_resume(paused, deployer, other)


async def test_the_same_database_by_another_engine(shared_database):
    paused, deployer = paused_runs(shared_database.engine()), Deployer()
    second = SessionCatalog(shared_database.engine())
    await paused.catalog.create_session("chat")
    session = second.session("chat")
    await pause(paused, deployer.agent(deploys("c1")), session=session)
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", deployer.agent("Done")) as run:
        assert (await run.resume(session=session)).final_output == "Done"


async def test_an_encrypted_history_is_recognized_without_the_wrapper(engine):
    plain, deployer = paused_runs(engine), Deployer()
    session = await plain.catalog.create_session("chat")
    agent = deployer.agent(deploys("c1"), "Done")
    result = await Runner.run(agent, "Go", session=encrypted(session))
    for given in (session, closed(encrypted(session))):
        with pytest.raises(ValueError, match="encrypt="):
            await plain.pause(given, result)
        assert await plain.get("chat") is None
        secret = PausedRuns(plain.catalog, **CIPHERS)
        await secret.pause(given, result)
        await secret.decide("chat", "c1", approve=True)
        async with secret.claim("chat", agent) as run:
            for wrong in (None, session):
                with pytest.raises(ValueError, match="EncryptedSession"):
                    await run.resume(session=wrong)
        assert deployer.calls == []
        assert await secret.discard("chat")
    await secret.pause(encrypted(session), result)
    await secret.decide("chat", "c1", approve=True)
    async with secret.claim("chat", agent) as run:
        await run.resume(session=encrypted(session))
    assert len(await encrypted(session).get_items()) == 4


class Prefixed:
    """A wrapper that gives a session the id without the prefix of its tenant."""

    def __init__(self, session: Any) -> None:
        self.inner = session
        self.session_id = session.session_id.partition(":")[2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_other_tables_and_other_ids(shared_database, tmp_path):
    engine = shared_database.engine()
    paused, deployer = paused_runs(engine), Deployer()
    catalog = paused.catalog
    await catalog.create_session("chat", metadata={"owner_id": "u2"})
    await catalog.create_session("u1:chat", metadata={"owner_id": "u1"})
    memory = create_async_engine("sqlite+aiosqlite://")
    result = await Runner.run(deployer.agent(deploys("c1")), "Of u1")
    for given in (
        SQLAlchemySession("chat", engine=memory),
        encrypted(SQLAlchemySession("chat", engine=memory)),
        Logged(SQLAlchemySession("chat", engine=memory)),
        SQLAlchemySession("chat", engine=engine, sessions_table="others", messages_table="texts"),
        SQLiteSession("chat", tmp_path / "other.db"),
        Prefixed(catalog.scoped({"owner_id": "u1"}).session("u1:chat")),
        Prefixed(SQLAlchemySession("u1:chat", engine=engine)),
    ):
        with pytest.raises(ValueError, match="the catalog of the paused runs"):
            await PausedRuns(catalog, **CIPHERS).pause(given, result)
    assert await paused.get("chat") is None
    await paused.pause(SQLAlchemySession("chat", engine=engine), result)
    if shared_database.kind == "sqlite":
        await paused.pause(SQLiteSession("chat", engine.url.database), result)
    await memory.dispose()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ending", ["delete_session", "clear_session"])
@pytest.mark.parametrize("wrap", [lambda session: session, Logged, encrypted])
async def test_a_session_that_was_deleted_does_not_come_back(engine, wrap, ending, streamed):
    paused, deployer = paused_runs(engine, **CIPHERS), Deployer()
    catalog = paused.catalog

    async def end(*_: Any) -> Any:
        if ending == "delete_session":
            await catalog.delete_session("chat")
        else:
            await catalog.session("chat").clear_session()
        return [assistant_message("Done")]

    session = wrap(await catalog.create_session("chat"))
    agent = deployer.agent(deploys("c1"))
    await pause(paused, agent, session=session)
    await paused.decide("chat", "c1", approve=True)
    resuming = deployer.agent(ModelStep.respond(end))
    with pytest.raises(RunClaimedError, match="no longer claimed"):
        await resume(paused, resuming, session, streamed=streamed)
    assert await raw.count_rows(engine, "agent_messages") == 0
    assert await raw.count_rows(engine, "agent_sessions") == 0
    await session.add_items([raw.message("Again")])
    assert len(await session.get_items()) == 1


async def test_two_claims_with_one_object(engine):
    paused, deployer = paused_runs(engine), Deployer()
    session = Logged(await paused.catalog.create_session("chat"))
    going, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> Any:
        going.set()
        await go_on.wait()
        return [assistant_message("Stale")]

    await pause(paused, deployer.agent(deploys("c1")), session=session)
    await paused.decide("chat", "c1", approve=True)

    async def stale() -> None:
        async with paused.claim("chat", deployer.agent(ModelStep.respond(wait))) as run:
            await run.resume(session=session)

    first = asyncio.ensure_future(stale())
    await going.wait()
    await raw.execute(engine, "UPDATE agent_sessions_metadata_paused SET claimed_until = 1")
    agent = deployer.agent("Second")
    async with paused.claim("chat", agent, after_crash=True, force=True) as run:
        with pytest.raises(ValueError, match="another claim"):
            await run.resume(session=session)
        await run.resume(session=paused.catalog.session("chat"))
    go_on.set()
    with pytest.raises(RunClaimedError):
        await first
    answers = [item for item in await session.get_items() if item.get("role") == "assistant"]
    assert [item["content"][0]["text"] for item in answers] == ["Second"]
    await session.add_items([raw.message("Afterwards")])


async def test_leases_that_are_too_long(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"))
    await pause(paused, agent)
    for lease in (timedelta.max, timedelta(days=3_651)):
        with pytest.raises(ValueError, match="at most 3650 days"):
            async with paused.claim("chat", agent, lease=lease):
                pass
    async with paused.claim("chat", agent, lease=timedelta(days=3_650)):
        held = await paused.get("chat")
    assert held.claimed_until - held.paused_at >= timedelta(days=3_650)


async def test_a_decision_about_a_time_without_a_zone(engine):
    paused, deployer = paused_runs(engine), Deployer()
    run = await pause(paused, deployer.agent(deploys("c1")))
    local = run.paused_at.replace(tzinfo=None)
    with pytest.raises(ValueError, match="time zone"):
        await paused.decide("chat", "c1", approve=True, paused_at=local)
    assert isinstance(local, datetime)
    decided = await paused.decide("chat", "c1", approve=True, paused_at=run.paused_at)
    assert decided.undecided == ()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wrap", [lambda session: session, Logged, encrypted, of_the_sdk, closed])
async def test_a_session_that_leaves_the_scope_of_the_claim(engine, wrap, streamed):
    catalog = SessionCatalog(engine, create_tables=True)
    paused = PausedRuns(catalog.scoped({"owner_id": "u1"}), **CIPHERS)

    @function_tool(needs_approval=True)
    async def deploy(target: str) -> str:
        await catalog.set_metadata("chat", {"owner_id": "u2"})
        return f"the secret of {target}"

    session = wrap(await catalog.create_session("chat", metadata={"owner_id": "u1"}))
    await pause(paused, with_tool(deploy, [call("deploy", "c1", target="u1")]), session=session)
    await paused.decide("chat", "c1", approve=True)
    before = await raw.count_rows(engine, "agent_messages")
    resuming = with_tool(deploy, [assistant_message("Done")])
    with pytest.raises((SessionNotFoundError, RunClaimedError)):
        await resume(paused, resuming, session, streamed=streamed)
    assert await raw.count_rows(engine, "agent_messages") == before


async def test_a_scoped_session_that_leaves_its_scope(engine):
    paused, catalog = paused_runs(engine), SessionCatalog(engine)

    @function_tool(needs_approval=True)
    async def deploy(target: str) -> str:
        await catalog.set_metadata("chat", {"owner_id": "u2"})
        return f"the secret of {target}"

    await paused.catalog.create_session("chat", metadata={"owner_id": "u1"})
    mine = catalog.scoped({"owner_id": "u1"}).session("chat")
    await pause(paused, with_tool(deploy, [call("deploy", "c1", target="u1")]), session=mine)
    await paused.decide("chat", "c1", approve=True)
    [before] = await raw.execute(engine, "SELECT state FROM agent_sessions_metadata_paused")
    with pytest.raises(SessionNotFoundError):
        async with paused.claim("chat", with_tool(deploy, [assistant_message("Done")])) as run:
            await run.resume(session=mine)
    [after] = await raw.execute(engine, "SELECT state FROM agent_sessions_metadata_paused")
    assert after == before


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_session_of_another_scope_is_refused_before_anything_runs(engine, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    await paused.catalog.create_session("chat", metadata={"owner_id": "u1"})
    await pause(paused, deployer.agent(deploys("c1")))
    await paused.decide("chat", "c1", approve=True)
    theirs = paused.catalog.scoped({"owner_id": "u2"}).session("chat")
    for session in (theirs, Logged(theirs)):
        with pytest.raises(SessionNotFoundError):
            await resume(paused, deployer.agent("Done"), session, streamed=streamed)
        assert deployer.calls == []
        assert (await paused.get("chat")).claimed_until is None
    assert (await resume(paused, deployer.agent("Done"), None, streamed=streamed)) == "Done"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("approve", [False, True])
async def test_a_session_that_was_given_away_since_the_claim(engine, streamed, approve):
    catalog, deployer = SessionCatalog(engine, create_tables=True), Deployer()
    paused = PausedRuns(catalog.scoped({"owner_id": "u1"}))
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await pause(paused, deployer.agent(deploys("c1")))
    await paused.decide("chat", "c1", approve=approve)
    agent = deployer.agent("Done")

    async def give_away_and_resume() -> None:
        async with paused.claim("chat", agent) as run:
            await catalog.set_metadata("chat", {"owner_id": "u2"})
            await finish(run, streamed=streamed)

    with pytest.raises(SessionNotFoundError):
        await give_away_and_resume()
    assert deployer.calls == []
    assert not agent.model.calls


async def test_a_check_that_fails_for_one_of_two_tools(engine):
    paused, deployer = paused_runs(engine), Deployer()
    await pause(paused, deployer.agent(deploys("c1", "c2")))
    for call_id in ("c1", "c2"):
        await paused.decide("chat", call_id, approve=True)
    checks = 0

    async def check_once(check: Any) -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            while not deployer.calls:  # noqa: ASYNC110  # the tool has no event
                await asyncio.sleep(0)
            raise OSError("the database went away")
        await check()

    async def resume_with_a_lost_connection() -> None:
        async with paused.claim("chat", deployer.agent("Done")) as run:
            held = run._check_held
            run._check_held = partial(check_once, held)
            await finish(run, streamed=True)

    with pytest.raises(UserError, match="went away"):
        await resume_with_a_lost_connection()
    # One tool has run: the run is not as it was before the claim.
    assert checks == 2
    assert len(deployer.calls) == 1
    with pytest.raises(ModelBehaviorError):
        await resume(paused, deployer.agent("Done"), None, streamed=False)
    assert len(deployer.calls) == 1


async def cancel_while_it_is_checked(paused: PausedRuns, agent: Agent[Any]) -> None:
    """Resume a run with a stream, and leave it while the lease is checked."""
    async with paused.claim("chat", agent) as run:
        check, checking = run._check_held, asyncio.Event()

        async def check_slowly() -> None:
            checking.set()
            await asyncio.sleep(0.01)
            await check()

        run._check_held = check_slowly
        stream = run.resume_streamed()
        await checking.wait()
        stream.cancel()


async def test_a_stream_that_is_cancelled_before_its_first_tool(engine):
    paused, deployer = paused_runs(engine), Deployer()
    await pause(paused, deployer.agent(deploys("c1")))
    await paused.decide("chat", "c1", approve=True)
    await cancel_while_it_is_checked(paused, deployer.agent("Done"))
    assert deployer.calls == []
    assert await resume(paused, deployer.agent("Done"), None, streamed=True) == "Done"
    assert deployer.calls == ["deploy c1"]


@pytest.mark.parametrize(("nested", "approve"), [(False, False), (True, False), (True, True)])
async def test_a_stream_that_is_cancelled_after_a_turn_that_nothing_checked(
    engine, nested, approve
):
    """The SDK calls no hook before it rejects calls, nor for those of an agent used as a tool."""
    paused, deployer = paused_runs(engine), Deployer()

    def agent(outer: Any, inner: Any) -> Agent[Any]:
        asked = deployer.agent(inner, name="inner")
        return deployer.agent(outer, tools=[asked.as_tool("ask", "Asks.")])

    first = [call("ask", "o1", input="go")] if nested else deploys("c1")
    await pause(paused, agent(first, deploys("c1")))
    await paused.decide("chat", "c1", approve=approve)
    await cancel_while_it_is_checked(paused, agent("never", "Asked"))
    done = ["deploy c1"] if approve else []
    assert deployer.calls == done
    assert await resume(paused, agent("Done", "never"), None, streamed=True) == "Done"
    assert deployer.calls == done
    items = await paused.catalog.session("chat").get_items()
    assert kinds(items)[2:] == [f"function_call_output {'o1' if nested else 'c1'}", "message"]


async def test_a_stream_that_is_cancelled_while_an_agent_as_a_tool_runs(engine):
    paused, deployer = paused_runs(engine), Deployer()
    inner = deployer.agent(deploys("i1"), "Asked", name="inner")
    tools = [inner.as_tool("ask", "Asks.")]
    both = [call("ask", "o1", input="go"), *deploys("c1")]
    outer = deployer.agent(both, "Done", tools=tools)
    await pause(paused, outer)
    for call_id in ("c1", "i1"):
        await paused.decide("chat", call_id, approve=True)
    async with paused.claim("chat", outer) as run:

        async def check_for_ever() -> None:
            await asyncio.Event().wait()

        run._check_held = check_for_ever
        stream = run.resume_streamed()
        while not deployer.calls:  # noqa: ASYNC110  # the tool has no event
            await asyncio.sleep(0)
        stream.cancel()
    assert deployer.calls == ["deploy i1"]
    # The SDK does not know whether `c1` has run.
    with pytest.raises(ModelBehaviorError):
        await resume(paused, outer, None, streamed=True)
    assert deployer.calls == ["deploy i1"]


@pytest.mark.parametrize(
    "wrong", [{"starting_agent": 1}, {"unknown": 1}, {"session": "x"}, {"session": {}}]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_wrong_arguments_leave_the_run_free(engine, wrong, streamed):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), "Done")
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)

    async def start(run: Any) -> None:
        if streamed:
            run.resume_streamed(**wrong)
        else:
            await run.resume(**wrong)

    async with paused.claim("chat", agent) as run:
        with pytest.raises(TypeError):
            await start(run)
    run = await paused.get("chat")
    assert (run.claimed_until, deployer.calls) == (None, [])
    async with paused.claim("chat", agent) as run:
        result = await run.resume(run_config={"tracing_disabled": True})
    assert result.final_output == "Done"


async def test_a_filter_in_a_dict(engine):
    paused, deployer, seen = paused_runs(engine), Deployer(), []

    def call_filter(data: Any) -> Any:
        seen.append(len(data.model_data.input))
        return data.model_data

    agent = deployer.agent(deploys("c1"), "Done")
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)
    async with paused.claim("chat", agent) as run:
        await run.resume(run_config={"call_model_input_filter": call_filter})
    assert seen == [3]


async def test_pausing_what_is_no_result(engine):
    paused = paused_runs(engine)
    session = await paused.catalog.create_session("chat")
    with pytest.raises(TypeError, match="result must be the result of a run, got str"):
        await paused.pause(session, "x")
