"""research(): a question becomes a report. Reads from top to bottom like the diagram in docs/architecture.md.

open a run → retrieval (the coordinator's loop) → synthesis (claims → prose) → the report, by code
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from caveat.budget import Budget, Limits, estimate
from caveat.compose import Material, compose, for_synthesis, verified
from caveat.coordinator import OwnTool, PlanTopicsTool, RecordedTool, ReportFindingsTool, SearchTool, refusal_recorder
from caveat.errors import NoReportError, StoppedError
from caveat.events import Event, ModelWaiting, Notice, RunEnded, RunStarted
from caveat.journal import Journal
from caveat.ledger import Ledger
from caveat.loop import AgentEnd, Tool, run_agent
from caveat.model import Model, open_model
from caveat.prices import as_of
from caveat.report import Report, Run
from caveat.request import (
    checked_names,
    checked_question,
    checked_tools,
    loaded_prompts,
    prompt_values,
    strikable,
)
from caveat.runs import RunStore, unused_id
from caveat.settings import Settings, read_settings
from caveat.synthesis import Synthesis, synthesise
from caveat.turn import ModelError
from caveat.unread import left_out_on_purpose, unread
from caveat_tools.clock import Clock, SystemClock
from caveat_tools.faults import FaultPlan, parse_faults
from caveat_tools.outcome import estimated_tokens, to_json
from caveat_tools.pace import paces_for
from caveat_tools.search import Searcher
from caveat_tools.source import Source
from caveat_tools.sources import SourceSettings, open_source
from caveat_tools.stop import Stop, Stopped

SHRANK: Final = (
    "The model's server counted fewer tokens in a longer conversation: it may have dropped the beginning of it, the "
    "question and the rules included, because its context is too small. Give it a larger one."
)


async def research(  # noqa: PLR0913 - the library's front door: every seam has a default
    question: str,
    *,
    sources: Sequence[Source | str] | None = None,
    docs: Path | str | None = None,
    tools: Sequence[OwnTool] = (),
    model: Model | str | None = None,
    offline: bool | None = None,
    inject: str = "",
    limits: Limits | None = None,
    settings: Settings | None = None,
    prompts: Mapping[str, Path] | None = None,
    stop: Stop | None = None,
    home: Path | None = None,
    journal: Journal | None = None,
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
    answers are kept. What is not given here comes from `settings`, by default those of the environment.

    Every finished turn and search is kept in the run's journal. `journal` is one that `Journal.open` has opened: what
    is in it is not asked again. Or it is `Journal(run_id)` without a folder, which keeps nothing.

    Raises QuestionError, SettingsError, SourcesError, LocalFolderError, ToolsError, FaultSyntaxError or PromptError
    before anything is spent; NoReportError when the model never answers, or its context is full before anything was
    searched; StoppedError, which is one, when the stop comes before; DivergedError when a journal is of another run.
    Failures of sources, and of the model later on, are in the report and raise nothing.
    """
    question = checked_question(question)
    given = {
        "docs": docs and Path(docs),
        "offline": offline,
        "home": home,
        "model": model if isinstance(model, str) else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    settings = (settings or read_settings()[0]).model_copy(update=given)
    clock, limits, stop = clock or SystemClock(), limits or settings.limits(), stop or Stop()
    sources = settings.asked_sources() if sources is None else sources
    checked_names(sources, Path(docs) if docs else None)
    checked_tools(tools)
    faults = parse_faults(inject, strikable(sources), model=not isinstance(model, Model))
    started = clock.monotonic()
    run_id = journal.run_id if journal else unused_id(f"{clock.now():%Y-%m-%d}-{new_id()}", settings.home)
    notes: list[str] = []

    def warn(text: str) -> None:
        notes.append(text)
        on_event(Notice(text))

    store = RunStore(settings.home, run_id, warn)
    async with AsyncExitStack() as resources:
        try:
            ready = await stop.race(_opened(sources, settings.for_sources(), faults, clock, resources, on_event))
        except Stopped:
            raise StoppedError("stopped before anything was searched") from None
        notes += left_out_on_purpose(ready)
        snapshots = store.snapshots(clock)
        resources.callback(snapshots.close)
        journal = journal or store.journal()
        resources.callback(journal.close)
        llm = await _model(model, settings, clock, faults, resources, on_event)
        system = loaded_prompts(prompts or {}, prompt_values(limits, ready))
        _tell(llm, model, inject, on_event)
        ledger = Ledger(question, clock.now)
        searcher = Searcher(
            ready,
            clock=clock,
            snapshots=snapshots,
            faults=faults,
            paces=paces_for(clock),
            stop=stop,
            on_event=on_event,
        )
        findings = ReportFindingsTool(ledger)
        own = [RecordedTool(tool, ledger) for tool in tools]
        offered: list[Tool] = [PlanTopicsTool(ledger), SearchTool(ledger, searcher), *own, findings]
        asked = {
            "question": question,
            "sources": [source.name for source in ready],
            "own": _own(sources, tools, model),
            "docs": str(settings.docs.absolute()) if settings.docs and "local" in sources else None,
            "model": llm.name,
            "offline": llm.is_offline,
            "limits": asdict(limits),
            "inject": inject,
            "prompts": system,
            "tools": [tool.definition() for tool in offered],
        }
        journal.begin(asked, clock=clock, on_warning=warn)
        budget = Budget(limits, llm.usage, journal.elapsed)
        first = estimated_tokens(system["coordinator"] + to_json([tool.definition() for tool in offered]) + question)
        on_event(
            RunStarted(
                run_id,
                llm.name,
                llm.is_offline,
                tuple(source.name for source in ready),
                estimate(first, llm.usage.price, limits),
                tuple(budget.in_words().values()),
                len(journal.record.steps) if journal.record else None,
                journal.is_kept,
            )
        )
        running = _Running(question, llm, system, ledger, budget, stop, on_event, journal)
        await resources.enter_async_context(_ended_in(limits.seconds, journal, clock, stop))
        end = await _retrieve(running, offered)
        material = Material(question, ledger, findings.claims, findings.notes, end, notes, unread(ready))
        synthesis = await _write(running, material)

        run = Run(
            id=run_id,
            model=llm.answered_by,
            offline=llm.is_offline,
            model_calls=llm.usage.calls,
            tool_calls=end.tool_uses + (synthesis.end.tool_uses if synthesis else 0),
            input_tokens=llm.usage.input_tokens,
            output_tokens=llm.usage.output_tokens,
            cost=None if llm.usage.cost is None else round(llm.usage.cost, 6),
            prices_as_of=None if llm.usage.cost is None else as_of(),
            seconds=round(journal.earlier + clock.monotonic() - started, 1),
            end=end.reason,
            injected=inject,
        )
        notes += [*([SHRANK] if end.shrank else []), *_about_cost(llm, limits)]
        report = compose(material, synthesis, run)
        _finish(running, report, end, synthesis, store)
        return report


@dataclass(frozen=True, slots=True)
class _Running:
    """What both agents of a run share."""

    question: str
    model: Model
    system: Mapping[str, str]
    ledger: Ledger
    budget: Budget
    stop: Stop
    on_event: Callable[[Event], None]
    journal: Journal


def _finish(running: _Running, report: Report, end: AgentEnd, synthesis: Synthesis | None, store: RunStore) -> None:
    """Keep the report. A run that somebody stopped, or whose model failed, can be gone on with."""
    store.keep(report, {"coordinator": end, "synthesis": synthesis.end if synthesis else None})
    was_stopped = running.stop.asked and running.stop.reason == "request"
    has_failed = "model_failed" in {end.reason, synthesis.end.reason if synthesis else None}
    is_over = not was_stopped and not has_failed
    running.journal.finish(report.model_dump(mode="json", by_alias=True), is_over=is_over)
    running.on_event(RunEnded(is_over))


def _own(sources: Sequence[Source | str], tools: Sequence[OwnTool], model: Model | str | None) -> list[str]:
    """Return the names of what the caller's program has brought along, so that no command can go on with the run."""
    names = [source.name for source in sources if not isinstance(source, str)] + [tool.name for tool in tools]
    return [*names, "model"] if isinstance(model, Model) else names


def _tell(llm: Model, wanted: Model | str | None, inject: str, on_event: Callable[[Event], None]) -> None:
    """Tell of a model that is not asked, and of faults."""
    if llm.is_offline and wanted:
        on_event(Notice(f"the model {wanted} is not asked: there is no key and no base URL, or --offline is given"))
    if inject:
        on_event(Notice(f"faults are injected on purpose: {inject}"))


def _about_cost(model: Model, limits: Limits) -> list[str]:
    """Say by which price the limit of cost was kept, where it is not that of the model which answered."""
    if limits.cost is None or model.usage.cost is not None or model.usage.counted is None:
        return []
    return [f"The limit of cost was kept by the price of {model.name}; none is listed of {model.answered_by}."]


@asynccontextmanager
async def _ended_in(seconds: float, journal: Journal, clock: Clock, stop: Stop) -> AsyncIterator[None]:
    """Ask for a stop when the run's time is over; not while it takes finished steps from its journal."""
    moment = clock.monotonic() + seconds - journal.earlier

    async def wait() -> None:
        await journal.gone_beyond()
        await clock.wait_until(moment)
        stop.ask("time")

    alarm = asyncio.create_task(wait())
    try:
        yield
    finally:
        alarm.cancel()
        await asyncio.gather(alarm, return_exceptions=True)


async def _retrieve(running: _Running, tools: Sequence[Tool]) -> AgentEnd:
    """Let the coordinator search; raise NoReportError where the model cannot be asked at all.

    One that was asked and came to no end in time is told in a report.
    """
    end = await run_agent(
        name="coordinator",
        model=running.model,
        system=running.system["coordinator"],
        tools=tools,
        opening=f"<question>\n{running.question}\n</question>\n\nToday is {running.journal.start:%Y-%m-%d}.",
        limits=running.budget.limits,
        budget=running.budget,
        stop=running.stop,
        refuse=refusal_recorder(running.ledger, {tool.name for tool in tools if isinstance(tool, RecordedTool)}),
        on_event=running.on_event,
        scope=running.journal.scope("coordinator"),
    )
    if end.reason == "model_failed" and end.turns == 0 and end.model_error != "timeout":
        raise NoReportError(end.detail)
    if end.reason != "model_failed" and not running.stop.asked:
        running.journal.reached("retrieval")
        running.journal.reached("analysis")  # retrieval states the claims itself
    return end


async def _write(running: _Running, material: Material) -> Synthesis | None:
    """Have the prose written, where there is something to write about and a model to write it."""
    claims = verified(material)
    budget = running.budget.without_reserve()
    if running.stop.asked or material.end.reason == "model_failed" or not any(claims.values()) or budget.met():
        return None
    running.on_event(Notice("writing the prose"))
    return await synthesise(
        running.question,
        for_synthesis(running.ledger, claims),
        model=running.model,
        system=running.system["synthesis"],
        budget=budget,
        stop=running.stop,
        on_event=running.on_event,
        scope=running.journal.scope("synthesis"),
    )


async def _model(
    model: Model | str | None,
    settings: Settings,
    clock: Clock,
    faults: FaultPlan,
    resources: AsyncExitStack,
    on_event: Callable[[Event], None],
) -> Model:
    """Open the model of the settings; one of the caller's own stays the caller's."""
    if isinstance(model, Model):
        return model.for_one_run()
    opening = open_model(settings, clock=clock, faults=faults, on_wait=lambda w: on_event(ModelWaiting(w)))
    try:
        return await resources.enter_async_context(opening)
    except ModelError as error:
        raise NoReportError(error.message) from error


async def _opened(
    sources: Sequence[Source | str],
    settings: SourceSettings,
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
                source,
                settings,
                faults=faults,
                clock=clock,
                on_progress=lambda text: on_event(Notice(text)),
                on_notice=lambda text: on_event(Notice(text)),
            )
            ready.append(await resources.enter_async_context(opening))
        else:
            ready.append(source)
    return ready
