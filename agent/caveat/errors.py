"""The errors that reach a caller of research(): what was wrong with the request, and why no report was possible."""

from __future__ import annotations

from typing import Final

from caveat_prompts import PromptError
from caveat_tools.faults import FaultSyntaxError
from caveat_tools.sources import SourcesError
from caveat_tools.sources.local import LocalFolderError


class QuestionError(ValueError):
    """The question cannot be researched as it is; the message says why."""


class NoReportError(Exception):
    """The model never gave a single turn, so there is nothing to report; the message says what to set."""


class HomeError(ValueError):
    """CAVEAT_HOME cannot be read as a folder's name."""


USAGE_ERRORS: Final = (HomeError, QuestionError, SourcesError, LocalFolderError, FaultSyntaxError, PromptError)
"""Raised before anything is spent."""
