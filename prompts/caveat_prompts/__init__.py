"""The prompts, one Markdown file a role; code fills placeholders like $turns, so that no number stands twice."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

ROLES: Final = ("coordinator", "synthesis")


class PromptError(ValueError):
    """A prompt file that cannot be read, or that has a placeholder which nothing fills."""


def load(role: str, values: Mapping[str, str], path: Path | None = None) -> str:
    """Return the prompt of a role, placeholders filled; `path` names a file that takes its place.

    Raises PromptError.
    """
    try:
        text = (resources.files(__name__) / f"{role}.md" if path is None else path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"the {role} prompt cannot be read: {error}") from error
    try:
        return Template(text).substitute(values)
    except KeyError as error:
        known = ", ".join(f"${name}" for name in values)
        raise PromptError(f"the {role} prompt has the placeholder ${error.args[0]}; known are {known}") from error
    except ValueError as error:
        raise PromptError(f"the {role} prompt has a lone $; write $$ for a dollar sign ({error})") from error
