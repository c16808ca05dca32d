"""What the report says of a folder: gaps for what could not be read, notes for what is left out by design."""

import os
from pathlib import Path

from caveat.events import Event, Notice
from caveat.report import Report
from caveat.session import research
from caveat_tools.clock import FakeClock
from made_files import pdf
from scripted import ScriptedModel, tool_use


async def reported(docs: Path, home: Path) -> tuple[Report, list[str]]:
    """Research over a folder with a model that searches once; return the report and the notices."""
    told: list[Event] = []
    search = tool_use("search", topic_id="T1", source="local", query="kariba")
    script = ScriptedModel([[search], [tool_use("report_findings", findings=[])]])
    report = await research(
        "When?",
        sources=["local"],
        docs=docs,
        model=script.model(),
        home=home,
        clock=FakeClock(),
        on_event=told.append,
    )
    return report, [event.text for event in told if isinstance(event, Notice)]


def folder(path: Path, files: dict[str, bytes]) -> Path:
    """Write files."""
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


async def test_a_report_says_what_of_the_folder_was_not_read(tmp_path: Path) -> None:
    """Scans and old formats are a gap; what is hidden, ignored, empty or no text is a note, with numbers and names."""
    docs = folder(
        tmp_path / "docs",
        {
            "a.md": b"Kariba dam",
            "scan.pdf": pdf([None]),
            "old.doc": b"x",
            "cp1251.txt": "Плотина".encode("cp1251"),
            "empty.txt": b"",
            "pictures/a.png": b"",
            "data": b"\0",
            ".git/config": b"",
            ".gitignore": b"*.log\nbuild/\n",
            "build/out.md": b"Kariba",
            **{f"{number}.log": b"Kariba" for number in range(6)},
        },
    )
    report, _ = await reported(docs, tmp_path / "home")
    [gap] = [gap.why for gap in report.gaps if gap.error_type == "unreadable"]
    assert gap == (
        "2 files could not be read, or not all of it: old.doc (documents of the kind .doc are not read); "
        "scan.pdf (its pages are pictures without text, as of a scan)"
    )
    assert list(report.notes) == [
        "1 file left out: empty.txt (it holds no text).",
        "Hidden files and folders were left out (2): .git/, .gitignore.",
        (
            "Files and folders that a .gitignore excludes were left out (7): "
            "0.log, 1.log, 2.log, 3.log, 4.log, and 2 more."
        ),
        "The encoding is a guess, and letters may be wrong, in cp1251.txt (Windows-1251).",
        "Files that are neither text nor documents were left out: 1 without a suffix, 1 .png.",
    ]


async def test_a_second_question_does_not_read_the_folder_again(tmp_path: Path) -> None:
    """The index is kept beside the stored answers, and an unchanged folder is not mentioned."""
    docs = folder(tmp_path / "docs", {"a.md": b"Kariba dam"})
    os.utime(docs / "a.md", (1_000_000_000, 1_000_000_000))
    _, first = await reported(docs, tmp_path / "home")
    _, second = await reported(docs, tmp_path / "home")
    assert "reading docs: 1 file, 1 kB" in first
    assert not any("reading" in notice for notice in second)


async def test_every_file_that_could_not_be_read_is_named_however_many_there_are(tmp_path: Path) -> None:
    """In a list of its own and in the data; the gap's sentence names the first few."""
    names = [f"old-{number:02d}.doc" for number in range(12)]
    docs = folder(tmp_path / "docs", {"a.md": b"Kariba dam", **dict.fromkeys(names, b"x")})
    report, _ = await reported(docs, tmp_path / "home")
    assert [file.path for file in report.unread] == names
    listed = report.markdown.partition("## Files that could not be read")[2]
    assert all(f"- `{name}`: documents of the kind .doc are not read" in listed for name in names)
    [gap] = [gap for gap in report.gaps if gap.error_type == "unreadable"]
    assert "and 7 more" in gap.why


async def test_a_report_is_no_evidence_for_the_next_one(tmp_path: Path) -> None:
    """A report that was written into the folder, as Markdown or JSON and whatever its name, is left out with a note."""
    docs = folder(tmp_path / "docs", {"a.md": b"The Kariba dam was finished in 1959."})
    first, _ = await reported(docs, tmp_path / "home")
    page = first.markdown.encode()
    folder(docs, {"report.md": page, "out/r.json": first.to_json().encode(), "r": page.replace(b"\n", b"\r\n")})
    folder(
        docs,
        {"large.txt": page + b"More words.\n" * 50_000, "notes.md": b"The mark is `<!-- a report of caveat: x -->`"},
    )
    second, _ = await reported(docs, tmp_path / "home")
    reason = "it is a report of caveat's own"
    assert second.notes == (
        f"4 files left out: large.txt ({reason}); out/r.json ({reason}); r ({reason}); report.md ({reason}).",
    )
    assert [gap for gap in second.gaps if gap.error_type == "unreadable"] == []
    again, _ = await reported(docs, tmp_path / "home")
    assert again.notes == second.notes
