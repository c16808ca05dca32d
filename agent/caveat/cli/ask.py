"""`caveat ask`: a question becomes a report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.budget import Limits, dollars, duration
from caveat.cli.options import SOURCES_IN_WORDS, docs_option, inject_option, quiet_option, source_names, verbose_option
from caveat.cli.running import Delivery, json_option, out_option, researched
from caveat.cli.terminal import Command, read
from caveat_tools.faults import GRAMMAR

if TYPE_CHECKING:
    from caveat.report import Report
    from caveat.settings import Settings
    from caveat_tools.stop import Stop

_DEFAULTS: Final = Limits()

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
Runs: what is finished is kept, and `caveat resume RUN` goes on after Ctrl-C, a crash or a kill; see `caveat runs`.

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
@out_option
@json_option
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
    delivery = Delivery.checked(out, json_out)
    text = _question(question)
    settings, _ = read(flags)
    _check_sources(flags, settings)
    report = researched(
        lambda stop, on_event: _research(text, settings, inject, flags["model"], stop, on_event),
        quiet=quiet,
        verbose=verbose,
    )
    delivery.end_with(report, settings.home, quiet=quiet)


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
