"""The turn loop, branch by branch, against a scripted model."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from caveat.budget import Budget, Limits
from caveat.journal import Scope
from caveat.loop import AgentEnd, Call, Reply, run_agent
from caveat_tools.clock import FakeClock
from caveat_tools.outcome import Failed
from caveat_tools.retry import RetryPolicy
from caveat_tools.stop import Stop
from scripted import ScriptedModel, message, text, tool_use


class Look(BaseModel):
    """Arguments of the tool `look`."""

    query: str
    depth: int = 1


class Done(BaseModel):
    """Arguments of the closing tool."""

    answer: str = ""


@dataclass
class LookTool:
    """Returns its query; waits for `gate` if it has one."""

    name: str = "look"
    closes: bool = False
    is_free: bool = False
    arguments: type[BaseModel] = Look
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    opens: dict[str, asyncio.Event] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    settled: list[tuple[Call, str]] = field(default_factory=list)

    def definition(self) -> dict[str, Any]:
        return {"name": self.name, "description": "d", "input_schema": Look.model_json_schema()}

    async def run(self, arguments: Look, _scope: Scope) -> str:
        if arguments.query in self.gates:
            await self.gates[arguments.query].wait()
        self.ran.append(arguments.query)
        if arguments.query in self.opens:
            self.opens[arguments.query].set()
        return arguments.query

    def settle(self, call: Call, _arguments: Look, result: str) -> Reply:
        self.settled.append((call, result))
        return Reply({"saw": result})


@dataclass
class DoneTool:
    """The closing tool; sends the first `sends_back` reports back."""

    sends_back: int = 0
    name: str = "done"
    closes: bool = True
    is_free: bool = True
    arguments: type[BaseModel] = Done
    answers: list[str] = field(default_factory=list)

    def definition(self) -> dict[str, Any]:
        return {"name": self.name, "description": "d", "input_schema": Done.model_json_schema()}

    async def run(self, arguments: Done, _scope: Scope) -> Done:
        return arguments

    def settle(self, call: Call, arguments: Done, _result: Done) -> Reply:
        self.answers.append(arguments.answer)
        if self.sends_back and not call.last:
            self.sends_back -= 1
            return Reply({"status": "revise"})
        return Reply({"status": "accepted"}, final=True)


@dataclass
class Session:
    """One run of the loop with all its parts at hand."""

    script: ScriptedModel
    look: LookTool = field(default_factory=LookTool)
    done: DoneTool = field(default_factory=DoneTool)
    stop: Stop = field(default_factory=Stop)
    refused: list[tuple[Call, Failed]] = field(default_factory=list)

    reserve: float = 0.0

    async def run(self, **limits: int) -> AgentEnd:
        model = self.script.model(policy=RetryPolicy(attempts=1))
        return await run_agent(
            name="agent",
            model=model,
            system="system",
            tools=[self.look, self.done],
            opening="question",
            limits=Limits(**limits),
            budget=Budget(Limits(**limits), model.usage, FakeClock(), reserve=self.reserve),
            stop=self.stop,
            refuse=lambda call, _raw, failed: self.refused.append((call, failed)),
        )


def session(*replies: Any, **parts: Any) -> Session:
    return Session(ScriptedModel(replies), **parts)


DONE = [tool_use("done", answer="42")]


async def test_a_run_ends_when_the_work_is_handed_over() -> None:
    """Search, then report: two turns, and the last tool_result is kept in the transcript."""
    run = session([tool_use("look", q="x", query="a")], DONE)
    end = await run.run()
    assert (end.reason, end.turns, run.done.answers) == ("finished", 2, ["42"])
    assert [m["role"] for m in end.messages] == ["user", "assistant", "user", "assistant", "user"]


async def test_the_calls_of_a_turn_run_side_by_side_and_come_back_in_order_in_one_message() -> None:
    """A slow first call does not hold the second, and the model still reads them in the order it sent them."""
    gate = asyncio.Event()
    run = session([tool_use("look", query="slow"), tool_use("look", query="fast")], DONE)
    run.look = LookTool(gates={"slow": gate}, opens={"fast": gate})
    await run.run()
    assert run.look.ran == ["fast", "slow"]
    assert [result for _, result in run.look.settled] == ["slow", "fast"]
    assert [r["content"]["saw"] for r in run.script.results(1)] == ["slow", "fast"]
    ids = [block["id"] for block in run.script.requests[1]["messages"][1]["content"]]
    assert [r["tool_use_id"] for r in run.script.results(1)] == ids


async def test_every_tool_use_gets_its_result_whatever_happens_to_it() -> None:
    """An unknown tool, wrong arguments and a good call in one turn: three results, two of them errors with reasons."""
    turn = [
        tool_use("google", query="x"),
        tool_use("look", query="x", depth="deep"),
        tool_use("look", nonsense=1),
        tool_use("look", query="good"),
    ]
    run = session(turn, DONE)
    await run.run()
    unknown, wrong, missing, good = run.script.results(1)
    assert unknown["is_error"] is wrong["is_error"] is missing["is_error"] is True
    assert unknown["content"]["errorType"] == wrong["content"]["errorType"] == "invalid_arguments"
    assert "there is no tool 'google'" in unknown["content"]["message"]
    assert "depth: Input should be a valid integer" in wrong["content"]["message"]
    assert "query: Field required" in missing["content"]["message"]
    assert "is_error" not in good
    assert [failed.source for _, failed in run.refused] == ["google", "look", "look"]


async def test_a_call_cut_by_the_output_limit_is_answered_and_not_executed() -> None:
    """`max_tokens` inside a tool_use: the whole call before it runs, the cut one is sent back to be sent again."""
    turn = message([tool_use("look", query="whole"), tool_use("look", query="cut")], stop_reason="max_tokens")
    run = session(turn, DONE)
    await run.run()
    assert run.look.ran == ["whole"]
    assert "cut off by the output limit" in run.script.results(1)[1]["content"]["message"]


async def test_text_cut_by_the_output_limit_is_followed_by_a_request_for_the_report() -> None:
    """A turn that is only text, cut or not, hands nothing over; the model is asked to."""
    run = session(message([text("I think")], stop_reason="max_tokens"), DONE)
    assert (await run.run()).reason == "finished"
    assert "Call done now" in run.script.requests[1]["messages"][-1]["content"][0]["text"]


async def test_history_is_only_ever_appended_to() -> None:
    """Each request begins with the whole of the one before, unchanged, so that signed turns and caches stay valid."""
    run = session([text("hm"), tool_use("look", query="a")], [text("so")], [tool_use("look", query="b")], DONE)
    await run.run(turns=5)
    sent = [request["messages"] for request in run.script.requests]
    for before, after in itertools.pairwise(sent):
        assert after[: len(before)] == before


async def test_a_paused_turn_is_sent_back_as_it_is() -> None:
    """`pause_turn` goes on without a user message in between."""
    paused = message([text("thinking on the server")], stop_reason="pause_turn")
    run = session(paused, DONE)
    assert (await run.run()).reason == "finished"
    assert run.script.requests[1]["messages"][-1]["role"] == "assistant"


async def test_a_server_that_pauses_for_ever_meets_the_turn_limit() -> None:
    """Pauses count as turns."""
    run = session(message([text("…")], stop_reason="pause_turn"))
    assert (await run.run(turns=4)).reason == "turns_spent"


async def test_a_refusal_ends_the_agent_with_its_reason() -> None:
    """A refusal is an ending that the report can name, not an empty answer."""
    end = await session(message([], stop_reason="refusal")).run()
    assert (end.reason, end.turns) == ("refused", 1)


async def test_a_refusal_in_the_middle_of_a_turn_carries_nothing_out() -> None:
    """What was said and called before it is neither run nor kept; searches of earlier turns are."""
    refused = message([text("I will look"), tool_use("look", query="b")], stop_reason="refusal")
    run = session([tool_use("look", query="a")], refused)
    end = await run.run()
    assert (end.reason, run.look.ran) == ("refused", ["a"])
    assert [said["role"] for said in end.messages].count("assistant") == 1


@pytest.mark.parametrize("stop_reason", ["stop_sequence", "compaction", "a_reason_of_tomorrow"])
async def test_a_turn_that_stopped_for_another_reason_is_a_turn(stop_reason: str) -> None:
    """Its calls are run, and words alone are followed by the request to hand over."""
    called = message([tool_use("look", query="a")], stop_reason=stop_reason)
    run = session(called, message([text("so")], stop_reason=stop_reason), DONE)
    assert (await run.run()).reason == "finished"
    assert run.look.ran == ["a"]
    assert "Call done now" in run.script.requests[-1]["messages"][-1]["content"][0]["text"]


async def test_a_full_context_ends_the_agent_after_its_calls_are_answered() -> None:
    """The transcript stays well-formed, and what was found before is kept."""
    full = message(
        [tool_use("look", query="a"), tool_use("look", query="b")], stop_reason="model_context_window_exceeded"
    )
    run = session(full)
    end = await run.run()
    assert end.reason == "context_full"
    assert [block["type"] for block in end.messages[-1]["content"]] == ["tool_result", "tool_result"]
    assert run.look.ran == ["a"]


async def test_a_model_that_never_calls_a_tool_is_asked_twice_and_then_left() -> None:
    """A small local model that only chats still ends in a report that says so."""
    run = session([text("The answer is 42.")])
    end = await run.run()
    assert (end.reason, end.turns) == ("no_report", 3)
    assert end.detail == "the model never called done, nor any other tool"


WRITTEN = [
    '<tool_call>\n{"name": "look", "arguments": {"query": "a"}}\n</tool_call>',
    '```json\n{"name": "look", "parameters": {"query": "a"}}\n```',
    "{'function': 'look', 'query': 'a'}",
    "<function=look><parameter=query>a</parameter></function>",
]


@pytest.mark.parametrize("written", WRITTEN)
async def test_a_model_that_writes_its_calls_as_text_is_told_apart_from_one_that_chats(written: str) -> None:
    """The user learns that the server did not take them for calls; nothing that stands in a text is ever run."""
    run = session([text(written)])
    end = await run.run()
    assert (end.reason, end.turns) == ("no_report", 3)
    assert end.detail.endswith("; it wrote calls as text, which its server did not take for calls")
    assert run.look.ran == []


async def test_a_model_that_only_thinks_is_asked_twice_and_then_left() -> None:
    """Thinking goes back to the server as it came, and hands nothing over."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    run = session([thinking])
    end = await run.run()
    assert (end.reason, end.turns, end.detail) == ("no_report", 3, "the model never called done, nor any other tool")
    assert end.messages[1]["content"] == [thinking]


def looks(*queries: str) -> list[dict[str, Any]]:
    return [tool_use("look", query=query) for query in queries]


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ([looks("a")], 4),
        ([looks("a"), looks("b")] * 8, 5),
        ([looks("a", "b"), looks("b"), [text("Hm.")]], 4),
        ([looks("a"), [text("Hm.")], looks("b"), looks("a"), looks("b"), looks("a", "a")], 6),
        ([[tool_use("google", query="x")]], 3),
        ([[tool_use("look", what="x")]], 3),
        ([looks("a"), [tool_use("look", query=["x"])], [tool_use("look")], [tool_use("lok", query="x")]], 4),
    ],
    ids=["same", "alternating", "same then talk", "talk between", "unknown tool", "wrong arguments", "wrong in turn"],
)
async def test_a_model_that_goes_round_in_circles_is_asked_once_and_then_left(script: list[Any], turns: int) -> None:
    """Three turns in a row with nothing carried out that is new end the run; before the third it is told to report."""
    run = session(*script)
    end = await run.run()
    assert (end.reason, end.turns) == ("no_report", turns)
    assert end.detail.startswith("the model never called done, and its last 3 turns brought nothing new")
    assert "Call done now" in run.script.requests[-1]["messages"][-1]["content"][-1]["text"]


async def test_a_model_that_repeats_itself_and_then_reports_loses_nothing() -> None:
    """The request to hand over is heeded in the last turn in which it can be."""
    run = session(looks("a"), looks("a"), looks("a"), DONE)
    assert (await run.run()).reason == "finished"


async def test_a_repeat_that_fares_better_is_something_new() -> None:
    """A call that failed and is sent again counts by how it ends: three retries of three calls are no circle."""

    class FailsOnce(LookTool):
        def settle(self, call: Call, arguments: Look, result: str) -> Reply:
            return Reply({"saw": result}, is_error=self.ran.count(result) == 1)

    run = session(looks("a", "b", "c"), looks("a"), looks("b"), looks("c"), DONE, look=FailsOnce())
    assert (await run.run()).reason == "finished"


async def test_a_report_that_is_never_complete_is_told_apart_from_one_that_never_came() -> None:
    """Three reports cut off by the output limit: the user learns that there was an attempt."""
    cut = message([tool_use("done", answer="42")], stop_reason="max_tokens")
    run = session(looks("a"), cut)
    end = await run.run()
    assert (end.reason, end.turns, run.done.answers) == ("no_report", 4, [])
    assert end.detail == (
        "none of the model's calls of done was accepted, and then it brought nothing new; "
        "it was cut off by the limit of output or of the context"
    )


async def test_arguments_that_arrive_as_a_string_of_json_are_arguments() -> None:
    """Some servers send `input` as text; if it holds an object, the call is carried out."""
    reply = message([{**tool_use("look"), "input": '{"query": "a"}'}])
    run = session(httpx2.Response(200, json=reply), DONE)
    assert (await run.run()).reason == "finished"
    assert run.look.ran == ["a"]


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 0, "output_tokens": 0}, {"input_tokens": "many"}])
async def test_a_server_that_counts_no_tokens_meets_the_other_limits(usage: Any) -> None:
    """Without usage the limit of tokens cannot be met; turns still end the run."""
    run = session(*(message(looks(str(n)), usage=usage) for n in range(9)))
    end = await run.run(turns=5, tokens=1)
    assert (end.reason, end.turns) == ("turns_spent", 5)


async def test_a_conversation_that_the_server_refuses_as_too_long_is_a_full_context() -> None:
    """The end is named as what it is, with the server's sizes and what to set."""
    error = {
        "type": "exceed_context_size_error",
        "message": "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
    run = session(looks("a"), httpx2.Response(400, json={"error": error}))
    end = await run.run()
    assert (end.reason, end.turns, run.look.ran) == ("context_full", 1, ["a"])
    assert "(4096 tokens)" in end.detail
    assert "-c 32768" in end.detail


async def test_an_empty_turn_is_not_sent_back() -> None:
    """The API refuses empty assistant messages; the model is asked again instead."""
    run = session(message([], stop_reason="end_turn"), DONE)
    assert (await run.run()).reason == "finished"
    assert all(m["content"] for m in run.script.requests[1]["messages"])


async def test_a_dead_model_ends_the_agent_with_what_it_said() -> None:
    """After its retries, a model failure is an ending with a sentence, and earlier turns are kept."""
    run = session([tool_use("look", query="a")], httpx2.Response(529, json={"error": {"type": "overloaded_error"}}))
    end = await run.run()
    assert (end.reason, end.turns) == ("model_failed", 1)
    assert "529" in end.detail
    assert run.look.ran == ["a"]


async def test_the_model_is_told_when_turns_run_low_and_in_the_last_one_only_the_report_is_run() -> None:
    """Near the limit a notice is appended; a search in the last turn is refused, since nobody could read its result."""
    run = session(*(looks(str(n)) for n in range(4)))
    end = await run.run(turns=4)
    assert (end.reason, end.turns) == ("turns_spent", 4)
    notices = [
        [block["text"] for block in request["messages"][-1]["content"] if block["type"] == "text"]
        for request in run.script.requests[1:]
    ]
    assert notices[0] == []
    assert "2 turns left" in notices[1][0]
    assert "The next turn is the last" in notices[2][0]
    assert run.look.ran == ["0", "1", "2"]
    assert run.refused[-1][1].error_type == "budget_exhausted"


async def test_a_report_in_the_last_turn_is_taken() -> None:
    """The closing tool runs in the last turn, and is told that there is no time for a revision."""
    run = session([tool_use("look", query="a")], DONE, done=DoneTool(sends_back=9))
    assert (await run.run(turns=2)).reason == "finished"


async def test_a_report_that_goes_back_can_be_sent_again() -> None:
    """A revision is one more turn."""
    run = session(DONE, [tool_use("done", answer="43")], done=DoneTool(sends_back=1))
    assert (await run.run()).reason == "finished"
    assert run.done.answers == ["42", "43"]


async def test_calls_past_the_budget_are_refused_and_the_report_still_comes() -> None:
    """With three calls allowed, the fourth is answered budget_exhausted and the run goes on to its report."""
    looks = [tool_use("look", query=str(n)) for n in range(4)]
    run = session(looks, DONE)
    assert (await run.run(calls=3)).reason == "finished"
    assert len(run.look.ran) == 3
    assert run.script.results(1)[3]["content"]["errorType"] == "budget_exhausted"


async def test_a_turn_with_too_many_calls_has_the_rest_refused() -> None:
    """A burst of calls is cut to the limit, each refused one with its own result."""
    run = session([tool_use("look", query=str(n)) for n in range(5)], DONE)
    await run.run(calls_per_turn=2)
    assert [r["content"].get("errorType") for r in run.script.results(1)] == [None, None, *["budget_exhausted"] * 3]


async def test_no_turn_begins_beyond_the_tokens() -> None:
    """The reserve grants a last turn; a turn that used all of it and more was the last."""
    beyond = message([tool_use("look", query="a")], usage={"input_tokens": 900, "output_tokens": 200})
    end = await session(beyond, DONE, reserve=0.2).run(tokens=1_000)
    assert (end.reason, end.turns) == ("tokens_spent", 1)


async def test_spent_tokens_leave_one_turn_for_the_report() -> None:
    """When the tokens are spent but for the reserve, the model gets one more turn, in which only the report is run."""
    greedy = message([tool_use("look", query="a")], usage={"input_tokens": 700, "output_tokens": 200})
    run = session(greedy, DONE, reserve=0.2)
    assert (await run.run(tokens=1_000)).reason == "finished"
    again = session(greedy, reserve=0.2)
    assert (await again.run(tokens=1_000)).reason == "tokens_spent"
    assert again.look.ran == ["a"]


async def test_a_bug_in_a_tool_ends_the_run_loudly_and_stops_its_siblings() -> None:
    """An unnamed exception is not a tool failure."""

    class Buggy(LookTool):
        async def run(self, arguments: Look, _scope: Scope) -> str:
            if arguments.query == "bug":
                raise ZeroDivisionError
            await asyncio.Event().wait()
            return ""

    run = session([tool_use("look", query="forever"), tool_use("look", query="bug")], look=Buggy())
    with pytest.raises(ZeroDivisionError):
        await run.run()


async def test_a_stop_answers_every_call_of_the_turn_and_ends_the_agent() -> None:
    """Ctrl-C during a turn: what is done is kept, what hangs becomes cancelled, and no new request is sent."""
    run = session([tool_use("look", query="fast"), tool_use("look", query="never")])
    run.look = LookTool(gates={"never": asyncio.Event()})

    class StopsAfterFirst(LookTool):
        async def run(self, arguments: Look, _scope: Scope) -> str:
            result = await super().run(arguments, _scope)
            stop.ask()
            return result

    stop = run.stop
    run.look = StopsAfterFirst(gates={"never": asyncio.Event()})
    end = await run.run()
    assert end.reason == "stopped"
    assert len(run.script.requests) == 1
    fast, never = end.messages[-1]["content"]
    assert "saw" in fast["content"]
    assert '"cancelled"' in never["content"]
    assert never["is_error"] is True


async def test_a_stop_while_the_model_is_thinking_ends_the_agent_at_once() -> None:
    """Nobody waits for a turn that will not be used."""
    run = session([tool_use("look", query="a")])
    run.stop.ask()
    assert (await run.run()).reason == "stopped"
    assert run.script.requests == []
