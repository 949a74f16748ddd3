"""The rows of ChatKit's threads and attachments."""
