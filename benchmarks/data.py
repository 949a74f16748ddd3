"""The sessions that are measured: the same for every party, generated from a seed.

Each has six keys: an owner out of 1,000, a title, three tags out of 200, a status, a priority and a
cost. Owners follow Zipf's law with an exponent that gives the largest of them one session in a
hundred. In a corpus of 10,000 sessions or more, 1,000 of them belong to one more owner.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, NamedTuple

OWNERS, TAGS = 1_000, 200
STATUSES = ("active", "completed", "failed", "abandoned")
STATUS_WEIGHTS = (70, 20, 8, 2)
FIXED_OWNER, FIXED_OWNER_SESSIONS = "owner-fixed", 1_000
LARGEST_OWNER = "owner-0000"
TAG, LEAST_PRIORITY, PAGE = "tag-001", 7, 20
MESSAGES_UP_TO, MESSAGES = 10_000, 10
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SPAN = timedelta(days=180)
_WORDS = ["draft", "review", "plan", "invoice", "garden", "budget", "release", "recipe", "essay"]


class Session(NamedTuple):
    """One session, as every party stores it."""

    session_id: str
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any]


def message(number: int) -> dict[str, Any]:
    """An item of a history."""
    role = "user" if number % 2 == 0 else "assistant"
    return {"role": role, "content": f"Message {number}: " + "lorem ipsum dolor " * 6}


@dataclass(frozen=True)
class Corpus:
    """`size` sessions in the order of their creation.

    Each iteration generates the same ones again, so that a million need no memory.
    """

    size: int
    seed: int = 7

    @property
    def messages(self) -> int:
        """How many messages each session has."""
        return MESSAGES if self.size <= MESSAGES_UP_TO else 0

    def __iter__(self) -> Iterator[Session]:
        random_ = random.Random(f"{self.seed}-{self.size}")
        every = self.size // FIXED_OWNER_SESSIONS if self.has_fixed_owner else 0
        for number in range(self.size):
            if every and number % every == 0 and number // every < FIXED_OWNER_SESSIONS:
                owner = FIXED_OWNER
            else:
                rank = bisect(self._owner_shares, random_.random() * self._owner_shares[-1])
                owner = f"owner-{rank:04}"
            created = _FIRST + _SPAN * (number / self.size)
            idle = timedelta(seconds=random_.randrange(1, 14 * 86_400))
            yield Session(
                f"{random_.getrandbits(128):032x}",
                created.replace(microsecond=0),
                (created + idle).replace(microsecond=0),
                {
                    "owner_id": owner,
                    "title": f"{' '.join(random_.sample(_WORDS, 3))} {number}",
                    "tags": [f"tag-{tag:03}" for tag in random_.sample(range(TAGS), 3)],
                    "status": random_.choices(STATUSES, STATUS_WEIGHTS)[0],
                    "priority": random_.randrange(10),
                    "cost": round(random_.random() * 10, 4),
                },
            )

    @property
    def has_fixed_owner(self) -> bool:
        """Whether 1,000 of the sessions belong to `FIXED_OWNER`."""
        return self.size >= 10 * FIXED_OWNER_SESSIONS

    @cached_property
    def sample(self) -> list[Session]:
        """Some sessions from all over the corpus."""
        return list(itertools.islice(self, 0, None, max(1, self.size // 40)))

    @cached_property
    def _owner_shares(self) -> list[float]:
        low, high = 0.0, 2.0
        for _ in range(50):
            exponent = (low + high) / 2
            total = sum(rank**-exponent for rank in range(1, OWNERS + 1))
            # The largest owner's share is 1 / total.
            low, high = (exponent, high) if total > 100 else (low, exponent)
        shares = (rank**-low for rank in range(1, OWNERS + 1))
        return list(itertools.accumulate(shares))


def status(number: int) -> str:
    """The status to ask for in a call: each in turn."""
    return STATUSES[number % len(STATUSES)]


def changes(number: int) -> dict[str, Any]:
    """Five scalars to write in a call, under keys that are stored."""
    return {
        "owner_id": LARGEST_OWNER,
        "title": f"changed {number}",
        "status": status(number),
        "priority": number % 10,
        "cost": number / 8,
    }


def written_ids(corpus: Corpus) -> list[str]:
    """Sessions to write to: those of the largest owner, who therefore keeps as many as before."""
    found = (one.session_id for one in corpus if one.metadata["owner_id"] == LARGEST_OWNER)
    return list(itertools.islice(found, 50))
