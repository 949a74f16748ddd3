"""Single sessions of a catalog, by id or by the values that identify them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agents_session_metadata.core.rows import check_id_type, storable_keys
from agents_session_metadata.errors import SessionExistsError
from agents_session_metadata.keys import AGENT, normalize_agent
from agents_session_metadata.query.conditions import IdIn, equality
from agents_session_metadata.query.derived_ids import derived_id
from agents_session_metadata.query.details import Details
from agents_session_metadata.query.filters import Where, parse_values
from agents_session_metadata.query.ordering import WALK
from agents_session_metadata.query.pages import OnCorrupt
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue, Metadata, SessionInfo
from agents_session_metadata.values import encode_metadata, is_text

from .part import CatalogPart

if TYPE_CHECKING:
    from agents_session_metadata.session import SQLAlchemyMetadataSession

_DERIVED_IDS = 1000


class SingleSessions(CatalogPart):
    async def create_session(
        self, session_id: str | None = None, *, metadata: Mapping[str, JSONValue] | None = None
    ) -> SQLAlchemyMetadataSession:
        """Create a session with metadata in one transaction.

        Args:
            session_id: The id of the session; random by default.
            metadata: The metadata of the session. The values of the scope are added.

        Returns:
            The session.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the id is in use, inside or outside the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If the id is not a string.
            ValueError: If the id is not valid for metadata.
        """
        name = str(uuid.uuid4()) if session_id is None else session_id
        if not await self._create(name, metadata or {}):
            raise SessionExistsError(name)
        return self.session(name)

    async def get_or_create_session(
        self, values: Mapping[str, JSONValue], *, metadata: Mapping[str, JSONValue] | None = None
    ) -> tuple[SQLAlchemyMetadataSession, bool]:
        """Return the most recently active session with these values, or create one.

        If several processes call this at the same time with the same values, one session is
        created. The id of a new session is derived from the values.

        ```python
        session, created = await catalog.get_or_create_session({"repo": "o/r", "pr": 42})
        ```

        Args:
            values: The values by key that identify the session.
            metadata: More metadata for a new session. An existing session does not change.

        Returns:
            The session, and whether it was created.

        Raises:
            InvalidFilterError: If a key cannot be stored or a value is not JSON.
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the values contradict the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `values` is not a mapping.
            ValueError: If `values` is empty, or `metadata` contradicts `values`.
        """
        wanted = parse_values(values, "values")
        scope, limits = self._store.scope, self._store.limits
        scope.check(wanted)
        more = encode_metadata(metadata or {}, limits)
        for key, encoded in encode_metadata(wanted, limits).items():
            if key in more and more[key].search != encoded.search:
                raise ValueError(f"metadata and values have different values for {quoted(key)}")
        together = {**(metadata or {}), **wanted}
        encode_metadata({**together, **scope.values}, limits)
        condition = scope.restrict(equality(wanted))
        search = encode_metadata({**wanted, **scope.values}, limits)
        name = ""
        for attempt in range(_DERIVED_IDS):
            last = await self._last(condition, keys=[])
            if last is not None:
                return self.session(last.info.session_id), False
            # If the id is taken and the session does not match, it had the values once: every
            # caller goes on to the next id.
            name = derived_id(search, attempt)
            if await self._create(name, together):
                return self.session(name), True
        raise SessionExistsError(name)

    async def get_session(
        self,
        session_id: str,
        *,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        preview: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionInfo | None:
        """Return one session with its metadata.

        Args:
            session_id: The id of the session.
            keys: The metadata keys to return; all stored keys by default.
            count_items: Whether to count the items of the history.
            preview: Whether to read the beginning of the first user message: at most 200
                characters with whitespace collapsed. It is looked for among the first 10 items, in
                the first 4,000 characters of the stored text.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The session, or None if it does not exist.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        wanted = storable_keys(keys)
        check_id_type(session_id)
        if not is_text(session_id):
            return None
        condition = self._store.scope.restrict(IdIn((session_id,)))
        found = await self._page(
            condition,
            WALK,
            limit=1,
            keys=wanted,
            details=Details(count_items, preview),
        )
        return found[0].checked(on_corrupt) if found else None

    async def last_session(
        self, where: Where | None = None, *, count_items: bool = False
    ) -> SessionInfo | None:
        """Return the most recently active session.

        Among sessions that were active within the same second, which is the resolution of the SDK's
        times on SQLite, MariaDB and MySQL, the session with the newest message is returned.

        Args:
            where: A filter. A string under `agent` is normalized: `@ai-engineer` finds
                `ai-engineer`.
            count_items: Whether to count the items of the history.

        Returns:
            The session, or None if no session matches.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        if isinstance(where, Mapping) and isinstance(where.get(AGENT), str):
            where = {**where, AGENT: normalize_agent(where[AGENT])}
        condition = self._condition(where)
        found = await self._last(condition, details=Details(count_items))
        return None if found is None else found.checked()

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session with its messages and metadata.

        Args:
            session_id: The id of the session.

        Returns:
            Whether the session existed.

        Raises:
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        check_id_type(session_id)
        return is_text(session_id) and await self._store.delete(session_id)

    async def get_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> Metadata:
        """As `SQLAlchemyMetadataSession.get_metadata`, by id. Use it if the session is wrapped."""
        return await self._store.get_metadata(session_id, keys)

    async def set_metadata(
        self, session_id: str, values: Mapping[str, Any], *, must_exist: bool = False
    ) -> None:
        """As `SQLAlchemyMetadataSession.set_metadata`, by id."""
        await self._store.set_metadata(session_id, values, must_exist=must_exist)

    async def edit_metadata(
        self,
        session_id: str,
        change: Callable[[Metadata], object],
        *,
        must_exist: bool = False,
    ) -> Metadata:
        """As `SQLAlchemyMetadataSession.edit_metadata`, by id."""
        return await self._store.edit_metadata(session_id, change, must_exist=must_exist)

    async def delete_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> int:
        """As `SQLAlchemyMetadataSession.delete_metadata`, by id."""
        return await self._store.delete_metadata(session_id, keys)

    async def _create(self, session_id: str, metadata: Mapping[str, JSONValue]) -> bool:
        check_id_type(session_id)
        return await self._store.create(session_id, self._store.encode_new(metadata))
