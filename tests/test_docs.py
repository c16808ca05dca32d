"""The documentation: its code runs, and what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import examples
import reference
from caveat.cli import main
from caveat_tools.outcome import ERROR_KINDS

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_every_program_on_the_library_page_runs(number: int, tmp_path: Path) -> None:
    """What the page shows can be pasted and works, without a key or a network."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "kariba.md").write_text("The Kariba dam on the Zambezi was finished in 1959.\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_"))}
    environment["CAVEAT_HOME"] = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[number]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = ("The Kariba dam on the Zambezi was finished in 1959.", "covered", "0")[number]
    assert expected in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_on_a_page_leads_somewhere(page: Path) -> None:
    """A relative link names a file that is there."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def options_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    """Every command and every flag is documented as it is; `make docs` writes the page."""
    assert reference.PAGE.read_text() == reference.page()


def test_every_option_that_a_page_names_exists(pytestconfig: pytest.Config) -> None:
    """No page teaches a flag that no command has."""
    llama_cpps_own = {"--jinja", "--alias", "--port", "--chat-template-file"}
    pytest_plugins = {"--record-mode", "--record-note", "--strict-markers"}
    assert all(pytestconfig.getoption(option, "missing") != "missing" for option in pytest_plugins)
    known = options_of(reference.page()) | llama_cpps_own | pytest_plugins
    for page in PAGES:
        if page.name == "folder-questions.md":
            continue  # its answers name options of other programs
        assert options_of(re.sub(r"docs/prompts.*", "", page.read_text())) <= known, page


def test_every_command_is_in_the_readme() -> None:
    """Who reads only the README has seen each command once."""
    readme = (ROOT / "README.md").read_text()
    for path in reference.commands(main):
        assert " ".join(("caveat", *path)) in readme


def test_the_handbook_explains_every_error_type() -> None:
    """A reader of a report can look every errorType up."""
    page = (ROOT / "docs" / "handbook" / "error-types.md").read_text()
    assert all(name in page for name in ERROR_KINDS)


def test_nothing_in_the_project_names_a_machine() -> None:
    """No absolute path of a developer's machine stands in a tracked page or module."""
    files = [
        p for d in ("agent", "tools", "prompts", "docs") for p in (ROOT / d).rglob("*") if p.suffix in {".py", ".md"}
    ]
    for file in [*files, ROOT / "README.md", ROOT / "DECISIONS.md", ROOT / "CHANGELOG.md"]:
        assert not re.search(r"(?<![\w.])/(home|work|root|Users)/\w", file.read_text()), file


@pytest.mark.parametrize("name", examples.ABOUT)
def test_the_recorded_examples_are_what_the_cassettes_give(name: str) -> None:
    """docs/examples shows today's reports; `make examples` writes them."""
    assert (examples.FOLDER / f"recorded_{name}.md").read_text() == examples.recorded(name)
