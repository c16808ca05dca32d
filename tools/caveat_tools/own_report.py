"""The mark of a report: by it a report that lies in a folder is known, and is no evidence of what it says itself."""

from __future__ import annotations

import re
from typing import Final

LEFT_OUT: Final = "it is a report of caveat's own"
"""Why such a file is left out."""

# On a line of its own, as in Markdown; or at the end of a string, as the Markdown stands in the report's JSON.
_MARK: Final = re.compile(r"^<!-- a report of caveat: [\w.-]+ -->\r?$", re.MULTILINE)
_MARK_IN_JSON: Final = re.compile(r'<!-- a report of caveat: [\w.-]+ -->\\n"')


def mark(run_id: str) -> str:
    """Return the line that marks the report of a run: a comment, which Markdown does not show."""
    return f"<!-- a report of caveat: {run_id} -->"


def is_report(text: str) -> bool:
    """Say whether a text is a report, as Markdown or as JSON, or holds one."""
    return bool(_MARK.search(text) or (text.startswith("{") and _MARK_IN_JSON.search(text)))
