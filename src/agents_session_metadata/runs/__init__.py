"""Runs that take turns, survive crashes and wait for approvals.

`runs` has `SessionRuns`; `claim` takes the run of a session and holds its lease; `work` does the
run; `execution` has the session, models, tools and hooks that the SDK's runner meets; `record` has
what is recorded; `approvals` has lists and decisions; `feature` has the tables. CONTRIBUTING.md
follows a run through these modules.
"""
