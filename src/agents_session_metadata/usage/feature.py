"""The part of the usage ledger in the core: its table, which `ledger` defines."""

from agents_session_metadata.core.features import Feature

from .ledger import USAGE, define

FEATURE = Feature(USAGE, ("_usage",), define)
