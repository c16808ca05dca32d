"""What the source `local` did not read, in sentences for the report: gaps, and notes on what was left out by design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from caveat_tools.source import Source
from caveat_tools.sources.local import LeftOut, LocalSource

NAMED: Final = 5
"""How many files of each sort a sentence names; the others are counted."""


def unread(sources: Iterable[Source]) -> list[LeftOut]:
    """Return what could not be read, or not all of it: a gap, since nobody knows what is in it."""
    return [each for source in _local(sources) for each in source.left_out if each.may_hold_evidence]


def in_a_sentence(files: Sequence[LeftOut]) -> str:
    """Return how many files could not be read, and the first few with their reasons."""
    return f"{_files(len(files))} could not be read, or not all of it: {_reasons(files)}"


def left_out_on_purpose(sources: Iterable[Source]) -> list[str]:
    """Return what is not read by design, and whose letters may be wrong: worth a note, not a gap."""
    return [note for source in _local(sources) for note in _notes(source)]


def _notes(source: LocalSource) -> Iterable[str]:
    on_purpose = [each for each in source.left_out if not each.may_hold_evidence]
    if on_purpose:
        yield f"{_files(len(on_purpose))} left out: {_reasons(on_purpose)}."
    if source.hidden:
        yield f"Hidden files and folders were left out ({len(source.hidden)}): {_some(source.hidden, ', ')}."
    if source.ignored:
        yield (
            f"Files and folders that a .gitignore excludes were left out ({len(source.ignored)}): "
            f"{_some(source.ignored, ', ')}."
        )
    if source.guessed:
        files = [f"{path} ({encoding})" for path, encoding in source.guessed.items()]
        yield f"The encoding is a guess, and letters may be wrong, in {_some(files)}."
    if source.other_kinds:
        kinds = Counter(source.other_kinds).most_common()
        named = [f"{count} {kind or 'without a suffix'}" for kind, count in kinds]
        yield f"Files that are neither text nor documents were left out: {_some(named, ', ')}."


def _local(sources: Iterable[Source]) -> list[LocalSource]:
    return [source for source in sources if isinstance(source, LocalSource)]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _reasons(entries: Sequence[LeftOut]) -> str:
    return _some([f"{entry.path} ({entry.reason})" for entry in entries])


def _some(named: Sequence[str], mark: str = "; ") -> str:
    """Return the first few, and how many more there are."""
    more = f"{mark}and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return mark.join(named[:NAMED]) + more
