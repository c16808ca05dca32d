"""The report for readers: as Markdown, and as a table in colours for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from caveat.budget import dollars
from caveat.claims import Claim
from caveat.ledger import Next, State
from caveat.report import Gap, Query, Report, ReportClaim, Topic
from caveat_tools.own_report import mark
from caveat_tools.plain_text import markdown_text, plain
from caveat_tools.search import age_in_words

if TYPE_CHECKING:
    from rich.console import Console

STATE_WORDS: Final[dict[State, str]] = {
    "covered": "covered",
    "partial": "partly covered",
    "searched_empty": "searched, no answer found",
    "failed": "search failed",
    "not_attempted": "not attempted",
}
STATE_STYLES: Final[dict[State, str]] = {
    "covered": "green",
    "partial": "yellow",
    "searched_empty": "cyan",
    "failed": "bold red",
    "not_attempted": "magenta",
}
NEXT_WORDS: Final[dict[Next, str]] = {
    "retried_same": "sent the same query again",
    "retried_changed": "asked again in other words",
    "alternative": "went to another source",
    "snapshot": "took the stored answer",
    "went_on": "went on with what there was",
    "gave_up": "gave up",
}
MATCHES_SHOWN: Final = 3
UNREAD_SHOWN: Final = 500
OFFLINE_NOTICE: Final = (
    "**No language model was used.** These are the sentences that match the question best, copied by fixed rules; "
    "nobody has judged whether they answer it. To have a model answer, set `ANTHROPIC_API_KEY`, or set "
    "`ANTHROPIC_BASE_URL` to a local Messages API such as llama.cpp's or Ollama's."
)


def verdict(report: Report) -> str:
    """Return the report's first sentence: how much of the question is covered, and whether there are gaps."""
    topics = report.topics
    counts = {state: sum(topic.state == state for topic in topics) for state in STATE_WORDS}
    several = len(topics) > 1
    parts = ", ".join(
        f"{count} {STATE_WORDS[s]}" if several else STATE_WORDS[s] for s, count in counts.items() if count
    )
    text = f"{len(topics)} topic{'s' if several else ''}: {parts}."
    if not report.gaps:
        return f"{text} Every source that was asked has answered."
    sources = ", ".join(dict.fromkeys(_inline(gap.source) for gap in report.gaps if gap.source))
    where = f" ({sources})" if sources else ""
    return f"{text} There are gaps{where}; they are listed under “What could not be looked up”."


def within(date_from: str | None, date_to: str | None) -> str:
    """Return the range of days of a search in words, "" where it had none."""
    if date_from and date_to:
        return f"{date_from} to {date_to}"
    return f"from {date_from}" if date_from else f"up to {date_to}" if date_to else ""


def _asked(query: Query) -> str:
    """Return the query in quotes, and the days within which it was asked."""
    dates = within(query.date_from, query.date_to)
    return f"“{_inline(query.query)}”" + (f" ({_inline(dates)})" if dates else "")


def _answered_by(queries: Sequence[Query]) -> str:
    """Name the sources that answered; one that was asked within dates only, with these."""
    ranges: dict[str, list[str]] = {}
    for query in queries:
        if query.status != "failed":
            ranges.setdefault(query.source, []).append(within(query.date_from, query.date_to))
    return ", ".join(
        _inline(source) + (f" (only {_inline(', '.join(dict.fromkeys(dates)))})" if all(dates) else "")
        for source, dates in ranges.items()
    )


def topic_text(
    topic: Topic,
    prose: str | None,
    claims: Mapping[str, Claim],
    gaps: Sequence[Gap],
    no_prose_because: str | None,
    matches: Sequence[str],
    *,
    was_read: bool,
) -> str:
    """Return one topic's section: what it rests on, then prose, or its claims where there is none.

    `matches` are the passages that were found for a topic without claims; `was_read` is False where the model did not
    come so far as to make anything of them.
    """
    lines = []
    stored = {query.source for query in topic.queries if query.served_from == "snapshot"}
    missing = ", ".join(
        dict.fromkeys(
            f"{_inline(gap.source)} ({gap.error_type}{'; a stored answer was used' if gap.source in stored else ''})"
            for gap in gaps
            if gap.source and gap.source != "model"
        )
    )
    asked = _answered_by(topic.queries)
    if topic.state == "partial":
        lines.append(f"*Partly covered: {missing} could not be searched, so this section may lack what is there.*")
    elif topic.state == "failed":
        matched = f"{asked} has matches that nobody has read. "
        rest = (
            "" if not asked else matched if matches and not was_read else f"{asked} answered without giving an answer. "
        )
        lines.append(f"*Could not be searched: {missing}. {rest}So this topic is open, and not answered with no.*")
    elif topic.state == "not_attempted":
        lines.append("*Nothing was searched for this topic.*")
    elif topic.state == "searched_empty":
        made = "no verified statement came of them" if was_read else "nobody has read them"
        what = f"there were matches, but {made}" if matches else "nothing found there"
        lines.append(f"*Searched in {asked}: {what}. That does not show that there is nothing elsewhere.*")
    if matches:
        shown = "\n".join(f"- {_inline(match)}" for match in matches[:MATCHES_SHOWN])
        more = f"\n- and {len(matches) - MATCHES_SHOWN} more" if len(matches) > MATCHES_SHOWN else ""
        use = "from which no statement was made" if was_read else "and that nobody has read"
        lines.append(f"Passages that matched, {use}:\n\n{shown}{more}")
    if prose is not None:
        lines.append(_defanged(prose))
    elif claims:
        if no_prose_because:
            lines.append(f"*No prose: {_inline(no_prose_because)}. These are the verified findings as they came.*")
        lines.append("\n".join(f"- {_inline(c.text)} [{', '.join(_ids(c))}]" for c in claims.values()))
    return "\n\n".join(lines)


def markdown(report: Report) -> str:
    """Return the whole report as Markdown, with its mark in the last line.

    All text from sources and models is made harmless.
    """
    title = f"# {_inline(report.question)}"
    return _joined([title, *_answer(report), _coverage_table(report), *_record(report), mark(report.run.id)])


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


def _answer(report: Report) -> list[str]:
    """Return what stands before the coverage table: verdict, topics, and the table's heading."""
    blocks = []
    if report.run.injected:
        faults = _inline(report.run.injected)
        blocks.append(f"> **This is a test, not an answer.** Faults were injected on purpose: {faults}.")
    if report.run.offline:
        blocks.append(f"> {OFFLINE_NOTICE}")
    blocks.append(f"**{verdict(report)}**")
    for topic in report.topics:
        blocks.append(f"## {_inline(topic.topic)}")
        blocks.append(topic.text)
        blocks += _unverified([claim for claim in report.claims if claim.topic == topic.id])
        blocks += _model_notes(report, topic.id)
    known = {topic.id for topic in report.topics}
    blocks += _unverified([claim for claim in report.claims if claim.topic not in known])
    blocks += _model_notes(report, None)
    return [*blocks, "## Coverage"]


def _record(report: Report) -> list[str]:
    """Return what stands after the coverage table: failures, gaps, empty answers, sources, the run."""
    blocks = _after_failures(report)
    blocks += ["## What could not be looked up", _gap_list(report)]
    empty = _not_there(report)
    if empty:
        blocks += ["## Looked for, and not there", empty]
    if report.unread:
        blocks += ["## Files that could not be read", _unread_list(report)]
    if report.sources:
        blocks += ["## Sources", _source_list(report)]
    return [*blocks, "## About this report", _about(report)]


def print_report(report: Report, console: Console) -> None:
    """Print the report to a terminal: the answer as formatted text, the states in their colours."""
    from rich.markdown import Markdown  # noqa: PLC0415 - rich is slow to import, and a pipe does not need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console.print(Text(_single(report.question), "bold"), end="\n\n")
    console.print(Markdown(_joined(_answer(report)), hyperlinks=False))
    table = Table()
    for heading in ("topic", "state", "found", "empty", "failed"):
        table.add_column(heading)
    for name, topic, state, counts in _coverage_rows(report):
        styled = Text(STATE_WORDS[state], STATE_STYLES[state]) if state else Text("–")
        styles = ("green", "cyan", "bold red")
        numbers = [Text(str(n), style if n else "dim") for n, style in zip(counts, styles, strict=True)]
        table.add_row(Text(f"{name} {topic}"), styled, *numbers)
    console.print(table)
    console.print(Markdown(_joined(_record(report)), hyperlinks=False))


def _coverage_rows(report: Report) -> Iterable[tuple[str, str, State | None, tuple[int, int, int]]]:
    for topic in report.topics:
        yield topic.id, topic.topic, topic.state, _counts(topic.queries)
    yield "–", "(belongs to no topic)", None, _counts(report.unassigned)


def _counts(queries: Sequence[Query]) -> tuple[int, int, int]:
    found, empty, failed = (sum(q.status == status for q in queries) for status in ("found", "empty", "failed"))
    return found, empty, failed


def _coverage_table(report: Report) -> str:
    rows = ["| topic | state | found | empty | failed |", "| --- | --- | --- | --- | --- |"]
    for name, topic, state, (found, empty, failed) in _coverage_rows(report):
        words = STATE_WORDS[state] if state else "–"
        rows.append(f"| {name} {_inline(topic)} | {words} | {found} | {empty} | {failed} |")
    return "\n".join(rows)


def _after_failures(report: Report) -> list[str]:
    rows: Counter[str] = Counter()
    for name, queries in [*((t.id, t.queries) for t in report.topics), ("no topic", report.unassigned)]:
        for query in queries:
            if query.status == "failed":
                tried = f" after {query.attempts} attempts" if query.attempts > 1 else ""
                then = f" → {NEXT_WORDS[query.next]}" if query.next else ""
                asked = f" {_asked(query)}" if query.attempts else ", not sent"
                rows[f"- {name}: {_inline(query.source)}{asked}: {query.error_type}{tried}{then}"] += 1
    listed = [row if count == 1 else f"{row} ({count} times)" for row, count in rows.items()]
    return ["Failures, and what was done after each:\n\n" + "\n".join(listed)] if listed else []


def _gap_list(report: Report) -> str:
    if not report.gaps:
        return "Nothing: every source that was asked has answered."
    return "\n".join(
        f"- **{gap.topic or 'the whole run'}**: {_inline(gap.why)}. Next: {_inline('; '.join(gap.try_next))}."
        for gap in report.gaps
    )


def _not_there(report: Report) -> str:
    rows = []
    for topic in report.topics:
        for source in dict.fromkeys(q.source for q in topic.queries if q.status == "empty"):
            queries = [q for q in topic.queries if q.status == "empty" and q.source == source]
            asked = ", ".join(dict.fromkeys(map(_asked, queries)))
            rows.append(f"- {topic.id}: {_inline(source)} answered and holds no match for {asked}.")
    return "\n".join(rows)


def _unread_list(report: Report) -> str:
    rows = [f"- `{_code(file.path)}`: {_inline(file.reason)}" for file in report.unread[:UNREAD_SHOWN]]
    more = len(report.unread) - UNREAD_SHOWN
    return "\n".join([*rows, f"- and {more} more, all of them in the report as JSON"] if more > 0 else rows)


def _unverified(claims: Sequence[ReportClaim]) -> list[str]:
    rows = [
        f"- {_inline(claim.text)} — *{_inline(claim.why or 'no evidence')}*" for claim in claims if not claim.verified
    ]
    return ["Not verified, and not counted as covered:\n\n" + "\n".join(rows)] if rows else []


def _model_notes(report: Report, topic: str | None) -> list[str]:
    rows = [f"- {_inline(note.what)}" for note in report.model_notes if note.topic == topic]
    who = "The stand-in" if report.run.offline else "The model"
    return [f"{who} itself says of what is open:\n\n" + "\n".join(rows)] if rows else []


def _source_list(report: Report) -> str:
    quotes: dict[str, list[str]] = {}
    for claim in report.claims:
        if claim.verified:
            for entry in claim.evidence:
                quotes.setdefault(entry.id, []).append(entry.quote)
    rows = []
    for source in report.sources:
        age = source.snapshot_age_seconds
        stored = "" if age is None else f"; a stored answer, used {age_in_words(age)} later"
        same = f"; the same work as {source.same_work_as}" if source.same_work_as else ""
        place = f"{_inline(source.source)}, retrieved {source.retrieved_at}{stored}{same}"
        rows.append(f"- [{source.id}] {_inline(source.title)} — {_address(source.url)} ({place})")
        rows += [f"  > {_inline(quote)}" for quote in dict.fromkeys(quotes.get(source.id, []))]
    return "\n".join(rows)


def _about(report: Report) -> str:
    run = report.run
    quotes = (
        "Code found every quote above in the stored text of its source, and wrote" if report.sources else "Code wrote"
    )
    judged = "is not judged by anybody" if run.offline else "is the model's judgement"
    judgement = f" Whether a quote supports its statement {judged}." if report.sources else ""
    paragraphs = [
        f"{quotes} the coverage, the gaps and this section.{judgement}",
        *(_inline(note) for note in report.notes),
    ]
    calls = f"{run.tool_calls} tool calls, {run.seconds:.1f} s"
    if run.offline:
        return "\n\n".join([*paragraphs, f"Run {run.id}, the embedded stand-in (no language model): {calls}."])
    cost = "cost not known: no price of this model is listed"
    if run.cost is not None:
        cost = f"{dollars(run.cost)} by the prices of {run.prices_as_of}"
    counted = f"{run.input_tokens:,} tokens in, {run.output_tokens:,} out, {cost}"
    tokens = counted if run.input_tokens or run.output_tokens else "tokens not counted by its server"
    used = f"{run.model_calls} model calls, {tokens}"
    return "\n\n".join([*paragraphs, f"Run {run.id}, the model {_inline(run.model)}: {used}, {calls}."])


def _address(url: str) -> str:
    """Return an address as code: readable, and no link that a source has chosen."""
    return f"`{_code(url)}`"


def _code(text: str) -> str:
    """Return what can stand between backticks."""
    return _single(text).replace("`", "%60")


def _ids(claim: Claim) -> list[str]:
    return list(dict.fromkeys(entry.id for entry in claim.evidence))


def _inline(text: str) -> str:
    """Return words of others as one harmless line."""
    return markdown_text(_single(text))


def _single(text: str) -> str:
    return " ".join(plain(text).split())


def _defanged(prose: str) -> str:
    """Leave a model's Markdown readable, but without HTML, images or links."""
    safe = plain(prose).replace("<", "&lt;").replace("![", "!\\[").replace("://", "\\://")
    safe = re.sub(r"\](?=[(:\[])", r"]\\", safe)
    return re.sub(r"^(\s*)([#>|=])", r"\1\\\2", safe, flags=re.MULTILINE)
