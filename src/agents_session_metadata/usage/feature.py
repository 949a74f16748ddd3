"""The part of the usage ledger in the core: its table, which `ledger` defines."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sqlalchemy import Connection, delete, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import TableMaker
from agents_session_metadata.core.features import Erased, Feature
from agents_session_metadata.values import decode_value

from .ledger import BATCH, USAGE, anonymize, define, owner_key


class UsageFeature(Feature):
    name = USAGE
    suffixes: ClassVar[tuple[str, ...]] = ("_usage",)

    def define(self, make: TableMaker) -> None:
        define(make)

    def erase(
        self, database: Database, connection: Connection, ids: Sequence[str], erased: Erased
    ) -> Mapping[str, int]:
        if not erased.keeps_usage:
            return super().erase(database, connection, ids, erased)
        usage = database.tables.group(USAGE).tables[0]
        return anonymize(connection, usage, usage.c.session_id.in_(ids))

    def erase_rest(
        self, database: Database, connection: Connection, erased: Erased
    ) -> Mapping[str, int]:
        if erased.owner is None:
            return {}
        usage = database.tables.group(USAGE).tables[0]
        own = usage.c.owner_key == owner_key(decode_value(erased.owner))
        if erased.keeps_usage:
            return anonymize(connection, usage, own)
        ids = connection.scalars(select(usage.c.id).where(own).limit(BATCH)).all()
        return {usage.name: connection.execute(delete(usage).where(usage.c.id.in_(ids))).rowcount}


FEATURE = UsageFeature()
