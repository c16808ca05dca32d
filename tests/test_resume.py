"""A run is killed, at every step, and gone on with: nothing finished is asked twice, and the report is the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from caveat.journal import read_record
from lives import QUESTION
from scripted import message, sse, stream_of, tool_use
from servers import FakeMediaWiki, LocalServer, Reply, Request

DAMS = {
    "Kariba Dam": "The Kariba Dam was finished in 1959 after five years of work.",
    "Itaipu Dam": "The Itaipu Dam was finished in 1984. It has twenty generating units.",
}
FINDINGS = [
    {"topic_id": "T1", "text": "It was finished in 1959.", "evidence": [{"id": "S1", "quote": "finished in 1959"}]},
    {"topic_id": "T2", "text": "It was finished in 1984.", "evidence": [{"id": "S2", "quote": "finished in 1984"}]},
]
SECTIONS = [
    {"topic_id": "T1", "text": "Kariba was finished in 1959 [C1]."},
    {"topic_id": "T2", "text": "Itaipu was finished in 1984 [C2]."},
]


def look(topic: str, query: str, place: int) -> dict[str, Any]:
    return tool_use("search", f"toolu_{topic}_{place}", topic_id=topic, source="wikipedia", query=query)


COORDINATOR = [
    [tool_use("plan_topics", "toolu_plan", topics=["Kariba", "Itaipu"]), look("T1", "unicorn", 1)],
    [look("T1", "Kariba", 1), look("T2", "Itaipu", 2), look("T2", "forbidden", 3)],
    [look("T2", "unicorn", 1)],
    [tool_use("report_findings", "toolu_end", findings=FINDINGS)],
]
SYNTHESIS = [[tool_use("write_sections", "toolu_write", sections=SECTIONS)]]
STEPS = 10


@dataclass
class World:
    """A model and an encyclopedia that count what they are asked, and kill a process at a request, if they are told to.

    The model answers by the conversation, so that the same request always has the same answer.
    """

    asked: Counter[str] = field(default_factory=Counter)
    on_request: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        self._model, self._wiki = LocalServer(self._turn), LocalServer(self._search)
        self._model.__enter__()
        self._wiki.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._model.__exit__()
        self._wiki.__exit__()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self._model.url,
            "ANTHROPIC_API_KEY": "x",
            "CAVEAT_WIKIPEDIA_URL": self._wiki.url,
        }

    def _turn(self, request: Request) -> Reply:
        body = json.loads(request.body)
        is_coordinator = any(tool["name"] == "search" for tool in body["tools"])
        number = sum(said["role"] == "assistant" for said in body["messages"])
        self.asked[f"{'coordinator' if is_coordinator else 'synthesis'}/turn {number + 1}/model"] += 1
        self.on_request()
        content = (COORDINATOR if is_coordinator else SYNTHESIS)[number]
        events = sse(*stream_of(message(content)))
        return Reply(200, {"content-type": "text/event-stream"}, events)

    def _search(self, request: Request) -> Reply:
        query = request.query["srsearch"]
        self.asked[query] += 1
        self.on_request()
        if query == "forbidden":
            return Reply(403, {"content-type": "text/plain"}, b"no")
        return FakeMediaWiki(DAMS, host="wiki.example")(request)


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


class Lives:
    """The process that lives are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "lives.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def live(self, folder: Path, world: World, *, kill: int = 0, when: str = "after") -> int:
        """Return what the process ended with: 0, or a negative signal."""
        report = str(folder.with_suffix(".json"))
        environment = {**world.environment, "CAVEAT_HOME": str(folder.parent.parent)}
        order = {"folder": str(folder), "report": report, "kill": kill, "when": when, "environment": environment}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    lives = Lives()
    yield lives
    lives.close()


def clean_environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_"))}
    return {**kept, "PYTHONPATH": path}


def comparable(report: str | dict[str, Any]) -> Any:
    """Return a report without what differs from run to run: clock, cost and id."""
    body = report if isinstance(report, str) else json.dumps(report, ensure_ascii=False)
    run_id = json.loads(body)["run"]["id"]
    body = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "then", body.replace(run_id, "ID"))
    told = json.loads(re.sub(r"\b\d+\.\d s\b", "some seconds", body))
    told["run"] |= {"seconds": 0, "cost": 0}
    return told


def counted(world: World, folder: Path) -> dict[str, int]:
    """Return how often each finished step was asked for."""
    steps = read_record(folder).steps.values()
    names = [s.output.get("query", s.output.get("attempted_query", s.key)) for s in steps]
    return {name: world.asked[name] for name in names}


@pytest.fixture(scope="module")
def undisturbed(lives: Lives, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("home") / "runs" / "2026-01-02-undisturbed"
    with World() as world:
        assert lives.live(folder, world) == 0
        assert len(read_record(folder).steps) == STEPS
        assert set(world.asked.values()) == {1}
    return comparable(folder.with_suffix(".json").read_text())


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_run_killed_at_any_step_and_again_while_it_goes_on_asks_nothing_finished_twice(
    lives: Lives, world: World, tmp_path: Path, undisturbed: Any, step: int
) -> None:
    """First it dies before a step is committed, then after one; the report is that of a run which nobody killed."""
    folder = tmp_path / "runs" / "2026-01-02-killed"
    assert lives.live(folder, world, kill=step, when="before") == -signal.SIGKILL
    first = counted(world, folder)
    assert len(read_record(folder).steps) == step - 1
    assert lives.live(folder, world, kill=1, when="after") == -signal.SIGKILL
    second = counted(world, folder)
    assert len(read_record(folder).steps) == step
    assert lives.live(folder, world) == 0
    last = counted(world, folder)
    assert first.items() <= second.items() <= last.items()
    assert set(first.values()) <= {1}
    lost = sum(world.asked.values()) - len(world.asked)
    assert lost <= 1 + 2 * 2  # the step that was not committed, and its siblings that were under way at each kill
    assert comparable(folder.with_suffix(".json").read_text()) == undisturbed


def test_a_killed_ask_is_gone_on_with_by_the_line_to_type(world: World, tmp_path: Path, undisturbed: Any) -> None:
    """`caveat ask` dies while a request is under way; `caveat resume` repeats that one, and gives the report."""
    environment = {**clean_environment(), **world.environment, "CAVEAT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "caveat"]
    process: list[subprocess.Popen[str]] = []

    def kill() -> None:
        if world.asked.total() == 4:
            process[0].kill()

    world.on_request = kill
    process.append(
        subprocess.Popen(
            [*command, "ask", QUESTION],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    _, stderr = process[0].communicate()
    assert process[0].returncode == -signal.SIGKILL
    run_id = re.findall(r"^run (\S+):", stderr, re.MULTILINE)[0]
    before = counted(world, tmp_path / "runs" / run_id)
    world.on_request = lambda: None
    done = subprocess.run(
        [*command, "resume", run_id, "--json", "-"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr  # "forbidden" is a gap
    assert before.items() <= counted(world, tmp_path / "runs" / run_id).items()
    assert all(count <= 2 for count in world.asked.values())
    assert comparable(done.stdout) == undisturbed
    assert "coordinator: turn 1 is in the journal" in done.stderr
