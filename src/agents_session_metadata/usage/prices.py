"""`ModelPrice`, the lookup of prices by model name, `Tokens`, and the arithmetic of money.

Costs do not depend on the application's decimal context, which may round early or raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import reduce
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from agents_session_metadata.text import quoted

if TYPE_CHECKING:
    from agents.usage import Usage

MONEY = Context(prec=60, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[])
"""Adds costs of 30 digits exactly, and never raises."""
_PER = 6
"""Prices are per million: the power of ten."""


def decimal_of(number: Decimal | float) -> Decimal:
    """Returns a float as its shortest decimal: 0.15 is 0.15."""
    return Decimal(float.__repr__(number) if isinstance(number, float) else number)


def total_cost(costs: Iterable[Decimal]) -> Decimal:
    return reduce(MONEY.add, costs, Decimal(0))


def plain_cost(cost: Decimal) -> Decimal:
    """Removes trailing zeros and the exponent."""
    return Decimal(f"{MONEY.normalize(cost):f}")


class Tokens(NamedTuple):
    """Numbers of a `Usage`, under the names of the ledger's columns and of `UsageRow`'s fields."""

    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Tokens:
        """Details that a provider left out count as 0."""
        # A provider's object may have been made without checks.
        incoming: Any = usage.input_tokens_details
        outgoing: Any = usage.output_tokens_details
        return cls(
            usage.requests or 0,
            usage.input_tokens or 0,
            (incoming.cached_tokens if incoming else 0) or 0,
            usage.output_tokens or 0,
            (outgoing.reasoning_tokens if outgoing else 0) or 0,
            usage.total_tokens or 0,
        )

    def plus(self, other: Tokens) -> Tokens:
        return Tokens(*map(add, self, other))

    def minus(self, other: Tokens) -> Tokens:
        return Tokens(*map(sub, self, other))


@dataclass(frozen=True)
class ModelPrice:
    """Prices per million tokens, in one currency, such as `ModelPrice(input=0.15, output=0.6)`.

    A float means its shortest decimal: 0.15 and 0.6.

    Attributes:
        input: The price of input tokens that are not cached.
        output: The price of output tokens.
        cached_input: The price of cached input tokens; `input` if None.

    Raises:
        TypeError: If a price is not a number.
        ValueError: If a price is negative or not a finite number.
    """

    input: Decimal | float
    output: Decimal | float
    cached_input: Decimal | float | None = None

    def __post_init__(self) -> None:
        for name, price in vars(self).items():
            if price is not None and not isinstance(price, (Decimal, int, float)):
                raise TypeError(f"{name} must be a number, got {quoted(price)}")
            if price is not None and not (decimal_of(price).is_finite() and price >= 0):
                raise ValueError(f"{name} must be a price, got {quoted(price)}")

    def cost(self, usage: Usage) -> Decimal:
        """Return the cost of a usage.

        Args:
            usage: The SDK's usage.

        Returns:
            The exact cost, in the currency of the prices.
        """
        return cost_of(Tokens.of(usage), self)


Prices: TypeAlias = "ModelPrice | Mapping[str, ModelPrice] | None"
"""One price for all models, or prices by model name."""


def cost_of(tokens: Tokens, price: ModelPrice) -> Decimal:
    """Returns a negative cost for negative tokens."""
    cached_price = price.input if price.cached_input is None else price.cached_input
    fresh = tokens.input_tokens - tokens.cached_input_tokens
    if tokens.input_tokens >= 0:
        fresh = max(fresh, 0)
    parts = (
        (fresh, price.input),
        (tokens.cached_input_tokens, cached_price),
        (tokens.output_tokens, price.output),
    )
    total = total_cost(MONEY.multiply(decimal_of(each), count) for count, each in parts)
    return MONEY.scaleb(total, -_PER)


def check_prices(prices: object) -> None:
    each = prices.values() if isinstance(prices, Mapping) else [prices] if prices else []
    for price in each:
        if not isinstance(price, ModelPrice):
            raise TypeError(f"a price must be a ModelPrice, got {quoted(type(price).__name__)}")


def price_of(prices: Prices, model: str | None) -> ModelPrice | None:
    if isinstance(prices, Mapping):
        return None if model is None else prices.get(model)
    return prices


def model_name(agent: Any) -> str | None:
    """Returns the agent's model or the SDK's default model; None if the model has no name.

    Hooks do not know a model that a `RunConfig` sets instead.
    """
    model = getattr(agent, "model", None)
    if model is None:
        from agents.models import get_default_model  # The ledger need not wait for the SDK.

        return get_default_model()
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) and name else None
