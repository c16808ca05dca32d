"""A circuit breaker: after some failures in a row a source is left alone for a while, instead of asked in vain.

    closed      calls go out
    open        after `threshold` failures in a row calls are refused, for `cool_down` seconds after the last of them
    half-open   then one call at a time goes out; an answer closes the breaker, a failure opens it anew
    stopped     several agents met the same failure, and nobody an answer in between: refused for the rest of the run

Everything follows from when what came back, so the order in which it is told here does not matter.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from caveat_tools.outcome import ErrorType

AGENTS_TO_STOP: Final = 3
"""As many different agents that met the same failure stop a source for the run."""


class _Verdict(NamedTuple):
    """What one call showed of the source's health; `failure` is None for an answer."""

    at: float
    failure: ErrorType | None = None
    agent: str = ""
    can_pass: bool = False


@dataclass
class Breaker:
    """The breaker of one source in one run. Times are seconds of the monotonic clock."""

    threshold: int = 3
    cool_down: float = 60.0
    _verdicts: list[_Verdict] = field(default_factory=list)
    _has_probe: bool = False

    def is_open(self, now: float) -> bool:
        """Say whether a call is refused at `now`; while a probe is under way, every other call is."""
        if self.stopped_by is not None:
            return True
        in_a_row = self._failures_in_a_row()
        if len(in_a_row) < self.threshold:
            return False
        return self._has_probe or now < in_a_row[-1].at + self.cool_down

    @property
    def stopped_by(self) -> ErrorType | None:
        """The failure that has stopped the source for the rest of the run, if one has."""
        met: dict[ErrorType, set[str]] = {}
        for verdict in self._verdicts:
            if verdict.failure is None:
                met.clear()
            elif not verdict.can_pass:
                agents = met.setdefault(verdict.failure, set())
                agents.add(verdict.agent)
                if len(agents) >= AGENTS_TO_STOP:
                    return verdict.failure
        return None

    @contextmanager
    def place(self, now: float) -> Iterator[None]:
        """Hold a call's place while the block runs; a probe's is free again however the block ends.

        Raises RuntimeError where the breaker is open at `now`.
        """
        if self.is_open(now):
            raise RuntimeError("no call goes out while the breaker is open")
        is_probe = len(self._failures_in_a_row()) >= self.threshold
        self._has_probe |= is_probe
        try:
            yield
        finally:
            self._has_probe &= not is_probe

    def answered(self, at: float) -> None:
        """Take in that the source answered."""
        self._add(_Verdict(at))

    def failed(self, failure: ErrorType, agent: str, at: float, *, can_pass: bool) -> None:
        """Take in a call's final failure; one that `can_pass` by waiting never stops the source for the run."""
        self._add(_Verdict(at, failure, agent, can_pass))

    def _add(self, verdict: _Verdict) -> None:
        insort(self._verdicts, verdict, key=lambda v: v.at)

    def _failures_in_a_row(self) -> list[_Verdict]:
        answers = [place for place, verdict in enumerate(self._verdicts) if verdict.failure is None]
        return self._verdicts[answers[-1] + 1 if answers else 0 :]
