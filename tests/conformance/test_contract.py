"""The contract of an Agents SDK session, as `pytest --session` runs it, on every database."""

from __future__ import annotations

import pytest

from agents_session_metadata import SQLAlchemyMetadataSession
from agents_session_metadata.testing.contract import *  # noqa: F403  # the tests

pytestmark = pytest.mark.asyncio


@pytest.fixture
def make_session(database):
    engine = database.engine()
    return lambda session_id: SQLAlchemyMetadataSession(
        session_id, engine=engine, create_tables=True
    )
