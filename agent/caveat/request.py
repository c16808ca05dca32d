"""What research() is asked for, checked before anything is spent; and the prompts, filled with this run's numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import caveat_prompts
from caveat.budget import Limits
from caveat.coordinator import OwnTool
from caveat.errors import QuestionError, ToolsError
from caveat.ledger import MAX_TOPICS
from caveat_tools.outcome import ALTERNATIVES, ERROR_KINDS, MAX_RESULTS, ErrorKind
from caveat_tools.plain_text import plain
from caveat_tools.source import Source
from caveat_tools.sources import SourcesError

MAX_QUESTION_CHARS: Final = 10_000


def checked_question(question: str) -> str:
    """Return the question, made harmless and stripped. Raises QuestionError where it is empty or far too long."""
    text = plain(question).strip()
    if not text:
        raise QuestionError("the question is empty; say what to find out")
    if not any(char.isalnum() for char in text):
        raise QuestionError("the question holds no word; say what to find out")
    if len(text) > MAX_QUESTION_CHARS:
        raise QuestionError(
            f"the question has {len(text):,} characters, and {MAX_QUESTION_CHARS:,} are possible; "
            "put background material into files and name their folder with --docs"
        )
    return text


def strikable(sources: Sequence[Source | str]) -> list[str]:
    """Return the names of the sources that an injected fault can reach: built-in ones and those without HTTP."""
    return [s if isinstance(s, str) else s.name for s in sources if isinstance(s, str) or s.in_process]


def checked_names(sources: Sequence[Source | str], docs: Path | None) -> None:
    """Raise SourcesError where there is no source, one twice, or a folder that none reads."""
    names = [source if isinstance(source, str) else source.name for source in sources]
    if not names:
        raise SourcesError("no source is given; there must be something to search")
    for name in names:
        if not re.fullmatch(r"[a-z0-9_]{1,40}", name):
            raise SourcesError(f"a source cannot be named {name!r}; lower case, digits and _ are possible")
    if len(set(names)) < len(names):
        raise SourcesError(f"two sources have the same name: {', '.join(names)}")
    if docs is not None and "local" not in names:
        raise SourcesError(f"the folder {docs} is given, but the sources ({', '.join(names)}) leave out local")


def checked_tools(tools: Sequence[OwnTool]) -> None:
    """Raise ToolsError where a caller's tool has the name of another one."""
    names = [tool.name for tool in tools] + ["plan_topics", "search", "report_findings"]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ToolsError(f"two tools have the name {twice[0]!r}; give your own another one")


def loaded_prompts(files: Mapping[str, Path], values: Mapping[str, str]) -> dict[str, str]:
    """Return the prompt of every role. Raises PromptError, also for a role that does not exist."""
    for role in files:
        if role not in caveat_prompts.ROLES:
            raise caveat_prompts.PromptError(f"there is no role {role!r}; there are: {', '.join(caveat_prompts.ROLES)}")
    return {
        role: caveat_prompts.load(role, values, Path(files[role]) if role in files else None)
        for role in caveat_prompts.ROLES
    }


def _retryable(kind: ErrorKind) -> str:
    if len(kind.retryable) > 1:
        return "see isRetryable"
    return "retryable" if True in kind.retryable else "never retryable"


def prompt_values(limits: Limits, sources: Sequence[Source]) -> dict[str, str]:
    """Return what the prompts' placeholders stand for: every number and every name comes from code."""
    kinds = [f"- {name} ({_retryable(kind)}): {kind.when}." for name, kind in ERROR_KINDS.items()]
    takes_dates = any(source.accepts_dates for source in sources)
    possible = {name: call for name, call in ALTERNATIVES.items() if takes_dates or not name.startswith("narrow")}
    return {
        "turns": str(limits.turns),
        "calls": str(limits.calls),
        "calls_per_turn": str(limits.calls_per_turn),
        "max_topics": str(MAX_TOPICS),
        "max_results": str(MAX_RESULTS),
        "sources": ", ".join(source.name for source in sources),
        "error_types": "\n".join(kinds),
        "alternatives": "\n".join(f"- {name}: {call}." for name, call in possible.items()),
        "query_changes": " or ".join(name for name in possible if "query" in name),
    }
