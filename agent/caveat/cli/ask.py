"""`caveat ask`: a question becomes a report."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.budget import Limits, dollars, duration
from caveat.cli.options import SOURCES_IN_WORDS, docs_option, inject_option, quiet_option, source_names, verbose_option
from caveat.cli.terminal import (
    EXIT_GAPS,
    EXIT_INTERRUPTED,
    EXIT_NO_REPORT,
    Command,
    leave,
    read,
    show,
    show_json,
    show_report,
    tell,
)
from caveat_tools.faults import GRAMMAR

if TYPE_CHECKING:
    from caveat.report import Report
    from caveat.settings import Settings
    from caveat_tools.stop import Stop

_DEFAULTS: Final = Limits()
_STOP_SIGNALS: Final = [s for s in signal.Signals if s.name in {"SIGINT", "SIGTERM", "SIGHUP"}]  # Windows lacks one

_COST: Final = dollars(_DEFAULTS.cost or 0.0)
ASK_HELP: Final = f"""Answer QUESTION from sources, with a quote for every claim and a name for every gap.

QUESTION can be - to read it from standard input. The report goes to standard output (formatted on a terminal,
Markdown in a pipe), progress to standard error.

\b
Examples:
  caveat ask "When was the Kariba dam finished?"
  caveat ask "What did we decide about backups?" --docs ~/notes --sources local,wikipedia --out report.md
  caveat ask "…" --json - | jq .topics
  caveat ask "…" --inject 'wikipedia:timeout*2,local:empty'
  echo "a long question" | caveat ask -

\b
Model: ANTHROPIC_API_KEY asks the hosted model; ANTHROPIC_BASE_URL any server that speaks the Messages API. Without
either, an embedded stand-in copies the best-matching sentences by fixed rules; it is no language model, and says so.

\b
Limits: what is likely to be used is said at the start, and a spent limit ends in a report. The last 15 % of tokens,
cost and time are kept for writing it. No turn begins beyond tokens or cost; time ends what is under way.

\b
Settings: every option but --out, --json, --inject, -q and -v can stand in caveat.toml, in your own file or in the
environment (CAVEAT_MAX_CALLS=20); `caveat config --help` says how.

\b
Fault injection (--inject), to watch it recover:
{"".join(f"  {line}" + chr(10) for line in GRAMMAR.splitlines())}
\b
Exit codes:
  0    every topic is covered, or was searched without finding an answer
  3    a report with gaps
  2    wrong usage; nothing was spent
  4    no report was possible, or it could not be written; the reason is on standard error
  70   a bug in caveat; a file to send with the report of it is named
  130  interrupted twice, or before anything was searched
"""


@click.command(cls=Command, help=ASK_HELP, short_help="Answer a question from sources.")
@click.argument("question")
@docs_option
@click.option(
    "--sources",
    metavar="NAME,…",
    shell_complete=source_names,
    help=f"Sources to use, in order: {SOURCES_IN_WORDS}.  [default: local (with --docs) and wikipedia]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report here, as Markdown; - for standard output.",
)
@click.option("--json", "json_out", metavar="FILE", help="Write the report as JSON; - for standard output.")
@click.option("--model", metavar="NAME", help="The model to ask.  [default: claude-sonnet-5-5]")
@click.option("--offline", is_flag=True, default=None, help="Use the embedded stand-in even if a key is set.")
@inject_option
@click.option("--max-turns", type=int, help=f"Model turns at most.  [default: {_DEFAULTS.turns}]")
@click.option("--max-calls", type=int, help=f"Searches at most.  [default: {_DEFAULTS.calls}]")
@click.option("--max-tokens", type=int, help=f"Tokens at most, in and out.  [default: {_DEFAULTS.tokens:,}]")
@click.option(
    "--max-cost", type=float, help=f"US dollars at most, where the model's price is known.  [default: {_COST}]"
)
@click.option(
    "--max-time", metavar="TIME", help=f"Time at most, like 90s, 30m or 2h.  [default: {duration(_DEFAULTS.seconds)}]"
)
@quiet_option
@verbose_option
def ask(
    question: str,
    out: Path | None,
    json_out: str | None,
    inject: str,
    *,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> None:
    """Check all that can be checked before anything is spent, research, deliver, and exit with the report's code."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    printed = out == Path("-") or (out is None and json_out is None)
    if printed and json_out == "-":
        raise click.UsageError("--out and --json both name standard output")
    out = None if out == Path("-") else out
    text = _question(question)
    settings, _ = read(flags)
    _check_sources(flags, settings)
    to_files = [path for path in (out, _json_file(json_out)) if path]
    if len({os.path.realpath(path) for path in to_files}) < len(to_files):
        raise click.UsageError("--out and --json name the same file")
    for path in to_files:
        _check_writable(path)
    report = _run(
        lambda stop, on_event: _research(text, settings, inject, flags["model"], stop, on_event),
        quiet=quiet,
        verbose=verbose,
    )
    _deliver(report, settings.home, out, json_out, printed=printed, quiet=quiet)
    if report.exit_code and not quiet:
        tell(f"caveat: the report has gaps (exit code {EXIT_GAPS})")
    sys.exit(report.exit_code)


def _question(question: str) -> str:
    if question != "-":
        return question
    if sys.stdin is None:
        raise click.UsageError("the question was to come from standard input, which is closed")
    if sys.stdin.isatty():
        click.echo("Type the question, then Ctrl-D:", err=True)
    from caveat.request import MAX_QUESTION_CHARS  # noqa: PLC0415

    most = 4 * MAX_QUESTION_CHARS
    read = sys.stdin.buffer.read(most + 1)
    if len(read) > most:
        raise click.UsageError(f"standard input holds more than the {MAX_QUESTION_CHARS:,} characters of a question")
    try:
        return read.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the question on standard input is not UTF-8: {error}") from error


def _check_sources(flags: dict[str, Any], settings: Settings) -> None:
    """Refuse flags that contradict each other; settings of different places may."""
    if flags["sources"] is not None and not settings.sources:
        raise click.UsageError("--sources names no source")
    if flags["docs"] is not None and settings.sources and "local" not in settings.sources:
        where = "--sources leaves" if flags["sources"] is not None else "the setting sources leaves"
        raise click.UsageError(f"--docs is given, but {where} out local")


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


async def _research(
    question: str,
    settings: Settings,
    inject: str,
    model: str | None,
    stop: Stop,
    on_event: Callable[[Any], None],
) -> Report:
    from caveat.session import research  # noqa: PLC0415

    return await research(question, settings=settings, inject=inject, model=model, stop=stop, on_event=on_event)


def _run(work: Callable[[Stop, Callable[[Any], None]], Awaitable[Report]], *, quiet: bool, verbose: bool) -> Report:
    """Run the research; Ctrl-C once asks for a report of what there is, twice leaves."""
    import asyncio  # noqa: PLC0415

    from caveat.errors import USAGE_ERRORS, NoReportError, StoppedError  # noqa: PLC0415
    from caveat.progress import Progress  # noqa: PLC0415
    from caveat_tools.stop import Stop  # noqa: PLC0415

    progress = Progress(quiet=quiet, verbose=verbose)

    async def session() -> Report:
        stop, loop = Stop(), asyncio.get_running_loop()

        def end() -> None:
            what = "stopping; the report of what there is comes now" if progress.has_begun else "stopping"
            progress.note(f"{what}. Ctrl-C again leaves at once.")
            stop.ask()

        with _interrupts(lambda: loop.call_soon_threadsafe(end)):
            return await work(stop, progress)

    try:
        return asyncio.run(session())
    except USAGE_ERRORS as error:
        raise click.UsageError(str(error)) from error
    except StoppedError as error:
        tell(f"caveat: {error}; what was read of the folder is kept")
        sys.exit(EXIT_INTERRUPTED)
    except NoReportError as error:
        tell(f"caveat: no report: {error}")
        sys.exit(EXIT_NO_REPORT)


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


def _json_file(json_out: str | None) -> Path | None:
    return None if json_out is None or json_out == "-" else Path(json_out)


def _deliver(
    report: Report, home: Path | None, out: Path | None, json_out: str | None, *, printed: bool, quiet: bool
) -> None:
    """Write the report where it was asked for. What no file took goes to standard output, if nothing else does."""
    from caveat.places import run_folder  # noqa: PLC0415

    folder = run_folder(report.run.id, home)
    markdown, json_ = (path if path.exists() else None for path in (folder / "report.md", folder / "report.json"))
    unwritten = False
    for path, text, kept in (
        (out, report.markdown, markdown),
        (_json_file(json_out), report.to_json(), json_),
    ):
        why = _written(path, text) if path else ""
        if why:
            is_free = not (printed or json_out == "-" or unwritten)
            where = "here it is instead:" if is_free else f"it is kept in {kept}" if kept else "it is lost"
            tell(f"caveat: cannot write {path} ({why}); {where}")
            if is_free:
                show(text, kept=kept)
            unwritten = True
        elif path and not quiet:
            tell(f"caveat: wrote {path}")
    if json_out == "-":
        show_json(report.to_json(), what="the report", kept=json_)
    elif printed:
        show_report(report, kept=markdown)
    if unwritten:
        sys.exit(EXIT_NO_REPORT)


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
