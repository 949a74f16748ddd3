"""Runs that take turns, survive crashes and wait for approvals.

In `runs`, `SessionRuns._claim` decides who takes or resumes a run. `lease` writes the row of a run,
`journal` its steps, `session` its history. `records` has the texts that are stored, lists of runs
and decisions; `feature` has the tables, and `status_of` tells that a run was interrupted.
"""
