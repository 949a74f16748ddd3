"""The part of the usage ledger in the core: its table, which `ledger` defines."""

from agents_session_metadata.core.definitions import TableMaker
from agents_session_metadata.core.features import Feature

from .ledger import USAGE, define


class UsageFeature(Feature):
    name = USAGE
    suffixes = ("_usage",)

    def define(self, make: TableMaker) -> None:
        define(make)


FEATURE = UsageFeature()
