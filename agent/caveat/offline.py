"""The embedded model: what answers where there is no API key. It is not a language model.

Plain, deterministic rules speak the Messages API's wire form inside the process, so that the SDK, the loop and the
cassettes see what they see with a real model. Everything is derived from one request; nothing is remembered.

    tools offered                            what the rules do
    plan_topics, search, report_findings     split the question, search, follow up failures, report sentences verbatim
    write_sections, and no search            string the claims together, each with its citation
    anything else                            say what this is

Documents are only cut into sentences and compared with the question: an instruction inside one is never followed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from caveat_tools.outcome import MAX_QUERY_CHARS, clip, estimated_tokens, to_json
from caveat_tools.source import Ask
from caveat_tools.words import content_terms, sentences, terms

MODEL_NAME: Final = "caveat-offline"

MAX_TOPICS: Final = 4
MAX_QUERY_WORDS: Final = 8
MAX_SEARCH_TURNS: Final = 6
MAX_CALLS_PER_TURN: Final = 12
MAX_FOLLOW_UPS: Final = 2
"""For one topic at one source."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
MAX_FINDINGS: Final = 3
"""For one topic."""
_ENOUGH: Final = {1: 1.0, 2: 0.6, 3: 0.5}
"""Share of a topic's weighted terms that a sentence must hold to be reported, by the number of terms it holds, up to 3.

Measured on XQuAD (English, Russian, Chinese) with the five best of 240 passages: where all passages of the question's
article are taken away, 2.0, 1.6 and 0.3 % of the questions still get a finding; where they are there, the sentence with
the answer is among the findings for 66, 58 and 55 %.
"""
_BEST_TERMS, _BEST_SHARE = 4, 0.3
"""Where no sentence has enough, the best one will do if it holds this many terms and this share."""
_DELTA_CHARS: Final = 200

_INTRODUCTION: Final = (
    "This is caveat's embedded model. It follows fixed rules, is not a language model and works only inside caveat."
)

# An "and" divides a question only before another question: "benefits and harms of screening" is one topic.
_CLAUSE_ENDS: Final = re.compile(
    r"\s*[;；]\s*|,?\s+(?:and|и)\s+(?=(?:what|why|how|when|where|who|whom|whose|which"
    r"|что|почему|как|как(?:ой|ая|ое|ие|ов|ова|ово|овы)|когда|где|кто|куда|откуда|сколько|зачем|чем)\b)",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+(?:[-'’.+]\w+)*")
_HAN_PARTICLE: Final = re.compile("为什么|什么是|是什么|什么|怎么样?|如何|是否|不是|吗|呢|的")
_YEAR: Final = r"(?<!\d)(1[5-9]\d\d|20\d\d)(?!\d)"
_YEARS: Final = re.compile(_YEAR + r"\s*(?:年|гг?\.)?\s*(?:[-–—]|to|and|until|through|по|до|и|到|至)\s*" + _YEAR)
_STATEMENT_END: Final = re.compile(r"(?<!\.)[.!。！।۔](?:[\"'”’»)\]*_`」』）]|\[\d+\])*$")
_CODE_SIGNS: Final = frozenset("{}[]<>=|\\$#@~^")
_MARKUP_START: Final = ("#", "|", "```", ">>>", "$ ")


# --- the wire: a request in, a response out


class _Body(BaseModel):
    """Base of what is read from a request: unknown fields are left alone, known ones have to fit."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Block(_Body):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: Any = None
    is_error: bool = False


class _Message(_Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]

    @property
    def blocks(self) -> list[_Block]:
        return [_Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class _Tool(_Body):
    name: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class _Request(_Body):
    model: str
    max_tokens: int = Field(ge=1)
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] = Field(default_factory=list)
    stream: bool = False


class _Turn(NamedTuple):
    """What one side said before the other spoke again."""

    role: str
    blocks: list[_Block]


class _Call(NamedTuple):
    """A tool call. `turn` and `result` (its text) are those of the conversation; a call to be made has none."""

    name: str
    input: dict[str, Any]
    turn: int = 0
    result: str = ""


def transport() -> httpx2.MockTransport:
    """Return the transport that answers in place of the network, for a synchronous or an asynchronous client."""
    return httpx2.MockTransport(answer)


def answer(request: httpx2.Request) -> httpx2.Response:
    """Answer one request whose body has been read, as the Messages API would; equal requests get equal bytes.

    A body or a conversation that the API refuses gets a 400, every other path a 404. Raises nothing.
    """
    digest = hashlib.sha256(request.content).hexdigest()[:20]
    if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
        return _error(404, "not_found_error", "the embedded model serves POST /v1/messages only", digest)
    try:
        asked = _Request.model_validate_json(request.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return _error(400, "invalid_request_error", f"{where}: {first['msg']}", digest)
    turns = _turns(asked.messages)
    fault = _fault(turns)
    if fault:
        return _error(400, "invalid_request_error", fault, digest)
    message = _message(_reply(asked.tools, turns), digest, estimated_tokens(request.content.decode()))
    headers = {"request-id": f"req_offline_{digest}"}
    if not asked.stream:
        return httpx2.Response(200, headers={**headers, "content-type": "application/json"}, content=to_json(message))
    events = "".join(f"event: {event['type']}\ndata: {to_json(event)}\n\n" for event in _events(message))
    return httpx2.Response(200, headers={**headers, "content-type": "text/event-stream; charset=utf-8"}, content=events)


def _message(reply: str | list[_Call], digest: str, input_tokens: int) -> dict[str, Any]:
    """Return a reply as the API's message object."""
    blocks: list[dict[str, Any]]
    if isinstance(reply, str):
        stop_reason, blocks = "end_turn", [{"type": "text", "text": reply}]
    else:
        ids = [f"toolu_offline_{digest}_{number}" for number in range(len(reply))]
        stop_reason = "tool_use"
        blocks = [
            {"type": "tool_use", "id": call_id, "name": call.name, "input": call.input}
            for call_id, call in zip(ids, reply, strict=True)
        ]
    return {
        "id": f"msg_offline_{digest}",
        "type": "message",
        "role": "assistant",
        "model": MODEL_NAME,
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": estimated_tokens(to_json(blocks))},
    }


def _error(status: int, kind: str, message: str, digest: str) -> httpx2.Response:
    request_id = f"req_offline_{digest}"
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    headers = {"request-id": request_id, "content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=to_json(body))


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events that make up a message."""
    blocks, usage = message["content"], message["usage"]
    opening = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": opening}
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        whole = block["text"] if is_text else to_json(block["input"])
        for start in range(0, len(whole), _DELTA_CHARS):
            part = whole[start : start + _DELTA_CHARS]
            delta = {"type": "text_delta", "text": part}
            if not is_text:
                delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


# --- the conversation


def _turns(messages: Sequence[_Message]) -> list[_Turn]:
    """Join consecutive messages of one role, as the API does; system messages are not for these rules."""
    spoken = [message for message in messages if message.role != "system"]
    grouped = groupby(spoken, key=attrgetter("role"))
    return [_Turn(role, list(chain.from_iterable(message.blocks for message in group))) for role, group in grouped]


def _fault(turns: Sequence[_Turn]) -> str:
    """Return why the API would refuse this conversation, or ""."""
    if not turns or turns[0].role != "user" or turns[-1].role != "user":
        return "messages: the first and the last message must be the user's"
    for before, turn in pairwise([_Turn("assistant", []), *turns]):
        called = sorted(block.id for block in before.blocks if block.type == "tool_use")
        results = [block for block in turn.blocks if block.type == "tool_result"]
        if sorted(block.tool_use_id for block in results) != called:
            return "messages: the tool_results must be those of the tool_use blocks right before, one each"
        if any(block.type != "tool_result" for block in turn.blocks[: len(results)]):
            return "messages: tool_result blocks come before all others"
        if any(block.is_error and not _text(block.content) for block in results):
            return "messages: a tool_result with is_error needs content"
    return ""


def _text(content: Any) -> str:
    """Return the text of a tool_result's content: a string, or blocks of which the text blocks count."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _calls(turns: Sequence[_Turn]) -> list[_Call]:
    """Return all tool calls made so far, in order."""
    blocks = [(number, block) for number, turn in enumerate(turns) for block in turn.blocks]
    results = {block.tool_use_id: _text(block.content) for _, block in blocks if block.type == "tool_result"}
    return [
        _Call(block.name, block.input, number, results[block.id])
        for number, block in blocks
        if block.type == "tool_use"
    ]


def _reply(tools: Sequence[_Tool], turns: Sequence[_Turn]) -> str | list[_Call]:
    """Return what is said next: a text that ends the turn, or tool calls."""
    offered = {tool.name: tool for tool in tools}
    if {"plan_topics", "search", "report_findings"} <= offered.keys():
        return _coordinate(_sources(offered["search"]), turns)
    if "write_sections" in offered and "search" not in offered:
        return _synthesise(turns)
    return _INTRODUCTION


def _tagged(turns: Sequence[_Turn], tag: str) -> str | None:
    """Return what stands between <tag> and </tag> in the first user message, or None where the tags are missing."""
    match = re.search(f"<{tag}>(.*)</{tag}>", _opening(turns), re.DOTALL)
    return match[1] if match else None


def _opening(turns: Sequence[_Turn]) -> str:
    return "\n".join(block.text for block in turns[0].blocks if block.type == "text")


M = TypeVar("M", bound=BaseModel)


def _read(model: type[M], value: str | dict[str, Any]) -> M | None:
    """Return JSON, as text or parsed, as a model, or None where it is anything else."""
    try:
        return model.model_validate_json(value) if isinstance(value, str) else model.model_validate(value)
    except ValidationError:
        return None


class _Handover(_Body):
    """The answer to report_findings and write_sections."""

    status: str = ""
    problems: list[Any] = Field(default_factory=list)


def _refused(handovers: Sequence[_Call], key: str) -> list[Any] | None:
    """Return what the first handover is to be repeated without; None where it stands or has been repeated already."""
    handover = _read(_Handover, handovers[-1].result)
    if len(handovers) > 1 or not handover or handover.status != "revise":
        return None
    return [problem[key] for problem in handover.problems if isinstance(problem, dict) and key in problem]


# --- the coordinator: plan, search, follow up, report


class _Topic(_Body):
    id: str
    topic: str


class _Plan(_Body):
    topics: list[_Topic]


class _Passage(_Body):
    id: str = ""
    text: str = ""


class _Outcome(_Body):
    """A search's tool_result, read with patience: what is missing has a harmless default."""

    model_config = ConfigDict(alias_generator=to_camel)

    status: str = ""
    error_type: str = ""
    results: list[_Passage] = Field(default_factory=list)
    partial_results: list[_Passage] = Field(default_factory=list)
    alternative_approaches: list[str] = Field(default_factory=list)
    is_retryable: bool = False
    retry_after_seconds: float | None = None


class _Search(_Body):
    """The input of a search call."""

    topic_id: str
    source: str
    query: str
    date_from: str | None = None
    date_to: str | None = None
    use_snapshot: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What a source counts as the same question."""
        return self.source, *Ask(self.query, self.date_from, self.date_to).key()

    @property
    def place(self) -> tuple[str, str]:
        """The topic and the source, for which follow-ups are counted."""
        return self.topic_id, self.source

    def call(self) -> _Call:
        return _Call("search", self.model_dump(exclude_defaults=True))


class _Searched(NamedTuple):
    """A search that was carried out, its outcome, and the turn it belongs to."""

    search: _Search
    outcome: _Outcome
    turn: int


def _sources(search: _Tool) -> list[str]:
    """Return the names that the search tool's schema allows; a schema of one name may say `const`."""
    properties = search.input_schema.get("properties")
    source = properties.get("source") if isinstance(properties, dict) else None
    if not isinstance(source, dict):
        return []
    names = source.get("enum", [source.get("const")])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _coordinate(sources: Sequence[str], turns: Sequence[_Turn]) -> str | list[_Call]:
    question = " ".join((_tagged(turns, "question") or _opening(turns)).split())
    if not question:
        return "There is no question to work on."
    calls = _calls(turns)
    plans = [call for call in calls if call.name == "plan_topics"]
    if not plans:
        return [_Call("plan_topics", {"topics": _topics(question)})]
    topics = _planned(plans) or {"T1": question}
    searched = _searched(calls)
    reports = [call for call in calls if call.name == "report_findings"]
    if reports:
        refused = _refused(reports, "finding")
        return "There is nothing more to report." if refused is None else [_report(topics, searched, refused)]
    if _told_to_report(turns[-1]) or len({done.turn for done in searched}) >= MAX_SEARCH_TURNS:
        return [_report(topics, searched)]
    wanted = _follow_ups(question, searched) if searched else []
    begun = {done.search.place for done in searched} | {search.place for search in wanted}
    wanted += [search for search in _first_searches(topics, sources) if search.place not in begun]
    return [search.call() for search in wanted[:MAX_CALLS_PER_TURN]] or [_report(topics, searched)]


def _topics(question: str) -> list[str]:
    """Split a question into at most four parts that can each be searched for; the whole question where none can."""
    wanted = frozenset(content_terms(question))
    topics: list[str] = []
    for part in chain.from_iterable(_CLAUSE_ENDS.split(sentence) for sentence in sentences(question)):
        if topics and (len(topics) == MAX_TOPICS or not all(_is_topic(wanted, it) for it in (topics[-1], part))):
            topics[-1] += f" {part}"
        else:
            topics.append(part)
    return list(dict.fromkeys(clip(topic, MAX_QUERY_CHARS)[0] for topic in (topics if len(topics) > 1 else [question])))


def _is_topic(wanted: frozenset[str], part: str) -> bool:
    """Say whether a part of a question has two content terms of its own."""
    return len(wanted.intersection(terms(part))) >= 2


def _planned(plans: Sequence[_Call]) -> dict[str, str]:
    """Return the topics of all plans by id."""
    read = [_read(_Plan, call.result) for call in plans]
    return {topic.id: topic.topic for plan in read if plan for topic in plan.topics}


def _searched(calls: Sequence[_Call]) -> list[_Searched]:
    done = []
    for call in calls:
        search = _read(_Search, call.input) if call.name == "search" else None
        if search:
            done.append(_Searched(search, _read(_Outcome, call.result) or _Outcome(), call.turn))
    return done


def _told_to_report(turn: _Turn) -> bool:
    """Say whether the loop's reminder that few turns are left stands behind the tool results."""
    has_results = any(block.type == "tool_result" for block in turn.blocks)
    return has_results and any(block.type == "text" and "report_findings" in block.text for block in turn.blocks)


def _first_searches(topics: dict[str, str], sources: Sequence[str]) -> list[_Search]:
    return [
        _Search(topic_id=topic_id, source=source, query=_query(topic))
        for topic_id, topic in topics.items()
        for source in sources
    ]


def _query(topic: str) -> str:
    """Return the topic's first content words as they are written there."""
    wanted = frozenset(content_terms(topic))
    words = [word for word in _WORD.findall(_HAN_PARTICLE.sub(" ", topic)) if wanted.intersection(terms(word))]
    return clip(" ".join(words[:MAX_QUERY_WORDS]) or topic, MAX_QUERY_CHARS)[0]


def _simplified(query: str) -> str:
    """Return the query's longest two or three words in their order; of equally long ones, the later."""
    words = query.split()
    kept = sorted(range(len(words)), key=lambda at: (-len(words[at]), -at))[: min(3, max(2, len(words) - 1))]
    return " ".join(words[at] for at in sorted(kept))


def _follow_ups(question: str, searched: Sequence[_Searched]) -> list[_Search]:
    """Return what to send after the latest turn's failed and empty results; earlier ones have been followed up."""
    latest = searched[-1].turn
    wanted: list[_Search] = []
    for done in searched:
        if done.turn == latest:
            sent = [earlier.search for earlier in searched] + wanted
            wanted += _follow_up(question, done, searched, sent)
    return wanted


def _follow_up(question: str, done: _Searched, searched: Sequence[_Searched], sent: Sequence[_Search]) -> list[_Search]:
    """Return the one search that follows a result, or nothing where it is to be left at that."""
    search, outcome = done.search, done.outcome
    here = [other for other in sent if other.place == search.place]
    if len(here) > MAX_FOLLOW_UPS:
        return []
    approaches = outcome.alternative_approaches if outcome.status == "failed" else []
    if outcome.status == "empty" and len({other.key for other in here}) == 1:
        found = any(d.outcome.status == "found" and d.search.topic_id == search.topic_id for d in searched)
        approaches = [] if found else ["simplify_query"]
    for approach in approaches:
        candidate = _changed(search, approach, question)
        asked_there = candidate.source != search.source and any(other.place == candidate.place for other in sent)
        if candidate not in sent and not asked_there and not _is_refused(candidate, searched):
            return [candidate]
    soon = (outcome.retry_after_seconds or 0.0) <= MAX_RETRY_AFTER_SECONDS
    again = outcome.is_retryable and soon and sent.count(search) == 1 and not _is_refused(search, searched)
    return [search] if again else []


def _changed(search: _Search, approach: str, question: str) -> _Search:
    """Return the search that carries out an alternative; the search itself where it cannot be carried out."""
    years = _YEARS.search(question)
    match approach.partition(":"):
        case "use_cached_snapshot", "", "":
            return search.model_copy(update={"use_snapshot": True})
        case "simplify_query", "", "":
            return search.model_copy(update={"query": _simplified(search.query)})
        case "narrow_query_by_date_range", "", "" if years and years[1] <= years[2]:
            dates = {"date_from": f"{years[1]}-01-01", "date_to": f"{years[2]}-12-31"}
            return search.model_copy(update=dates)
        case "try_source", ":", source:
            return _Search(topic_id=search.topic_id, source=source, query=search.query)
    return search


def _is_refused(candidate: _Search, searched: Sequence[_Searched]) -> bool:
    """Say whether the source has answered this question for good; a snapshot may stand in, except for a blocked one."""
    for search, outcome, _ in searched:
        final = outcome.status == "empty" or (outcome.status == "failed" and not outcome.is_retryable)
        alike = search.use_snapshot == candidate.use_snapshot or outcome.error_type == "blocked"
        if search.key == candidate.key and final and alike:
            return True
    return False


def _report(topics: dict[str, str], searched: Sequence[_Searched], refused: Collection[Any] = ()) -> _Call:
    """Return the report; the findings whose numbers, from 1, were refused are left out."""
    findings: list[dict[str, Any]] = []
    for topic_id, topic in topics.items():
        outcomes = [done.outcome for done in searched if done.search.topic_id == topic_id]
        passages = [p for outcome in outcomes for p in (*outcome.results, *outcome.partial_results) if p.id]
        findings += [
            {"topic_id": topic_id, "text": text, "evidence": [{"id": passage.id, "quote": quote}]}
            for text, quote, passage in _best_sentences(topic, passages)
        ]
    findings = [finding for number, finding in enumerate(findings, 1) if number not in refused]
    answered = {finding["topic_id"] for finding in findings}
    open_points = [
        {"topic_id": topic_id, "what": f"no sentence in the searched sources answers: {topic}"}
        for topic_id, topic in topics.items()
        if topic_id not in answered
    ]
    return _Call("report_findings", {"findings": findings, "open_points": open_points})


def _best_sentences(topic: str, passages: Iterable[_Passage]) -> list[tuple[str, str, _Passage]]:
    """Return up to three (text, quote, passage) whose sentence holds most of the topic's terms, the best first.

    A term counts the more, the fewer of the sentences contain it; one that none contains counts most, so that sentences
    about everything but the point of the question stay out.
    """
    wanted = frozenset(content_terms(topic))
    found: dict[str, tuple[str, _Passage]] = {}
    for passage in passages:
        for sentence in sentences(passage.text):
            found.setdefault(" ".join(sentence.split()), (sentence, passage))
    held = {text: wanted.intersection(terms(text)) for text in found}
    frequency = Counter(chain.from_iterable(held.values()))
    weight = {term: 1 + math.log((len(found) + 1) / (frequency[term] + 1)) for term in wanted}
    total = sum(weight[term] for term in sorted(wanted))
    share = {
        text: sum(weight[term] for term in sorted(hits)) / total
        for text, hits in held.items()
        if hits and _is_statement(found[text][0])
    }
    ranked = sorted(share, key=lambda text: -share[text] * (1.0 if 30 <= len(text.encode()) <= 400 else 0.7))
    best = [text for text in ranked if share[text] >= _ENOUGH[min(3, len(held[text]))]]
    best = best or [text for text in ranked if len(held[text]) >= _BEST_TERMS and share[text] >= _BEST_SHARE][:1]
    return [(text, *found[text]) for text in best[:MAX_FINDINGS]]


def _is_statement(sentence: str) -> bool:
    """Say whether this is a whole sentence that states something: no heading, fragment, question, table row or code."""
    if sentence.startswith(_MARKUP_START) or "\n    " in sentence or not _STATEMENT_END.search(sentence):
        return False
    return sum(char in _CODE_SIGNS for char in sentence) <= 0.06 * len(sentence)


# --- the synthesis: claims in a row


class _Claim(_Body):
    id: str
    text: str


class _Claimed(_Body):
    """A topic as the analysis hands it over."""

    id: str
    claims: list[_Claim] = Field(default_factory=list)


class _Claims(_Body):
    topics: list[_Claimed] = Field(default_factory=list)


def _synthesise(turns: Sequence[_Turn]) -> str | list[_Call]:
    written = [call for call in _calls(turns) if call.name == "write_sections"]
    refused = _refused(written, "topic_id") if written else []
    if refused is None:
        return "The sections are written."
    claims = _read(_Claims, _tagged(turns, "claims") or "") or _Claims()
    sections = [
        {"topic_id": topic.id, "text": " ".join(f"{claim.text} [{claim.id}]" for claim in topic.claims)}
        for topic in claims.topics
        if topic.claims and topic.id not in refused
    ]
    return [_Call("write_sections", {"sections": sections})]
