"""The activity index: tables with the order of sessions, which triggers keep up to date.

SQL indexes are in the definitions of the tables: in `core.tables` and in each feature.
"""
