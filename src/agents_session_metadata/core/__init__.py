"""Tables, connections, and the rows of one session."""
