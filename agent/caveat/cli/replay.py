"""`caveat replay`: play a recorded session in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.cli.options import quiet_option, verbose_option
from caveat.cli.terminal import EXIT_INTERRUPTED, EXIT_NO_REPORT, Command, leave, show_json, show_report, tell

if TYPE_CHECKING:
    from vcr.request import Request

    from caveat.report import Report

HELP: Final = """Play the session on CASSETTE again, without key, network or wait: progress, report and coverage.

The whole of caveat is at work; only the answers of model and sources come from the file. So it shows what today's code
makes of them. A source local reads its folder anew.

\b
Examples:
  caveat replay cassettes/test_sessions/test_dead_source.yaml
  caveat replay session.yaml --step
  caveat replay session.yaml --json - | jq .gaps

\b
Exit codes:
  0    played; every topic is covered, or was searched without finding an answer
  3    played; a report with gaps
  2    wrong usage, or a file that is no session of caveat
  4    today's caveat asks something else than was recorded; what differs is on standard error
  130  interrupted, or left at a step
"""


@click.command(cls=Command, help=HELP, short_help="Play a recorded session again.")
@click.argument("cassette", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--step", is_flag=True, help="Show each request and answer; on a terminal, wait for Enter after each.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@quiet_option
@verbose_option
def replay(cassette: Path, *, step: bool, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Play the session, and exit with the report's code."""
    import asyncio  # noqa: PLC0415

    from caveat.errors import USAGE_ERRORS, NoReportError  # noqa: PLC0415
    from caveat.testing.cassette_file import CassetteFileError  # noqa: PLC0415
    from caveat.testing.miss import CassetteError  # noqa: PLC0415

    try:
        report = asyncio.run(_played(cassette, step=step, quiet=quiet, verbose=verbose))
    except (CassetteFileError, *USAGE_ERRORS) as error:
        raise click.UsageError(str(error)) from error
    except CassetteError as error:
        tell(f"caveat: {error}")
        sys.exit(EXIT_NO_REPORT)
    except NoReportError as error:
        tell(f"caveat: no report: {error}")
        sys.exit(EXIT_NO_REPORT)
    if as_json:
        show_json(report.to_json(), what="the report")
    else:
        show_report(report)
    sys.exit(report.exit_code)


async def _played(path: Path, *, step: bool, quiet: bool, verbose: bool) -> Report:
    from caveat.progress import Progress  # noqa: PLC0415
    from caveat.testing.cassette import use_cassette  # noqa: PLC0415
    from caveat.testing.session import play, session_of  # noqa: PLC0415

    with use_cassette(path) as cassette:
        session = session_of(cassette)
        if step:
            cassette.on_play = _stepper(len(cassette))
        report = await play(cassette, session, Progress(quiet=quiet, verbose=verbose))
    if cassette.not_played:
        tell(f"caveat: today's caveat asked for {cassette.play_count} of the {len(cassette)} recorded interactions")
    return report


def _stepper(number_of_all: int) -> Callable[[Request, dict[str, Any]], None]:
    from caveat.testing.conversation import in_words  # noqa: PLC0415

    number = 0

    def show_step(request: Request, response: dict[str, Any]) -> None:
        nonlocal number
        number += 1
        first, *others = in_words(request, response)
        tell("\n".join([click.style(f"[{number}/{number_of_all}] {first}", bold=True), *others]))
        if sys.stdin is not None and sys.stdin.isatty() and not _goes_on():
            leave(EXIT_INTERRUPTED)  # from inside the session: an exception would be one of its own

    return show_step


def _goes_on() -> bool:
    try:
        answer = click.prompt("Enter for the next, q to leave", default="", show_default=False, err=True)
    except click.Abort:  # Ctrl-C, or Ctrl-D
        return False
    return bool(answer.strip().lower() != "q")
