"""caveat: a research agent that says what it could not find out.

`from caveat import research` is the library's front door; everything else is imported only when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caveat.coordinator import OwnTool
    from caveat.report import Report
    from caveat.session import research

__all__ = ["OwnTool", "Report", "research"]


_HOMES = {"research": "caveat.session", "Report": "caveat.report", "OwnTool": "caveat.coordinator"}

if not TYPE_CHECKING:  # or a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        """Import what is asked for, so that `caveat --help` does not pay for the SDK."""
        if name not in _HOMES:
            raise AttributeError(f"module 'caveat' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
