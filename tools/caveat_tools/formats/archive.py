"""Documents that are ZIP archives: opened only if nothing in them unpacks to more than it may."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from caveat_tools.formats import UnreadableError

MAX_MEMBER_BYTES: Final = 30_000_000
_MAX_MEMBERS: Final = 20_000
_TEXT: Final = (".xml", ".rels", ".opf", ".ncx", ".xhtml", ".html", ".htm")


@contextmanager
def checked(file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading. Raises UnreadableError for one that is damaged or too large.

    What it says of its sizes is only a first look: `member` reads no more than it may, whatever is said.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise UnreadableError("it is damaged") from error
    with archive:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            raise UnreadableError(f"it has more than {_MAX_MEMBERS} parts")
        if any(each.file_size > MAX_MEMBER_BYTES for each in members if each.filename.lower().endswith(_TEXT)):
            raise UnreadableError(f"a part of it is larger than {MAX_MEMBER_BYTES // 1_000_000} MB when unpacked")
        yield archive


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a part of an archive. Raises UnreadableError where it is missing, damaged, locked or too large."""
    try:
        with archive.open(name) as part:
            data = part.read(MAX_MEMBER_BYTES + 1)
    except KeyError as error:
        raise UnreadableError("a part of it is missing") from error
    except RuntimeError as error:  # NotImplementedError too: an unknown method of packing
        raise UnreadableError("a part of it is locked with a password") from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise UnreadableError("a part of it is damaged") from error
    if len(data) > MAX_MEMBER_BYTES:
        raise UnreadableError(f"a part of it is larger than {MAX_MEMBER_BYTES // 1_000_000} MB when unpacked")
    return data
