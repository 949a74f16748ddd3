"""The usage ledger of a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from agents_session_metadata.types import JSONValue, UsageRow
from agents_session_metadata.usage.report import delete_usage, read_usage

from .part import CatalogPart


class UsageLedger(CatalogPart):
    async def usage(
        self,
        *,
        owner_id: JSONValue = None,
        session_id: str | None = None,
        by: Sequence[str] = ("day", "model"),
        since: date | None = None,
        until: date | None = None,
    ) -> list[UsageRow]:
        """Return the usage of tracked runs, added up from the usage ledger.

        Rows are kept when their session is deleted. In a scope on `owner_id`, the rows of that
        owner are counted. In any other scope, the rows of the sessions that exist in the scope are
        counted. In a scope on `owner_id` and other keys, both conditions apply.

        Args:
            owner_id: Count only usage of sessions while they had this `owner_id`.
            session_id: Count only usage of this session.
            by: The fields to group by: any of `day`, `agent`, `model`, `owner_id`, `session_id`. An
                empty tuple returns one row, or none if there is no usage.
            since: The first day, in UTC: a date, or an aware datetime on that day.
            until: The last day, in the same form.

        Returns:
            One row per group, ordered by the fields of `by`.

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
        """Delete rows of the usage ledger from before a day, in short transactions.

        In a scope, only the rows that `usage` counts there are deleted.

        Args:
            before: The first day to keep, in UTC: a date, or an aware datetime on that day.

        Returns:
            The number of deleted rows.

        Raises:
            TablesMissingError: If the ledger's table is missing and `create_tables` is off.
            TypeError: If `before` is neither a date nor a datetime.
            ValueError: If it is a datetime without a time zone.
        """
        return await delete_usage(self._store, before=before)
