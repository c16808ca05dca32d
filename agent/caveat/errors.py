"""The errors that reach a caller of research(): what was wrong with the request, and why no report was possible."""

from __future__ import annotations

from typing import Final

from caveat.settings import SettingsError
from caveat_prompts import PromptError
from caveat_tools.faults import FaultSyntaxError
from caveat_tools.sources import SourcesError
from caveat_tools.sources.local import LocalFolderError


class QuestionError(ValueError):
    """The question cannot be researched as it is; the message says why."""


class NoReportError(Exception):
    """There is nothing to report: the model gave no turn, had no room to search, cannot be asked, or was stopped."""


class StoppedError(NoReportError):
    """The stop came before anything was searched."""


class ToolsError(ValueError):
    """A caller's own tool cannot be offered as it is."""


USAGE_ERRORS: Final = (
    QuestionError,
    SettingsError,
    ToolsError,
    SourcesError,
    LocalFolderError,
    FaultSyntaxError,
    PromptError,
)
"""Raised before anything is spent."""
