"""Analysis and synthesis: findings become claims, claims become paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from caveat.stand_in.calls import Body, Call, read, refused_by


class _Finding(Body):
    id: str
    text: str


class _Found(Body):
    """A topic as the analysis is given it."""

    id: str
    findings: list[_Finding] = Field(default_factory=list)


class _Findings(Body):
    topics: list[_Found] = Field(default_factory=list)


def analyse(findings: str, calls: Sequence[Call]) -> str | list[Call]:
    """Return the call that states the claims, or a text once they stand.

    `findings` is the JSON that retrieval hands over, `calls` are all those made so far, in order. Findings of the same
    words are one claim. To tell a contradiction takes a reader: none is named.
    """
    stated = [call for call in calls if call.name == "state_claims"]
    refused = refused_by(stated, "claim") if stated else []
    if refused is None:
        return "The claims are stated."
    claims: dict[tuple[str, str], dict[str, Any]] = {}
    for topic in (read(_Findings, findings) or _Findings()).topics:
        for finding in topic.findings:
            claim = {"topic_id": topic.id, "text": finding.text, "findings": []}
            words = " ".join(finding.text.casefold().split())
            claims.setdefault((topic.id, words), claim)["findings"].append(finding.id)
    kept = [claim for number, claim in enumerate(claims.values(), 1) if number not in refused]
    return [Call("state_claims", {"claims": kept, "contradictions": []})]


class _Claim(Body):
    id: str
    text: str


class _Claimed(Body):
    """A topic as synthesis is given it."""

    id: str
    claims: list[_Claim] = Field(default_factory=list)


class _Claims(Body):
    topics: list[_Claimed] = Field(default_factory=list)


def synthesise(claims: str, calls: Sequence[Call]) -> str | list[Call]:
    """Return the call that writes the sections, or a text once they stand.

    `claims` is the JSON that the analysis hands over, `calls` are all those made so far, in order.
    """
    written = [call for call in calls if call.name == "write_sections"]
    refused = refused_by(written, "topic_id") if written else []
    if refused is None:
        return "The sections are written."
    claimed = read(_Claims, claims) or _Claims()
    sections = [
        {"topic_id": topic.id, "text": " ".join(f"{claim.text} [{claim.id}]" for claim in topic.claims)}
        for topic in claimed.topics
        if topic.claims and topic.id not in refused
    ]
    return [Call("write_sections", {"sections": sections})]
