"""Lives of a run, each in a process that can be killed before or after a commit, forked from one that has imported all.

One order a line on standard input, as JSON: `folder` (the run's), `report` (a file for it), `kill` (which commit of
this life, from 1; 0 for none), `when` (before or after), `environment`. The answer is a line with what the life ended
with.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from caveat.cli.resume import _gone_on_with
from caveat.journal import FILE_NAME, Journal, Step
from caveat.report import Report
from caveat.session import research
from caveat.settings import read_settings
from caveat_tools.stop import Stop

QUESTION = "When were the Kariba and Itaipu dams finished?"


class KilledJournal(Journal):
    """A journal whose process dies at a commit."""

    kill = 0
    when = "before"

    def commit(self, step: Step, texts: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        self.kill -= 1
        if self.kill == 0 and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(step, texts, forgotten)
        if self.kill == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(order: dict[str, Any]) -> Report:
    """Begin a run, or go on with it."""
    settings, folder = read_settings()[0], Path(order["folder"])
    goes_on = (folder / FILE_NAME).exists()
    journal = KilledJournal.open(folder) if goes_on else KilledJournal(folder.name, folder)
    journal.kill, journal.when = order["kill"], order["when"]
    if goes_on:
        return await _gone_on_with(journal, settings, Stop(), lambda _: None)
    return await research(QUESTION, settings=settings, journal=journal)


async def _warm_up() -> None:
    """Import what is imported on first use, so that no life has to."""
    await research("Anything?", sources=["wikipedia"], inject="*:403", offline=True, journal=Journal("warm"))


def main() -> None:
    """Take orders until there are none."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["CAVEAT_HOME"] = home
        asyncio.run(_warm_up())
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            os.environ.update(order["environment"])
            try:
                Path(order["report"]).write_text(asyncio.run(live(order)).to_json())
            except BaseException:  # noqa: BLE001 - a test sees the exit code
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
