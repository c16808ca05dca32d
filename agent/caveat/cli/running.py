"""What the commands for runs share: a kept run, where a report goes, and a research that can be interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from caveat.cli.terminal import EXIT_GAPS, EXIT_INTERRUPTED, EXIT_NO_REPORT, leave, show, show_json, show_report, tell

if TYPE_CHECKING:
    from caveat.journal import Record
    from caveat.report import Report
    from caveat_tools.stop import Stop

_STOP_SIGNALS: Final = [s for s in signal.Signals if s.name in {"SIGINT", "SIGTERM", "SIGHUP"}]  # Windows lacks one

out_option: Final = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report here, as Markdown; - for standard output.",
)
json_option: Final = click.option(
    "--json", "json_out", metavar="FILE", help="Write the report as JSON; - for standard output."
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a report is wanted: as Markdown in a file, as JSON in a file or on standard output, or printed."""

    out: Path | None
    json_file: Path | None
    json_printed: bool
    printed: bool

    @classmethod
    def checked(cls, out: Path | None, json_out: str | None) -> Delivery:
        """Return what the options ask for. Refuses, before anything is spent, what could not be written."""
        printed = out == Path("-") or (out is None and json_out is None)
        if printed and json_out == "-":
            raise click.UsageError("--out and --json both name standard output")
        out = None if out == Path("-") else out
        json_file = None if json_out is None or json_out == "-" else Path(json_out)
        to_files = [path for path in (out, json_file) if path]
        if len({os.path.realpath(path) for path in to_files}) < len(to_files):
            raise click.UsageError("--out and --json name the same file")
        for path in to_files:
            _check_writable(path)
        return cls(out, json_file, json_out == "-", printed)

    def end_with(self, report: Report, home: Path | None, *, quiet: bool) -> NoReturn:
        """Write the report where it was asked for, and exit with its code.

        What no file took goes to standard output, if nothing else does.
        """
        from caveat.places import run_folder  # noqa: PLC0415

        folder = run_folder(report.run.id, home)
        markdown, json_ = (path if path.exists() else None for path in (folder / "report.md", folder / "report.json"))
        unwritten = False
        for path, text, kept in ((self.out, report.markdown, markdown), (self.json_file, report.to_json(), json_)):
            why = _written(path, text) if path else ""
            if why:
                is_free = not (self.printed or self.json_printed or unwritten)
                where = "here it is instead:" if is_free else f"it is kept in {kept}" if kept else "it is lost"
                tell(f"caveat: cannot write {path} ({why}); {where}")
                if is_free:
                    show(text, kept=kept)
                unwritten = True
            elif path and not quiet:
                tell(f"caveat: wrote {path}")
        if self.json_printed:
            show_json(report.to_json(), what="the report", kept=json_)
        elif self.printed:
            show_report(report, kept=markdown)
        if unwritten:
            sys.exit(EXIT_NO_REPORT)
        if report.exit_code and not quiet:
            tell(f"caveat: the report has gaps (exit code {EXIT_GAPS})")
        sys.exit(report.exit_code)


def _check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before anything is spent; what is in it stays until then."""
    try:
        existed = path.exists()
        if existed and not path.is_file() and not path.is_dir():
            return  # a pipe or a device: opening it to see would already be a use of it
        with path.open("ab"):
            pass
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from error
    if not existed:
        path.unlink()


def kept_run(run: str, home: Path | None) -> tuple[Path, Record, Report | None]:
    """Return a run's folder, what its journal holds, and its report, if it has one; or say why not, and leave."""
    from caveat import history  # noqa: PLC0415
    from caveat.journal import JournalError, read_record  # noqa: PLC0415

    try:
        folder = history.find_run(home, run)
        record = read_record(folder)
        return folder, record, history.report_of(record)
    except history.UnknownRunError as error:
        raise click.UsageError(str(error)) from error
    except JournalError as error:
        tell(f"caveat: {error}")
        sys.exit(EXIT_NO_REPORT)


def researched(
    work: Callable[[Stop, Callable[[Any], None]], Awaitable[Report]], *, quiet: bool, verbose: bool
) -> Report:
    """Run the research; Ctrl-C once asks for a report of what there is, twice leaves.

    Where something is left to go on with, the line to type is told, whatever ended the run.
    """
    import asyncio  # noqa: PLC0415

    from caveat.errors import USAGE_ERRORS, NoReportError, StoppedError  # noqa: PLC0415
    from caveat.journal import JournalError  # noqa: PLC0415
    from caveat.progress import Progress  # noqa: PLC0415
    from caveat_tools.stop import Stop  # noqa: PLC0415

    progress = Progress(quiet=quiet, verbose=verbose)

    async def session() -> Report:
        stop, loop = Stop(), asyncio.get_running_loop()

        def end() -> None:
            what = "stopping; the report of what there is comes now" if progress.has_begun else "stopping"
            progress.note(f"{what}. Ctrl-C again leaves at once.{_how_to_go_on(progress.can_be_resumed)}")
            stop.ask()

        with _interrupts(lambda: loop.call_soon_threadsafe(end)):
            return await work(stop, progress)

    report = None
    try:
        report = asyncio.run(session())
    except USAGE_ERRORS as error:
        raise click.UsageError(str(error)) from error
    except StoppedError as error:
        tell(f"caveat: {error}; what was read of the folder is kept")
        sys.exit(EXIT_INTERRUPTED)
    except NoReportError as error:
        tell(f"caveat: no report: {error}")
        sys.exit(EXIT_NO_REPORT)
    except JournalError as error:
        progress.can_be_resumed = ""
        tell(f"caveat: {error}")
        sys.exit(EXIT_NO_REPORT)
    finally:
        if progress.can_be_resumed and (report is None or not quiet):
            tell(f"caveat:{_how_to_go_on(progress.can_be_resumed)}")
    return report


def _how_to_go_on(run_id: str) -> str:
    return f" `caveat resume {run_id}` goes on where it ended." if run_id else ""


@contextlib.contextmanager
def _interrupts(end: Callable[[], object]) -> Iterator[None]:
    """Inside, the first signal to stop calls `end`, the second leaves: also where the event loop does not get on."""
    came = False

    def interrupted(*_: object) -> None:
        nonlocal came
        if came:
            leave()
        came = True
        end()

    numbers = [number for number in _STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _written(path: Path, text: str) -> str:
    """Write a file; return why it could not be written, or an empty string. A pipe is not waited for."""
    try:
        with open(path, "w", encoding="utf-8", opener=_at_once) as file:
            file.write(text)
    except OSError as error:
        return "nobody reads it" if error.errno == errno.ENXIO else error.strerror or "it cannot be written"
    return ""


def _at_once(path: str, flags: int) -> int:
    """Open a file. A pipe that nobody reads is an error and no wait without end."""
    without_wait = getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    number = os.open(path, flags | without_wait, 0o666)
    if without_wait:
        os.set_blocking(number, True)
    return number
