"""Local recovery: one tenacity policy for sources and model alike.

Only a `RecoverableError` that says of itself that it is retryable is tried again, with exponential backoff and jitter.
A Retry-After is honoured if it fits under the deadline; if it does not, the error goes on at once, unslept.
What comes out after the last attempt is the error itself, with its whole structure and the number of attempts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from caveat_tools.clock import Clock

T = TypeVar("T")


class RecoverableError(Exception):
    """A named failure of something remote. Subclasses say what it was; these fields say what may help."""

    def __init__(
        self, message: str, *, retryable: bool, retry_after_seconds: float | None = None, attempts: int = 1
    ) -> None:
        """`retryable` means that the identical call may succeed later."""
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.attempts = attempts


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard to try: `attempts` in all, waits of `first_wait` × 2ⁿ up to `longest_wait`, within `deadline` (s)."""

    attempts: int = 3
    first_wait: float = 0.5
    longest_wait: float = 8.0
    deadline: float = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Told to the listener before each wait: which attempt failed, why, and how long the wait is (seconds)."""

    attempt: int
    attempts: int
    seconds: float
    error: RecoverableError


async def with_retries(
    call: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    clock: Clock,
    on_wait: Callable[[Waiting], None] = lambda _: None,
) -> T:
    """Call until it answers, and return the answer.

    Raises the last RecoverableError, its `attempts` set, when it is not retryable, the attempts are used up, or the
    next wait would pass the deadline. Every other exception passes through untouched at once.
    """
    started = clock.monotonic()
    attempts = 0
    last: RecoverableError  # set by `counted` before anything below can be asked about a failure

    def wait(state: RetryCallState) -> float:
        backoff = min(policy.longest_wait, policy.first_wait * 2.0 ** (state.attempt_number - 1))
        jittered = backoff * (0.5 + clock.random() / 2)
        return max(jittered, last.retry_after_seconds or 0.0)

    def stop(state: RetryCallState) -> bool:
        if state.attempt_number >= policy.attempts:
            return True
        return clock.monotonic() - started + state.upcoming_sleep > policy.deadline

    def before_sleep(state: RetryCallState) -> None:
        on_wait(Waiting(state.attempt_number, policy.attempts, state.upcoming_sleep, last))

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, RecoverableError) and e.retryable),
        wait=wait,
        stop=stop,
        sleep=clock.sleep,
        before_sleep=before_sleep,
        reraise=True,
    )

    async def counted() -> T:
        nonlocal attempts, last
        attempts += 1
        try:
            return await call()
        except RecoverableError as error:
            error.attempts, last = attempts, error
            raise

    return await retrying(counted)
