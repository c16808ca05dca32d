"""research(): a question becomes a report. Reads from top to bottom like the diagram in docs/architecture.md.

open a run → retrieval (the coordinator's loop) → synthesis (claims → prose) → the report, by code
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from caveat.budget import Limits
from caveat.compose import Material, compose, for_synthesis, verified
from caveat.coordinator import OwnTool, PlanTopicsTool, RecordedTool, ReportFindingsTool, SearchTool, refusal_recorder
from caveat.errors import NoReportError
from caveat.events import Event, ModelWaiting, Notice, RunStarted
from caveat.ledger import Ledger
from caveat.loop import AgentEnd, Tool, run_agent
from caveat.model import Model, open_model
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
from caveat.synthesis import Synthesis, synthesise
from caveat.turn import ModelError
from caveat.unread import left_out_on_purpose, unread
from caveat_tools.clock import Clock, SystemClock
from caveat_tools.faults import FaultPlan, parse_faults
from caveat_tools.search import Searcher
from caveat_tools.source import Source
from caveat_tools.sources import open_source
from caveat_tools.stop import Stop, Stopped


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

    store = RunStore(home, run_id, warn)
    async with AsyncExitStack() as resources:
        try:
            ready = await stop.race(_opened(sources, docs, store.indexes, faults, clock, resources, on_event))
        except Stopped:
            raise NoReportError("stopped before anything was searched") from None
        notes += left_out_on_purpose(ready)
        snapshots = store.snapshots(clock)
        resources.callback(snapshots.close)
        llm = await _model(model, clock, faults, resources, on_event, offline=offline)
        system = loaded_prompts(prompts or {}, prompt_values(limits, ready))
        if llm.is_offline and model:
            on_event(Notice(f"the model {model} is not asked: there is no key and no base URL, or --offline is given"))
        if inject:
            on_event(Notice(f"faults are injected on purpose: {inject}"))
        on_event(RunStarted(run_id, llm.name, llm.is_offline, tuple(source.name for source in ready)))
        ledger = Ledger(question, clock.now)
        searcher = Searcher(ready, clock=clock, snapshots=snapshots, faults=faults, stop=stop, on_event=on_event)
        running = _Running(question, llm, system, ledger, limits, stop, on_event)

        findings = ReportFindingsTool(ledger)
        own = [RecordedTool(tool, ledger) for tool in tools]
        end = await _retrieve(running, [PlanTopicsTool(ledger), SearchTool(ledger, searcher), *own, findings], clock)
        material = Material(question, ledger, findings.claims, findings.notes, end, notes, unread(ready))
        synthesis = await _write(running, material)

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


@dataclass(frozen=True, slots=True)
class _Running:
    """What both agents of a run share."""

    question: str
    model: Model
    system: Mapping[str, str]
    ledger: Ledger
    limits: Limits
    stop: Stop
    on_event: Callable[[Event], None]


async def _retrieve(running: _Running, tools: Sequence[Tool], clock: Clock) -> AgentEnd:
    """Let the coordinator search; raise NoReportError where the model never gave a turn."""
    end = await run_agent(
        name="coordinator",
        model=running.model,
        system=running.system["coordinator"],
        tools=tools,
        opening=f"<question>\n{running.question}\n</question>\n\nToday is {clock.now():%Y-%m-%d}.",
        limits=running.limits,
        stop=running.stop,
        refuse=refusal_recorder(running.ledger, {tool.name for tool in tools if isinstance(tool, RecordedTool)}),
        on_event=running.on_event,
    )
    if end.reason == "model_failed" and end.turns == 0:
        raise NoReportError(end.detail)
    return end


async def _write(running: _Running, material: Material) -> Synthesis | None:
    """Have the prose written, where there is something to write about and a model to write it."""
    claims = verified(material)
    if running.stop.asked or material.end.reason == "model_failed" or not any(claims.values()):
        return None
    running.on_event(Notice("writing the prose"))
    return await synthesise(
        running.question,
        for_synthesis(running.ledger, claims),
        model=running.model,
        system=running.system["synthesis"],
        stop=running.stop,
        on_event=running.on_event,
    )


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
    indexes: Path,
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
                docs=docs,
                faults=faults,
                clock=clock,
                index=indexes,
                on_progress=lambda text: on_event(Notice(text)),
                on_notice=lambda text: on_event(Notice(text)),
            )
            ready.append(await resources.enter_async_context(opening))
        else:
            ready.append(source)
    return ready
