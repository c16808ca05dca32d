"""A whole session of the agent as a regression test."""

from __future__ import annotations

import pytest
from agent import ask


@pytest.mark.cassette
def test_the_time_is_looked_up() -> None:
    """The service drops the first call; the agent tries again and answers with what it was told."""
    assert ask("When is high water at Dover?") == "High water at Dover is at 11:42."
