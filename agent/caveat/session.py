"""research(): a question becomes a report. Reads from top to bottom like the diagram in docs/architecture.md.

open a run → retrieval (the coordinator's loop) → synthesis (claims → prose) → the report, by code
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caveat.budget import Budget, Limits, estimate
from caveat.compose import Material, compose, for_synthesis, verified
from caveat.coordinator import OwnTool, PlanTopicsTool, RecordedTool, ReportFindingsTool, SearchTool, refusal_recorder
from caveat.errors import NoReportError, StoppedError
from caveat.events import Event, ModelWaiting, Notice, RunStarted
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
from caveat.runs import RunStore
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

    Raises QuestionError, SettingsError, SourcesError, LocalFolderError, ToolsError, FaultSyntaxError or PromptError
    before anything is spent; NoReportError when the model never answers, or its context is full before anything was
    searched; StoppedError, which is one, when the stop comes before.
    Failures of sources, and of the model later on, are in the report and raise nothing.
    """
    question = checked_question(question)
    given = {
        "docs": docs and Path(docs),
        "offline": offline,
        "home": home,
        "model": model if isinstance(model, str) else None,
    }
    settings = settings or read_settings()[0]
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    clock, limits, stop = clock or SystemClock(), limits or settings.limits(), stop or Stop()
    if sources is None:
        sources = settings.asked_sources()
    checked_names(sources, Path(docs) if docs else None)
    checked_tools(tools)
    faults = parse_faults(inject, strikable(sources), model=not isinstance(model, Model))
    started, run_id = clock.monotonic(), f"{clock.now():%Y-%m-%d}-{new_id()}"
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
        llm = await _model(model, settings, clock, faults, resources, on_event)
        system = loaded_prompts(prompts or {}, prompt_values(limits, ready))
        if llm.is_offline and model:
            on_event(Notice(f"the model {model} is not asked: there is no key and no base URL, or --offline is given"))
        if inject:
            on_event(Notice(f"faults are injected on purpose: {inject}"))
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
        budget = Budget(limits, llm.usage, clock)
        first = estimated_tokens(system["coordinator"] + to_json([tool.definition() for tool in offered]) + question)
        on_event(
            RunStarted(
                run_id,
                llm.name,
                llm.is_offline,
                tuple(source.name for source in ready),
                estimate(first, llm.usage.price, limits),
                tuple(budget.in_words().values()),
            )
        )
        running = _Running(question, llm, system, ledger, budget, stop, on_event)
        await resources.enter_async_context(_ended_by(budget, clock, stop))
        end = await _retrieve(running, offered, clock)
        if end.shrank:
            notes.append(SHRANK)
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
            seconds=round(clock.monotonic() - started, 1),
            end=end.reason,
            injected=inject,
        )
        notes += _about_cost(llm, limits)
        report = compose(material, synthesis, run)
        store.keep(report, {"coordinator": end, "synthesis": synthesis.end if synthesis else None})
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


def _about_cost(model: Model, limits: Limits) -> list[str]:
    """Say by which price the limit of cost was kept, where it is not that of the model which answered."""
    if limits.cost is None or model.usage.cost is not None or model.usage.counted is None:
        return []
    return [f"The limit of cost was kept by the price of {model.name}; none is listed of {model.answered_by}."]


@asynccontextmanager
async def _ended_by(budget: Budget, clock: Clock, stop: Stop) -> AsyncIterator[None]:
    """Ask for a stop when the run's time is over."""

    async def wait() -> None:
        await clock.wait_until(budget.ends_at)
        stop.ask("time")

    alarm = asyncio.create_task(wait())
    try:
        yield
    finally:
        alarm.cancel()
        await asyncio.gather(alarm, return_exceptions=True)


async def _retrieve(running: _Running, tools: Sequence[Tool], clock: Clock) -> AgentEnd:
    """Let the coordinator search; raise NoReportError where the model cannot be asked at all.

    One that was asked and came to no end in time is told in a report.
    """
    end = await run_agent(
        name="coordinator",
        model=running.model,
        system=running.system["coordinator"],
        tools=tools,
        opening=f"<question>\n{running.question}\n</question>\n\nToday is {clock.now():%Y-%m-%d}.",
        limits=running.budget.limits,
        budget=running.budget,
        stop=running.stop,
        refuse=refusal_recorder(running.ledger, {tool.name for tool in tools if isinstance(tool, RecordedTool)}),
        on_event=running.on_event,
    )
    if end.reason == "model_failed" and end.turns == 0 and end.model_error != "timeout":
        raise NoReportError(end.detail)
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
