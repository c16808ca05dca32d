"""`caveat show`: the report of a run, or all that is kept of it."""

from __future__ import annotations

import json
import sys
from typing import Final

import click

from caveat.cli.running import kept_run
from caveat.cli.runs import ids
from caveat.cli.terminal import EXIT_NO_REPORT, Command, read, show_json, show_report, tell
from caveat.cli.terminal import show as print_out

HELP: Final = """Show the report of RUN again, or what is kept of it. Nothing is asked, and nothing is changed.

RUN is an id, or the beginning of one, as `caveat runs` lists them.

\b
Examples:
  caveat show 2026-05-31-4f
  caveat show 2026-05-31-4f0c2a --transcript | less
  caveat show 2026-05-31-4f0c2a --json | jq '.steps[].key'

\b
Exit codes:
  0    shown
  2    wrong usage, or there is no such run
  4    the run has no report, its journal cannot be read, or standard output could not be written
"""


@click.command(cls=Command, help=HELP, short_help="Show the report of a run, or all that is kept of it.")
@click.argument("run", shell_complete=ids)
@click.option("--json", "as_json", is_flag=True, help="Print what is kept as JSON: settings, steps, report.")
@click.option("--transcript", is_flag=True, help="Print what the model said and what it was answered.")
def show(run: str, *, as_json: bool, transcript: bool) -> None:
    """Read the journal and print it."""
    if as_json and transcript:
        raise click.UsageError("--json and --transcript exclude each other")
    settings, _ = read({})
    _, record, report = kept_run(run, settings.home)
    from caveat import history  # noqa: PLC0415

    if as_json:
        show_json(json.dumps(history.as_json(record), ensure_ascii=False, indent=2))
    elif transcript:
        print_out("\n".join(history.transcript(record)))
    elif report is not None:
        if "parent" in record.asked:
            tell(f"caveat: this run is {history.origin(record.asked['parent'], record.asked['from'])}")
        show_report(report)
    else:
        tell(
            f"caveat: the run {record.run_id} has no report yet ({history.progress_of(record)}); "
            f"`caveat resume {record.run_id}` goes on with it, and --transcript shows what there is"
        )
        sys.exit(EXIT_NO_REPORT)
