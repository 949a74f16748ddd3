"""The rows of ChatKit's items, attachments and votes. A thread itself is a session."""
