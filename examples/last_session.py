"""Several agents talk to one user. "Resume last" finds the last session of each agent."""

from _common import run

from agents_session_metadata import SessionCatalog, SessionInfo, SessionLifecycle


async def say(catalog: SessionCatalog, session_id: str, text: str) -> None:
    """Add a message to a session."""
    await catalog.session(session_id).add_items([{"role": "user", "content": text}])


async def last(catalog: SessionCatalog, agent: str) -> SessionInfo | None:
    """Find and print the last session of an agent."""
    info = await catalog.last_session({"agent": agent}, count_items=True)
    if info is None:
        print(f"  {agent!r}: no session yet")
    else:
        when = f"{info.updated_at:%Y-%m-%d %H:%M:%S} UTC"
        print(f"  {agent!r}: {info.session_id}, last active {when}, items: {info.item_count}")
    return info


async def talk(catalog: SessionCatalog) -> None:
    """Start sessions with two agents, and add messages to them alternately."""
    agents = {"build": "@ai-engineer", "deploy": " ai-engineer ", "report": "analyst"}
    for session_id, agent in agents.items():
        await SessionLifecycle(catalog.session(session_id)).start(agent)
    # All within one second, the resolution of the SDK's timestamps on SQLite, MySQL and MariaDB.
    await say(catalog, "deploy", "Deploy it.")
    await say(catalog, "build", "Build it.")
    await say(catalog, "report", "How many?")
    await say(catalog, "build", "Test it too.")
    await say(catalog, "report", "And yesterday?")


async def resume(catalog: SessionCatalog) -> None:
    """Find the session to continue."""
    print("After a restart, the last session of:")
    for name in ("ai-engineer", "@ai-engineer", " @ai-engineer "):
        info = await last(catalog, name)
        assert info is not None
        assert (info.session_id, info.item_count) == ("build", 2)
        assert info.metadata["agent"] == "ai-engineer"
    info = await last(catalog, "@analyst")
    assert info is not None
    assert info.session_id == "report"
    assert await last(catalog, "@designer") is None
    mapping = {each.metadata["agent"]: each for each in await catalog.last_sessions("agent")}
    print("Of every agent:", {agent: each.session_id for agent, each in mapping.items()})
    assert {agent: each.session_id for agent, each in mapping.items()} == {
        "analyst": "report",
        "ai-engineer": "build",
    }

    await catalog.delete_session("build")
    print("After deleting that session:")
    info = await last(catalog, "@ai-engineer")
    assert info is not None
    assert (info.session_id, info.item_count) == ("deploy", 1)
    await say(catalog, info.session_id, "Carry on.")
    assert len(await catalog.session("deploy").get_items()) == 2


if __name__ == "__main__":
    run("last_session", talk, resume)
