"""`make bench`: speed and memory, printed and never asserted. Model and network take no time; what is left is ours."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vcr.request import Request

from caveat.budget import Limits
from caveat.claims import check
from caveat.journal import FILE_NAME, Journal, read_record
from caveat.session import research
from caveat.steps import OUTCOME, TURN
from caveat.testing.cassette import Cassette, use_cassette
from caveat.testing.cassette_file import to_text
from caveat.testing.session import play, session_of
from caveat.turn import Turn
from caveat_tools.clock import FakeClock, SystemClock
from caveat_tools.outcome import MAX_PASSAGE_CHARS, Found, Result
from caveat_tools.source import Ask
from caveat_tools.sources.local import LocalSource
from made_files import docx, epub, notebook, paragraph, pdf
from scripted import ScriptedModel, ScriptedSource, passage, tool_use

CASSETTES = Path(__file__).parent.parent / "cassettes"
WORDS = [
    f"{stem}{ending}" for stem in ("dam", "river", "cost", "wall", "year", "плотин") for ending in map(str, range(900))
]


def seconds(work: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def prose(chance: random.Random, words: int) -> str:
    """Return paragraphs of words."""
    return "\n\n".join(" ".join(chance.choices(WORDS, k=120)) + "." for _ in range(max(1, words // 120)))


def mixed(folder: Path) -> int:
    """Write documents of all formats, and return their size in bytes."""
    chance = random.Random(7)
    for number in range(60):
        text = prose(chance, 4_000)
        lines = [line for paragraph in text.split("\n\n") for line in textwrap.wrap(paragraph, 90)]
        pages = [lines[start : start + 45] for start in range(0, len(lines), 45)]
        table = "\n".join(["name,cost,note", *(f"{line},{n},{n * 7}" for n, line in enumerate(lines))])
        made: dict[str, str | bytes] = {
            "md": text,
            "txt": text.encode("cp1251"),
            "py": "\n".join(f"# {line}" for line in lines),
            "html": "".join(f"<p>{paragraph}</p>\n" for paragraph in text.split("\n\n")),
            "csv": table,
            "pdf": pdf(pages),
            "docx": docx("".join(map(paragraph, text.split("\n\n")))),
            "epub": epub({f"{n}.xhtml": f"<p>{part}</p>" for n, part in enumerate(text.split("\n\n"))}),
            "ipynb": notebook(*(("markdown", part, []) for part in text.split("\n\n"))),
        }
        for suffix, content in made.items():
            (folder / f"{number}.{suffix}").write_bytes(content.encode() if isinstance(content, str) else content)
    return sum(file.stat().st_size for file in folder.iterdir())


async def formats() -> None:
    """Index a folder of all formats, then open it again."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as index:
        size = mixed(Path(name))
        for what in ("index", "again"):
            start = time.perf_counter()
            source = await LocalSource.open(Path(name), index=Path(index))
            took = time.perf_counter() - start
            print(
                f"{what}        {size / 1e6 / took:8.1f} MB/s    "
                f"(all formats, {source.documents} files, {size / 1e6:.1f} MB, {source.passages} passages)"
            )
            await source.aclose()


async def large() -> None:
    """Index 50 000 files with 100 000 passages and one of 2 GB, open them again, and ask them."""
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as index:
        for number in range(50_000):
            file = Path(name) / str(number // 500) / f"{number}.md"
            file.parent.mkdir(exist_ok=True)
            file.write_text(prose(chance, 240))
        (Path(name) / "video").touch()
        os.truncate(Path(name) / "video", 2_000_000_000)
        for what in ("fresh", "again"):
            start = time.perf_counter()
            source = await LocalSource.open(Path(name), index=Path(index))
            print(f"{what}        {time.perf_counter() - start:8.1f} s       ({source.documents} files)")
            await source.aclose()
        source = await LocalSource.open(Path(name), index=Path(index))
        waits = []
        for _ in range(200):
            ask = Ask(" ".join(chance.choices(WORDS, k=3)))
            start = time.perf_counter()
            await source.page(ask, None)
            waits.append(1e3 * (time.perf_counter() - start))
        p95 = statistics.quantiles(waits, n=20)[-1]
        print(f"search       {statistics.median(waits):8.1f} ms p50  {p95:.1f} ms p95 ({source.passages} passages)")
        start = time.perf_counter()
        common = await source.page(Ask("dam1 OR " + " ".join(WORDS[:40])), None)
        print(f"             {1e3 * (time.perf_counter() - start):8.1f} ms for 41 words ({common.total} found)")
        await source.aclose()
        print(
            f"memory       {peak():8.0f} MB here and {peak(resource.RUSAGE_CHILDREN):.0f} MB in a worker, at the peak"
        )


def peak(of: int = resource.RUSAGE_SELF) -> float:
    """Return the largest resident size so far in MB, of this process or its ended children."""
    return resource.getrusage(of).ru_maxrss / 1024


async def loop(turns: int) -> None:
    """A run of many turns against a model and a source that answer at once, and its HTTP requests alone."""
    looks = [
        [tool_use("search", topic_id="T1", source="wiki", query=f"query {turn} {n}") for n in range(4)]
        for turn in range(turns - 1)
    ]
    script = ScriptedModel([*looks, [tool_use("report_findings", findings=[])]])
    with tempfile.TemporaryDirectory() as home:
        start = time.perf_counter()
        await research(
            "question",
            sources=[ScriptedSource([[passage("A sentence about the dam and its year.")]])],
            model=script.model(),
            clock=FakeClock(),
            limits=Limits(turns=turns, calls=4 * turns, tokens=10**9),
            home=Path(home),
        )
        took = 1e3 * (time.perf_counter() - start) / turns
    asked = list(script.requests)
    again = ScriptedModel(script.replies)
    async with again.client() as client:
        start = time.perf_counter()
        for request in asked:
            async with client.messages.with_streaming_response.create(**request) as response:
                async for _ in response.iter_bytes():
                    pass
        alone = 1e3 * (time.perf_counter() - start) / turns
    beyond = f"{took - alone:8.1f} ms a turn of 4 searches"
    print(f"loop         {beyond} beyond the HTTP client's own {alone:.1f} ms ({turns} turns)")


async def journal() -> None:
    """Keep steps of a long run: searches with five passages each, and turns whose request grows."""
    chance = random.Random(7)
    texts = [prose(chance, 130)[:MAX_PASSAGE_CHARS] for _ in range(500)]
    results = [Result(title="Title", url=f"https://example.org/{n}", text=text) for n, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as name:
        kept = Journal("run", Path(name) / "run")
        kept.begin({"question": "question"}, clock=SystemClock())
        times: dict[str, list[float]] = {"search": [], "turn": []}
        messages: list[dict[str, Any]] = []
        for number in range(100):
            found = Found(source="wiki", query="q", results=tuple(results[5 * number : 5 * number + 5]))
            turn = Turn([{"type": "text", "text": texts[number]}], "end_turn")
            messages.append({"role": "user", "content": "".join(texts[number : number + 4])})
            for what, request, output, form in (
                ("search", {"query": "q"}, found, OUTCOME),
                ("turn", {"messages": messages}, turn, TURN),
            ):
                scope = kept.scope("coordinator").within(f"turn {number}")
                start = time.perf_counter()
                await scope.step(what, request, _answering(output), form=form)
                times[what].append(1e3 * (time.perf_counter() - start))
        kept.close()
        size = (Path(name) / "run" / FILE_NAME).stat().st_size
        start = time.perf_counter()
        record = read_record(Path(name) / "run")
        opening = 1e3 * (time.perf_counter() - start)
    median = {what: statistics.median(each) for what, each in times.items()}
    steps = f"{median['search']:8.2f} ms a search, {median['turn']:.2f} ms a turn"
    print(f"journal      {steps} with requests of up to {len(json.dumps(messages)) / 1e3:.0f} kB")
    print(f"             {opening:8.1f} ms to open one of {len(record.steps)} steps ({size / 1e6:.1f} MB)")


def _answering(output: Any) -> Callable[[], Any]:
    async def call() -> Any:
        return output

    return call


async def replay() -> None:
    """Play every cassette from its file to its report."""
    requests = 0
    paths = sorted(CASSETTES.rglob("*.yaml"))
    start = time.perf_counter()
    for path in paths:
        with use_cassette(path) as cassette:
            await play(cassette, session_of(cassette))
            requests += len(cassette)
    took = time.perf_counter() - start
    print(
        f"replay       {1e3 * took / requests:8.1f} ms a request, {took:.1f} s in all "
        f"({requests} requests of {len(paths)} sessions)"
    )


def cassettes() -> None:
    """Read and match on a cassette of 100 requests of 200 kB."""
    chance = random.Random(7)
    system = [{"type": "text", "text": prose(chance, 7_600)}]
    bodies = [
        {"model": "m", "system": system, "messages": [{"role": "user", "content": prose(chance, 7_600)}]}
        for _ in range(100)
    ]
    requests = [Request("POST", "https://api.anthropic.com/v1/messages", json.dumps(body), {}) for body in bodies]
    answer = {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": b"{}"}}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.yaml"
        writing = seconds(lambda: path.write_text(to_text({}, requests, [answer] * len(requests))))
        start = time.perf_counter()
        cassette = Cassette(path)
        reading = time.perf_counter() - start
        start = time.perf_counter()
        for request in reversed(requests):
            cassette.answer(Request(request.method, request.uri, request.body, {}))
        asking = 1e3 * (time.perf_counter() - start) / len(requests)
        size = path.stat().st_size
    print(f"cassette     {asking:8.2f} ms a request of {len(requests[0].body) // 1000} kB, scrubbed and matched")
    print(f"             {reading:8.1f} s to read, {writing:.1f} s to write (100 requests, {size / 1e6:.0f} MB)")


def quotes() -> None:
    """Check many claims against many stored texts."""
    chance = random.Random(7)
    stored = {f"S{n}": " ".join(chance.choices(WORDS, k=150))[:1200] for n in range(200)}
    evidence = [(key, text[100:220].split(" ", 1)[1].rsplit(" ", 1)[0]) for key, text in stored.items()]
    took = seconds(lambda: [check("A claim.", "T1", [entry], stored) for entry in evidence[:100]])
    print(f"quotes       {1e3 * took / 100:8.2f} ms a claim against 200 stored texts")


def main() -> None:
    """Print all figures."""
    help_command = [sys.executable, "-m", "caveat", "--help"]
    times = [seconds(lambda: subprocess.run(help_command, check=True, capture_output=True)) for _ in range(5)]
    print(f"--help       {1e3 * min(times):8.0f} ms")
    asyncio.run(formats())
    asyncio.run(large())
    asyncio.run(loop(40))
    asyncio.run(journal())
    asyncio.run(replay())
    cassettes()
    quotes()
    print(f"memory       {peak():8.0f} MB at the peak")


if __name__ == "__main__":
    main()
