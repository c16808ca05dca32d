"""What all commands share: standard streams that may be closed, interrupts, bugs, and the settings."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    from caveat.settings import Origin, Settings

EXIT_GAPS: Final = 3
EXIT_BUG: Final = 70  # sysexits.h: an internal software error
EXIT_INTERRUPTED: Final = 130


def begin() -> None:
    """Make a bug a sentence and a file, and let no character cost the output."""
    sys.excepthook = _end_with_bug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old code page must not cost the report


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell of an exception that nobody has named: it is a bug. The traceback goes to a file that can be sent."""
    described = "".join(traceback.format_exception(kind, error, trace))
    what = f"caveat: this is a bug in caveat: {kind.__name__}: {error}".splitlines()[0]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="caveat-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(described)
        tell(f"{what}\nPlease report it, with {file.name}")
    except OSError:
        tell(f"{what}\n{described}")


def _end_with_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    report_bug(kind, error, trace)
    leave(EXIT_BUG)


def read(flags: dict[str, Any]) -> tuple[Settings, dict[str, Origin]]:
    """Return the settings of this call, and where each is from. A setting that cannot be used is a usage error."""
    from caveat.places import user_file  # noqa: PLC0415
    from caveat.settings import SettingsError, read_settings  # noqa: PLC0415

    try:
        return read_settings(flags, folder=Path.cwd(), file=user_file())
    except (SettingsError, OSError) as error:
        raise click.UsageError(str(error)) from error


def leave(code: int = EXIT_INTERRUPTED) -> NoReturn:
    """End at once, without the buffers and threads that could hold the process."""
    os._exit(code)


def tell(text: str) -> None:
    """Say something on standard error, if there still is one."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


@contextlib.contextmanager
def interrupts_leave() -> Iterator[None]:
    """Where nothing is to be kept, Ctrl-C leaves with its exit code and without a traceback."""
    before = signal.signal(signal.SIGINT, lambda *_: leave())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
