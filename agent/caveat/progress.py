"""Progress on standard error: which source, which attempt, what it waits for. Plain lines, coloured on a terminal."""

from __future__ import annotations

from typing import Any

import click

from caveat.budget import dollars
from caveat.events import Event, ModelWaiting, Notice, RunEnded, RunStarted
from caveat.loop import TurnStarted
from caveat_tools.outcome import Empty, Failed
from caveat_tools.plain_text import one_line
from caveat_tools.search import SearchEnded, SearchStarted, SearchWaiting

COLOURS = {"found": "green", "empty": "cyan", "failed": "red"}


class Progress:
    """A listener for research(on_event=…)."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._offline = True
        self.has_begun = False
        """True once a run has begun: from then on there is something to report."""
        self.can_be_resumed = ""
        """The id of the run, from its beginning on and while something is left to go on with, if it has a journal."""

    def __call__(self, event: Event) -> None:
        """Show one event, if it is worth a line."""
        if isinstance(event, RunEnded) and event.is_over:
            self.can_be_resumed = ""
        line = self._line(event)
        if line and not self._quiet:
            self.note(line)

    def note(self, text: str) -> None:
        """Show a line."""
        try:
            click.echo(text, err=True)
        except OSError:  # a closed pipe or a full disk behind standard error costs the progress, not the report
            self._quiet = True

    def _line(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                self._offline, self.has_begun = event.offline, True
                self.can_be_resumed = event.run_id if event.is_kept else ""
                return _started(event)
            case TurnStarted(agent, turn, is_recalled) if is_recalled or self._verbose or not self._offline:
                return (
                    f"{agent}: turn {turn} is in the journal"
                    if is_recalled
                    else f"{agent}: asking the model (turn {turn})"
                )
            case SearchStarted(source, query) if self._verbose:
                return f"{source}: asking “{_short(query)}”"
            case SearchWaiting(source, query, seconds, reason, attempt, attempts):
                which = f" (attempt {attempt} of {attempts})" if attempts else ""
                return f"{source}: “{_short(query)}” {reason}{which}; waiting {seconds:.1f} s"
            case SearchEnded(outcome, is_recalled):
                return _ended(outcome) + (" (in the journal)" if is_recalled else "")
            case ModelWaiting(waiting):
                return (
                    f"model: {_short(waiting.error.message)} (attempt {waiting.attempt} of {waiting.attempts}); "
                    f"waiting {waiting.seconds:.1f} s"
                )
            case Notice(text):
                return _short(text, 200)
            case _:
                return None


def _started(run: RunStarted) -> str:
    who = "the embedded stand-in, no language model" if run.offline else run.model
    line = f"run {run.run_id}: {who}; sources: {', '.join(run.sources)}"
    if run.recalled is not None:
        return f"{line}\nit goes on: {run.recalled} steps are in its journal; in all, at most {', '.join(run.at_most)}"
    if run.offline:
        return line
    cost = "cost not known: no price of this model is listed"
    if run.estimate.cost is not None:
        cost = f"{dollars(run.estimate.cost)}"
    return f"{line}\nlikely to use about {run.estimate.tokens:,} tokens ({cost}); at most {', '.join(run.at_most)}"


def _ended(outcome: Any) -> str:
    word = click.style(outcome.status.upper(), fg=COLOURS[outcome.status], bold=outcome.status == "failed")
    if isinstance(outcome, Failed):
        kept = f", {len(outcome.partial_results)} partial results kept" if outcome.partial_results else ""
        attempts = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
        why = f"{outcome.error_type}{attempts}: {_short(outcome.message)}{kept}"
        return f"{outcome.source}: “{_short(outcome.attempted_query)}” {word} {why}"
    if isinstance(outcome, Empty):
        return f"{outcome.source}: “{_short(outcome.query)}” {word} the source answered: no match"
    plural = "s" if len(outcome.results) > 1 else ""
    stored = " (a stored answer)" if outcome.served_from == "snapshot" else ""
    return f"{outcome.source}: “{_short(outcome.query)}” {word} {len(outcome.results)} result{plural}{stored}"


def _short(text: str, limit: int = 100) -> str:
    return one_line(text, limit)
