"""The activity index: tables with the order of sessions, which triggers keep up to date."""
