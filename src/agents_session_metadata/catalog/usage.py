"""The usage ledger of a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from agents_session_metadata.reports.usage import delete_usage, read_usage
from agents_session_metadata.types import JSONValue, UsageRow

from .part import CatalogPart


class UsageLedger(CatalogPart):
    """What tracked runs used."""

    async def usage(
        self,
        *,
        owner_id: JSONValue = None,
        session_id: str | None = None,
        by: Sequence[str] = ("day", "model"),
        since: date | None = None,
        until: date | None = None,
    ) -> list[UsageRow]:
        """What tracked runs used, added up exactly from the usage ledger.

        The ledger outlives sessions. A catalog with a scope on `owner_id` counts that owner's
        rows. A catalog with another scope counts those of sessions that exist in it, and one with
        both counts what meets both.

        Args:
            owner_id: Only what sessions used while they had this `owner_id`.
            session_id: Only what this session used.
            by: What to add up by: any of `day`, `agent`, `model`, `owner_id`, `session_id`. An
                empty tuple gives one row, or none if nothing was used.
            since: The first day, in UTC. A datetime, which must have a time zone, means its day.
            until: The last day, likewise.

        Returns:
            A row per group, ordered by the fields of `by`.

        Raises:
            InvalidMetadataError: If `owner_id` is not JSON.
            TablesMissingError: If the ledger's table is missing and `create_tables` is off.
            TypeError: If an argument has the wrong type.
            ValueError: If `by` names an unknown field, or a datetime has no time zone.
        """
        return await read_usage(
            self._store,
            owner_id=owner_id,
            session_id=session_id,
            by=by,
            since=since,
            until=until,
        )

    async def delete_usage(self, *, before: date) -> int:
        """Delete what the usage ledger recorded before a day, in short transactions.

        In a scope, only the rows that `usage` counts there are deleted.

        Args:
            before: The first day to keep, in UTC. A datetime, which must have a time zone, means
                its day.

        Returns:
            The number of rows deleted.

        Raises:
            TablesMissingError: If the ledger's table is missing and `create_tables` is off.
            TypeError: If `before` is neither a date nor a datetime.
            ValueError: If it is a datetime without a time zone.
        """
        return await delete_usage(self._store, before=before)
