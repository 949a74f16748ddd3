"""A run that is killed goes on in another process, and nothing is lost or done twice."""

from __future__ import annotations

import random

import pytest
from scaling import scale

from agents_session_metadata import SessionCatalog
from conformance.crashing import run_until_it_ends

MOMENTS = [40, 100, 120]


@pytest.mark.thorough
async def test_killed_at_three_moments(shared_database, tmp_path) -> None:
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    kills = await run_until_it_ends(catalog, shared_database.url, tmp_path / "log", MOMENTS)
    assert kills == len(MOMENTS)


@pytest.mark.scaled
@pytest.mark.thorough
@pytest.mark.parametrize("number", range(scale(1, 200)))
async def test_killed_at_a_random_moment(shared_database, tmp_path, number) -> None:
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    chance = random.Random(number)
    moments = [chance.randrange(1, 330 if number % 2 else 150)]
    await run_until_it_ends(catalog, shared_database.url, tmp_path / "log", moments)
