class Corpus:
    """The sessions in a database, and what plain Python says of them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.session = SQLAlchemyMetadataSession("anyone", engine=engine)

    @classmethod
    async def create(cls, engine: AsyncEngine) -> Corpus:
        for number, (session_id, metadata) in enumerate(sessions().items()):
            session = SQLAlchemyMetadataSession(session_id, engine=engine, create_tables=True)
            await session.add_items([raw.message(session_id)])
            await session.set_metadata(metadata)
            created_at, updated_at = (f"{time:%Y-%m-%d %H:%M:%S}" for time in _times(number))
            await raw.set_times(
                engine, session_id, created_at=created_at, updated_at=updated_at
            )
        return cls(engine)

    def expected(self, where: Any) -> list[str]:
        found = []
        for number, (session_id, metadata) in enumerate(sessions().items()):
            created_at, updated_at = _times(number)
            if matches(
                where,
                metadata,
                session_id=session_id,
                created_at=created_at,
                updated_at=updated_at,
            ):
                found.append(session_id)
        return sorted(found)

    async def check(self, where: Any, like: Any = None) -> list[str]:
        """Finding agrees with plain Python; `like` is the same filter, shorter."""
        expected = self.expected(like or where)
        found = await self.session.find_sessions_by_metadata(where)
        assert len(found) == len(set(found))
        assert sorted(found) == expected
        return expected


def _times(number: int) -> tuple[datetime, datetime]:
    """When a session was made, and when it was last active."""
    return (
        datetime(2020, 1, number % 7 + 1, tzinfo=timezone.utc),
        datetime(2020, 2, number % 9 + 1, 12, tzinfo=timezone.utc),
    )
