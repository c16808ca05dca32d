"""The embedded model's other side: its tools, hand-made results in their wire form, conversations so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from caveat import offline
from caveat_tools.outcome import Empty, Failed, Found, Result, to_json, wire

SOURCES = ["local", "wikipedia"]
SYNTHESIS = [{"name": "write_sections", "input_schema": {"type": "object"}}]


def coordinator(*sources: str) -> list[dict[str, Any]]:
    """Return the coordinator's tools, with these sources."""
    source = {"type": "string", "enum": sources}
    return [
        {"name": "plan_topics", "input_schema": {"type": "object"}},
        {"name": "search", "input_schema": {"type": "object", "properties": {"source": source}}},
        {"name": "report_findings", "input_schema": {"type": "object"}},
    ]


COORDINATOR = coordinator(*SOURCES)

QUESTION = "How does caffeine affect sleep quality in adults?"
ANSWER = "Caffeine taken six hours before bed lowers sleep quality in adults by more than an hour."
PASSAGE = f"# Caffeine and sleep\n\n{ANSWER} Tea was first traded by sea in 1610."


def result_of(call_id: str, answer: Any) -> dict[str, Any]:
    body = wire(answer) if isinstance(answer, Empty | Failed | Found) else answer
    content = body if isinstance(body, str | list) else to_json(body)
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": content,
        "is_error": isinstance(answer, Failed) or (isinstance(answer, dict) and answer.get("status") == "failed"),
    }


def found(call: dict[str, Any], *texts: str) -> Found:
    return Found(source=call["source"], query=call["query"], results=results(call, *(texts or (PASSAGE,))))


def results(call: dict[str, Any], *texts: str) -> tuple[Result, ...]:
    prefix = f"{call.get('topic_id', 'A2')}.{call['source']}"
    return tuple(Result(id=f"{prefix}.S{n}", title="A page", url="u", text=text) for n, text in enumerate(texts, 1))


def empty(call: dict[str, Any]) -> Empty:
    return Empty(source=call["source"], query=call["query"], guidance="Do not send it again.")


def failed(call: dict[str, Any], *alternatives: str, **fields: Any) -> Failed:
    given_fields = {"error_type": "timeout", "is_retryable": True, "attempts": 3, **fields}
    return Failed(
        source=call["source"],
        attempted_query=call["query"],
        alternative_approaches=alternatives,
        message="no answer",
        guidance="Go on.",
        **given_fields,
    )


def scripted(*calls: tuple[str, dict[str, Any], Any]) -> list[Any]:
    """Return an assistant turn with these calls, and the user turn with their results."""
    ids = [f"toolu_{name}_{number}" for number, (name, _, _) in enumerate(calls)]
    said = [
        {"type": "tool_use", "id": i, "name": call[0], "input": call[1]} for i, call in zip(ids, calls, strict=True)
    ]
    heard = [result_of(i, call[2]) for i, call in zip(ids, calls, strict=True)]
    return [{"role": "assistant", "content": said}, {"role": "user", "content": heard}]


def played(
    opening: str, tools: list[Any], script: Callable[[dict[str, Any]], Any], *, reminder_after: int = 99
) -> list[list[dict[str, Any]]]:
    """Run a whole conversation; return the calls of each turn as {"name": …, **input}. `script` answers them all.

    After `reminder_after` turns the loop's reminder stands behind the results.
    """
    messages: list[Any] = [{"role": "user", "content": opening}]
    turns: list[list[dict[str, Any]]] = []
    while True:
        body = to_json({"model": "m", "max_tokens": 4096, "messages": messages, "tools": tools}).encode()
        response = post(body)
        assert response.status_code == 200, response.text
        assert post(body).content == response.content
        said = response.json()["content"]
        calls = [block for block in said if block["type"] == "tool_use"]
        if not calls:
            return turns
        turns.append([{"name": call["name"], **call["input"]} for call in calls])
        assert len(turns) < 12, "the conversation does not end"
        heard = [result_of(block["id"], script(call)) for block, call in zip(calls, turns[-1], strict=True)]
        reminder = (
            [{"type": "text", "text": "2 turns left. Call report_findings now."}]
            if len(turns) >= reminder_after
            else []
        )
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": heard + reminder}]


def post(body: bytes, path: str = "/v1/messages") -> httpx2.Response:
    return offline.answer(httpx2.Request("POST", f"https://offline.invalid{path}", content=body))
