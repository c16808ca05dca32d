"""`caveat runs`: list what was asked, and what became of it."""

from __future__ import annotations

import json
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from caveat.cli.terminal import Command, read, show, show_json

COLOURS: Final = {"finished": "green", "stopped": "yellow", "unfinished": "yellow", "damaged": "red"}

HELP: Final = """List all runs, the newest first: id, state, coverage, cost, question.

\b
  finished    there is a report, and nothing is left to do
  stopped     there is a report of what there was when somebody stopped the run or its model failed
  unfinished  there is no report: the run was killed, or is at work now
  damaged     its journal cannot be read

`caveat resume` goes on with a run that is stopped or unfinished. Of a run that began with stages of another one
(`caveat resume --from`), that one is named.

\b
Examples:
  caveat runs
  caveat runs --json | jq -r '.[] | select(.state == "unfinished") | .id'

\b
Exit codes:
  0    listed
  2    wrong usage
  4    standard output could not be written
"""


def ids(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the id of a run."""
    from caveat.history import run_ids  # noqa: PLC0415

    return [CompletionItem(each) for each in run_ids(read({})[0].home) if each.startswith(typed)]


@click.command(cls=Command, help=HELP, short_help="List what was asked, and what became of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(*, as_json: bool) -> None:
    """Read the beginning and the end of every journal."""
    settings, _ = read({})
    from caveat.history import summaries  # noqa: PLC0415

    found = summaries(settings.home)
    if as_json:
        show_json(json.dumps([each.as_dict() for each in found], ensure_ascii=False, indent=2))
        return
    for each in found:
        state = click.style(f"{each.state:<10}", fg=COLOURS[each.state])
        show(f"{click.style(each.id, bold=True)}  {state}  {_in_words(each)}")
        if each.question:
            show(f"    {' '.join(each.question.split())[:200]}")
    if not found:
        show('There are no runs yet; `caveat ask "…"` makes one.')


def _in_words(summary: Any) -> str:
    from caveat.budget import dollars  # noqa: PLC0415
    from caveat.history import origin  # noqa: PLC0415

    words = [summary.coverage]
    if summary.cost is not None:
        words.append(dollars(summary.cost))
    if summary.parent and summary.begins_at:
        words.append(origin(summary.parent, summary.begins_at))
    return "; ".join(words)
