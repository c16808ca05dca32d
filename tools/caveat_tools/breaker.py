"""A circuit breaker: after some failures in a row a source is left alone for a while, instead of asked in vain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Breaker:
    """Opens after `threshold` access failures in a row; after `cool_down` seconds calls try again,
    and the first failure among them opens it anew.
    """

    threshold: int = 3
    cool_down: float = 60.0
    _failures: int = 0
    _open_until: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether calls are refused at `now`, in seconds of the monotonic clock."""
        return self._open_until is not None and now < self._open_until

    def record(self, *, answered: bool, now: float) -> None:
        """Count a final outcome: an answer closes the breaker, a failure in a row of `threshold` opens it."""
        self._failures = 0 if answered else self._failures + 1
        self._open_until = now + self.cool_down if self._failures >= self.threshold else None
