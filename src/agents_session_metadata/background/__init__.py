"""Runs that outlive their request: begun in the background, followed and stopped anywhere.

`answers` stores the answer in progress beside the record of its run, and `following` reads it, by
the polls that all followers of a process share (`polls`). `runs` begins and recovers runs, and
`cancelling` ends them. `items` compares items of answers with those of the history.
`SessionRuns` imports this folder on first use, and works without it.
"""
