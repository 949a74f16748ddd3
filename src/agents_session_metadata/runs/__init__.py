"""Runs that take turns, survive crashes and wait for approvals.

`lease` writes the row of a run, `journal` its steps, `session` its history; `records` has the texts
that are stored, lists of runs and decisions.
"""
