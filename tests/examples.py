"""`make examples`: write docs/examples anew, from the cassettes and from live runs of the command.

The live runs ask the embedded model, a local server with a small encyclopedia, and the notes in tests/notes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recorded import NOTES, play
from servers import FakeMediaWiki, LocalServer
from test_cassettes import BRIDGE, QUESTION, SESSIONS

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
ABOUT = {
    "timeout_then_changed_query": "A time-out reaches the coordinator, which asks again in other words.",
    "valid_empty_result": "Nothing is there, and that is an answer: no failure, no repeat, no gap.",
    "local_retry_succeeds": "Two failures are mended by local retries; the coordinator never hears of them.",
    "alternative_source": "A source stays dead; the answer comes from another one, and the gap stays named.",
    "dead_source": "The only source stays dead: the topic is marked, and nothing is guessed.",
}
LIVE = {
    "timeout_then_changed_query": [QUESTION, "--sources", "wikipedia", "--inject", "wikipedia:timeout*3"],
    "valid_empty_result": ["What is the toll for the Halsund ferry?", "--docs", "NOTES", "--inject", "local:empty"],
    "local_retry_succeeds": [QUESTION, "--docs", "NOTES", "--inject", "wikipedia:503*2"],
    "alternative_source": [QUESTION, "--docs", "NOTES", "--inject", "wikipedia:refused"],
    "dead_source": [QUESTION, "--sources", "wikipedia", "--inject", "wikipedia:503"],
}


def recorded(name: str) -> str:
    """Replay a cassette and return its page."""
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as home:
        session = asyncio.run(play(name, SESSIONS[name], Path(home), monkeypatch))
    queries = [
        f"{q.source} “{q.query}” → {q.error_type or q.status}" + (f", then {q.next}" if q.next else "")
        for topic in session.report.topics
        for q in topic.queries
    ]
    return (
        f"# Recorded: {ABOUT[name]}\n\nReplayed from `cassettes/{name}.yaml`; how it was recorded is in "
        "[cassettes/README.md](../../cassettes/README.md).\n\nWhat was asked, and what was done after each failure:\n\n"
        + "".join(f"- {line}\n" for line in queries)
        + f"\nExit code {session.report.exit_code}. The report:\n\n---\n\n{session.report.markdown}"
    )


def live(name: str) -> str:
    """Run the command and return its page."""
    shown = ["tests/notes" if part == "NOTES" else part for part in LIVE[name]]
    arguments = [str(NOTES) if part == "NOTES" else part for part in LIVE[name]]
    with tempfile.TemporaryDirectory() as home, LocalServer(FakeMediaWiki(BRIDGE, host="wiki.example")) as wiki:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_"))}
        environment |= {"CAVEAT_HOME": home, "CAVEAT_WIKIPEDIA_URL": wiki.url}
        command = [sys.executable, "-m", "caveat", "ask", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    typed = " ".join(f"'{part}'" if " " in part or ":" in part else part for part in ("caveat", "ask", *shown))
    return (
        f"# Live, embedded model: {ABOUT[name]}\n\n`CAVEAT_WIKIPEDIA_URL` names a local server with two articles.\n\n"
        f"    $ {typed}\n\nProgress, on standard error:\n\n"
        + "".join(f"    {line.replace(str(NOTES), 'tests/notes')}\n" for line in done.stderr.splitlines())
        + f"\nExit code {done.returncode}. The report, on standard output:\n\n---\n\n{done.stdout}"
    )


def main() -> None:
    """Write all pages and their index."""
    rows = []
    for name, about in ABOUT.items():
        (FOLDER / f"recorded_{name}.md").write_text(recorded(name))
        (FOLDER / f"live_{name}.md").write_text(live(name))
        rows.append(f"| {about} | [recorded](recorded_{name}.md) | [live](live_{name}.md) |\n")
    folder_rows = [f"- [{page.stem}]({page.name})\n" for page in sorted(FOLDER.glob("folder_*.md"))]
    (FOLDER / "README.md").write_text(
        "# Examples\n\nFive situations, each as a recorded session with a capable model and as a live run of the\n"
        "command with the embedded model, which is no language model. `make examples` writes them anew, and starts\n"
        "the small encyclopedia that the live runs ask in place of Wikipedia; they cannot be typed without it.\n\n"
        "| situation | with a model | without |\n| --- | --- | --- |\n"
        + "".join(rows)
        + "\nOver a folder of documents that nobody wrote for this:\n\n"
        + "".join(folder_rows)
    )


if __name__ == "__main__":
    main()
