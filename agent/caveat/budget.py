"""What a run may spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Limit: TypeAlias = Literal["turns", "calls", "tokens"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one agent may spend. `tokens` counts input and output of all its turns."""

    turns: int = 16
    calls: int = 48
    calls_per_turn: int = 12
    tokens: int = 400_000
    nudges: int = 2
