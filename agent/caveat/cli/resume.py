"""`caveat resume`: go on with a run where it ended."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from caveat.cli.options import quiet_option, verbose_option
from caveat.cli.running import Delivery, json_option, kept_run, out_option, researched
from caveat.cli.runs import ids
from caveat.cli.terminal import Command, read

if TYPE_CHECKING:
    from caveat.journal import Journal, Record, Stage
    from caveat.report import Report
    from caveat.settings import Settings
    from caveat_tools.stop import Stop

HELP: Final = """Go on with RUN where it ended, whatever ended it: Ctrl-C, a crash, a kill, a model that failed.

Finished turns of the model and finished searches are in the run's journal and are not asked again; of what was under
way, at most that is repeated. A run that is finished gives its report again, and nothing is spent. RUN is an id, or the
beginning of one, as `caveat runs` lists them.

Question, sources, model, limits and injected faults are those of the run; keys and addresses are today's. Where
prompts, sources or caveat itself have changed so that something else would be asked, the run has diverged: that is
said, and nothing is spent.

With --from, RUN stays as it is, and a new run begins with what RUN has found: it does that stage and all later ones
anew, with the prompts of today and the model that --model names. The stages are retrieval (searching), analysis (what
was found becomes claims) and synthesis (claims become prose). Nothing is searched again; the new run has time of its
own, and the tokens and cost of what it begins with count in it.

\b
Examples:
  caveat resume 2026-05-31-4f
  caveat resume 2026-05-31-4f0c2a --out report.md
  caveat resume 2026-05-31-4f0c2a --retry-failed
  caveat resume 2026-05-31-4f0c2a --from synthesis --out another.md
  caveat resume 2026-05-31-4f0c2a --from analysis --model claude-haiku-5-5

\b
Exit codes:
  0    every topic is covered, or was searched without finding an answer
  3    a report with gaps
  2    wrong usage, or there is no such run; nothing was spent
  4    no report was possible (the run has diverged, is locked or damaged, …), or it could not be written
  70   a bug in caveat; a file to send with the report of it is named
  130  interrupted twice, or before anything was searched
"""


@click.command(cls=Command, help=HELP, short_help="Go on with a run where it ended.")
@click.argument("run", shell_complete=ids)
@out_option
@json_option
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Ask again what has failed; where it ends otherwise, what rests on it is asked anew.",
)
@click.option(
    "--from",
    "stage",
    type=click.Choice(["analysis", "synthesis"]),
    help="Begin a new run with what RUN has, and do this stage and all later ones anew.",
)
@click.option("--model", metavar="NAME", help="With --from: the model to ask.  [default: that of RUN]")
@quiet_option
@verbose_option
def resume(
    run: str,
    out: Path | None,
    json_out: str | None,
    stage: Stage | None,
    model: str | None,
    *,
    retry_failed: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Find the run; print the report that it has, go on with it, or begin another one with it."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    if stage and retry_failed:
        raise click.UsageError("--from and --retry-failed exclude each other")
    if model is not None and not stage:
        raise click.UsageError("--model goes with --from; a run that goes on keeps its model")
    delivery = Delivery.checked(out, json_out)
    settings, _ = read({})
    folder, record, report = kept_run(run, settings.home)
    if stage or report is None or not record.is_over or retry_failed:
        _check_can_go_on(record, settings, model, retry_failed=retry_failed)
        report = researched(
            lambda stop, on_event: (
                _branched(record, stage, model, settings, stop, on_event)
                if stage
                else _resumed(folder, settings, stop, on_event, retry_failed=retry_failed)
            ),
            quiet=quiet,
            verbose=verbose,
        )
    delivery.end_with(report, settings.home, quiet=quiet)


def _check_can_go_on(record: Record, settings: Settings, model: str | None, *, retry_failed: bool) -> None:
    """Refuse what cannot go on from here, with what would help."""
    if retry_failed and "parent" in record.asked:
        parent = record.asked["parent"]
        raise click.UsageError(
            f"the searches of this run are those of {parent}; `caveat resume {parent} --retry-failed` asks them again"
        )
    if retry_failed and record.report is not None and record.report["run"]["end"] == "time_spent":
        raise click.UsageError("the time of this run is spent, so nothing can be asked again; ask the question anew")
    if record.asked["own"]:
        names = ", ".join(record.asked["own"])
        raise click.UsageError(f"a program of your own brought parts of this run ({names}); resume it from there")
    from caveat.model import asks_a_server  # noqa: PLC0415

    if (model or not record.asked["offline"]) and not asks_a_server(settings.model_copy(update={"offline": False})):
        whose = f"to ask {model}" if model else f"this run asked {record.asked['model']}"
        raise click.UsageError(f"{whose}: set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL")


async def _resumed(
    folder: Path, settings: Settings, stop: Stop, on_event: Callable[[Any], None], *, retry_failed: bool
) -> Report:
    from caveat.journal import Journal  # noqa: PLC0415

    with closing(Journal.open(folder, ask_failed_again=retry_failed)) as journal:
        return await _gone_on_with(journal, settings, stop, on_event)


async def _branched(
    parent: Record,
    stage: Stage,
    model: str | None,
    settings: Settings,
    stop: Stop,
    on_event: Callable[[Any], None],
) -> Report:
    """Begin a run with the stages of another one that come before `stage`."""
    from caveat.events import Notice  # noqa: PLC0415
    from caveat.history import origin  # noqa: PLC0415
    from caveat.journal import Journal  # noqa: PLC0415
    from caveat.places import run_folder  # noqa: PLC0415
    from caveat.runs import unused_id  # noqa: PLC0415
    from caveat_tools.clock import SystemClock  # noqa: PLC0415

    run_id = unused_id(f"{SystemClock().now():%Y-%m-%d}-{secrets.token_hex(3)}", settings.home)
    folder = run_folder(run_id, settings.home)
    with closing(Journal.branch(parent, folder, stage)) as journal:
        on_event(Notice(f"a new run, {origin(parent.run_id, stage)}"))
        return await _gone_on_with(journal, settings, stop, on_event, model)


async def _gone_on_with(
    journal: Journal, settings: Settings, stop: Stop, on_event: Callable[[Any], None], model: str | None = None
) -> Report:
    """Research the question of a journal, with all that made the run what it is; `model` takes the place of its own."""
    from caveat.budget import Limits  # noqa: PLC0415
    from caveat.session import research  # noqa: PLC0415

    assert journal.record is not None  # noqa: S101 - `Journal.open` has read it, or it is the parent's
    asked = journal.record.asked
    offline = asked["offline"] and model is None
    return await research(
        asked["question"],
        sources=asked["sources"],
        docs=asked["docs"],
        model=None if offline else model or asked["model"],
        offline=offline,
        inject=asked["inject"],
        limits=Limits(**asked["limits"]),
        settings=settings,
        journal=journal,
        stop=stop,
        on_event=on_event,
    )
