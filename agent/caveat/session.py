"""research(): a question becomes a report. Reads from top to bottom like the diagram in docs/architecture.md.

open a run → retrieval (the coordinator's loop) → synthesis (claims → prose) → the report, by code
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import caveat_prompts
from caveat.budget import Limits
from caveat.compose import Material, compose, for_synthesis, verified
from caveat.coordinator import OwnTool, PlanTopicsTool, RecordedTool, ReportFindingsTool, SearchTool, refusal_recorder
from caveat.errors import NoReportError, QuestionError, ToolsError
from caveat.events import Event, ModelWaiting, Notice, RunStarted
from caveat.ledger import MAX_TOPICS, Ledger
from caveat.loop import run_agent
from caveat.model import Model, ModelError, open_model
from caveat.report import Report, Run
from caveat.runs import RunStore
from caveat.synthesis import synthesise
from caveat_tools.clock import Clock, SystemClock
from caveat_tools.faults import FaultPlan, parse_faults
from caveat_tools.outcome import ALTERNATIVES, ERROR_KINDS, MAX_RESULTS, ErrorKind
from caveat_tools.plain_text import plain
from caveat_tools.search import Searcher
from caveat_tools.source import Source
from caveat_tools.sources import SourcesError, open_source
from caveat_tools.sources.local import LeftOut, LocalSource
from caveat_tools.stop import Stop, Stopped

MAX_QUESTION_CHARS: Final = 10_000
UNREAD_NAMED: Final = 5


async def research(  # noqa: PLR0913 - the library's front door: every seam has a default
    question: str,
    *,
    sources: Sequence[Source | str] | None = None,
    docs: Path | str | None = None,
    tools: Sequence[OwnTool] = (),
    model: Model | str | None = None,
    offline: bool = False,
    inject: str = "",
    limits: Limits | None = None,
    prompts: Mapping[str, Path] | None = None,
    stop: Stop | None = None,
    home: Path | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
    on_event: Callable[[Event], None] = lambda _: None,
) -> Report:
    """Research a question and return the report. Works inside a running event loop, several at once.

    `sources` are names of built-in sources or objects of your own (see `caveat_tools.source.Source`), by default
    `local` (with `docs`) and `wikipedia`; `docs` is the folder that `local` searches. `tools` are offered to the model
    beside the built-in ones. `inject` is a fault injection in the grammar of `caveat_tools.faults`. `model` is a name,
    or a Model of your own. `prompts` maps a role (coordinator, synthesis) to a file that takes the place of the
    built-in prompt. `stop.ask()` ends the work early, with a report of what there is. `home` is where runs and stored
    answers are kept.

    Raises QuestionError, SourcesError, LocalFolderError, ToolsError, FaultSyntaxError, PromptError or HomeError before
    anything is spent; NoReportError when the model never answers, or the stop comes before anything was searched.
    Failures of sources, and of the model later on, are in the report and raise nothing.
    """
    question = checked_question(question)
    clock, limits, stop = clock or SystemClock(), limits or Limits(), stop or Stop()
    docs = Path(docs) if docs is not None else None
    if sources is None:
        sources = ("local", "wikipedia") if docs else ("wikipedia",)
    checked_names(sources, docs)
    checked_tools(tools)
    faults = parse_faults(inject, strikable(sources), model=not isinstance(model, Model))
    started, run_id = clock.monotonic(), f"{clock.now():%Y-%m-%d}-{new_id()}"
    notes: list[str] = []

    def warn(text: str) -> None:
        notes.append(text)
        on_event(Notice(text))

    async with AsyncExitStack() as resources:
        try:
            ready = await stop.race(_opened(sources, docs, faults, clock, resources, on_event))
        except Stopped:
            raise NoReportError("stopped before anything was searched") from None
        notes += _left_out_on_purpose(ready)
        store = RunStore(home, run_id, warn)
        snapshots = store.snapshots(clock)
        resources.callback(snapshots.close)
        llm = await _model(model, clock, faults, resources, on_event, offline=offline)
        if llm.is_offline and model:
            on_event(Notice(f"the model {model} is not asked: there is no key and no base URL, or --offline is given"))
        if inject:
            on_event(Notice(f"faults are injected on purpose: {inject}"))
        on_event(RunStarted(run_id, llm.name, llm.is_offline, tuple(source.name for source in ready)))
        ledger = Ledger(question, clock.now)
        searcher = Searcher(ready, clock=clock, snapshots=snapshots, faults=faults, stop=stop, on_event=on_event)
        report_findings = ReportFindingsTool(ledger)
        own = [RecordedTool(tool, ledger) for tool in tools]
        system = loaded_prompts(prompts or {}, prompt_values(limits, ready))

        end = await run_agent(
            name="coordinator",
            model=llm,
            system=system["coordinator"],
            tools=[PlanTopicsTool(ledger), SearchTool(ledger, searcher), *own, report_findings],
            opening=f"<question>\n{question}\n</question>\n\nToday is {clock.now():%Y-%m-%d}.",
            limits=limits,
            stop=stop,
            refuse=refusal_recorder(ledger),
            on_event=on_event,
        )
        if end.reason == "model_failed" and end.turns == 0:
            raise NoReportError(end.detail)

        material = Material(question, ledger, report_findings.claims, report_findings.notes, end, notes, _unread(ready))
        synthesis = None
        if not stop.asked and end.reason != "model_failed" and any(claim.verified for claim in material.claims):
            on_event(Notice("writing the prose"))
            synthesis = await synthesise(
                question,
                for_synthesis(ledger, verified(material)),
                model=llm,
                system=system["synthesis"],
                stop=stop,
                on_event=on_event,
            )
        run = Run(
            id=run_id,
            model=llm.name,
            offline=llm.is_offline,
            model_calls=llm.usage.calls,
            tool_calls=end.tool_uses + (synthesis.end.tool_uses if synthesis else 0),
            input_tokens=llm.usage.input_tokens,
            output_tokens=llm.usage.output_tokens,
            cost=None,
            seconds=round(clock.monotonic() - started, 1),
            end=end.reason,
            injected=inject,
        )
        report = compose(material, synthesis, run)
        store.keep(report, {"coordinator": end, "synthesis": synthesis.end if synthesis else None})
        return report


def checked_question(question: str) -> str:
    """Return the question, made harmless and stripped. Raises QuestionError where it is empty or far too long."""
    text = plain(question).strip()
    if not text:
        raise QuestionError("the question is empty; say what to find out")
    if not any(char.isalnum() for char in text):
        raise QuestionError("the question holds no word; say what to find out")
    if len(text) > MAX_QUESTION_CHARS:
        raise QuestionError(
            f"the question has {len(text):,} characters, and {MAX_QUESTION_CHARS:,} are possible; "
            "put background material into files and name their folder with --docs"
        )
    return text


def strikable(sources: Sequence[Source | str]) -> list[str]:
    """Return the names of the sources that an injected fault can reach: built-in ones and those without HTTP."""
    return [s if isinstance(s, str) else s.name for s in sources if isinstance(s, str) or s.in_process]


def checked_names(sources: Sequence[Source | str], docs: Path | None) -> None:
    """Raise SourcesError where there is no source, one twice, or a folder that none reads."""
    names = [source if isinstance(source, str) else source.name for source in sources]
    if not names:
        raise SourcesError("no source is given; there must be something to search")
    for name in names:
        if not re.fullmatch(r"[a-z0-9_]{1,40}", name):
            raise SourcesError(f"a source cannot be named {name!r}; lower case, digits and _ are possible")
    if len(set(names)) < len(names):
        raise SourcesError(f"two sources have the same name: {', '.join(names)}")
    if docs is not None and "local" not in names:
        raise SourcesError(f"the folder {docs} is given, but the sources ({', '.join(names)}) leave out local")


def checked_tools(tools: Sequence[OwnTool]) -> None:
    """Raise ToolsError where a caller's tool has the name of another one."""
    names = [tool.name for tool in tools] + ["plan_topics", "search", "report_findings"]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ToolsError(f"two tools have the name {twice[0]!r}; give your own another one")


def loaded_prompts(files: Mapping[str, Path], values: Mapping[str, str]) -> dict[str, str]:
    """Return the prompt of every role. Raises PromptError, also for a role that does not exist."""
    for role in files:
        if role not in caveat_prompts.ROLES:
            raise caveat_prompts.PromptError(f"there is no role {role!r}; there are: {', '.join(caveat_prompts.ROLES)}")
    return {
        role: caveat_prompts.load(role, values, Path(files[role]) if role in files else None)
        for role in caveat_prompts.ROLES
    }


def _retryable(kind: ErrorKind) -> str:
    if len(kind.retryable) > 1:
        return "see isRetryable"
    return "retryable" if True in kind.retryable else "never retryable"


def prompt_values(limits: Limits, sources: Sequence[Source]) -> dict[str, str]:
    """Return what the prompts' placeholders stand for: every number and every name comes from code."""
    kinds = [f"- {name} ({_retryable(kind)}): {kind.when}." for name, kind in ERROR_KINDS.items()]
    takes_dates = any(source.accepts_dates for source in sources)
    possible = {name: call for name, call in ALTERNATIVES.items() if takes_dates or not name.startswith("narrow")}
    return {
        "turns": str(limits.turns),
        "calls": str(limits.calls),
        "calls_per_turn": str(limits.calls_per_turn),
        "max_topics": str(MAX_TOPICS),
        "max_results": str(MAX_RESULTS),
        "sources": ", ".join(source.name for source in sources),
        "error_types": "\n".join(kinds),
        "alternatives": "\n".join(f"- {name}: {call}." for name, call in possible.items()),
        "query_changes": " or ".join(name for name in possible if "query" in name),
    }


async def _model(
    model: Model | str | None,
    clock: Clock,
    faults: FaultPlan,
    resources: AsyncExitStack,
    on_event: Callable[[Event], None],
    *,
    offline: bool,
) -> Model:
    """Open the model that is named or that the environment asks for; one of the caller's own stays the caller's."""
    if isinstance(model, Model):
        return model.for_one_run()
    opening = open_model(
        clock=clock, faults=faults, name=model, force_offline=offline, on_wait=lambda w: on_event(ModelWaiting(w))
    )
    try:
        return await resources.enter_async_context(opening)
    except ModelError as error:
        raise NoReportError(error.message) from error


async def _opened(
    sources: Sequence[Source | str],
    docs: Path | None,
    faults: FaultPlan,
    clock: Clock,
    resources: AsyncExitStack,
    on_event: Callable[[Event], None],
) -> list[Source]:
    """Open the sources that are given by name; they are closed with `resources`. The caller's own stay the caller's."""
    ready: list[Source] = []
    for source in sources:
        if isinstance(source, str):
            opening = open_source(
                source, docs=docs, faults=faults, clock=clock, on_progress=lambda text: on_event(Notice(text))
            )
            ready.append(await resources.enter_async_context(opening))
        else:
            ready.append(source)
    return ready


def _unread(sources: Sequence[Source]) -> list[str]:
    """Return what `local` could not read: a gap, since nobody knows what is in it."""
    gaps = [e for s in sources if isinstance(s, LocalSource) for e in s.left_out if e.may_hold_evidence]
    return [f"{_files(len(gaps))} could not be read: {_named(gaps)}"] if gaps else []


def _left_out_on_purpose(sources: Sequence[Source]) -> list[str]:
    """Return what `local` does not read by design: worth a note, not a gap."""
    notes = []
    for source in sources:
        if isinstance(source, LocalSource):
            skipped = [entry for entry in source.left_out if not entry.may_hold_evidence]
            if skipped:
                notes.append(f"{_files(len(skipped))} left out: {_named(skipped)}.")
            if source.guessed:
                files = [f"{path} ({encoding})" for path, encoding in source.guessed.items()]
                more = f"; and {len(files) - UNREAD_NAMED} more" if len(files) > UNREAD_NAMED else ""
                notes.append(
                    f"The encoding is a guess, and letters may be wrong, in {'; '.join(files[:UNREAD_NAMED])}{more}."
                )
            if source.other_kinds:
                kinds = Counter(source.other_kinds).most_common(UNREAD_NAMED)
                named = ", ".join(f"{count} {kind or 'without a suffix'}" for kind, count in kinds)
                notes.append(f"Only Markdown, text and HTML are read; files of other kinds were left out: {named}.")
    return notes


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _named(entries: Sequence[LeftOut]) -> str:
    named = "; ".join(f"{entry.path} ({entry.reason})" for entry in entries[:UNREAD_NAMED])
    return named + (f"; and {len(entries) - UNREAD_NAMED} more" if len(entries) > UNREAD_NAMED else "")
