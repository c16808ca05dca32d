"""`caveat config`: each setting, and where it is from."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.cli.terminal import Command, read, show, show_json

if TYPE_CHECKING:
    from caveat.settings import Origin, Settings

HELP: Final = """Show every setting, its value, and where it is from.

A setting can stand in four places, each stronger than the one before:

\b
  1. caveat.toml in the current folder    docs = "notes"
  2. your own file (named below)          contact = "you@example.org"
  3. the environment                      CAVEAT_MAX_COST=0.5; ANTHROPIC_BASE_URL for base_url
  4. flags                                --max-cost 0.5

The folder's file is the weakest, since it may be somebody else's; it cannot set addresses, contact or home. Keys
stand in no file: set ANTHROPIC_API_KEY. Relative paths in a file are relative to it. A setting that does not exist is
an error.

\b
Examples:
  caveat config
  caveat config --json | jq .max_cost
"""


@click.command(cls=Command, help=HELP, short_help="Show every setting, and where it is from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(*, as_json: bool) -> None:
    """Read the settings as every command does, and print them."""
    from caveat.places import user_file  # noqa: PLC0415
    from caveat.settings import FILE_NAME, KEY_VARIABLES  # noqa: PLC0415

    settings, origins = read({})
    rows = shown(settings, origins)
    if as_json:
        show_json(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    width = max(map(len, rows))
    for name, row in rows.items():
        value = "(not set)" if row["value"] in (None, "") else str(row["value"])
        show(f"{name:<{width}}  {value:<24}  {row['from']}")
    for name in KEY_VARIABLES:
        if os.environ.get(name):
            show(f"{name} is set (not shown)")
    show(f"\nFiles: ./{FILE_NAME} and {user_file()}")


def shown(settings: Settings, origins: dict[str, Origin]) -> dict[str, dict[str, Any]]:
    """Return value and origin of each setting, fit for JSON."""
    from caveat_tools.network import without_password  # noqa: PLC0415

    values = {
        name: without_password(value) if name.endswith("_url") and value else value
        for name, value in settings.model_dump(mode="json").items()
    }
    return {
        name: {
            "value": value,
            "from": origins[name].in_words(),
            "what": type(settings).model_fields[name].description,
        }
        for name, value in values.items()
    }
