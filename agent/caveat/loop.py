"""run_agent(): the only turn loop. Coordinator and synthesis are the same loop with other prompts and tools.

    ask the model → run the turn's tool_use blocks side by side → answer all of them in one user message → again

Every tool_use gets its tool_result, in tool_use order, whatever happened to it: unknown tool, arguments that do not
fit, budget, a stop. History is only ever appended to. A named failure ends up in a tool_result or in the AgentEnd;
any other exception is a bug or a cassette miss and ends the run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from caveat.budget import Budget, Limit, Limits
from caveat.journal import UNKEPT, Scope
from caveat.steps import TURN
from caveat.turn import CONTEXT_FULL, LARGER_CONTEXT, Block, Message, ModelError, ModelErrorKind, Turn
from caveat_tools.outcome import ErrorType, Failed, not_sent, to_json, wire
from caveat_tools.plain_text import one_line
from caveat_tools.stop import Stop, Stopped

if TYPE_CHECKING:
    from caveat.model import Model  # the SDK takes a second to import, and what listens to events needs none

STOP_GRACE_SECONDS: Final = 0.5
"""How long a tool that knows of the stop may take to hand over its partial results before it is cancelled."""

EndReason: TypeAlias = Literal[
    "finished",
    "turns_spent",
    "tokens_spent",
    "cost_spent",
    "time_spent",
    "no_report",
    "refused",
    "context_full",
    "model_failed",
    "stopped",
]


@dataclass(frozen=True, slots=True)
class Call:
    """Which tool call this is: the agent's turn, from 1, and the place among the turn's tool_use blocks, from 0.

    `last` says that no further turn will come, so that work which is handed over now cannot go back for revision.
    """

    turn: int
    place: int
    last: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """One tool_result. `final` ends the agent after this turn."""

    body: dict[str, Any]
    is_error: bool = False
    final: bool = False


class Tool(Protocol):
    """What the model can call. `run` happens side by side with its siblings; `settle` in tool_use order afterwards."""

    @property
    def name(self) -> str:
        """The name on the wire."""

    @property
    def closes(self) -> bool:
        """True for the tool that hands over the agent's work; it runs even when the budget is spent."""

    @property
    def is_free(self) -> bool:
        """True for a tool whose calls are not counted against the limit of calls."""

    @property
    def arguments(self) -> type[BaseModel]:
        """The pydantic model of the arguments."""

    def definition(self) -> dict[str, Any]:
        """Return name, description and input_schema for the request."""

    async def run(self, arguments: Any, scope: Scope) -> Any:
        """Do the work, and what costs something as a step of `scope`. Named failures are returned, not raised."""

    def settle(self, call: Call, arguments: Any, result: Any) -> Reply:
        """Turn what `run` returned into the tool_result; number and record what needs the order of the calls."""


class Arguments(BaseModel):
    """The base of a tool's arguments: one that the tool does not know is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


def definition(name: str, description: str, arguments: type[BaseModel]) -> dict[str, Any]:
    """Return a tool's definition for the Messages API, without the titles that pydantic adds."""
    return {"name": name, "description": description, "input_schema": _untitled(arguments.model_json_schema())}


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _untitled(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    return [_untitled(item) for item in schema] if isinstance(schema, list) else schema


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How an agent ended: why, in which words for a reader, after how many complete turns, and all that was said.

    `tool_uses` counts the model's calls, run or not. `spent` maps each limit that was met on the way to its size in
    words, also where the work was still handed over. `shrank` says that the server once counted fewer tokens in a
    longer conversation, as one does that drops the beginning where its context is full.
    """

    reason: EndReason
    detail: str
    turns: int
    messages: list[Message]
    tool_uses: int = 0
    spent: Mapping[Limit, str] = field(default_factory=dict)
    shrank: bool = False
    model_error: ModelErrorKind | None = None
    """What kind of error of the model ended it, if one did."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Told to the listener before each request to the model; `is_recalled` where none is sent, since the journal has
    the turn.
    """

    agent: str
    turn: int
    is_recalled: bool = False


_CALL_IN_TEXT: Final = re.compile(r"""<tool_call>|<function=|["'](name|function)["']\s*:\s*["']\w+["']""")
"""A call as models are trained to write it, which the server should have made a tool_use block of."""


@dataclass
class _Agent:
    """The state of one run of the loop."""

    tools: dict[str, Tool]
    limits: Limits
    budget: Budget
    stop: Stop
    refuse: Callable[[Call, dict[str, Any], Failed], None]
    messages: list[Message]
    turns: int = 0
    calls: int = 0
    calls_in_turn: int = 0
    tool_uses: int = 0
    closings: int = 0
    calls_in_text: bool = False
    was_cut: bool = False
    input_tokens: int = 0
    shrank: bool = False
    idle: int = 0
    """Turns in a row that brought nothing new: in which nothing was done that is not in `done`."""
    done: set[tuple[str, str, bool]] = field(default_factory=set)
    """What was carried out: the tool, its arguments, and whether it failed. The same again is nothing new."""
    warned: set[str] = field(default_factory=set)

    @property
    def closing(self) -> str:
        return next(name for name, tool in self.tools.items() if tool.closes)

    @property
    def has_one_turn_left(self) -> bool:
        return self.turns + 1 >= self.limits.turns or bool(self.budget.met())

    def count(self, turn: Turn) -> None:
        names = [use["name"] for use in turn.tool_uses]
        self.turns += 1
        self.shrank |= 0 < turn.usage.prompt < self.input_tokens
        self.input_tokens = turn.usage.prompt
        self.tool_uses += len(names)
        self.closings += names.count(self.closing)
        self.was_cut |= turn.stop_reason == "max_tokens"
        self.calls_in_text |= bool(_CALL_IN_TEXT.search(turn.text))

    def end(self, reason: EndReason, detail: str) -> AgentEnd:
        limits = self.limits
        own: dict[Limit, tuple[bool, int]] = {
            "turns": (self.turns >= limits.turns, limits.turns),
            "calls": (self.calls > limits.calls, limits.calls),
        }
        spent: dict[Limit, str] = {limit: f"{size} {limit}" for limit, (is_met, size) in own.items() if is_met}
        spent |= self.budget.met()
        return AgentEnd(reason, detail, self.turns, self.messages, self.tool_uses, spent, self.shrank)

    def stopped(self) -> AgentEnd:
        if self.stop.reason == "time":
            return self.end("time_spent", _limit_reached(self.budget.in_words()["time"]))
        return self.end("stopped", "stopped by request")


async def run_agent(  # noqa: PLR0913 - the loop's seams
    *,
    name: str,
    model: Model,
    system: str,
    tools: Sequence[Tool],
    opening: str,
    limits: Limits,
    budget: Budget,
    stop: Stop,
    refuse: Callable[[Call, dict[str, Any], Failed], None] = lambda *_: None,
    on_event: Callable[[TurnStarted], None] = lambda _: None,
    scope: Scope = UNKEPT,
) -> AgentEnd:
    """Run one agent until it hands over its work, or something ends it.

    Exactly one of `tools` closes. `limits` are the agent's own turns and calls, `budget` is what the whole run may
    spend. An agent is left when more than `limits.nudges` turns in a row bring nothing new: no call in them was carried
    out that had not been before, or that ended otherwise. `refuse` hears of every call that was answered without being
    run: the call, the arguments as the model sent them, and the Failed it got. `scope` is where the journal keeps the
    agent's turns and calls.
    """
    messages: list[Message] = [{"role": "user", "content": opening}]
    agent = _Agent({tool.name: tool for tool in tools}, limits, budget, stop, refuse, messages)
    definitions = [tool.definition() for tool in tools]
    while True:
        last = agent.has_one_turn_left
        here = scope.within(f"turn {agent.turns + 1}")
        try:
            turn = await stop.race(_turn(name, model, system, agent, definitions, here, on_event))
        except Stopped:
            return agent.stopped()
        except ModelError as error:
            reason: EndReason = "context_full" if error.kind == "context_full" else "model_failed"
            return replace(agent.end(reason, error.message), model_error=error.kind)
        agent.count(turn)
        if turn.content and turn.stop_reason != "refusal":
            agent.messages.append({"role": "assistant", "content": turn.content})
        known = len(agent.done)
        results, finished = await _answered(agent, turn, here, last=last)
        if turn.stop_reason != "pause_turn":
            agent.idle = agent.idle + 1 if len(agent.done) == known else 0
            if not results or agent.idle == agent.limits.nudges:
                results.append(_text(_NUDGE.format(closing=agent.closing)))
        end = _ending(agent, turn, last=last, finished=finished)
        if end is None:
            results += _warnings(agent)
        if results:
            agent.messages.append({"role": "user", "content": results})
        if end is not None:
            return end


async def _turn(
    name: str,
    model: Model,
    system: str,
    agent: _Agent,
    tools: list[dict[str, Any]],
    scope: Scope,
    on_event: Callable[[TurnStarted], None],
) -> Turn:
    """Return the next turn: from the journal, or from the model."""
    number = agent.turns + 1

    async def ask() -> Turn:
        on_event(TurnStarted(name, number))
        return await model.turn(system, agent.messages, tools)

    def recall(turn: Turn | ModelError, _at: datetime) -> None:
        on_event(TurnStarted(name, number, is_recalled=True))
        if isinstance(turn, Turn):
            model.recall(turn)

    request = {"model": model.name, "system": system, "messages": agent.messages, "tools": tools}
    turn = await scope.step("model", request, ask, form=TURN, recall=recall)
    if isinstance(turn, ModelError):
        raise turn
    return turn


def _ending(agent: _Agent, turn: Turn, *, last: bool, finished: bool) -> AgentEnd | None:
    """Return how the agent ends after this turn, or None where it goes on."""
    limits, spent = agent.limits, agent.budget.met()
    over = agent.budget.without_reserve().met()  # the reserve allows one more turn, and nothing allows one beyond it
    if agent.stop.asked and not finished:
        return agent.stopped()
    endings: list[tuple[bool, EndReason, str]] = [
        (finished, "finished", "the work was handed over"),
        (turn.stop_reason == "refusal", "refused", "the model declined to go on"),
        (
            turn.stop_reason == "model_context_window_exceeded",
            "context_full",
            f"{CONTEXT_FULL} ({turn.usage.total:,} tokens); {LARGER_CONTEXT}",
        ),
        (agent.idle > limits.nudges, "no_report", _why_no_report(agent)),
        (last and agent.turns >= limits.turns, "turns_spent", _limit_reached(f"{limits.turns} turns")),
        ("tokens" in (spent if last else over), "tokens_spent", _limit_reached(spent.get("tokens", ""))),
        ("cost" in (spent if last else over), "cost_spent", _limit_reached(spent.get("cost", ""))),
        (last, "time_spent", _limit_reached(spent.get("time", ""))),
    ]
    return next((agent.end(reason, detail) for applies, reason, detail in endings if applies), None)


def _limit_reached(size: str) -> str:
    return f"the limit of {size} was reached"


def _why_no_report(agent: _Agent) -> str:
    """Say how a model failed to hand its work over, as far as its turns show it."""
    if agent.closings:
        what = f"none of the model's calls of {agent.closing} was accepted, and then it brought nothing new"
    elif agent.tool_uses:
        what = f"the model never called {agent.closing}, and its last {agent.idle} turns brought nothing new"
    else:
        what = f"the model never called {agent.closing}, nor any other tool"
    if agent.calls_in_text:
        what += "; it wrote calls as text, which its server did not take for calls"
    if agent.was_cut:
        what += "; it was cut off by the limit of output or of the context"
    return what


async def _answered(agent: _Agent, turn: Turn, scope: Scope, *, last: bool) -> tuple[list[Block], bool]:
    """Run the turn's calls side by side; return their tool_results in tool_use order, and whether one was final."""
    uses = turn.tool_uses if turn.stop_reason != "refusal" else []
    calls = [Call(agent.turns, place, last) for place in range(len(uses))]
    agent.calls_in_turn = 0
    prepared = [_prepared(agent, turn, use, call) for use, call in zip(uses, calls, strict=True)]
    outcomes = await _side_by_side(agent.stop, [job for job in prepared if isinstance(job, _Job)], scope)
    blocks, finished = [], False
    for use, call, job in zip(uses, calls, prepared, strict=True):
        if isinstance(job, _Job) and job.place in outcomes:
            reply = job.tool.settle(call, job.arguments, outcomes[job.place])
            agent.done.add((use["name"], to_json(use["input"]), reply.is_error))
        else:
            failed = _cancelled(use) if isinstance(job, _Job) else job
            tool = agent.tools.get(use["name"])
            if tool is None or not tool.is_free:
                agent.refuse(call, use["input"], failed)
            reply = Reply(wire(failed), is_error=True)
        finished |= reply.final
        block = {"type": "tool_result", "tool_use_id": use["id"], "content": to_json(reply.body)}
        blocks.append({**block, "is_error": True} if reply.is_error else block)
    return blocks, finished


@dataclass(frozen=True, slots=True)
class _Job:
    """A call that is to be run."""

    place: int
    tool: Tool
    arguments: BaseModel


def _prepared(agent: _Agent, turn: Turn, use: Block, call: Call) -> _Job | Failed:
    """Validate one tool_use; return what to run, or the Failed that answers it."""
    tool = agent.tools.get(use["name"])
    if tool is None:
        known = ", ".join(agent.tools)
        return _not_run(use, "invalid_arguments", f"there is no tool {use['name']!r}", f"Use one of: {known}.")
    if use["id"] in turn.broken:
        reason = turn.broken[use["id"]]
        return _not_run(use, "invalid_arguments", reason, "Send the call again, complete and well-formed.")
    try:
        arguments = tool.arguments.model_validate(use["input"])
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors()[:5])
        return _not_run(use, "invalid_arguments", reasons, "Correct the arguments and send the call again.")
    if not tool.closes:
        spent, guidance = _spent(agent, call, is_free=tool.is_free)
        if spent:
            return _not_run(use, "budget_exhausted", spent, guidance)
    return _Job(call.place, tool, arguments)


def _spent(agent: _Agent, call: Call, *, is_free: bool) -> tuple[str, str]:
    """Count a call; return which limit it meets and what to do, or two empty strings."""
    close = f"Call {agent.closing} with what you have."
    if call.last:
        return "this was the last turn, so the call was not carried out", close
    if is_free:
        return "", ""
    agent.calls_in_turn += 1
    if agent.calls_in_turn > agent.limits.calls_per_turn:
        return f"a turn may hold {agent.limits.calls_per_turn} calls", "Send the call in the next turn."
    agent.calls += 1
    if agent.calls > agent.limits.calls:
        return f"all {agent.limits.calls} calls of this run are spent", close
    return "", ""


async def _side_by_side(stop: Stop, jobs: Sequence[_Job], scope: Scope) -> dict[int, Any]:
    """Run all jobs; return the results by place. On a stop, what does not end soon by itself is cancelled and left out.

    An exception out of a job is a bug: the siblings are cancelled and it goes on up.
    """
    tasks = {
        job.place: asyncio.ensure_future(job.tool.run(job.arguments, scope.within(f"{job.tool.name} {job.place + 1}")))
        for job in jobs
    }
    if not tasks:
        return {}
    bell = asyncio.ensure_future(stop.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {*tasks.values()}
        while waiting and not stop.asked:
            done, _ = await asyncio.wait({*waiting, bell}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {bell}:
                task.result()
            waiting -= done
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_GRACE_SECONDS)
        return {place: task.result() for place, task in tasks.items() if task.done()}
    finally:
        unfinished = [task for task in (bell, *tasks.values()) if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


def _not_run(use: Block, error_type: ErrorType, message: str, guidance: str) -> Failed:
    query = use["input"].get("query")
    named = use["input"].get("source") if use["name"] == "search" else None
    source = one_line(str(named or use["name"]), 60) or "?"
    return not_sent(source, query if isinstance(query, str) else "", error_type, one_line(message, 600), guidance)


def _cancelled(use: Block) -> Failed:
    return _not_run(use, "cancelled", "stopped before the call was complete", "Go on with what you have.")


_NUDGE: Final = "You have not handed over your work. Call {closing} now, with whatever you have."


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _warnings(agent: _Agent) -> list[Block]:
    """Tell the model, once each, when its turns, its calls or what the run may spend run low."""
    left = agent.limits.turns - agent.turns
    low = {
        "turns": left <= 2 and f"{left} turn{'s' if left > 1 else ''} left.",
        "calls": agent.calls >= 0.8 * agent.limits.calls
        and f"{max(0, agent.limits.calls - agent.calls)} tool calls left.",
        "budget": agent.budget.nearly_met() and f"Nearly spent: {' and '.join(agent.budget.nearly_met().values())}.",
        "last": agent.has_one_turn_left and "The next turn is the last.",
    }
    news = [text for name, text in low.items() if text and name not in agent.warned]
    agent.warned |= {name for name, text in low.items() if text}
    return [_text(f"Budget: {' '.join(news)} Call {agent.closing} in time; nothing else counts.")] if news else []
