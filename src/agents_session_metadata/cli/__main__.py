"""`python -m agents_session_metadata.cli`."""

from . import main

if __name__ == "__main__":
    main()
