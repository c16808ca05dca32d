"""`caveat sources`: what can be searched."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.cli.options import docs_option
from caveat.cli.terminal import Command, read, show, show_json

if TYPE_CHECKING:
    from caveat.settings import Settings

HELP: Final = """List the sources: what is in each, where it is, whether it takes dates.

Nothing is asked over the network. `caveat doctor` says which of them answer.

\b
Examples:
  caveat sources
  caveat sources --docs ~/notes --json | jq '.[].name'
"""


@click.command(cls=Command, help=HELP, short_help="List what can be searched.")
@docs_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sources(*, as_json: bool, **flags: Any) -> None:
    """Open each source and describe it."""
    settings, _ = read(flags)
    import asyncio  # noqa: PLC0415

    rows = asyncio.run(_described(settings))
    if as_json:
        show_json(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for row in rows:
        show(click.style(row["name"], bold=True) + ("" if row["usable"] else "  (not usable now)"))
        show(f"    {row['description']}")
        if row["usable"]:
            dates = "takes --from and --to" if row["accepts_dates"] else "takes no dates"
            show(f"    {row['place']}; {dates}")


async def _described(settings: Settings) -> list[dict[str, Any]]:
    from caveat_tools.clock import SystemClock  # noqa: PLC0415
    from caveat_tools.faults import FaultPlan  # noqa: PLC0415
    from caveat_tools.names import SOURCE_NAMES  # noqa: PLC0415
    from caveat_tools.sources import SourcesError, open_source  # noqa: PLC0415
    from caveat_tools.sources.local import LocalFolderError  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        for name in SOURCE_NAMES:
            opening = open_source(name, settings.for_sources(), faults=FaultPlan(), clock=SystemClock())
            try:
                source = await stack.enter_async_context(opening)
            except (SourcesError, LocalFolderError) as error:
                rows.append({"name": name, "usable": False, "description": str(error)})
                continue
            rows.append(
                {
                    "name": name,
                    "usable": True,
                    "description": source.description,
                    "place": source.place,
                    "accepts_dates": source.accepts_dates,
                }
            )
    return rows
