"""What text search adds to the core: its tables, and the words of items that are written."""

from agents_session_metadata.core.features import Feature

from .table import KEY, TEXT, define, learn
from .writing import TextIndex, add_sessions, copy_session, insert_items

FEATURE = Feature(
    TEXT,
    ("_text", "_text_state"),
    define,
    fork=copy_session,
    learn=learn,
    insert_items=insert_items,
    added=add_sessions,
    indexes=((KEY, TextIndex),),
)
