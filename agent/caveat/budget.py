"""What a run may spend, what it has spent, and what it is likely to spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from caveat.prices import Price, TurnUsage

Limit: TypeAlias = Literal["turns", "calls", "tokens", "cost", "time"]

RESERVE: Final = 0.15
"""The share of tokens, cost and time that is kept for writing the report: retrieval ends before it."""
NEARLY: Final = 0.8
"""The share of what an agent may spend at which it is told to come to an end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent. `turns`, `calls`, `calls_per_turn` and `nudges` are one agent's; the rest is the whole run's.

    `tokens` counts input (from a cache or not) and output of all turns, `cost` is in US dollars (None: no limit), and
    `seconds` run from the first question to the model. No turn begins beyond tokens or cost; the last one may pass
    them; time ends what is under way.
    """

    turns: int = 16
    calls: int = 48
    calls_per_turn: int = 12
    nudges: int = 2
    tokens: int = 400_000
    cost: float | None = 1.0
    seconds: float = 1_800.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What one turn has used, with all attempts at it: the fields are those of `Usage`."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    counted: float | None = None


class Usage:
    """What a model has used so far. `cost` is in US dollars, None where a model that answered has no known price.

    Input tokens include those read from and written to the prompt cache. Attempts that broke off are not counted: their
    usage never arrived. `counted` is what the limit of cost is kept by: where the model that answered has no known
    price, by that of the model which was asked; None where that one has none.
    """

    def __init__(self, price: Price | None = None) -> None:
        """`price` is that of the model which is asked, if it is known."""
        self.price = price
        self.calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = None if price is None else 0.0
        self.counted = self.cost

    @property
    def tokens(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens

    def add(self, usage: Any, price: Price | None) -> TurnUsage:
        """Count one turn's `usage` object, whatever of it is there, by the price of the model that answered.

        Returns what was counted.
        """
        counts = usage if isinstance(usage, dict) else {}
        turn = TurnUsage(
            input=_count(counts.get("input_tokens")),
            cache_write=_count(counts.get("cache_creation_input_tokens")),
            cache_read=_count(counts.get("cache_read_input_tokens")),
            output=_count(counts.get("output_tokens")),
        )
        self.input_tokens += turn.prompt
        self.output_tokens += turn.output
        self.cost = None if price is None or self.cost is None else self.cost + price.cost(turn)
        if self.counted is not None and (by := price or self.price):
            self.counted += by.cost(turn)
        return turn

    def spent(self) -> Spent:
        """Return what has been used."""
        return Spent(self.calls, self.input_tokens, self.output_tokens, self.cost, self.counted)

    def include(self, spent: Spent) -> None:
        """Count what a turn has used in an earlier life of the run."""
        self.calls += spent.calls
        self.input_tokens += spent.input_tokens
        self.output_tokens += spent.output_tokens
        self.cost = None if self.cost is None or spent.cost is None else self.cost + spent.cost
        if self.counted is not None and spent.counted is not None:
            self.counted += spent.counted


_MOST_TOKENS: Final = 10**9
"""What no turn can use: a larger count is none."""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS else 0


class Timer(Protocol):
    """What a budget reads the time from: a clock, or a run's journal."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


class Budget:
    """The limits of a run against what its model has used and the time that has passed. One for all agents of a run."""

    def __init__(self, limits: Limits, usage: Usage, timer: Timer, *, reserve: float = RESERVE) -> None:
        """Time counts from now. `reserve` is the share that agents with this budget may not touch."""
        self.limits = limits
        self._usage = usage
        self._timer = timer
        self._reserve = reserve
        self._started = timer.monotonic()

    def without_reserve(self) -> Budget:
        """Return the same budget, begun at the same moment, for the agent that may touch the reserve."""
        budget = Budget(self.limits, self._usage, self._timer, reserve=0.0)
        budget._started = self._started
        return budget

    def met(self) -> Mapping[Limit, str]:
        """Return the limits that are met, each with its size in words."""
        return self._beyond(1.0)

    def nearly_met(self) -> Mapping[Limit, str]:
        """Return the limits of which four fifths are spent."""
        return self._beyond(NEARLY)

    def in_words(self) -> dict[Limit, str]:
        """Return the size of each limit of the run, as it is shown."""
        limits = self.limits
        words: dict[Limit, str] = {"tokens": f"{limits.tokens:,} tokens"}
        if limits.cost is not None and self._usage.counted is not None:
            words["cost"] = dollars(limits.cost)
        return {**words, "time": duration(limits.seconds)}

    def _beyond(self, share: float) -> dict[Limit, str]:
        limits, usage = self.limits, self._usage
        spent: dict[Limit, tuple[float, float]] = {
            "tokens": (usage.tokens, limits.tokens),
            "cost": (usage.counted or 0.0, limits.cost or float("inf")),
            "time": (self._timer.monotonic() - self._started, limits.seconds),
        }
        allowed = share * (1.0 - self._reserve)
        words = self.in_words()
        return {limit: words[limit] for limit, (used, size) in spent.items() if used >= allowed * size}


def dollars(amount: float) -> str:
    """Return an amount of US dollars in words: cents, or as many digits as a small amount needs."""
    return f"${amount:,.2f}" if amount >= 0.095 or not amount else f"${amount:.4f}"


def duration(seconds: float) -> str:
    """Return a length of time in words: "45 s", "30 min", "2 h"."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 60:.1f} min" if seconds > 120 else f"{seconds:g} s"


# ---- the estimate

_TURNS: Final = 5
_GROWTH: Final = 4_500
_OUTPUT: Final = 700


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run of one to three topics is likely to use; `cost` is in US dollars, None where no price is known."""

    tokens: int
    cost: float | None


def estimate(first_prompt: int, price: Price | None, limits: Limits) -> Estimate:
    """Estimate a run from the size of its first request, in tokens; never more than the limits.

    Five turns, each of which adds about three searches' results to the conversation; what was sent before is read from
    the prompt cache, what is new is written to it.
    """
    usage = [TurnUsage(cache_write=first_prompt, output=_OUTPUT)]
    usage += [
        TurnUsage(cache_write=_GROWTH, cache_read=first_prompt + number * _GROWTH, output=_OUTPUT)
        for number in range(min(_TURNS, limits.turns) - 1)
    ]
    tokens = min(sum(turn.total for turn in usage), limits.tokens)
    if price is None:
        return Estimate(tokens, None)
    cost = sum(price.cost(turn) for turn in usage)
    return Estimate(tokens, cost if limits.cost is None else min(cost, limits.cost))
