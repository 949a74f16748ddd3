"""The triggers that stand in for foreign keys, where a database has any."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine

from conformance import raw


async def drop_triggers(engine: AsyncEngine) -> list[str]:
    """Drop every trigger; gives what creates them again."""
    if engine.dialect.name != "sqlite":
        return []
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    found = await raw.execute(engine, query)
    for name, _ in found:
        await raw.execute(engine, f'DROP TRIGGER "{name}"')
    return [statement for _, statement in found]
