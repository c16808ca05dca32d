"""`python tests/folder_questions.py FOLDER`: 20 questions with known answers over a folder of Debian's documentation.

The folder is the one of docs/examples/folder_debian_docs.md. Ten questions are answered in it, five are not, and for
five its source is made to fail. The embedded stand-in answers; the table goes to docs/folder-questions.md. The
questions were written from the documents, by somebody who did not know the tool, and nothing was tuned to them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUESTIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PAGE = Path(__file__).parent.parent / "docs" / "folder-questions.md"
KINDS = {
    "answerable": "the answer is in the folder",
    "absent": "the folder holds no answer",
    "down": "the source is down",
}
ABOUT = """\
# Twenty questions over a real folder

The folder is that of [examples/folder_debian_docs.md](examples/folder_debian_docs.md): Debian's
documentation packages, English and Russian. The questions were written from the documents, with their
answers, by somebody who did not know caveat, and nothing was tuned to them. The embedded stand-in
answers, which is no language model: it copies the sentences that match the question's words.
`python tests/folder_questions.py FOLDER` does it again.

| | questions | right | honest |
| --- | --- | --- | --- |
"""
LEGEND = """
*Right*: a verified quote holds the known answer; where there is none, no statement is made; where the
source is down, the topic is `failed`, with a gap. *Honest*: the topic is not called covered unless the
answer is right, and what could not be asked is not called empty. Where the stand-in is not honest by that
measure, it has quoted sentences that share the question's words and are beside the point: every quote
stands in its source, but nobody has judged whether it answers, and the report says so on top.
"""
HEAD = "| | question | known answer | report | |\n| --- | --- | --- | --- | --- |\n"


def asked(question: dict[str, Any], folder: Path, home: str) -> dict[str, Any]:
    """Return the report on one question, as data."""
    fault = ["--inject", "local:503"] if question["kind"] == "down" else []
    options = ["--docs", str(folder), "--sources", "local", "--offline", "--quiet", "--json", "-", *fault]
    done = subprocess.run(
        [sys.executable, "-m", "caveat", "ask", question["question"], *options],
        env={**os.environ, "CAVEAT_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 3}, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def judged(question: dict[str, Any], report: dict[str, Any]) -> tuple[bool, bool, str]:
    """Return whether the answer is right, whether the report is honest, and what it says, in words.

    Right: a verified quote holds the known answer; or there is none to give, and none is given. Honest: the report
    calls nothing covered that it does not answer, and a source that could not be asked is a gap, not "nothing found".
    """
    quotes = [e["quote"].casefold() for c in report["claims"] if c["verified"] for e in c["evidence"]]
    states = {topic["state"] for topic in report["topics"]}
    said = f"{', '.join(sorted(states))}; {len(quotes)} quotes"
    if question["kind"] == "down":
        told = bool(report["gaps"]) and states == {"failed"}
        return told and not quotes, told and not quotes, said
    if question["kind"] == "absent":
        return not quotes, not quotes, said
    is_right = any(answer.casefold() in quote for quote in quotes for answer in question["one_of"])
    return is_right, is_right or states == {"searched_empty"}, said


def main() -> None:
    """Ask all and write the table."""
    folder = Path(sys.argv[1])
    rows, right, honest = [], dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    with tempfile.TemporaryDirectory() as home:
        start = time.perf_counter()
        for number, question in enumerate(QUESTIONS, 1):
            is_right, is_honest, said = judged(question, asked(question, folder, home))
            right[question["kind"]] += is_right
            honest[question["kind"]] += is_honest
            words = "right" if is_right else "no answer" if said.endswith(" 0 quotes") else "beside the point"
            rows.append(f"| {number} | {question['question']} | {question['answer']} | {said} | {words} |")
            print(rows[-1])
        took = time.perf_counter() - start
    asked_of = {kind: sum(question["kind"] == kind for question in QUESTIONS) for kind in KINDS}
    summary = [f"| {KINDS[kind]} | {n} | {right[kind]} | {honest[kind]} |" for kind, n in asked_of.items()]
    table = "\n".join(rows)
    PAGE.write_text(
        f"{ABOUT}{chr(10).join(summary)}\n{LEGEND}\nAll took {took:.0f} s.\n\n{HEAD}{table}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
