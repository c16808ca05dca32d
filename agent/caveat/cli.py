"""The command `caveat`. Imports neither the SDK nor the store until a command needs them, so that --help is quick."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from caveat.budget import Limits
from caveat_tools.faults import GRAMMAR

if TYPE_CHECKING:
    from caveat.report import Report
    from caveat_tools.stop import Stop

EXIT_NO_REPORT, EXIT_INTERRUPTED = 4, 130
DEFAULTS = Limits()
_STOP_SIGNALS = [s for s in signal.Signals if s.name in {"SIGINT", "SIGTERM", "SIGHUP"}]  # Windows lacks the last

ASK_HELP = f"""Answer QUESTION from sources, with a quote for every claim and a name for every gap.

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
Environment:
  ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL   the model's key and address
  CAVEAT_MODEL                            the model's name (--model)
  CAVEAT_WIKIPEDIA_URL                    another MediaWiki API; {{language}} stands for the query's language
  CAVEAT_CONTACT                          your address, sent to public services in the User-Agent
  CAVEAT_HOME                             where runs and stored answers are kept; old runs may be deleted

\b
Fault injection (--inject), to watch it recover:
{"".join(f"  {line}" + chr(10) for line in GRAMMAR.splitlines())}
\b
Exit codes:
  0    every topic is covered, or was searched without finding an answer
  3    a report with gaps
  2    wrong usage; nothing was spent
  4    no report was possible; the reason is on standard error
  1    a bug in caveat; a file to send with the report of it is named
  130  interrupted twice, or before the run began
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("caveat"), prog_name="caveat")
def main() -> None:
    """A research agent that says what it could not find out."""


def _limit(name: str, kind: click.IntRange, default: int, what: str) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, help=what)


@main.command(help=ASK_HELP, short_help="Answer a question from sources.")
@click.argument("question")
@click.option("--docs", type=click.Path(path_type=Path), help="Folder of your documents, for the source local.")
@click.option(
    "--sources",
    metavar="NAME,…",
    help="Sources to use, in order: local, wikipedia.  [default: local (with --docs) and wikipedia]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report here, as Markdown; - for standard output.",
)
@click.option("--json", "json_out", metavar="FILE", help="Write the report as JSON; - for standard output.")
@click.option("--model", metavar="NAME", help="The model to ask.  [default: CAVEAT_MODEL, else claude-sonnet-5-5]")
@click.option("--offline", is_flag=True, help="Use the embedded stand-in even if a key is set.")
@click.option("--inject", default="", metavar="FAULTS", help="Make calls fail on purpose; the grammar is above.")
@_limit("--max-turns", click.IntRange(2, 100), DEFAULTS.turns, "Model turns at most.")
@_limit("--max-calls", click.IntRange(1, 500), DEFAULTS.calls, "Searches at most.")
@_limit("--max-tokens", click.IntRange(1_000), DEFAULTS.tokens, "Tokens of retrieval at most.")
@click.option("--quiet", "-q", is_flag=True, help="Nothing on standard error but errors.")
@click.option("--verbose", "-v", is_flag=True, help="Progress with every turn and every search.")
def ask(
    question: str, docs: Path | None, sources: str | None, out: Path | None, json_out: str | None, **options: Any
) -> None:
    """Check all that can be checked before anything is spent, research, deliver, and exit with the report's code."""
    sys.excepthook = report_bug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old code page must not cost the report
    if options["quiet"] and options["verbose"]:
        raise click.UsageError("--quiet and --verbose exclude each other")
    printed = out == Path("-") or (out is None and json_out is None)
    if printed and json_out == "-":
        raise click.UsageError("--out and --json both name standard output")
    out = None if out == Path("-") else out
    with _interrupts_leave():
        text = _question(question)
    names = _sources(sources, docs)
    if docs is not None:
        if "local" not in names:
            raise click.UsageError("--docs is given, but --sources leaves out local")
        try:
            docs = docs.expanduser()
        except RuntimeError as error:
            raise click.UsageError(f"--docs {docs}: {error}") from error
    to_files = [path for path in (out, _json_file(json_out)) if path]
    if len({os.path.realpath(path) for path in to_files}) < len(to_files):
        raise click.UsageError("--out and --json name the same file")
    for path in to_files:
        _check_writable(path)
    with _interrupts_leave():
        report = _run(
            lambda stop, on_event: _research(text, names, docs, stop, on_event, options),
            quiet=options["quiet"],
            verbose=options["verbose"],
        )
    with _interrupts_leave():  # the event loop has put the default handler back when it closed
        _deliver(report, out, json_out, printed=printed, quiet=options["quiet"])
    if report.exit_code and not options["quiet"]:
        _tell("caveat: the report has gaps (exit code 3)")
    sys.exit(report.exit_code)


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell of an exception that nobody has named: it is a bug. The traceback goes to a file that can be sent."""
    described = "".join(traceback.format_exception(kind, error, trace))
    what = f"caveat: this is a bug in caveat: {kind.__name__}: {error}".splitlines()[0]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="caveat-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(described)
        _tell(f"{what}\nPlease report it, with {file.name}")
    except OSError:
        _tell(f"{what}\n{described}")


def _question(question: str) -> str:
    if question != "-":
        return question
    if sys.stdin is None:
        raise click.UsageError("the question was to come from standard input, which is closed")
    if sys.stdin.isatty():
        click.echo("Type the question, then Ctrl-D:", err=True)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the question on standard input is not UTF-8: {error}") from error


def _sources(given: str | None, docs: Path | None) -> list[str]:
    if given is None:
        return ["local", "wikipedia"] if docs else ["wikipedia"]
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise click.UsageError("--sources names no source")
    return names


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
    names: list[str],
    docs: Path | None,
    stop: Stop,
    on_event: Callable[[Any], None],
    options: dict[str, Any],
) -> Report:
    from caveat.session import research  # noqa: PLC0415

    return await research(
        question,
        sources=names,
        docs=docs,
        model=options["model"],
        offline=options["offline"],
        inject=options["inject"],
        limits=Limits(turns=options["max_turns"], calls=options["max_calls"], tokens=options["max_tokens"]),
        stop=stop,
        on_event=on_event,
    )


def _run(work: Callable[[Stop, Callable[[Any], None]], Awaitable[Report]], *, quiet: bool, verbose: bool) -> Report:
    """Run the research; Ctrl-C once asks for a report of what there is, twice leaves."""
    from caveat.errors import USAGE_ERRORS, NoReportError  # noqa: PLC0415
    from caveat.progress import Progress  # noqa: PLC0415
    from caveat_tools.stop import Stop  # noqa: PLC0415

    progress = Progress(quiet=quiet, verbose=verbose)

    async def session() -> Report:
        stop = Stop()

        def interrupted() -> None:
            if stop.asked:
                _leave()
            progress.note("stopping; the report of what there is comes now. Ctrl-C again leaves at once.")
            stop.ask()

        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows has no such handlers; there Ctrl-C leaves at once
            for number in _STOP_SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    loop.add_signal_handler(number, interrupted)
        return await work(stop, progress)

    try:
        return asyncio.run(session())
    except USAGE_ERRORS as error:
        raise click.UsageError(str(error)) from error
    except NoReportError as error:
        _tell(f"caveat: no report: {error}")
        sys.exit(EXIT_NO_REPORT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _leave(code: int = EXIT_INTERRUPTED) -> NoReturn:
    """End at once, without the buffers and threads that could hold the process."""
    os._exit(code)


def _tell(text: str) -> None:
    """Say something on standard error, if there still is one."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


@contextlib.contextmanager
def _interrupts_leave() -> Iterator[None]:
    """Where no report can be made yet or any more, Ctrl-C leaves with its exit code and without a traceback."""
    before = signal.signal(signal.SIGINT, lambda *_: _leave())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _json_file(json_out: str | None) -> Path | None:
    return None if json_out is None or json_out == "-" else Path(json_out)


def _deliver(report: Report, out: Path | None, json_out: str | None, *, printed: bool, quiet: bool) -> None:
    """Write the report where it was asked for; what cannot be written is said, with where the run keeps its copy."""
    try:
        _write(report, out, json_out, printed=printed, quiet=quiet)
        if sys.stdout is not None:
            sys.stdout.flush()
        elif printed or json_out == "-":
            _undelivered(report, "it is closed")
    except BrokenPipeError:  # a reader that has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _undelivered(report, error.strerror)


def _undelivered(report: Report, why: str | None) -> NoReturn:
    from caveat.runs import folder_of  # noqa: PLC0415

    kept = folder_of(report.run.id) / "report.md"
    where = f"; it is kept in {kept}" if kept.exists() else ""
    _tell(f"caveat: the report could not be written to standard output ({why}){where}")
    _leave(EXIT_NO_REPORT)


def _write(report: Report, out: Path | None, json_out: str | None, *, printed: bool, quiet: bool) -> None:
    for path, text in ((out, report.markdown), (_json_file(json_out), report.to_json())):
        if path is None:
            continue
        try:
            path.write_text(text, encoding="utf-8")
            if not quiet:
                _tell(f"caveat: wrote {path}")
        except OSError as error:
            _tell(f"caveat: cannot write {path} ({error.strerror}); here it is instead:")
            click.echo(text)
    if json_out == "-":
        click.echo(report.to_json())
    elif printed:
        if sys.stdout is not None and sys.stdout.isatty():
            from rich.console import Console  # noqa: PLC0415
            from rich.theme import Theme  # noqa: PLC0415

            from caveat.render import print_report  # noqa: PLC0415

            console = Console(theme=Theme({"markdown.code": "bold cyan"}))
            console.width = max(60, console.width)  # narrower, the table would lose its columns
            print_report(report, console)
        else:
            click.echo(report.markdown, nl=False)
