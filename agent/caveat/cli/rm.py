"""`caveat rm`: delete runs."""

from __future__ import annotations

import sys
from typing import Final

import click

from caveat.cli.runs import ids
from caveat.cli.terminal import EXIT_NO_REPORT, Command, read, tell

HELP: Final = """Delete all that is kept of each RUN: journal, report, transcript, the answers of its sources.

RUN is an id, or the beginning of one, as `caveat runs` lists them. On a terminal you are asked first; elsewhere, --yes
must be given. A run that is being worked on is not deleted. Reports that were written with --out or --json stay.

\b
Examples:
  caveat rm 2026-05-31-4f
  caveat rm --yes $(caveat runs --json | jq -r '.[] | select(.state == "damaged") | .id')

\b
Exit codes:
  0    deleted
  1    you said no
  2    wrong usage, or there is no such run; nothing was deleted
  4    a run could not be deleted; the reason is on standard error
"""
EXIT_DECLINED: Final = 1


@click.command(cls=Command, help=HELP, short_help="Delete runs.")
@click.argument("run", nargs=-1, required=True, shell_complete=ids)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(run: tuple[str, ...], *, yes: bool) -> None:
    """Find all of them before any is deleted."""
    settings, _ = read({})
    from caveat.history import UnknownRunError, find_run, remove_run  # noqa: PLC0415
    from caveat.journal import JournalError  # noqa: PLC0415

    try:
        folders = list(dict.fromkeys(find_run(settings.home, each) for each in run))
    except UnknownRunError as error:
        raise click.UsageError(str(error)) from error
    names = ", ".join(folder.name for folder in folders)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(f"nobody can be asked here whether to delete {names}; say --yes")
        if not click.confirm(f"Delete {names}?", err=True):
            sys.exit(EXIT_DECLINED)
    for folder in folders:
        try:
            remove_run(folder)
        except (JournalError, OSError) as error:
            tell(f"caveat: {folder.name} was not deleted: {error}")
            sys.exit(EXIT_NO_REPORT)
        tell(f"caveat: deleted {folder.name}")
