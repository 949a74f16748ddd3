"""Tables, transactions and the rows of one session."""
