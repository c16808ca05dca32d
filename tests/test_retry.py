"""Local recovery: what is tried again, how long it waits, and what comes out in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock
from caveat_tools.retry import RecoverableError, RetryPolicy, Waiting, with_retries


class Remote:
    """Fails as often as it is told, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def passing(after: float | None = None) -> RecoverableError:
    return RecoverableError("slow", retryable=True, retry_after_seconds=after)


async def test_a_passing_failure_is_recovered_by_asking_again() -> None:
    """Two time-outs and an answer are an answer, at the third attempt."""
    clock, remote = FakeClock(), Remote(passing(), passing())
    assert await with_retries(remote, policy=RetryPolicy(), clock=clock) == "answer"
    assert remote.calls == 3


async def test_waits_grow_exponentially_and_are_jittered() -> None:
    """A struggling service is given more room each time."""
    clock, remote = FakeClock(), Remote(*[passing() for _ in range(4)])
    await with_retries(remote, policy=RetryPolicy(attempts=5, first_wait=1, longest_wait=4), clock=clock)
    assert clock.slept == [0.75, 1.5, 3.0, 3.0]  # half of the jitter, from a clock whose chance is always one half


async def test_what_cannot_pass_is_not_tried_again() -> None:
    """A wrong query is not sent three times."""
    clock, remote = FakeClock(), Remote(RecoverableError("bad query", retryable=False))
    with pytest.raises(RecoverableError, match="bad query") as caught:
        await with_retries(remote, policy=RetryPolicy(), clock=clock)
    assert (remote.calls, clock.slept, caught.value.attempts) == (1, [], 1)


async def test_after_the_last_attempt_the_whole_error_comes_out() -> None:
    """Exhaustion gives the last error itself, with all its fields, never a summary."""
    clock, last = FakeClock(), passing(after=0.1)
    remote = Remote(passing(), passing(), last)
    with pytest.raises(RecoverableError) as caught:
        await with_retries(remote, policy=RetryPolicy(attempts=3), clock=clock)
    assert caught.value is last
    assert caught.value.attempts == 3


async def test_retry_after_is_honoured() -> None:
    """A service that asks for seven seconds gets them."""
    clock = FakeClock()
    await with_retries(Remote(passing(after=7.0)), policy=RetryPolicy(), clock=clock)
    assert clock.slept == [7.0]


async def test_a_retry_after_beyond_the_deadline_is_not_slept() -> None:
    """Nobody waits 500 seconds inside one search: the error goes on at once and says how long the wait would be."""
    clock = FakeClock()
    with pytest.raises(RecoverableError) as caught:
        await with_retries(Remote(passing(after=500.0)), policy=RetryPolicy(deadline=30), clock=clock)
    assert clock.slept == []
    assert caught.value.retry_after_seconds == 500.0


async def test_a_bug_is_not_retried() -> None:
    """An exception that nobody named ends the call at once, unchanged."""
    remote = Remote(KeyError("bug"))
    with pytest.raises(KeyError, match="bug"):
        await with_retries(remote, policy=RetryPolicy(), clock=FakeClock())
    assert remote.calls == 1


async def test_each_wait_is_announced_before_it_begins() -> None:
    """A listener can show which attempt failed, why, and how long the wait is."""
    heard: list[Waiting] = []
    await with_retries(Remote(passing()), policy=RetryPolicy(attempts=3), clock=FakeClock(), on_wait=heard.append)
    assert [(w.attempt, w.attempts, w.error.message) for w in heard] == [(1, 3, "slow")]
    assert heard[0].seconds > 0


@given(
    st.lists(st.one_of(st.none(), st.floats(min_value=0, max_value=100)), max_size=8),
    st.integers(min_value=1, max_value=6),
    st.floats(min_value=0, max_value=60),
)
async def test_no_series_of_failures_exceeds_attempts_or_deadline(
    waits: list[float | None], attempts: int, deadline: float
) -> None:
    """Whatever the service asks for, the call ends within the attempts and the waits within the deadline."""
    clock, remote = FakeClock(), Remote(*[passing(after) for after in waits])
    try:
        await with_retries(remote, policy=RetryPolicy(attempts=attempts, deadline=deadline), clock=clock)
    except RecoverableError as error:
        assert error.attempts == remote.calls
    assert remote.calls <= attempts
    assert sum(clock.slept) <= deadline
