"""What all commands share: standard streams that may be closed or full, bugs, and the settings."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    from caveat.report import Report
    from caveat.settings import Origin, Settings

EXIT_GAPS: Final = 3
EXIT_NO_REPORT: Final = 4
EXIT_BUG: Final = 70  # sysexits.h: an internal software error
EXIT_INTERRUPTED: Final = 130


def begin() -> None:
    """Make a bug a sentence and a file, and let no character cost the output: what is no terminal gets UTF-8."""
    sys.excepthook = _end_with_bug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old code page must not cost the report
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")


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


def show(text: str, *, newline: bool = True, what: str = "the output", kept: Path | None = None) -> None:
    """Write to standard output. Where that is closed or full, say so, and where `what` is kept, and leave.

    A reader that has seen enough, such as `head`, is no failure: what comes after it goes nowhere.
    """
    try:
        if sys.stdout is not None:
            click.echo(text, nl=newline)
            return
        why = "it is closed"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except OSError as error:
        why = error.strerror or "it cannot be written"
    where = f"; it is kept in {kept}" if kept else ""
    tell(f"caveat: {what} could not be written to standard output ({why}){where}")
    leave(EXIT_NO_REPORT)


def show_json(text: str, *, what: str = "the output", kept: Path | None = None) -> None:
    """Write JSON to standard output as `show` does: in UTF-8, also on a terminal of another encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    show(text, what=what, kept=kept)


def show_report(report: Report, *, kept: Path | None = None) -> None:
    """Write a report to standard output as `show` does: formatted for a terminal, else as Markdown."""
    show(_formatted(report), newline=False, what="the report", kept=kept)


def _show_help(context: click.Context, _option: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's form
    if asked and not context.resilient_parsing:
        show(context.get_help())
        context.exit()


class Command(click.Command):
    """A command whose help is written by `show`."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's own option with another way to print."""
        return _shown(super().get_help_option(ctx))


class Group(click.Group):
    """A group whose help is written by `show`."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's own option with another way to print."""
        return _shown(super().get_help_option(ctx))


def _shown(option: click.Option | None) -> click.Option | None:
    if option is not None:
        option.callback = _show_help
    return option


def _formatted(report: Report) -> str:
    if sys.stdout is None or not sys.stdout.isatty():
        return report.markdown
    from rich.console import Console  # noqa: PLC0415
    from rich.theme import Theme  # noqa: PLC0415

    from caveat.render import print_report  # noqa: PLC0415

    console = Console(theme=Theme({"markdown.code": "bold cyan"}))
    console.width = max(60, console.width)  # narrower, the table would lose its columns
    with console.capture() as capture:
        print_report(report, console)
    return capture.get()
