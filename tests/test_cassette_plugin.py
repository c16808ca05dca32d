"""The pytest plugin, as somebody meets it who tests an agent of their own with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import caveat.testing.cassette  # noqa: F401 - pytester forgets what is first imported inside, and YAML's C part does not
from scripted import message, text
from servers import LocalServer, json_reply

AGENT = '''
import os
import anthropic
import pytest

SYSTEM = """You are brief.
Answer in one word."""

def ask(question, system=SYSTEM):
    client = anthropic.Anthropic(api_key="sk-ant-api03-NotARealKeyButLongEnough", base_url=os.environ["SERVER"])
    with client:
        reply = client.messages.create(
            model="m", max_tokens=50, system=system, messages=[{"role": "user", "content": question}]
        )
    return reply.content[0].text
'''


@pytest.fixture(autouse=True)
def server(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """A project with an agent, and a Messages API for it."""
    pytester.makepyfile(agent_of_mine=AGENT)
    pytester.syspathinsert()
    with LocalServer(json_reply(message([text("hi")]))) as running:
        monkeypatch.setenv("SERVER", running.url)
        yield running


def project(pytester: pytest.Pytester, body: str) -> Path:
    """Write a test module, and return where the cassettes of its tests are."""
    pytester.makepyfile(test_mine=f"import pytest\nfrom agent_of_mine import *\n\n{body}")
    return pytester.path / "cassettes" / "test_mine"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run the project's tests."""
    return pytester.runpytest_inprocess("-q", "-o", "asyncio_default_fixture_loop_scope=function", *arguments)


HELLO = "@pytest.mark.cassette\ndef test_hello():\n    assert ask('hello') == 'hi'\n"


def test_a_marked_test_is_recorded_once_and_replayed_without_its_server(
    pytester: pytest.Pytester, server: LocalServer
) -> None:
    """One marker, one file; the second run asks nobody."""
    folder = project(pytester, HELLO)
    run(pytester, "--record-mode=once").assert_outcomes(passed=1)
    assert [path.name for path in folder.iterdir()] == ["test_hello.yaml"]
    run(pytester).assert_outcomes(passed=1)
    run(pytester, "--record-mode=once").assert_outcomes(passed=1)
    assert len(server.requests) == 1
    run(pytester, "--record-mode=rewrite").assert_outcomes(passed=1)
    assert len(server.requests) == 2


def test_the_key_does_not_reach_the_file(pytester: pytest.Pytester) -> None:
    """Whatever the SDK sends as a header."""
    folder = project(pytester, HELLO)
    run(pytester, "--record-mode=once")
    assert "NotARealKey" not in (folder / "test_hello.yaml").read_text()


def test_a_recording_says_what_was_written_and_how(pytester: pytest.Pytester) -> None:
    """The summary names the file; the note stands in its header."""
    folder = project(pytester, HELLO)
    result = run(pytester, "--record-mode=once", "--record-note=by hand")
    result.stdout.re_match_lines([r".*test_hello\.yaml: written, 1 interactions"])
    assert "note: by hand" in (folder / "test_hello.yaml").read_text()


def test_without_a_cassette_the_test_fails_and_says_how_to_record_one(pytester: pytest.Pytester) -> None:
    """Nothing is asked by accident."""
    project(pytester, HELLO)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*pytest test_mine.py::test_hello --record-mode=once"])


def test_a_changed_word_of_a_prompt_fails_with_what_changed_and_what_to_type(pytester: pytest.Pytester) -> None:
    """The message alone is enough: no traceback, the line of the prompt before and after, one command."""
    project(pytester, HELLO)
    run(pytester, "--record-mode=once")
    project(pytester, HELLO.replace("'hello'", "'hello', SYSTEM.replace('one word', 'two words')"))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert re.search(r"- *.*Answer in one word", shown)
    assert re.search(r"\+ *.*Answer in two words", shown)
    assert "pytest test_mine.py::test_hello --record-mode=rewrite" in shown
    assert "Traceback" not in shown
    assert "anthropic/_base_client" not in shown


@pytest.mark.parametrize(
    "swallowed",
    [
        "try:\n        ask('other')\n    except Exception:\n        pass",
        "try:\n        ask('other')\n    except BaseException:\n        pass",
    ],
)
def test_an_agent_that_swallows_the_miss_does_not_save_the_test(pytester: pytest.Pytester, swallowed: str) -> None:
    """A stale cassette cannot pass for an outage that the agent has dealt with."""
    project(pytester, HELLO)
    run(pytester, "--record-mode=once")
    project(pytester, f"@pytest.mark.cassette\ndef test_hello():\n    ask('hello')\n    {swallowed}\n")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--record-mode=rewrite*"])


def test_a_session_that_ends_before_its_cassette_fails(pytester: pytest.Pytester) -> None:
    """What was recorded and is not asked for any more is named."""
    project(pytester, HELLO.replace("assert", "ask('and this one')\n    assert"))
    run(pytester, "--record-mode=once")
    project(pytester, HELLO)
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*2 interactions, and this session asked for 1*", "*--record-mode=rewrite"])


@pytest.mark.parametrize("ending", ["assert False", "pytest.skip('not now')", "pytest.fail('no')", "raise KeyError"])
def test_a_test_that_does_not_pass_leaves_no_recording(pytester: pytest.Pytester, ending: str) -> None:
    """A half recording would be replayed as if it were whole."""
    folder = project(pytester, f"@pytest.mark.cassette\ndef test_hello():\n    ask('hello')\n    {ending}\n")
    result = run(pytester, "--record-mode=once")
    assert not folder.exists()
    result.stdout.fnmatch_lines(["*test_hello.yaml: not written, since the test did not pass"])


OF_UNITTEST = """
class TestIt(unittest.TestCase):
    @pytest.mark.cassette
    def test_it(self):
        ask('hello')
        self.fail('no')
"""
OF_SUBTESTS = """
@pytest.mark.cassette
def test_it(subtests):
    ask('hello')
    with subtests.test():
        assert False
"""


@pytest.mark.parametrize("failing", [OF_UNITTEST, OF_SUBTESTS])
def test_failures_that_are_told_without_an_exception_leave_no_recording_either(
    pytester: pytest.Pytester, failing: str
) -> None:
    """As unittest's and those of subtests."""
    folder = project(pytester, f"import unittest\n{failing}")
    run(pytester, "--record-mode=once").stdout.fnmatch_lines(["*test_it.yaml: not written, since the test did*"])
    assert not folder.exists()


CLEANING = (
    "import os\n\n@pytest.fixture\ndef cleaned(cassette):\n    yield\n    try:\n        ask(os.environ['CLEANING'])\n"
    "    except BaseException:\n        pass\n\n"
    "@pytest.mark.cassette\ndef test_hello(cleaned):\n    assert ask('hello') == 'hi'\n"
)


def test_what_a_fixture_asks_after_the_test_is_part_of_the_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that deletes what the test has uploaded. A miss is a miss there, too, and swallowed by nobody."""
    project(pytester, CLEANING)
    monkeypatch.setenv("CLEANING", "delete it")
    run(pytester, "--record-mode=once").assert_outcomes(passed=1)
    run(pytester).assert_outcomes(passed=1)
    monkeypatch.setenv("CLEANING", "delete something else")
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*sent a request that is not recorded*"])


def test_a_test_that_passes_and_asks_for_nothing_is_not_said_to_have_failed(pytester: pytest.Pytester) -> None:
    """The summary says why there is no file."""
    project(pytester, "@pytest.mark.cassette\ndef test_it():\n    pass\n")
    result = run(pytester, "--record-mode=once")
    result.stdout.fnmatch_lines(["*test_it.yaml: not written, since nothing new was asked over HTTP"])


def test_the_fixture_gives_the_cassette_and_async_tests_work(pytester: pytest.Pytester) -> None:
    """A test can look at what was asked."""
    project(
        pytester,
        "import anthropic\n\n"
        "async def test_async(cassette):\n"
        "    async with anthropic.AsyncAnthropic(api_key='x', base_url=os.environ['SERVER']) as client:\n"
        "        await client.messages.create(model='m', max_tokens=5, messages=[{'role': 'user', 'content': 'x'}])\n"
        "    assert len(cassette) == 1 and len(cassette.asked) == 1\n"
        "    assert cassette.is_recording is (os.environ['RECORDS'] == 'yes')\n",
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RECORDS", "yes")
        run(pytester, "--record-mode=once", "-o", "asyncio_mode=auto").assert_outcomes(passed=1)
        monkeypatch.setenv("RECORDS", "no")
        run(pytester, "-o", "asyncio_mode=auto").assert_outcomes(passed=1)


def test_each_test_has_a_file_of_its_own_whatever_it_is_called(pytester: pytest.Pytester) -> None:
    """Parameters, classes, modules of the same name in two folders, names that no file system takes."""
    body = (
        "import pytest\nfrom agent_of_mine import *\n\n"
        "@pytest.mark.cassette\n@pytest.mark.parametrize('word', ['a/b', 'a:b', 'long' * 60, 'лес'])\n"
        "def test_it(word):\n    ask(word)\n\n"
        "class TestIt:\n    @pytest.mark.cassette\n    def test_it(self):\n        ask('class')\n\n"
        "@pytest.mark.cassette('given')\ndef test_named():\n    ask('named')\n"
    )
    for folder in ("one", "two"):
        (pytester.path / folder).mkdir()
        (pytester.path / folder / "test_same.py").write_text(body)
    arguments = ("--import-mode=importlib",)
    run(pytester, "--record-mode=once", *arguments).assert_outcomes(passed=12)
    files = [path.relative_to(pytester.path / "cassettes") for path in (pytester.path / "cassettes").rglob("*.yaml")]
    assert len(files) == 12
    assert Path("one/test_same/given.yaml") in files
    run(pytester, *arguments).assert_outcomes(passed=12)


def test_a_test_without_the_marker_is_left_alone(pytester: pytest.Pytester, server: LocalServer) -> None:
    """It goes to the network as it always did, and no cassette is made."""
    folder = project(pytester, "def test_hello():\n    ask('hello')\n")
    run(pytester).assert_outcomes(passed=1)
    assert len(server.requests) == 1
    assert not folder.exists()


@pytest.mark.parametrize("caught", ["Exception", "BaseException"])
def test_a_replayed_test_cannot_reach_the_network_past_the_cassette(pytester: pytest.Pytester, caught: str) -> None:
    """A socket that the agent opens itself is refused, and nothing hides it."""
    project(pytester, HELLO)
    run(pytester, "--record-mode=once")
    project(
        pytester,
        "import socket\n\n@pytest.mark.cassette\ndef test_hello():\n    ask('hello')\n    try:\n"
        f"        socket.create_connection(('127.0.0.1', 9))\n    except {caught}:\n        pass\n",
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*was tried in a replay*"])


def test_an_attempt_to_connect_that_is_swallowed_fails_the_test_all_the_same(pytester: pytest.Pytester) -> None:
    """gather(return_exceptions=True), a thread and `except BaseException` hold any exception."""
    project(pytester, HELLO)
    run(pytester, "--record-mode=once")
    swallowed = "with contextlib.suppress(BaseException):\n        socket.create_connection(('127.0.0.1', 9))"
    project(pytester, f"import contextlib\nimport socket\n\n{HELLO}    {swallowed}\n")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*was tried in a replay*"])


def test_a_damaged_cassette_fails_with_a_sentence(pytester: pytest.Pytester) -> None:
    """No traceback, and the file is left as it is."""
    folder = project(pytester, HELLO)
    folder.mkdir(parents=True)
    (folder / "test_hello.yaml").write_text("a: [")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    assert "Traceback" not in result.stdout.str()
    assert "another exception" not in result.stdout.str()


def test_a_marker_that_cannot_be_understood_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """Its form is shown."""
    project(pytester, HELLO.replace("cassette\n", "cassette(nmae='x')\n"))
    result = run(pytester)
    result.assert_outcomes(errors=1)
    assert "cassette(name=None, keep_headers=())" in result.stdout.str()


def test_the_plugin_costs_a_project_without_cassettes_next_to_nothing(pytester: pytest.Pytester) -> None:
    """Neither the SDK nor vcrpy nor YAML is imported until a test has a cassette."""
    pytester.makepyfile(
        "import sys\n\ndef test_it():\n"
        "    assert not {'anthropic', 'vcr', 'yaml', 'httpx2', 'pydantic'} & sys.modules.keys()\n"
    )
    (pytester.path / "test_mine.py").unlink(missing_ok=True)
    result = pytester.runpytest_subprocess("-q", "-p", "no:hypothesispytest", "-k", "test_it")
    result.assert_outcomes(passed=1)


def test_where_pytest_recording_is_installed_its_option_counts(pytester: pytest.Pytester) -> None:
    """Two plugins with one option would end every run of pytest; a project can have both."""
    pytester.makepyfile(
        pytest_recording="def pytest_addoption(parser):\n    parser.addoption('--record-mode', default=None)\n"
    )
    project(pytester, HELLO)
    run(pytester, "-p", "pytest_recording", "--record-mode=once", "test_mine.py").assert_outcomes(passed=1)


def test_two_tests_cannot_record_to_one_cassette(pytester: pytest.Pytester) -> None:
    """The second would overwrite the first, and the next replay would fail for no reason that anybody sees."""
    project(
        pytester,
        "@pytest.mark.cassette('same')\n@pytest.mark.parametrize('word', ['one', 'two'])\n"
        "def test_it(word):\n    ask(word)\n",
    )
    result = run(pytester, "--record-mode=rewrite")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*have the same cassette*"])


def test_a_replay_makes_a_client_without_any_key(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI has none, and the SDK makes no client without one."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(agent_of_mine=AGENT.replace('api_key="sk-ant-api03-NotARealKeyButLongEnough", ', ""))
    project(pytester, HELLO)
    with pytest.MonkeyPatch.context() as recording:
        recording.setenv("ANTHROPIC_API_KEY", "a-real-key-0123456789")
        run(pytester, "--record-mode=once").assert_outcomes(passed=1)
    run(pytester).assert_outcomes(passed=1)
