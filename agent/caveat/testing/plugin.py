"""The pytest plugin: `@pytest.mark.cassette` puts a test's whole session on `cassettes/<module>/<test>.yaml`.

Every pytest run in an environment with caveat imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from caveat.testing.cassette import Cassette, Mode

MODES: Final[tuple[Mode, ...]] = ("none", "once", "new_episodes", "all", "rewrite")
_CASSETTE: Final = pytest.StashKey["Cassette"]()
_FAILED: Final = pytest.StashKey[bool]()
_RECORDED: Final = pytest.StashKey[dict[Path, str]]()
_MAX_NAME_CHARS: Final = 120


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add --record-mode, with the words of pytest-recording; where that plugin is there too, its option counts."""
    group = parser.getgroup("cassette", "sessions on cassettes (caveat.testing)")
    if find_spec("pytest_recording") is None or pluginmanager.is_blocked("recording"):
        group.addoption(
            "--record-mode",
            choices=MODES,
            help="none (the default): replay, and never connect. once: record sessions that have no cassette. "
            "new_episodes: replay what is there, record the rest. rewrite, all: record anew. "
            "Recording asks the model and the services; hosted ones cost money.",
        )
    group.addoption(
        "--record-note", default="", metavar="TEXT", help="Say in the cassette's header how it is recorded."
    )
    parser.addini("cassette_dir", "the folder of the cassettes, from the root folder on", default="cassettes")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "cassette(name=None, keep_headers=()): put the test's session on a cassette; the fixture `cassette` is it. "
        "`name` takes the place of the test's name, `keep_headers` are response headers to keep beside the usual ones.",
    )


@pytest.fixture(autouse=True)
def _marked_with_cassette(request: pytest.FixtureRequest) -> None:
    """Put a test that has the marker on its cassette, whether it asks for the fixture or not."""
    if request.node.get_closest_marker("cassette"):
        request.getfixturevalue("cassette")


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """The cassette of this test, in use: what goes over HTTP is recorded, or played back."""
    from caveat.testing.cassette import use_cassette  # noqa: PLC0415 - only tests with a cassette pay for it
    from caveat.testing.cassette_file import CassetteFileError  # noqa: PLC0415

    item = request.node
    given = _arguments(item)
    path = _path(item, given.get("name"))
    mode: Mode = item.config.getoption("--record-mode") or "none"
    try:
        with use_cassette(
            path,
            mode,
            keep_headers=given.get("keep_headers", ()),
            how_to_record=f"pytest {shlex.quote(item.nodeid)} --record-mode={'rewrite' if path.exists() else 'once'}",
        ) as used:
            item.stash[_CASSETTE] = used
            if used.is_recording:
                _first_to_record(path, item)
                note = item.config.getoption("--record-note")
                recorded = used.header.setdefault("recorded", {})
                recorded |= {"test": item.nodeid, **({"note": note} if note else {})}
            yield used
            if item.stash.get(_FAILED, True):
                used.discard()
            elif used.ended_by is not None:  # by a fixture that asked after the test
                used.discard()
                pytest.fail(used.ended_by, pytrace=False)
            elif not used.is_recording and used.not_played:
                pytest.fail(used.partly_played(), pytrace=False)
    except CassetteFileError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    if used.is_recording:
        item.user_properties.append(("cassette", f"{path}: {_what_became(used, item)}"))


def _first_to_record(path: Path, item: pytest.Item) -> None:
    """Let a test fail whose cassette another test of this run has recorded: the file can hold one of them."""
    recorded = item.config.stash.setdefault(_RECORDED, {})
    other = recorded.setdefault(path, item.nodeid)
    if other != item.nodeid:
        pytest.fail(f"{item.nodeid} and {other} have the same cassette, {path}: give one another name", pytrace=False)


def _what_became(used: Cassette, item: pytest.Item) -> str:
    if used.was_written:
        models = ", ".join(used.header["recorded"].get("models", ()))
        return f"written, {len(used)} interactions{f' with {models}' if models else ''}"
    if item.stash.get(_FAILED, True):
        return "not written, since the test did not pass"
    return "not written, since nothing new was asked over HTTP"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let a test fail that asked for what is not on its cassette, whatever its agent made of it."""
    item.stash[_FAILED] = False
    raised: BaseException | None = None
    try:
        yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        item.stash[_FAILED] = True
        raise
    except BaseException as error:  # noqa: BLE001 - a miss is told in its place, all else is raised again
        raised = error
    used = item.stash.get(_CASSETTE, None)
    if used is not None and used.ended_by is not None:
        pytest.fail(used.ended_by, pytrace=False)
    if raised is not None:
        raise raised


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Take in whether the test passed: unittest and subtests tell of failures without an exception."""
    report = yield
    if call.when == "call":
        item.stash[_FAILED] = item.stash.get(_FAILED, True) or not report.passed
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which cassettes were written, and which were not."""
    lines = {
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "cassette"
    }
    if lines:
        terminalreporter.section("cassettes")
        for line in sorted(lines):
            terminalreporter.line(line)


def _arguments(item: pytest.Item) -> dict[str, Any]:
    """Return what the marker says. A marker with anything else is a usage error."""
    marker = item.get_closest_marker("cassette")
    if marker is None:
        return {}
    given = {**dict(zip(("name",), marker.args, strict=False)), **marker.kwargs}
    wrong = [*map(repr, marker.args[1:]), *sorted(given.keys() - {"name", "keep_headers"})]
    if wrong:
        pytest.fail(
            f"{item.nodeid}: the marker has no {wrong[0]}; its form is cassette(name=None, keep_headers=())",
            pytrace=False,
        )
    return given


def _path(item: pytest.Item, name: str | None) -> Path:
    """Return the cassette's path: the folder, the module from the folder of the tests on, and the test."""
    config = item.config
    root, module = config.rootpath, item.path.with_suffix("")
    folders = [*(root / folder for folder in (*config.getini("testpaths"), "tests")), root, module.parent]
    place = next(module.relative_to(folder) for folder in folders if module.is_relative_to(folder))
    test = item.nodeid.partition("::")[2].replace("::", ".")
    return Path(root, config.getini("cassette_dir"), place, f"{_file_name(name or test)}.yaml")


def _file_name(name: str) -> str:
    """Return a name that every file system takes, and that no other test has."""
    plain = re.sub(r'[<>?%*:|"\'/\\\s\x00-\x1f]', "-", name)
    if plain == name and len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{plain[:_MAX_NAME_CHARS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
