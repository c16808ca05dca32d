"""`caveat cassettes`: list recorded sessions, and what is wrong with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from caveat.cli.terminal import Command, show, show_json

EXIT_UNFIT: Final = 1
COLOURS: Final = {"plays": "green", "stale": "yellow", "foreign": "cyan", "damaged": "red"}

HELP: Final = """List the cassettes in FOLDER (default: cassettes): how each was recorded, and whether it still plays.

Each session of caveat is played, without key or network, so that "stale" means: with today's prompts and code, caveat
asks something else than was recorded, and what. A "foreign" cassette is of another agent and is not played. Every file
is searched for keys, logins, cookies, organisation ids and e-mail addresses.

\b
Examples:
  caveat cassettes
  caveat cassettes --json | jq '.[] | select(.state != "plays")'

\b
Exit codes:
  0    all play, or are of another agent, and none holds a secret
  1    one is stale or damaged, or holds a secret
  2    wrong usage
"""


@click.command(cls=Command, help=HELP, short_help="List recorded sessions, and whether they still play.")
@click.argument(
    "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path("cassettes"), required=False
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cassettes(folder: Path, *, as_json: bool) -> None:
    """Look at each file."""
    paths = sorted(path for ending in ("yaml", "yml") for path in folder.rglob(f"*.{ending}") if not path.is_dir())
    if not paths:
        raise click.UsageError(f"there is no cassette in {folder}; a test with the marker cassette records one")
    from caveat.testing.catalogue import describe  # noqa: PLC0415

    rows = [describe(path) for path in paths]
    if as_json:
        show_json(json.dumps([row.as_dict() for row in rows], ensure_ascii=False, indent=2))
    else:
        for row in rows:
            show(f"{click.style(f'{row.state:<8}', fg=COLOURS[row.state])}{click.style(str(row.path), bold=True)}")
            for line in row.in_words():
                show(f"        {line}")
    sys.exit(EXIT_UNFIT if any(row.is_unfit for row in rows) else 0)
