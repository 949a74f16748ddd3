"""What agents do with a session: phases, and facts of each run."""
