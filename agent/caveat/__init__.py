"""caveat: a research agent that says what it could not find out.

`from caveat import research` is the library's front door; everything else is imported only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caveat.coordinator import OwnTool
    from caveat.report import Report
    from caveat.session import research

__all__ = ["OwnTool", "Report", "research"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that `caveat --help` does not pay for the SDK."""
    if name == "research":
        from caveat.session import research  # noqa: PLC0415

        return research
    if name == "Report":
        from caveat.report import Report  # noqa: PLC0415

        return Report
    if name == "OwnTool":
        from caveat.coordinator import OwnTool  # noqa: PLC0415

        return OwnTool
    raise AttributeError(name)
