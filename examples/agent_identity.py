"""Many agents: metadata stores the role and the rig of each, so no names have to be parsed."""

from typing import Any

from _common import run

from agents_session_metadata import (
    MetadataLimitError,
    MetadataLimits,
    SessionCatalog,
    SQLAlchemyMetadataSession,
)

LIMITS = MetadataLimits(max_keys=100, max_value_bytes=1024)


async def register(catalog: SessionCatalog) -> None:
    """Store the identity of each agent."""
    await catalog.set_metadata("gt-alpha-Toast", {"role": "polecat"})
    await catalog.set_metadata("gt-alpha-Toast", {"rig": "alpha", "agent_name": "Toast"})
    await catalog.set_metadata("gt-alpha-Jam", {"role": "polecat", "rig": "alpha"})
    await catalog.set_metadata("gt-beta-Rye", {"role": "polecat", "rig": "beta"})
    await catalog.set_metadata("gt-mayor", {"role": "mayor"})
    # This session has messages, but no metadata.
    await catalog.session("gt-old").add_items([{"role": "user", "content": "Hello"}])


async def look_up(catalog: SessionCatalog) -> None:
    """Find agents by their identity."""
    print("After a restart, the sessions with their metadata:")
    page = await catalog.list_sessions(order_by="session_id")
    for info in page.sessions:
        print(f"  {info.session_id:15} {info.metadata}")
    assert len(page.sessions) == 5

    toast = catalog.session("gt-alpha-Toast")
    print("One key: ", await toast.get_metadata(["role"]))
    print("All keys:", await toast.get_metadata())
    assert await toast.get_metadata(["role"]) == {"role": "polecat"}
    assert await catalog.get_metadata("gt-old") == {}

    roles = {each.value: each.count for each in await catalog.count_values("role")}
    print("Roles:", roles)
    assert roles == {"polecat": 3, "mayor": 1}

    found = await toast.find_sessions_by_metadata({"role": "polecat", "rig": "alpha"})
    print("Polecats of rig alpha:", sorted(found))
    assert sorted(found) == ["gt-alpha-Jam", "gt-alpha-Toast"]

    assert await toast.delete_metadata(["agent_name"]) == 1
    print("After removing agent_name:", await toast.get_metadata())
    assert await toast.get_metadata() == {"role": "polecat", "rig": "alpha"}


async def refused(session: SQLAlchemyMetadataSession, values: dict[str, Any]) -> None:
    """Try to exceed a limit."""
    try:
        await session.set_metadata(values)
    except MetadataLimitError as error:
        print(" ", error)
    else:
        raise AssertionError("a limit was exceeded")


async def reach_limits(catalog: SessionCatalog) -> None:
    """Write up to the limits, and then try to exceed them."""
    mayor = catalog.session("gt-mayor")
    await mayor.set_metadata({f"key-{number}": number for number in range(99)})
    print("Writes that exceed a limit raise an error and store nothing:")
    await refused(mayor, {"key-99": 99})
    await refused(mayor, {"key-0": "x" * 1023})
    stored = await mayor.get_metadata()
    assert len(stored) == 100
    assert stored["key-0"] == 0


if __name__ == "__main__":
    run("agent_identity", register, look_up, reach_limits, metadata_limits=LIMITS)
