"""Ledger and claims become a report, by rules and not by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from caveat import render
from caveat.claims import Claim
from caveat.ledger import Entry, Ledger
from caveat.loop import AgentEnd
from caveat.report import Gap, ModelNote, Query, Report, ReportClaim, ReportSource, Run, Topic, UnreadFile
from caveat.synthesis import CITATION, Synthesis, TopicClaims, cited_claims
from caveat.unread import in_a_sentence
from caveat_tools.folder import LeftOut
from caveat_tools.outcome import Failed, results_of
from caveat_tools.plain_text import one_line

TRY_NEXT: Final[dict[str, str]] = {
    "timeout": "ask again later; {source} may have been slow",
    "unavailable": "ask again when {source} can be reached",
    "rate_limited": "ask again after a pause; {source} had too many requests",
    "invalid_query": "ask with other words; {source} cannot be searched with these",
    "not_found": "look for the page elsewhere",
    "access_denied": "give {source} the key or the permission that it asks for",
    "malformed_response": "ask again later; {source} sent a damaged answer",
    "budget_exhausted": "ask again with larger limits (--max-turns, --max-calls)",
    "cancelled": "ask again and let the run finish",
    "finished": "ask about this topic alone",
    "no_report": "ask a larger model, one that is made for tool use",
    "context_full": "ask a narrower question, or give the model a larger context",
}
QUERIES_NAMED: Final = 10
"""How many queries a gap names; of more, it gives the number."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a report is made of."""

    question: str
    ledger: Ledger
    claims: Sequence[Claim]
    model_notes: Sequence[tuple[str | None, str]]
    end: AgentEnd
    notes: Sequence[str]
    unread: Sequence[LeftOut]
    """The files that could not be read, or not all of them: a gap of the whole run."""


VerifiedClaims: TypeAlias = Mapping[str, Mapping[str, Claim]]
"""The verified claims of each topic, by their number in the report (C1, C2, …)."""


def verified(material: Material) -> VerifiedClaims:
    """Return the verified claims of each topic, numbered C1, C2, … through the whole report."""
    numbered: dict[str, dict[str, Claim]] = {topic: {} for topic in material.ledger.topics}
    good = [claim for topic in numbered for claim in material.claims if claim.topic == topic and claim.verified]
    for number, claim in enumerate(good, 1):
        numbered[claim.topic][f"C{number}"] = claim
    return numbered


def for_synthesis(ledger: Ledger, claims: VerifiedClaims) -> list[TopicClaims]:
    """Return what synthesis may write about."""
    return [
        TopicClaims(key, ledger.topics[key], ledger.state(key, has_verified_claim=bool(own)), own)
        for key, own in claims.items()
    ]


def _topics(ledger: Ledger, claims: VerifiedClaims) -> list[Topic]:
    return [
        Topic(
            id=key,
            topic=ledger.topics[key],
            state=ledger.state(key, has_verified_claim=bool(own)),
            queries=tuple(_query(ledger, entry, has_claim=bool(own)) for entry in ledger.of(key)),
        )
        for key, own in claims.items()
    ]


def _query(ledger: Ledger, entry: Entry, *, has_claim: bool) -> Query:
    outcome = entry.outcome
    return Query(
        source=entry.source,
        query=entry.ask.query,
        date_from=entry.ask.date_from,
        date_to=entry.ask.date_to,
        status=outcome.status,
        error_type=outcome.error_type if isinstance(outcome, Failed) else None,
        attempts=outcome.attempts,
        next=ledger.next_after(entry, has_verified_claim=has_claim),
        served_from="snapshot" if entry.is_snapshot else None,
    )


def _gaps(material: Material, claims: VerifiedClaims, topics: Sequence[Topic]) -> list[Gap]:
    """Return every gap: failures that are still open, topics never searched or without proof, an unfinished run."""
    gaps: list[Gap] = []
    for topic in topics:
        still_open = material.ledger.open_failures(topic.id, has_verified_claim=bool(claims[topic.id]))
        gaps += [_gap(topic.id, source, failures) for source, failures in _by_source(still_open).items()]
        if not claims[topic.id] and any(claim.topic == topic.id for claim in material.claims):
            gaps.append(
                Gap(
                    topic=topic.id,
                    source="model",
                    error_type="unverified",
                    why="no quote of what the model states about this topic stands in its source",
                    try_next=("ask again, or ask another model",),
                )
            )
        if topic.state == "not_attempted" and not any(gap.topic == topic.id for gap in gaps):
            gaps.append(
                Gap(
                    topic=topic.id,
                    source=None,
                    error_type="not_attempted",
                    why="nothing was searched for this topic" + _because_spent(material.end),
                    try_next=(_advice(material.end),),
                )
            )
    if material.claims and not any(claims.values()) and not gaps:
        gaps.append(
            Gap(
                topic=None,
                source="model",
                error_type="unverified",
                why="the model's statements belong to no topic that was planned",
                try_next=("ask again, or ask another model",),
            )
        )
    for source, failures in _by_source([e for e in material.ledger.of(None) if e.leaves_a_gap]).items():
        gaps.append(_gap(None, source, failures))
    if material.end.reason != "finished":
        gaps.append(
            Gap(
                topic=None,
                source="run" if material.end.reason == "stopped" else "model",
                error_type=material.end.reason,
                why=f"the research did not come to its end: {material.end.detail}",
                try_next=(_advice(material.end),),
            )
        )
    if material.unread:
        next_step = "look into the files yourself, or give them in a form that is read; all are listed below"
        why = in_a_sentence(material.unread)
        gaps.append(Gap(topic=None, source="local", error_type="unreadable", why=why, try_next=(next_step,)))
    return gaps


def _because_spent(end: AgentEnd) -> str:
    limits = " and ".join(end.spent.values())
    return f": the limit of {limits} was reached" if limits else ""


def _advice(end: AgentEnd) -> str:
    return _raise(end) or TRY_NEXT.get(end.reason, "ask again")


def _raise(end: AgentEnd) -> str:
    return " and ".join(f"raise the limit of {limit} (--max-{limit})" for limit in end.spent)


def _by_source(entries: Sequence[Entry]) -> dict[str, list[tuple[str, Failed]]]:
    """Return the failures of each source, each with what was asked: the query in quotes and its dates."""
    grouped: dict[str, list[tuple[str, Failed]]] = {}
    for entry in entries:
        if isinstance(entry.outcome, Failed):
            dates = render.within(entry.ask.date_from, entry.ask.date_to)
            asked = f"“{entry.outcome.attempted_query}”" + (f" ({dates})" if dates else "")
            grouped.setdefault(entry.source, []).append((asked, entry.outcome))
    return grouped


def _gap(topic: str | None, source: str, failed: Sequence[tuple[str, Failed]]) -> Gap:
    failures = [failure for _, failure in failed]
    last = failures[-1]
    asked = list(dict.fromkeys(asked for asked, _ in failed))
    more = f" and {len(asked) - QUERIES_NAMED} more" if len(asked) > QUERIES_NAMED else ""
    queries = ", ".join(asked[:QUERIES_NAMED]) + more
    tried = [
        last.error_type,
        *_counted(len(failures), "search"),
        *_counted(sum(f.attempts for f in failures), "attempt"),
    ]
    partial = sum(len(failure.partial_results) for failure in failures)
    kept = "".join(f"; kept: {number} that had arrived before" for number in _counted(partial, "result", least=1))
    return Gap(
        topic=topic,
        source=source,
        error_type=last.error_type,
        why=f"{source} could not be searched for {queries} ({', '.join(tried)}): {last.message}{kept}",
        try_next=(TRY_NEXT.get(last.error_type, "ask again later").format(source=source),),
    )


def _counted(number: int, word: str, least: int = 2) -> list[str]:
    """Return "3 attempts" and the like, or nothing where the number is too small to mention."""
    plural = "" if number == 1 else "es" if word.endswith("ch") else "s"
    return [f"{number} {word}{plural}"] if number >= least else []


def _report_claims(material: Material) -> list[ReportClaim]:
    """Return all claims in the order in which they were handed over."""
    return [
        ReportClaim(
            text=claim.text,
            topic=claim.topic if claim.topic in material.ledger.topics else None,
            verified=claim.verified and claim.topic in material.ledger.topics,
            evidence=tuple(ReportClaim.Evidence(id=e.id, quote=e.quote) for e in claim.evidence),
            why="; ".join([*_topic_problem(claim, material), *claim.problems]) or None,
        )
        for claim in material.claims
    ]


def _topic_problem(claim: Claim, material: Material) -> list[str]:
    return [] if claim.topic in material.ledger.topics else [f"there is no topic {one_line(claim.topic, 40)}"]


def _sources(ledger: Ledger, claims: VerifiedClaims) -> list[ReportSource]:
    """Return the passages that verified claims quote, in the order of their ids.

    Of those of one work, all but the first name the first.
    """
    quoted = {entry.id for own in claims.values() for claim in own.values() for entry in claim.evidence}
    listed: dict[str, str] = {}  # the first id of each work in the list
    sources = []
    for key, evidence in ledger.evidence.items():
        if key in quoted:
            first = listed.setdefault(ledger.first_of_work(key), key)
            sources.append(
                ReportSource(
                    id=key,
                    source=evidence.source,
                    title=evidence.result.title,
                    url=evidence.result.url,
                    retrieved_at=evidence.retrieved_at,
                    snapshot_age_seconds=evidence.snapshot_age_seconds,
                    same_work_as=first if first != key else None,
                )
            )
    return sources


def _prose(claims: Mapping[str, Claim], synthesis: Synthesis | None, topic: str) -> str | None:
    """Return the topic's prose with evidence ids for claim ids, or None where its claims must speak for themselves."""
    text = synthesis.sections.get(topic) if synthesis else None
    if text is None:
        return None

    def evidence_ids(citation: str) -> str:
        ids = dict.fromkeys(e.id for key in cited_claims(citation) for e in claims[key].evidence)
        return f"[{', '.join(ids)}]"

    return CITATION.sub(lambda match: evidence_ids(match.group()), text)


def compose(material: Material, synthesis: Synthesis | None, run: Run) -> Report:
    """Return the finished report with its Markdown."""
    ledger, claims = material.ledger, verified(material)
    topics = _topics(ledger, claims)
    gaps = _gaps(material, claims, topics)
    texts = {
        topic.id: render.topic_text(
            topic,
            _prose(claims[topic.id], synthesis, topic.id),
            claims[topic.id],
            [gap for gap in gaps if gap.topic == topic.id],
            _why_no_prose(synthesis, topic.id),
            [] if claims[topic.id] else _matches(ledger, topic.id),
            was_read=material.end.reason == "finished",
        )
        for topic in topics
    }
    report = Report(
        question=material.question,
        answer="",
        topics=tuple(topic.model_copy(update={"text": texts[topic.id]}) for topic in topics),
        unassigned=tuple(_query(ledger, entry, has_claim=False) for entry in ledger.of(None)),
        claims=tuple(_report_claims(material)),
        sources=tuple(_sources(ledger, claims)),
        gaps=tuple(gaps),
        model_notes=tuple(ModelNote(topic=topic, what=what) for topic, what in material.model_notes),
        notes=tuple(material.notes),
        unread=tuple(UnreadFile(path=each.path, reason=each.reason) for each in material.unread),
        run=run,
    )
    return report.model_copy(update={"answer": render.markdown(report)})


def _matches(ledger: Ledger, topic: str) -> list[str]:
    """Return where the passages stand that were found for a topic, once each: for the reader to look at."""
    results = [result for entry in ledger.of(topic) for result in results_of(entry.outcome)]
    return list(dict.fromkeys(f"{result.title} — {result.url}" for result in results))


def _why_no_prose(synthesis: Synthesis | None, topic: str) -> str:
    if synthesis is None:
        return "the research ended before a text could be written"
    if topic in synthesis.rejected:
        return f"the text that the model wrote did not hold ({synthesis.rejected[topic]})"
    return f"the model wrote no text ({synthesis.end.detail})"
