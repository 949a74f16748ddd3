"""The table of releases is that of the last run of `make compat`, in which nothing failed."""

from __future__ import annotations

from compat import results


def test_the_page_shows_the_results():
    shown = results.PAGE.read_text(encoding="utf-8")
    assert shown == results.page(results.read()), 'run "make compat"'


def test_nothing_failed():
    found = results.read()
    assert found
    for combination, outcomes in found.items():
        assert all(outcome.is_clean for outcome in outcomes.values()), combination.name


def test_a_run_that_did_not_begin_has_failed():
    assert results.Outcome.of("", 4).failed == 1
    assert not results.Outcome.of("1 passed, 1 skipped in 0.1s", 0).is_clean
    assert results.Outcome.of("3 passed in 0.1s", 0).is_clean
