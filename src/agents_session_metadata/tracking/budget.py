"""`Budget`: limits the usage of a session or an owner, checked before each model call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Literal, get_args

from agents_session_metadata.errors import BudgetExceededError
from agents_session_metadata.keys import OWNER_ID
from agents_session_metadata.lifecycle import store_of
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue
from agents_session_metadata.usage.feature import USAGE, read_usage
from agents_session_metadata.usage.prices import MONEY, decimal_of, plain_cost

Per = Literal["session", "owner_id"]

Window = Literal["day", "month"]


@dataclass(frozen=True)
class Remaining:
    """The rest of a budget.

    Attributes:
        cost: The cost that is left; None if it is not limited.
        tokens: The tokens that are left; None if they are not limited.
    """

    cost: Decimal | None
    tokens: int | None


@dataclass(frozen=True)
class Budget:
    """A limit for cost or tokens, such as `Budget(cost=5, per="owner_id", window="day")`.

    A `SessionTracker` with a budget refuses model calls when the budget is used up. A budget can be
    exceeded by one call per concurrent run, and by the calls that agents make inside tools.

    Attributes:
        cost: The maximum cost, in the currency of the prices; None for no limit.
        tokens: The maximum number of tokens, counted as in the SDK's `total_tokens`; None for no
            limit.
        per: `"session"` counts the usage of the session, `"owner_id"` the usage of all sessions
            while they had the same `owner_id`.
        window: `"day"` and `"month"` count from the beginning of the day or month in UTC; None
            counts everything.

    Raises:
        TypeError: If a limit is not a number.
        ValueError: If there is neither, one is negative or not finite, or `per` or `window` is
            unknown.
    """

    cost: Decimal | float | None = None
    tokens: int | None = None
    per: Per = "session"
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.cost is None and self.tokens is None:
            raise ValueError("a budget needs cost or tokens")
        for name in ("cost", "tokens"):
            limit = getattr(self, name)
            if limit is None:
                continue
            if not isinstance(limit, (int, float, Decimal)):
                raise TypeError(f"{name} must be a number, got {quoted(limit)}")
            if not decimal_of(limit).is_finite() or limit < 0:
                raise ValueError(f"{name} must be finite and not negative, got {limit}")
        if self.per not in get_args(Per):
            raise ValueError(f"per must be 'session' or 'owner_id', got {quoted(self.per)}")
        if self.window is not None and self.window not in get_args(Window):
            raise ValueError(f"window must be 'day', 'month' or None, got {quoted(self.window)}")

    async def remaining(self, session: Any) -> Remaining:
        """Return what is left for a session now, such as for the header of a chat.

        Args:
            session: A session with metadata, as for `SessionTracker`, or a wrapper around it.

        Returns:
            What is left, 0 if the budget is used up.

        Raises:
            TablesMissingError: If the table of the ledger is missing and `create_tables` is off.
            TypeError: If the session is not a `SQLAlchemyMetadataSession`.
            ValueError: If the budget is per owner and the session has no `owner_id`.
        """
        store, session_id = store_of(session), session.session_id
        owner = await read_owner(store, session_id) if self.per == OWNER_ID else None
        spent, used = await _spent(self, store, session_id, owner)
        cost = tokens = None
        if self.cost is not None:
            left = MONEY.subtract(decimal_of(self.cost), spent)
            cost = plain_cost(max(left, Decimal(0)))
        if self.tokens is not None:
            tokens = max(self.tokens - used, 0)
        return Remaining(cost, tokens)


def first_day(window: Window | None, today: date) -> date | None:
    if window == "month":
        return today.replace(day=1)
    return None if window is None else today


async def read_owner(store: ScopedStore, session_id: str) -> JSONValue:
    owner = store.scope.values.get(OWNER_ID)
    if owner is None:
        owner = (await store.get_metadata(session_id, [OWNER_ID]))[OWNER_ID]
    return owner


async def _spent(
    budget: Budget, store: ScopedStore, session_id: str, owner: JSONValue
) -> tuple[Decimal, int]:
    """Reads the cost and the tokens of a session in the scope, or of an owner in any scope."""
    counted: dict[str, Any] = {"session_id": session_id, "owner_id": None}
    if budget.per == OWNER_ID:
        if owner is None:
            raise ValueError(
                f"a budget per owner_id needs a session with an owner_id; session "
                f"{quoted(session_id)} has none"
            )
        counted = {"session_id": None, "owner_id": owner}
    elif store.scope and not await store.exists(session_id):
        return Decimal(0), 0
    since = first_day(budget.window, datetime.now(timezone.utc).date())
    await store.database.ensure(USAGE)
    # Without the scope, which would leave out what the session used before it had its owner.
    everything = ScopedStore(store.database, store.limits)
    rows = await read_usage(everything, by=(), since=since, **counted)
    return (rows[0].cost or Decimal(0), rows[0].total_tokens) if rows else (Decimal(0), 0)


async def check_budget(
    budget: Budget,
    store: ScopedStore,
    session_id: str,
    owner: JSONValue,
    unpriced: Collection[str | None],
) -> None:
    """Raises `BudgetExceededError` if the budget is used up.

    A budget with a cost is also exceeded if there are `unpriced` models: those without a price, of
    this call and of earlier ones.
    """
    spent, used = await _spent(budget, store, session_id, owner)
    if budget.cost is not None:
        allowed = decimal_of(budget.cost)
        for model in unpriced:
            name = "a model whose name is unknown" if model is None else f"model {quoted(model)}"
            raise BudgetExceededError(
                "cost",
                spent=plain_cost(spent),
                allowed=allowed,
                problem=f"{name} has no price; pass SessionTracker(prices=…), and model=… if "
                "the name is unknown",
            )
        if spent >= allowed:
            raise BudgetExceededError("cost", spent=plain_cost(spent), allowed=allowed)
    if budget.tokens is not None and used >= budget.tokens:
        raise BudgetExceededError("tokens", spent=used, allowed=budget.tokens)
