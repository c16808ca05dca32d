"""The runs that are kept: finding one, saying what became of it, removing it."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError

from caveat.journal import (
    FILE_NAME,
    DamagedError,
    JournalError,
    Record,
    Stage,
    Step,
    locked,
    read_record,
    stages_before,
)
from caveat.places import runs_folder
from caveat.report import Report
from caveat_tools.plain_text import one_line

RunState: TypeAlias = Literal["finished", "stopped", "unfinished", "damaged"]


class UnknownRunError(ValueError):
    """There is no run of this name, or more than one begins with it; the message says which are near."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a line. `start` is ISO 8601; `cost` is in US dollars, None where it is not known.

    `reached` are the stages that came to their end. `parent` is the run whose first stages this one has, and
    `begins_at` the first stage of its own; both are None of any other run.
    """

    id: str
    question: str
    state: RunState
    coverage: str
    cost: float | None
    start: str | None
    reached: tuple[Stage, ...] = ()
    parent: str | None = None
    begins_at: Stage | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it fit for JSON."""
        return asdict(self)


def run_ids(home: Path | None) -> list[str]:
    """Return the ids of all runs that have a journal, in the order of the alphabet."""
    folder = runs_folder(home)
    return sorted(each.name for each in folder.iterdir() if (each / FILE_NAME).exists()) if folder.is_dir() else []


def find_run(home: Path | None, beginning: str) -> Path:
    """Return the folder of the run whose id this is, or begins with this. Raises UnknownRunError."""
    ids = run_ids(home)
    fitting = [beginning] if beginning in ids else [each for each in ids if beginning and each.startswith(beginning)]
    if len(fitting) == 1:
        return runs_folder(home) / fitting[0]
    shown = repr(one_line(beginning, 60))
    if fitting:
        raise UnknownRunError(f"{len(fitting)} runs begin with {shown}: {', '.join(fitting[:5])}")
    near = difflib.get_close_matches(beginning, ids, n=1)
    hint = f"did you mean {near[0]}?" if near else "`caveat runs` lists those that there are"
    raise UnknownRunError(f"there is no run {shown}; {hint}")


def summaries(home: Path | None) -> list[Summary]:
    """Return all runs, the newest first; damaged ones, whose beginning is not known, last."""
    found = [_summary(runs_folder(home) / each) for each in run_ids(home)]
    return sorted(found, key=lambda each: (each.start or "", each.id), reverse=True)


def _summary(folder: Path) -> Summary:
    try:
        record = read_record(folder)
        report = report_of(record)
    except JournalError as error:
        return Summary(folder.name, "", "damaged", str(error), None, None)
    return Summary(
        record.run_id,
        str(record.asked.get("question", "")),
        state_of(record),
        _coverage(report) if report else progress_of(record),
        report.run.cost if report else _cost(record),
        record.start.isoformat(timespec="milliseconds"),
        record.reached,
        record.asked.get("parent"),
        record.asked.get("from"),
    )


def progress_of(record: Record) -> str:
    """Return in words how far a run without a report has come."""
    done = f"{' and '.join(record.reached)} done, " if record.reached else ""
    return f"{done}{len(record.steps)} steps kept"


def origin(parent: str, begins_at: Stage) -> str:
    """Return in words what a run with a parent has begun with."""
    return f"from the {' and '.join(stages_before(begins_at))} of {parent}"


def state_of(record: Record) -> RunState:
    """Return what became of a run: `stopped` has a report, and can be gone on with."""
    if record.report is None:
        return "unfinished"
    return "finished" if record.is_over else "stopped"


def report_of(record: Record) -> Report | None:
    """Return the report of a run, if it has one. Raises DamagedError where it is no report."""
    try:
        return None if record.report is None else Report.model_validate(record.report)
    except ValidationError as error:
        raise DamagedError(f"the report in the journal of the run {record.run_id} cannot be read") from error


def _coverage(report: Report) -> str:
    covered = sum(topic.state == "covered" for topic in report.topics)
    number = len(report.topics)
    words = f"{covered} of {number} topics covered" if number > 1 else report.topics[0].state.replace("_", " ")
    return f"{words}, with gaps" if report.gaps and words != "partial" else words


def _cost(record: Record) -> float | None:
    """Return what the turns so far have cost."""
    spent = [step.output["spent"]["cost"] for step in record.steps.values() if "spent" in step.output]
    return None if not spent or None in spent else sum(spent)


def in_order(record: Record) -> list[Step]:
    """Return the steps in the order in which the model asked for them."""
    agents = list(dict.fromkeys(key.split("/", 1)[0] for key in record.steps))

    def place(key: str) -> tuple[int, list[int]]:
        return agents.index(key.split("/", 1)[0]), [int(number) for number in re.findall(r"\d+", key)]

    return sorted(record.steps.values(), key=lambda step: place(step.key))


def as_json(record: Record) -> dict[str, Any]:
    """Return all that is kept of a run, texts in their places."""
    return {
        "id": record.run_id,
        "state": state_of(record),
        "start": record.start.isoformat(timespec="milliseconds"),
        "caveat": record.caveat,
        "asked": record.asked,
        "reached": record.reached,
        "steps": [
            {"key": s.key, "at": s.at.isoformat(), "worked": s.worked, "output": _whole(s.output, record.texts)}
            for s in in_order(record)
        ],
        "report": record.report,
    }


def _whole(output: Any, texts: dict[str, str]) -> Any:
    """Return an output with the texts that were kept apart."""
    if isinstance(output, dict):
        whole = {name: _whole(value, texts) for name, value in output.items()}
        if isinstance(output.get("text"), str) and "url" in output:
            whole["text"] = texts.get(output["text"], "")
        return whole
    return [_whole(each, texts) for each in output] if isinstance(output, list) else output


def transcript(record: Record) -> Iterator[str]:
    """Yield what was said and what was answered, line by line."""
    yield f"question: {one_line(str(record.asked.get('question', '')), 2_000)}"
    if "parent" in record.asked:
        yield origin(record.asked["parent"], record.asked["from"])
    for step in in_order(record):
        output = _whole(step.output, record.texts)
        yield f"\n{step.key}, {step.at:%Y-%m-%d %H:%M:%S}"
        if "content" in output:
            yield from (f"  {line}" for block in output["content"] for line in _said(block))
        elif "error" in output:
            yield f"  the model failed: {one_line(output['error']['message'], 300)}"
        else:
            yield from (f"  {line}" for line in _answered(output.get("outcome", output)))


def _said(block: dict[str, Any]) -> Iterator[str]:
    if block.get("type") == "tool_use":
        yield f"calls {block['name']} {block['input']}"
    else:
        yield from str(block.get("text", block.get("type", ""))).splitlines()


def _answered(outcome: dict[str, Any]) -> Iterator[str]:
    if "status" not in outcome:
        yield str(outcome.get("value", outcome))
        return
    asked = outcome.get("query", outcome.get("attempted_query"))
    why = f" ({outcome['error_type']}): {outcome['message']}" if outcome["status"] == "failed" else ""
    yield f"{outcome['source']}: “{asked}” {outcome['status'].upper()}{why}"
    for result in outcome.get("results") or outcome.get("partial_results") or ():
        yield f"- {result['title']} — {result['url']}"
        yield f"  {one_line(result['text'], 300)}"


def remove_run(folder: Path) -> None:
    """Delete all that is kept of a run. Raises LockedError where it is being worked on, OSError where it cannot go."""
    lock = locked(folder)
    try:
        shutil.rmtree(folder)
    finally:
        lock.release()
