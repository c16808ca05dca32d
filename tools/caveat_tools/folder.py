"""What is in a folder of documents: files to read, and what is left out unopened, each with the reason.

Links to folders are not followed. Hidden names and what Git's files of patterns exclude are left out: each `.gitignore`
from the root of the folder's work tree down, and `.git/info/exclude` there. The folder that is named is searched even
if they exclude it. A folder that is left out is not looked into and counts once.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from caveat_tools.formats import UNREADABLE, WITHOUT_TEXT, Kind, kind_of, max_bytes
from caveat_tools.plain_text import one_line

_MAX_PATH_CHARS: Final = 400  # as shown: with its place it has to fit an address
_MAX_KIND_CHARS: Final = 20
_MAX_GITIGNORE_BYTES: Final = 100_000
_MAX_PATTERNS_WITH_STARS: Final = 2_000


class LocalFolderError(ValueError):
    """The folder cannot be searched. The message is one sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that was not read, or only in part: its path inside the folder, on one line, and a clause why.

    `may_hold_evidence` is False for what is left out on purpose: links, pipes and the like, files without any text, and
    reports of caveat's own.
    """

    path: str
    reason: str
    may_hold_evidence: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: its path inside the folder, and what differs when it has changed: its size in bytes, the times of
    change of its content and of its entry, in nanoseconds, and the number of its entry.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(slots=True)
class Listing:
    """A folder's files by path, and what else is in it. Paths of folders end in a slash."""

    files: list[File] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    other_kinds: Counter[str] = field(default_factory=Counter)


def list_folder(folder: Path, go_on: Callable[[], None] = lambda: None) -> Listing:
    """List a folder, by path. Raises LocalFolderError where it cannot be opened; folders inside it may be closed.

    `go_on` is called before each entry is looked at; what it raises ends the listing.
    """
    named = shown(str(folder))
    try:
        os.scandir(folder).close()
    except FileNotFoundError as error:
        raise LocalFolderError(f"{named} does not exist: name a folder of documents.") from error
    except NotADirectoryError as error:
        raise LocalFolderError(f"{named} is a file: name the folder that it is in.") from error
    except ValueError as error:  # a NUL in it
        raise LocalFolderError(f"{named} is no name of a folder: name one that exists.") from error
    except OSError as error:
        raise LocalFolderError(f"{named} cannot be opened ({error.strerror}): check its permissions.") from error
    listing = Listing()
    waiting = [("", _ignoring_above(folder, go_on))]  # no recursion: folders can be nested very deeply
    while waiting:
        parent, above = waiting.pop()
        try:
            with os.scandir(folder / parent) as scan:
                entries = list(scan)
        except OSError as error:
            listing.left_out.append(LeftOut(shown(parent), f"it cannot be opened: {error.strerror}"))
            continue
        if parent and any(entry.name == "pyvenv.cfg" for entry in entries):
            reason = "it holds an environment of Python, not documents"
            listing.left_out.append(LeftOut(f"{shown(parent)}/", reason, may_hold_evidence=False))
            continue
        ignoring = above.below(parent, go_on) if any(entry.name == ".gitignore" for entry in entries) else above
        for entry in entries:
            go_on()
            path = f"{parent}/{entry.name}" if parent else entry.name
            if _listed(entry, path, ignoring, listing):
                waiting.append((path, ignoring))
    listing.files.sort(key=lambda file: os.fsencode(file.path))
    listing.hidden.sort()
    listing.ignored.sort()
    return listing


def _listed(entry: os.DirEntry[str], path: str, ignoring: _Ignoring, listing: Listing) -> bool:
    """Put an entry where it belongs in the listing, or return True for a folder to look into."""
    is_link = entry.is_symlink()
    # for a link that leads in a circle, entry.is_dir() would raise
    is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir(follow_symlinks=False)  # noqa: PTH112
    slash = "/" if is_folder and not is_link else ""
    if entry.name.startswith("."):
        listing.hidden.append(shown(path) + slash)
    elif ignoring.excludes(path + slash):
        listing.ignored.append(shown(path) + slash)
    elif is_folder and is_link:
        listing.left_out.append(LeftOut(shown(path), "it is a link to a folder", may_hold_evidence=False))
    elif is_folder:
        return True
    else:
        _list_file(entry, path, listing)
    return False


def _list_file(entry: os.DirEntry[str], path: str, listing: Listing) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        listing.left_out.append(LeftOut(shown(path), f"it cannot be opened: {error.strerror}"))
        return
    suffix = Path(path).suffix.lower()
    kind = kind_of(path)
    if not stat.S_ISREG(status.st_mode):
        reason = "it is a link or not a regular file"
        listing.left_out.append(LeftOut(shown(path), reason, may_hold_evidence=False))
    elif suffix in WITHOUT_TEXT:
        listing.other_kinds[shown_kind(path)] += 1
    elif suffix in UNREADABLE:
        listing.left_out.append(LeftOut(shown(path), f"documents of the kind {suffix} are not read"))
    elif status.st_size > max_bytes(kind) and kind != "unknown":
        listing.left_out.append(LeftOut(shown(path), too_large(kind)))
    else:
        listing.files.append(File(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))


def too_large(kind: Kind) -> str:
    """Return why a file of a kind is left out that is larger than it may be."""
    return f"it is larger than {max_bytes(kind) // 1_000_000} MB"


class _Ignoring:
    """The files of patterns that hold in a folder, innermost first, each with the folder that its patterns are about.

    Paths inside are those from `top` on, the root of the work tree; `named` is the folder that is listed.
    """

    def __init__(self, top: Path, named: str = "", specs: Sequence[tuple[str, GitIgnoreSpec]] = ()) -> None:
        self._top = top
        self._named = named
        self._specs = specs

    def below(self, parent: str, go_on: Callable[[], None], name: str = ".gitignore") -> _Ignoring:
        """Return what holds in `parent`, whose own file of patterns is stronger than those above."""
        base = f"{self._named}{parent}/" if parent else self._named
        spec = _spec(self._top / base / name, go_on)
        return _Ignoring(self._top, self._named, [(base, spec), *self._specs]) if spec else self

    def excludes(self, path: str) -> bool:
        """Say whether the innermost file that has a word on `path` excludes it."""
        path = self._named + path
        verdicts = (spec.check_file(path[len(base) :]).include for base, spec in self._specs)
        return next((verdict for verdict in verdicts if verdict is not None), False)

    def within(self, name: str) -> _Ignoring:
        """Return what holds in a folder inside that is searched whatever excludes it: such patterns do not count."""
        named = f"{self._named}{name}/"
        return _Ignoring(self._top, named, [(base, _without(spec, named[len(base) :])) for base, spec in self._specs])


def _ignoring_above(folder: Path, go_on: Callable[[], None]) -> _Ignoring:
    """Return what holds in a folder by the files above it, from the root of its Git work tree on, if it is in one."""
    folder = folder.resolve()
    # a parent may be closed to us, where Path.exists would raise
    top = next((each for each in (folder, *folder.parents) if os.path.lexists(each / ".git")), None)
    if top is None:
        return _Ignoring(folder)
    ignoring = _Ignoring(top).below("", go_on, ".git/info/exclude")
    for name in folder.relative_to(top).parts:
        ignoring = ignoring.below("", go_on).within(name)
    return ignoring


def _spec(path: Path, go_on: Callable[[], None]) -> GitIgnoreSpec | None:
    """Return the patterns of a file. One that cannot be opened, or is no regular file, has none."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            data = file.read(_MAX_GITIGNORE_BYTES + 1)
    except OSError:
        return None
    if len(data) > _MAX_GITIGNORE_BYTES:
        data = data.rpartition(b"\n")[0]  # half a pattern could exclude everything
    return GitIgnoreSpec(_patterns(data.decode("utf-8-sig", "replace"), go_on))


def _without(spec: GitIgnoreSpec, path: str) -> GitIgnoreSpec:
    """Return the patterns but those that exclude a path."""
    return GitIgnoreSpec([each for each in spec.patterns if not (each.include and each.match_file(path))])


def _patterns(text: str, go_on: Callable[[], None]) -> Iterator[GitIgnoreSpecPattern]:
    """Yield the patterns of a `.gitignore`, each once. Git passes over those that are none.

    Passed over too are patterns that could take years to match: with more than two stars in one name, two stars in more
    than one name, or `**` more than twice; and what comes after 2 000 patterns with stars.
    """
    with_stars = 0
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for line in reversed(dict.fromkeys(reversed(lines))):  # the last of equal ones decides
        go_on()
        names = line.split("/")
        stars = sorted(name.count("*") for name in names if name != "**") or [0]
        if names.count("**") > 2 or stars[-1] > 2 or stars[-2:] == [2, 2]:
            continue
        with_stars += "*" in line
        if "*" in line and with_stars > _MAX_PATTERNS_WITH_STARS:
            continue
        with suppress(ValueError):
            yield GitIgnoreSpecPattern(line)


def shown(path: str) -> str:
    """Return a path as it is shown: on one line, without controls; bytes that are not UTF-8 become U+FFFD.

    One that is too long loses its beginning.
    """
    line = one_line(path, len(path) + 1)
    return (line if len(line) <= _MAX_PATH_CHARS else "…" + line[1 - _MAX_PATH_CHARS :]) or "?"


def shown_kind(path: str) -> str:
    """Return the suffix of a file in lower case as it is shown; "" for none."""
    return one_line(Path(path).suffix.lower(), _MAX_KIND_CHARS)
