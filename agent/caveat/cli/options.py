"""Options that several commands have, and what a shell offers to complete them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from caveat_tools.faults import FAULTS, MODEL_FAULTS
from caveat_tools.names import SOURCE_NAMES

Decorator = Callable[[Any], Any]

SOURCES_IN_WORDS: Final = ", ".join(SOURCE_NAMES)


def source_names(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a comma-separated list of sources."""
    before, comma, last = typed.rpartition(",")
    given = before.split(",")
    return [
        CompletionItem(f"{before}{comma}{name}") for name in SOURCE_NAMES if name.startswith(last) and name not in given
    ]


def faults(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a comma-separated list of injected faults."""
    before, comma, last = typed.rpartition(",")
    target, colon, _ = last.partition(":")
    if colon:
        entries = [f"{target}:{fault}" for fault in (MODEL_FAULTS if target == "model" else FAULTS)]
    else:
        entries = [f"{name}:" for name in (*SOURCE_NAMES, "model", "*")]
    return [CompletionItem(f"{before}{comma}{entry}") for entry in entries if entry.startswith(last)]


docs_option: Final[Decorator] = click.option(
    "--docs", type=click.Path(path_type=Path), help="Folder of your documents, for the source local."
)
inject_option: Final[Decorator] = click.option(
    "--inject",
    default="",
    metavar="FAULTS",
    shell_complete=faults,
    help="Make calls fail on purpose, to see what happens; the grammar is in `caveat ask --help`.",
)
quiet_option: Final[Decorator] = click.option(
    "--quiet", "-q", is_flag=True, help="Nothing on standard error but errors."
)
verbose_option: Final[Decorator] = click.option(
    "--verbose", "-v", is_flag=True, help="Progress with every turn and every search."
)
