"""`caveat doctor`: what works, what does not, what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from caveat.cli.options import docs_option
from caveat.cli.terminal import EXIT_GAPS, Command, read, show, show_json, tell

MARKS: Final = {"works": ("works", "green"), "note": ("note", "yellow"), "fails": ("FAILS", "red")}

HELP: Final = """Check key, model, sources, store, disk, proxy and certificates: what works, what does not, what to do.

Each source is asked one short question, and the model's server whether it knows key and model; neither costs anything.
--turn also asks the model for one short turn, which costs less than a cent.

--bundle writes a report for a bug tracker: versions, settings and all results, without keys, passwords, your address
or the names of your folders.

\b
Examples:
  caveat doctor
  caveat doctor --docs ~/notes --turn
  caveat doctor --bundle caveat-doctor.json

\b
Exit codes:
  0    everything that is set up works
  3    something does not
  2    wrong usage
  4    the result could not be written to standard output
  130  interrupted
"""


@click.command(cls=Command, help=HELP, short_help="Check what works, and say what to do.")
@docs_option
@click.option("--turn", is_flag=True, help="Also ask the model for one short turn.")
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), help="Write a redacted report here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, turn: bool, bundle: Path | None, as_json: bool, **flags: Any) -> None:
    """Run all checks side by side and print them in order."""
    settings, origins = read(flags)
    import asyncio  # noqa: PLC0415

    from caveat.diagnosis import diagnose, redacted_report  # noqa: PLC0415

    checks = asyncio.run(diagnose(settings, with_turn=turn))
    if as_json:
        show_json(json.dumps([check.as_dict() for check in checks], ensure_ascii=False, indent=2))
    else:
        for check in checks:
            word, colour = MARKS[check.state]
            show(f"{click.style(f'{word:<6}', fg=colour)} {check.name}: {check.what}")
            if check.todo:
                show(f"       → {check.todo}")
    if bundle is not None:
        try:
            bundle.write_text(redacted_report(checks, settings, origins), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"cannot write {bundle}: {error.strerror}") from error
        tell(f"caveat: wrote {bundle}; look through it before you send it")
    sys.exit(EXIT_GAPS if any(check.state == "fails" for check in checks) else 0)
