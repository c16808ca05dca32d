"""What a turn costs: prices by model, from the dated list in prices.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

_PER: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """The tokens of one turn, by how they are paid for."""

    input: int = 0
    cache_write: int = 0
    cache_read: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        """All tokens that went in, from a cache or not."""
        return self.input + self.cache_write + self.cache_read

    @property
    def total(self) -> int:
        """All tokens, in and out."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens. `above` is the prompt size (tokens) from which on they hold."""

    input: float
    output: float
    cache_write: float
    cache_read: float
    above: int = 0

    def cost(self, usage: TurnUsage) -> float:
        """Return what a turn costs, in US dollars."""
        return (
            usage.input * self.input
            + usage.cache_write * self.cache_write
            + usage.cache_read * self.cache_read
            + usage.output * self.output
        ) / _PER


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model. `as_of` is the day (ISO 8601) up to which it is known to hold."""

    model: str
    as_of: str
    rates: Rates
    long: Rates | None = None

    def cost(self, usage: TurnUsage) -> float:
        """Return what a turn costs, in US dollars: each request is priced by the size of its own prompt."""
        is_long = self.long is not None and usage.prompt > self.long.above
        return (self.long if is_long and self.long else self.rates).cost(usage)


@cache
def _price_list() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / "prices.toml").read_text(encoding="utf-8"))


def as_of() -> str:
    """Return the day (ISO 8601) up to which the price list is known to hold."""
    return str(_price_list()["as_of"])


def price_of(model: str) -> Price | None:
    """Return the price of a model, with or without the date behind its name; None where it is not known."""
    listed = _price_list()
    name = model if model in listed["models"] else re.sub(r"-20\d{6}$", "", model)
    entry = listed["models"].get(name)
    if entry is None:
        return None
    rates = {key: value for key, value in entry.items() if key != "long"}
    return Price(name, listed["as_of"], Rates(**rates), Rates(**entry["long"]) if "long" in entry else None)
