"""What a process believes about a database for a while."""

from __future__ import annotations

from typing import Any

import pytest

from agents_session_metadata.core.known import Known

NOWHERE: Any = None


def known(*answers, seconds=60):
    """Something of which the database gives these answers, one after the other."""
    left = iter(answers)
    return Known(lambda *_: next(left), "nothing", seconds=seconds)


def get(found):
    return found.get(NOWHERE, NOWHERE)


def test_an_answer_is_believed_until_it_is_old_or_forgotten():
    young, old = known(1, 2), known(1, 2, seconds=-1)
    assert [get(young), get(young), young.forget(), get(young)] == [1, 1, 1, 2]
    assert [get(old), old.believed, get(old)] == [1, 1, 2]


def test_an_error_leaves_nothing_to_believe():
    found = known(1)
    assert get(found) == 1
    with pytest.raises(StopIteration):
        found.look(NOWHERE, NOWHERE)
    assert found.believed == "nothing"


def test_an_answer_from_before_it_was_forgotten_is_not_believed():
    answers = iter([1, 2])

    def read(*_):
        answer = next(answers)
        if answer == 1:
            found.forget()  # As another task that has just created the table.
        return answer

    found = Known(read, 0, seconds=60)
    assert [get(found), get(found), get(found)] == [1, 2, 2]
