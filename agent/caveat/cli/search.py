"""`caveat search`: one search by hand, as the model would send it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.cli.options import docs_option, inject_option, quiet_option, source_names, verbose_option
from caveat.cli.terminal import EXIT_GAPS, Command, read, show, show_json, tell

if TYPE_CHECKING:
    from caveat.settings import Settings
    from caveat_tools.outcome import Empty, Failed, Found
    from caveat_tools.source import Ask

EXIT_EMPTY: Final = 1
_DAY: Final = click.DateTime(["%Y-%m-%d"])

HELP: Final = """Search SOURCE for QUERY, as the model does: with the same retries, limits and outcomes.

Nothing is spent on a model. --json prints exactly what the model would be shown.

\b
Examples:
  caveat search wikipedia "Kariba dam"
  caveat search local "backup decision" --docs ~/notes
  caveat search arxiv "graph neural networks" --from 2024-01-01 --limit 3
  caveat search wikipedia "Kariba dam" --inject 'wikipedia:timeout*3' --json | jq .errorType

\b
Exit codes:
  0    found
  1    empty: the source answered, holds no match, and has left nothing unread
  3    failed: the source could not be asked, or not completely
  2    wrong usage
  4    the result could not be written to standard output
  70   a bug in caveat
  130  interrupted
"""


@click.command(cls=Command, help=HELP, short_help="Search one source by hand.")
@click.argument("source", shell_complete=source_names)
@click.argument("query")
@docs_option
@click.option("--from", "date_from", type=_DAY, metavar="YYYY-MM-DD", help="Earliest day; not for every source.")
@click.option("--to", "date_to", type=_DAY, metavar="YYYY-MM-DD", help="Latest day; not for every source.")
@click.option("--limit", type=click.IntRange(1, 8), default=5, show_default=True, help="Results at most.")
@inject_option
@click.option("--json", "as_json", is_flag=True, help="Print the tool_result as the model would see it.")
@quiet_option
@verbose_option
def search(  # noqa: PLR0913 - one parameter an option
    source: str,
    query: str,
    date_from: datetime | None,
    date_to: datetime | None,
    limit: int,
    inject: str,
    *,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> None:
    """Check the call as the model's would be checked, search, print the outcome."""
    settings, _ = read(flags)
    ask = _checked(query, date_from, date_to, limit)
    import asyncio  # noqa: PLC0415

    outcome, unread = asyncio.run(_searched(source, ask, settings, inject, quiet=quiet, verbose=verbose))
    _show(outcome, as_json=as_json, quiet=quiet)
    if unread:
        tell(f"caveat: {unread}")
    codes = {"found": 0, "empty": EXIT_GAPS if unread else EXIT_EMPTY, "failed": EXIT_GAPS}
    sys.exit(codes[outcome.status])


def _checked(query: str, date_from: datetime | None, date_to: datetime | None, limit: int) -> Ask:
    from caveat_tools.outcome import MAX_QUERY_CHARS  # noqa: PLC0415
    from caveat_tools.source import Ask  # noqa: PLC0415

    query = query.strip()
    if not query:
        raise click.UsageError("QUERY is empty; say what to search for")
    if len(query) > MAX_QUERY_CHARS:
        raise click.UsageError(f"QUERY has {len(query)} characters, and {MAX_QUERY_CHARS} are possible")
    if date_from and date_to and date_from > date_to:
        raise click.UsageError("--from is later than --to")
    first, last = (day.date().isoformat() if day else None for day in (date_from, date_to))
    return Ask(query, first, last, limit)


async def _searched(
    name: str, ask: Ask, settings: Settings, inject: str, *, quiet: bool, verbose: bool
) -> tuple[Found | Empty | Failed, str]:
    """Return the outcome, and what of a folder could not be read, in a sentence."""
    from caveat.errors import USAGE_ERRORS  # noqa: PLC0415
    from caveat.events import Notice  # noqa: PLC0415
    from caveat.progress import Progress  # noqa: PLC0415
    from caveat.unread import in_a_sentence, unread  # noqa: PLC0415
    from caveat_tools.clock import SystemClock  # noqa: PLC0415
    from caveat_tools.faults import parse_faults  # noqa: PLC0415
    from caveat_tools.pace import paces_for  # noqa: PLC0415
    from caveat_tools.search import SearchEnded, Searcher  # noqa: PLC0415
    from caveat_tools.snapshots import Snapshots  # noqa: PLC0415
    from caveat_tools.sources import open_source  # noqa: PLC0415

    progress = Progress(quiet=quiet, verbose=verbose)
    clock = SystemClock()
    try:
        faults = parse_faults(inject, [name], model=False)
        opening = open_source(
            name,
            settings.for_sources(),
            faults=faults,
            clock=clock,
            on_progress=lambda text: progress(Notice(text)),
            on_notice=lambda text: progress(Notice(text)),
        )
        async with opening as source:
            searcher = Searcher(
                [source],
                clock=clock,
                snapshots=Snapshots([]),
                faults=faults,
                paces=paces_for(clock),
                on_event=lambda event: None if isinstance(event, SearchEnded) else progress(event),
            )
            outcome = await searcher.search(name, ask)
            files = unread([source])
            return outcome, in_a_sentence(files) if files else ""
    except USAGE_ERRORS as error:
        raise click.UsageError(str(error)) from error


def _show(outcome: Found | Empty | Failed, *, as_json: bool, quiet: bool) -> None:
    from caveat_tools.outcome import Failed, Found, results_of, to_json, wire  # noqa: PLC0415

    if as_json:
        show_json(to_json(wire(outcome)))
        return
    for number, result in enumerate(results_of(outcome), 1):
        date = f" ({result.date})" if result.date else ""
        show(click.style(f"{number}. {result.title}{date}", bold=True))
        show(f"   {result.url}\n")
        show("".join(f"   {line}\n" for line in result.text.splitlines()))
    if isinstance(outcome, Failed):
        kept = f"; {len(outcome.partial_results)} results had arrived before" if outcome.partial_results else ""
        word = click.style("FAILED", fg="red", bold=True)
        tell(f"caveat: {word} {outcome.error_type}: {outcome.message}{kept}")
    elif quiet:
        return
    elif isinstance(outcome, Found):
        total = "" if outcome.total is None else f" of {outcome.total:,}"
        tell(f"caveat: {click.style('FOUND', fg='green')} {len(outcome.results)}{total} in {outcome.source}")
    else:
        tell(f"caveat: {click.style('EMPTY', fg='cyan')} {outcome.source} answered and holds no match")
