"""Synthesis: verified claims become prose per topic, or stay as they are where the prose does not hold.

The model writes; code checks that every paragraph cites claims that exist and that every number stands in what it
cites. A topic whose prose fails twice is rendered from its claims, and the report says so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from caveat.budget import Budget, Limits
from caveat.claims import Claim
from caveat.journal import UNKEPT, Scope
from caveat.ledger import State
from caveat.loop import AgentEnd, Arguments, Call, Reply, TurnStarted, definition, run_agent
from caveat.model import Model
from caveat_tools.outcome import to_json
from caveat_tools.plain_text import plain
from caveat_tools.stop import Stop

LIMITS: Final = Limits(turns=4, calls=4, nudges=1)
CITATION: Final = re.compile(r"\[(C\d+(?:\s*,\s*C\d+)*)\]")
_OTHER_CITATION = re.compile(r"\[(?!C\d)[A-Za-z]{1,3}\d+[\],;.]")
MAX_SECTION_CHARS: Final = 20_000
_MARKERS = r"(?:[\s*+-]|\d++[.)]\s)*+"
_LIST_MARKERS = re.compile(_MARKERS)
_OPENING = re.compile(r">|\[[^\]]{0,999}+\]:|[#|]|```|~~~")
"""What begins a quote, a link's target (its label has at most 999 characters: CommonMark), a heading, a table, code."""
_WORDLESS = re.compile(_MARKERS + r"[=_|:*\s-]*+")
"""A rule, an underline that makes the line above a heading, what makes it a table's head, or an empty item."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_UNIT = re.compile(r"(?<=[A-Za-z])[\u00b2\u00b3\u00b9\u2070-\u2089](?![\u00b2\u00b3\u00b9\u2070-\u2089])")
"""The raised or lowered digit of km² or CO₂, which is no number."""


class SectionArguments(Arguments):
    """The prose of one topic."""

    topic_id: str = Field(description="The topic's id.")
    text: str = Field(description="Markdown paragraphs; each cites at least one claim, like [C2] or [C2, C5].")


class WriteSections(Arguments):
    """Arguments of write_sections."""

    sections: Annotated[list[SectionArguments], Field(max_length=20)] = Field(
        description="One section for each topic that has claims."
    )


@dataclass(frozen=True, slots=True)
class TopicClaims:
    """What synthesis may write about one topic: its verified claims by id (C1, C2, …)."""

    id: str
    topic: str
    state: State
    claims: Mapping[str, Claim]


@dataclass(frozen=True, slots=True)
class Synthesis:
    """Prose by topic id, citations still in the form [C2]; and why a topic or everything has none."""

    sections: Mapping[str, str]
    rejected: Mapping[str, str]
    end: AgentEnd


@dataclass
class WriteSectionsTool:
    """Takes the prose over, checks it, and sends what does not hold back, once."""

    topics: Mapping[str, TopicClaims]
    sections: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    sent_back: bool = False
    name: str = "write_sections"
    closes: bool = True
    is_free: bool = True
    arguments: type[BaseModel] = WriteSections

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition."""
        return definition(self.name, "Hand over the prose of all topics. This ends your work.", self.arguments)

    async def run(self, arguments: WriteSections, _scope: Scope) -> WriteSections:
        """Nothing to wait for."""
        return arguments

    def settle(self, call: Call, _arguments: WriteSections, result: WriteSections) -> Reply:
        """Keep the sections that hold. A topic left out keeps what an earlier call gave it."""
        for section in result.sections:
            text = plain(section.text).strip()
            problem = self._problem(section.topic_id, text)
            if problem is None:
                self.sections[section.topic_id] = text
                self.rejected.pop(section.topic_id, None)
            elif section.topic_id not in self.sections:
                self.rejected[section.topic_id] = problem
        if self.rejected and not self.sent_back and not call.last:
            self.sent_back = True
            problems = [{"topic_id": key, "problem": text} for key, text in self.rejected.items()]
            return Reply(
                {"status": "revise", "problems": problems, "guidance": "Send these sections again, corrected."}
            )
        return Reply({"status": "accepted"}, final=True)

    def _problem(self, topic_id: str, text: str) -> str | None:
        topic = self.topics.get(topic_id)
        if topic is None or not topic.claims:
            return f"{topic_id} has no claims to write about"
        if not text:
            return "the section is empty"
        if len(text) > MAX_SECTION_CHARS:
            return f"the section is longer than {MAX_SECTION_CHARS:,} characters"
        return next(filter(None, (paragraph_problem(p, topic.claims) for p in re.split(r"\n\s*\n", text))), None)


def paragraph_problem(paragraph: str, claims: Mapping[str, Claim]) -> str | None:
    """Return why a paragraph does not hold: no citation, one that does not exist, a number that no cited claim has."""
    if not paragraph.strip():
        return None
    if _has_structure(paragraph):
        return "headings, quotes, tables, code and link targets are not possible, only paragraphs and lists"
    if _OTHER_CITATION.search(paragraph):
        return "only claims can be cited, like [C2]"
    cited = list(dict.fromkeys(cited_claims(paragraph)))
    if not cited:
        return f"a paragraph cites no claim: {paragraph.strip()[:60]!r}"
    unknown = [key for key in cited if key not in claims]
    if unknown:
        return f"there is no claim {unknown[0]} in this topic"
    grounds = " ".join(f"{claims[k].text} {' '.join(e.quote for e in claims[k].evidence)}" for k in cited)
    said = re.sub(r"^\s*\d+[.)]\s", "", CITATION.sub(" ", paragraph), flags=re.MULTILINE)
    missing = numbers_in(said) - numbers_in(grounds)
    if missing:
        return f"the number {min(missing)} stands in no claim that the paragraph cites"
    return None


def _has_structure(paragraph: str) -> bool:
    """Say whether a line could pass for a part of the report that code writes. Nothing in it backtracks."""
    start = 0
    for line in paragraph.split("\n"):
        markers = _LIST_MARKERS.match(line)
        after = start + (markers.end() if markers else 0)
        if _OPENING.match(paragraph, after) or (line.strip() and _WORDLESS.fullmatch(line.rstrip())):
            return True
        start += len(line) + 1
    return False


def cited_claims(text: str) -> list[str]:
    """Return the ids in all citations of a text, in order."""
    return [key.strip() for group in CITATION.findall(text) for key in group.split(",")]


def numbers_in(text: str) -> set[str]:
    """Return the numbers of a text in one spelling: no thousands separators, a point before decimals.

    Raised, circled and wide digits and fractions are numbers like others (NFKC), but for the digit of a unit.
    """
    found = set()
    spaces_as_separators = re.sub(r"[\u00a0\u202f]", ",", _UNIT.sub("", text))
    for number in _NUMBER.findall(unicodedata.normalize("NFKC", spaces_as_separators)):
        grouped = re.fullmatch(r"\d{1,3}([.,]\d{3})+", number)
        found.add(re.sub(r"\D", "", number) if grouped else number.replace(",", "."))
    return found


async def synthesise(
    question: str,
    topics: Sequence[TopicClaims],
    *,
    model: Model,
    system: str,
    budget: Budget,
    stop: Stop,
    on_event: Callable[[TurnStarted], None] = lambda _: None,
    scope: Scope = UNKEPT,
) -> Synthesis:
    """Have the model write the prose of all topics that have claims. Named failures are in the result, not raised."""
    tool = WriteSectionsTool({topic.id: topic for topic in topics})
    end = await run_agent(
        name="synthesis",
        model=model,
        system=system,
        tools=[tool],
        opening=opening(question, topics),
        limits=LIMITS,
        budget=budget,
        stop=stop,
        on_event=on_event,
        scope=scope,
    )
    return Synthesis(tool.sections, tool.rejected, end)


def opening(question: str, topics: Sequence[TopicClaims]) -> str:
    """Return the first user message: all that synthesis knows."""
    body = {
        "question": question,
        "topics": [
            {
                "id": topic.id,
                "topic": topic.topic,
                "state": topic.state,
                "claims": [
                    {"id": key, "text": claim.text, "quotes": [e.quote for e in claim.evidence]}
                    for key, claim in topic.claims.items()
                ],
            }
            for topic in topics
        ],
    }
    return f"<claims>\n{to_json(body)}\n</claims>"
