"""Errors go from process to process, and copy, as they are."""

from __future__ import annotations

import copy
import pickle

import pytest

from agents_session_metadata import (
    BudgetExceededError,
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    InvalidPhaseError,
    KeyReusedError,
    LeaseLostError,
    MetadataLimitError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    ScopeError,
    SessionBusyError,
    SessionChangedError,
    SessionExistsError,
    SessionNotFoundError,
    SessionPausedError,
    StateVersionError,
    TablesMissingError,
    UnsupportedDialectError,
)

ERRORS = [
    BudgetExceededError("cost", spent=2, allowed=1),
    CorruptMetadataError("chat", "a"),
    InvalidCursorError(),
    InvalidFilterError("is wrong", path="$.a"),
    InvalidMetadataError("is wrong", key="a", path="$[1]"),
    InvalidPhaseError("is wrong", phase="a"),
    MetadataLimitError("max_keys", key="a", size=5, allowed=4),
    RunFailedError("a", "ValueError: x"),
    RunInterruptedError("a"),
    SessionBusyError("a"),
    LeaseLostError("a", "taken"),
    KeyReusedError("a", "key"),
    RunCancelledError("a"),
    RunNotFoundError("a"),
    ScopeError("a"),
    SessionChangedError("a"),
    SessionExistsError("a"),
    SessionNotFoundError("a"),
    SessionPausedError("a"),
    StateVersionError("a", "9.9"),
    TablesMissingError(["a"]),
    TablesMissingError(["a"], "its name is misspelled"),
    UnsupportedDialectError("a"),
    UnsupportedDialectError("a", "a setting"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_that_was_copied(error):
    for found in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301  # our own
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
