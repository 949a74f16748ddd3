"""The base class of the parts of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.pages import Found, read_sessions
from agents_session_metadata.query.queries import Queries, Query
from agents_session_metadata.scope import ScopedStore

if TYPE_CHECKING:
    from agents_session_metadata.session import SQLAlchemyMetadataSession


class CatalogPart:
    """Methods on one store, in its scope."""

    _store: ScopedStore
    _session_arguments: dict[str, Any]

    def session(self, session_id: str, *, must_exist: bool = False) -> SQLAlchemyMetadataSession:
        """A session object, to run agents with. No I/O; the session need not exist yet.

        Args:
            session_id: Its id.
            must_exist: Whether the object never creates the session. Writing metadata or history
                then raises `SessionNotFoundError` if the session does not exist, also when it was
                deleted in the meantime; `delete_metadata` returns 0. `clear_session()` empties the
                history but keeps the session and its metadata, whatever `on_clear` says. To end the
                session, use `delete_session`.

        Returns:
            The session, with this catalog's engine, tables, settings and scope.

        Raises:
            TypeError: If the id is not a string.
        """
        # A session has a catalog, too; and what needs no session need not wait for the SDK.
        from agents_session_metadata.session import SQLAlchemyMetadataSession

        return SQLAlchemyMetadataSession._in_store(
            session_id, self._store, must_exist=must_exist, **self._session_arguments
        )

    def _condition(self, where: Where | None) -> Condition:
        return self._store.condition(where)

    async def _scalars(self, query: Callable[[Queries], Query]) -> Sequence[Any]:
        return await self._store.database.read(
            lambda connection, queries: connection.scalars(*query(queries)).all()
        )

    async def _page(self, condition: Condition, ordering: Ordering, **options: Any) -> list[Found]:
        return await read_sessions(
            self._store.database, lambda reader: reader.page(condition, ordering, **options)
        )

    async def _last(self, condition: Condition, **options: Any) -> Found | None:
        return await read_sessions(
            self._store.database, lambda reader: reader.last(condition, **options)
        )
