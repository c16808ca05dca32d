"""The breaker: when a source is left alone, when it is tried again, and when it is given up for the run."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from caveat_tools.breaker import Breaker
from caveat_tools.outcome import ErrorType


def tripped(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(breaker.threshold):
        breaker.failed("timeout", "A1", at, can_pass=False)
    return breaker


def test_it_opens_after_three_failures_in_a_row_and_lets_a_call_through_after_a_minute() -> None:
    """A dead source is not asked in vain, and is asked again when it may have come back."""
    breaker = tripped(at=5)
    assert [breaker.is_open(now) for now in (5, 64.9, 65)] == [True, True, False]


def test_an_answer_between_failures_keeps_it_closed() -> None:
    """Only failures in a row count."""
    breaker = Breaker()
    for _ in range(4):
        breaker.failed("timeout", "A1", 0, can_pass=False)
        breaker.failed("timeout", "A1", 0, can_pass=False)
        breaker.answered(0)
    assert not breaker.is_open(0)


def test_one_probe_goes_out_and_its_answer_closes_the_breaker() -> None:
    """While the probe is under way everybody else is refused; after its answer nobody is."""
    breaker = tripped()
    with breaker.place(60):
        assert breaker.is_open(60)
        with pytest.raises(RuntimeError), breaker.place(60):
            raise AssertionError
        breaker.answered(61)
    with breaker.place(61), breaker.place(61):
        assert not breaker.is_open(61)


def test_a_failed_probe_opens_it_anew() -> None:
    """One failure after the pause is enough for another pause."""
    breaker = tripped()
    with breaker.place(60):
        breaker.failed("unavailable", "A1", 61, can_pass=False)
    assert [breaker.is_open(now) for now in (61, 120.9, 121)] == [True, True, False]


def test_a_probe_that_ends_without_a_verdict_frees_its_place() -> None:
    """A probe that was cancelled does not keep the source shut for the rest of the run."""
    breaker = tripped()
    with pytest.raises(KeyError), breaker.place(60):
        raise KeyError
    assert not breaker.is_open(60)


def test_a_late_call_from_before_neither_frees_nor_doubles_the_probes_place() -> None:
    """A call that went out while the breaker was closed ends during the probe: still one probe at a time."""
    breaker = Breaker()
    early = ExitStack()
    early.enter_context(breaker.place(0))
    for _ in range(3):
        breaker.failed("timeout", "A1", 0, can_pass=False)
    with breaker.place(60):
        early.close()
        assert breaker.is_open(60)


def test_three_agents_with_the_same_failure_stop_a_source_for_the_run() -> None:
    """It is not tried again after any pause."""
    breaker = Breaker()
    for agent in ("A1", "A2", "A3"):
        assert breaker.stopped_by is None
        breaker.failed("timeout", agent, 0, can_pass=False)
    assert breaker.stopped_by == "timeout"
    assert breaker.is_open(1e9)
    breaker.answered(1)
    assert breaker.is_open(1e9)


@pytest.mark.parametrize(
    "met",
    [
        [("timeout", "A1"), ("timeout", "A2"), ("timeout", "A1"), ("timeout", "A2")],
        [("timeout", "A1"), ("unavailable", "A2"), ("timeout", "A3"), ("unavailable", "A1")],
        [("timeout", "A1"), ("timeout", "A2"), None, ("timeout", "A3")],
    ],
)
def test_two_agents_different_failures_or_an_answer_in_between_stop_nothing(
    met: list[tuple[ErrorType, str] | None],
) -> None:
    """Only one kind of failure, met by three, shows that it is the source."""
    breaker = Breaker()
    for at, each in enumerate(met):
        if each is None:
            breaker.answered(at)
        else:
            breaker.failed(each[0], each[1], at, can_pass=False)
    assert breaker.stopped_by is None
    assert not breaker.is_open(1_000)


def test_a_rate_limit_that_can_be_waited_for_stops_nothing() -> None:
    """Several agents at once bring it about themselves; the source comes back when they wait."""
    breaker = Breaker()
    for agent in ("A1", "A2", "A3"):
        breaker.failed("rate_limited", agent, 0, can_pass=True)
    assert breaker.stopped_by is None
    assert [breaker.is_open(0), breaker.is_open(60)] == [True, False]


KINDS: tuple[ErrorType | None, ...] = (None, "timeout", "unavailable")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["A1", "A2", "A3", "A4"])), max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_it_is_told_does_not_matter(met: list[tuple[ErrorType | None, str]], random: object) -> None:
    """A resumed run takes outcomes over in the order of the calls, not in that of their ends: the state is the same."""
    in_time = list(enumerate(met))
    shuffled = in_time.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    states = []
    for order in (in_time, shuffled):
        breaker = Breaker()
        for at, (failure, agent) in order:
            if failure is None:
                breaker.answered(at)
            else:
                breaker.failed(failure, agent, at, can_pass=False)
        states.append((breaker.stopped_by, [breaker.is_open(now) for now in range(0, 80, 5)]))
    assert states[0] == states[1]


class Calls(RuleBasedStateMachine):
    """Calls that begin, answer, fail and vanish in any order, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker, self.now = Breaker(), 0.0
        self.under_way: list[tuple[bool, AbstractContextManager[None]]] = []
        self.in_a_row, self.last_failure = 0, 0.0

    @property
    def is_tripped(self) -> bool:
        return self.in_a_row >= self.breaker.threshold

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def time_goes_on(self, seconds: float) -> None:
        """Move the clock."""
        self.now += seconds

    @rule()
    def a_call_begins(self) -> None:
        """A call goes out exactly where the breaker is not open."""
        place = self.breaker.place(self.now)
        if self.breaker.is_open(self.now):
            with pytest.raises(RuntimeError):
                place.__enter__()
            return
        place.__enter__()
        self.under_way.append((self.is_tripped, place))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 99), end=st.sampled_from(["answer", "failure", "nothing"]))
    def a_call_ends(self, which: int, end: str) -> None:
        """Any of the calls under way ends, in one of three ways."""
        _, place = self.under_way.pop(which % len(self.under_way))
        place.__exit__(None, None, None)
        if end == "answer":
            self.breaker.answered(self.now)
            self.in_a_row = 0
        elif end == "failure":
            self.breaker.failed("timeout", "A1", self.now, can_pass=False)
            self.in_a_row, self.last_failure = self.in_a_row + 1, self.now

    @invariant()
    def there_are_never_two_probes(self) -> None:
        """One at a time."""
        assert sum(is_probe for is_probe, _ in self.under_way) <= 1

    @invariant()
    def it_is_open_exactly_in_its_pause_and_during_a_probe(self) -> None:
        """Open refuses, closed lets through, half-open lets one through."""
        has_probe = any(is_probe for is_probe, _ in self.under_way)
        in_pause = self.now < self.last_failure + self.breaker.cool_down
        assert self.breaker.is_open(self.now) == (self.is_tripped and (in_pause or has_probe))


TestCalls = Calls.TestCase
