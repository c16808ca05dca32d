"""What somebody reads whose test asks for something that is not on its cassette."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vcr.request import Request

from caveat.testing.matching import digest
from caveat.testing.miss import CassetteMissError, explanation
from caveat_tools.plain_text import plain

MESSAGES = "https://api.anthropic.com/v1/messages"
RECORD = "pytest tests/test_x.py::test_y --record-mode=rewrite"
PROMPT = "\n".join(f"Rule {number}: do what rule {number} says." for number in range(1, 31))
SEARCH: dict[str, Any] = {
    "name": "search",
    "description": "Search one source.\nA query is a few words.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string", "maxLength": 300}}},
}
RESULT = json.dumps({"status": "found", "results": [{"id": "S1", "text": "opened in 2021"}, {"id": "S2", "text": "x"}]})
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 1_000,
    "system": [{"type": "text", "text": PROMPT}],
    "tools": [SEARCH, {"name": "report", "description": "Report."}],
    "messages": [
        {"role": "user", "content": "When was it opened?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {"query": "it"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": RESULT}]},
    ],
}


def post(body: Any, uri: str = MESSAGES) -> Request:
    return Request("POST", uri, body if isinstance(body, bytes) else json.dumps(body).encode(), {})


def get(uri: str) -> Request:
    return Request("GET", uri, None, {})


def changed(change: Callable[[Any], object]) -> Request:
    """Return the request of BODY, changed."""
    body = json.loads(json.dumps(BODY))
    change(body)
    return post(body)


def text_of(request: Request, recorded: Sequence[Request], played: Collection[int] = ()) -> str:
    """Return the message, and check what holds of each."""
    text = explanation(request, recorded, played, file="cassettes/test_x/test_y.yaml", how_to_record=RECORD)
    first, *lines = text.split("\n")
    assert first == "this session ends here: it sent a request that is not recorded in cassettes/test_x/test_y.yaml."
    assert lines.count(f"    {RECORD}") == 1
    assert len(lines) < 60
    assert len(text.encode()) < 8_000
    assert plain(text) == text
    assert "\t" not in text
    return text


def difference(request: Request, *recorded: Request) -> list[str]:
    """Return the lines that say what differs."""
    text = text_of(request, recorded or [post(BODY)])
    return text.partition("(- recorded, + now):\n\n")[2].partition("\n\nIf you meant")[0].split("\n")


# The end of the run


async def test_no_sdk_takes_a_miss_for_an_outage() -> None:
    """It passes the client's retries and every `except Exception` unchanged."""

    def miss(_: httpx2.Request) -> httpx2.Response:
        raise CassetteMissError("not there")

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(miss))
    async with anthropic.AsyncAnthropic(api_key="x", base_url="http://model.invalid", http_client=http) as client:
        with pytest.raises(CassetteMissError, match="not there"):
            await client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "Hi"}])
    assert not issubclass(CassetteMissError, Exception)


def test_neither_pytest_nor_the_sdk_is_needed_to_explain() -> None:
    """`caveat replay` explains a miss, too, and other people's agents may use another SDK."""
    code = "import sys, caveat.testing.miss; sys.exit(bool({'pytest', 'anthropic'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What happened


def test_an_empty_cassette_says_that_nothing_is_recorded_yet() -> None:
    """A new test says how to record it, and a renamed one that its file is elsewhere."""
    text = text_of(post(BODY), [])
    assert (
        "Request 1 of this session: POST /v1/messages (Messages API)\nThe cassette is empty, or there is none yet."
        in text
    )
    assert "If the test is new, record it." in text
    assert text.endswith(
        "If it was recorded before, do not: the file was lost, or the test has another name than the file."
    )


def test_a_request_to_another_address_names_the_addresses_that_are_recorded() -> None:
    """A test that suddenly asks another service shows where it used to ask."""
    recorded = [post(BODY), get("https://b.example/a?q=1"), get("https://b.example/a?q=2"), get("http://a.example/c")]
    text = text_of(get("https://b.example/other?q=1"), recorded, {0})
    assert "Request 2 of this session: GET https://b.example/other?q=1" in text
    assert "Nothing is recorded for that address. What is recorded:\n     2 × GET https://b.example/a\n" in text
    assert "     1 × POST /v1/messages (Messages API)\n" in text
    assert "If it is not, do not record: look for the setting or the code that sends it there." in text


def test_many_addresses_are_counted() -> None:
    """A cassette of a crawl does not fill the screen."""
    text = text_of(post(BODY), [get(f"https://b.example/{number}") for number in range(40)])
    assert "… and 32 further\n" in text


@pytest.mark.parametrize(
    ("copies", "said"),
    [
        (1, "once, and was now asked twice"),
        (2, "twice, and was now asked 3 times"),
        (5, "5 times, and was now asked 6 times"),
    ],
)
def test_a_request_that_is_made_once_more_than_recorded_is_told_apart(copies: int, said: str) -> None:
    """The request is right, and there is one too many: a retry or a loop, no changed prompt."""
    recorded = [get("http://a.example/c"), *[post(BODY)] * copies]
    text = text_of(post(json.dumps(BODY, indent=1).encode()), recorded, range(copies + 1))
    assert f"Request {copies + 2} of this session" in text
    assert f"It is recorded {said}." in text
    assert "look for a retry, or for a loop" in text
    assert "What differs" not in text


def test_the_end_says_when_to_record_and_when_not() -> None:
    """Recording anew hides a mistake as well as it takes up a change."""
    text = text_of(changed(lambda body: body.update(model="n")), [post(BODY)])
    assert text.endswith(
        "If you meant this change, record again. That asks the services themselves, and may cost money:\n"
        f"    {RECORD}\n"
        "If you did not, do not record: undo the change. If you changed nothing, look for what differs from run to "
        "run\n(a date, a random id, the order of a set, a path of this machine), and let the test set it."
    )


# How it differs: a Messages API


def test_a_changed_word_of_a_prompt_is_shown_with_its_line() -> None:
    """The line as recorded and as it is now, its number, two lines around it, and nothing else."""
    request = changed(lambda body: body["system"][0].update(text=PROMPT.replace("do what rule 12", "do as rule 12")))
    assert difference(request) == [
        "system prompt:",
        "    10  Rule 10: do what rule 10 says.",
        "    11  Rule 11: do what rule 11 says.",
        "  - 12  Rule 12: do what rule 12 says.",
        "  + 12  Rule 12: do as rule 12 says.",
        "    13  Rule 13: do what rule 13 says.",
        "    14  Rule 14: do what rule 14 says.",
    ]
    text = text_of(request, [post(BODY)])
    assert "number 1 of 1, not played yet. The same in both: parameters, tools, messages.\nWhat differs" in text


def test_two_changes_of_a_prompt_are_shown_apart() -> None:
    """What lies between them is left out."""
    text = PROMPT.replace("Rule 3:", "Point 3:").replace("Rule 20: ", "")
    lines = difference(changed(lambda body: body.update(system=text)), changed(lambda body: body.update(system=PROMPT)))
    assert [line for line in lines if line[2] in "-+⋮" or "⋮" in line] == [
        "  -  3  Rule 3: do what rule 3 says.",
        "  +  3  Point 3: do what rule 3 says.",
        "    ⋮",
        "  - 20  Rule 20: do what rule 20 says.",
        "  + 20  do what rule 20 says.",
    ]


def test_a_prompt_of_several_blocks_names_the_block() -> None:
    """Also where only what stands beside the text has changed."""
    blocks = [{"type": "text", "text": word} for word in ("one", "two", "three")]
    before = changed(lambda body: body.update(system=blocks))
    now = changed(lambda body: body.update(system=[blocks[0], {**blocks[1], "cache_control": {"type": "ephemeral"}}]))
    assert difference(now, before) == [
        "system prompt, block 2, text, cache_control:",
        "  + {",
        '  +   "type": "ephemeral"',
        "  + }",
        "",
        "1 further block differs",
    ]


def test_changed_parameters_are_shown_one_by_one() -> None:
    """Long values by line, all others on one line; what is null is not what is not there."""
    now = changed(lambda body: body.update(max_tokens=1_000.0, temperature=None, thinking={"type": "enabled"}))
    assert difference(now) == [
        "parameters:",
        "  - max_tokens: 1000",
        "  + max_tokens: 1000.0",
        "  + temperature: null",
        '  + thinking: { "type": "enabled" }',
    ]
    before = changed(lambda body: body.update(form={str(number): "x" * 20 for number in range(10)}))
    lines = difference(changed(lambda body: body.update(form={str(number): "x" * 20 for number in range(9)})), before)
    assert '  -   "9": "xxxxxxxxxxxxxxxxxxxx"' in lines


def test_changed_tools_are_shown_by_name_and_member() -> None:
    """Descriptions as text, schemas as JSON; a tool that moved in the list is not a changed one."""

    def change(body: Any) -> None:
        tool = json.loads(json.dumps(SEARCH))
        tool["description"] = tool["description"].replace("one source", "a source")
        tool["input_schema"]["properties"]["query"]["maxLength"] = 200
        body["tools"] = [{"name": "fetch"}, tool]

    assert difference(changed(change)) == [
        "tools that are new: fetch",
        "",
        "tools that are gone: report",
        "",
        "tool search, description:",
        "  - 1  Search one source.",
        "  + 1  Search a source.",
        "    2  A query is a few words.",
        "",
        "tool search, input_schema:",
        '      "properties": {',
        '        "query": {',
        '  -       "maxLength": 300,',
        '  +       "maxLength": 200,',
        '          "type": "string"',
        "        }",
    ]
    assert difference(changed(lambda body: body["tools"].reverse())) == [
        "order of the tools:",
        "  - search, report",
        "  + report, search",
    ]


def test_the_first_message_that_differs_is_shown() -> None:
    """Its number, role and kind of block; of a result that is JSON, the line within it; and how many more differ."""
    now = changed(lambda body: body["messages"][2]["content"][0].update(content=RESULT.replace("in 2021", "in 2022")))
    assert difference(now) == [
        "message 3, user, tool_result:",
        "        {",
        '          "id": "S1",',
        '  -       "text": "opened in 2021"',
        '  +       "text": "opened in 2022"',
        "        },",
        "        {",
    ]

    def change(body: Any) -> None:
        body["messages"][0]["content"] = "When was it closed?"
        body["messages"][2]["content"] = "nothing"
        body["messages"].append({"role": "user", "content": "And?"})

    assert difference(changed(change)) == [
        "message 1, user:",
        "  - 1  When was it opened?",
        "  + 1  When was it closed?",
        "",
        "1 further message differs",
        "",
        "number of messages: 3 recorded, 4 now",
    ]


def test_a_message_too_many_or_too_few_is_shown() -> None:
    """The conversation is the same as far as it goes."""
    lines = difference(changed(lambda body: body["messages"].append({"role": "user", "content": "And?"})))
    assert lines[:3] == ["number of messages: 3 recorded, 4 now", "", "message 4, user:"]
    assert '  +   "content": "And?",' in lines
    lines = difference(changed(lambda body: body["messages"].pop()))
    assert lines[:3] == ["number of messages: 3 recorded, 2 now", "", "message 3, user:"]
    assert all(line.startswith("  -") for line in lines[3:-1])


def test_blocks_of_another_kind_or_number_are_shown() -> None:
    """A text where a call was, a call too many, another role."""
    lines = difference(changed(lambda body: body["messages"][1].update(content=[{"type": "text", "text": "No."}])))
    assert lines[0] == "message 2, assistant:"
    assert '  -   "name": "search",' in lines
    assert '  +   "text": "No.",' in lines
    lines = difference(changed(lambda body: body["messages"][1]["content"].append({"type": "text", "text": "More."})))
    assert lines[0] == "message 2, assistant, block 2, text:"
    lines = difference(changed(lambda body: body["messages"][1]["content"][0]["input"].update(query="that")))
    assert lines[0] == "message 2, assistant, tool_use, input:"
    lines = difference(changed(lambda body: body["messages"][0].update(role="system")))
    assert lines == ["message 1, system, role:", "  - 1  user", "  + 1  system"]


def test_a_result_of_several_blocks_is_opened() -> None:
    """Tools may answer in blocks; the changed line of the changed block is what is shown."""
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two\nlines"}]
    before = changed(lambda body: body["messages"][2]["content"][0].update(content=blocks))
    blocks = [blocks[0], {"type": "text", "text": "two\nwords"}]
    now = changed(lambda body: body["messages"][2]["content"][0].update(content=blocks))
    assert difference(now, before) == [
        "message 3, user, tool_result, block 2, text:",
        "    1  two",
        "  - 2  lines",
        "  + 2  words",
    ]


def test_a_result_that_is_the_same_json_written_otherwise_is_shown_as_text() -> None:
    """The model sees the text, so white space in it counts."""
    spaced = RESULT.replace(": ", ":")
    lines = difference(changed(lambda body: body["messages"][2]["content"][0].update(content=spaced)))
    assert lines == ["message 3, user, tool_result:", f"  - 1  {RESULT}", f"  + 1  {spaced}"]


# How it differs: any other request


def test_query_parameters_are_shown_one_by_one() -> None:
    """As they are meant, not as they are quoted; what a key is set to is nobody's business."""
    before = get("https://b.example/a?q=old+bridge&page=1&same=1&key=abc&tag=x&tag=y")
    now = get("https://b.example/a?same=1&q=new%20bridge&key=def&tag=y&limit=5")
    assert difference(now, before) == [
        "query parameters:",
        "  - key=…",
        "  - page=1",
        "  - q=old bridge",
        "  - tag=x",
        "  + key=… (another value)",
        "  + limit=5",
        "  + q=new bridge",
    ]
    text = text_of(now, [before])
    assert "Request 1 of this session: GET https://b.example/a?same=1&q=new%20bridge&key=…&tag=y&limit=5" in text
    assert "abc" not in text
    assert "def" not in text


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        (
            b'{"a":[1,2],"b":3}',
            b'{"b":3,"a":[1,4]}',
            ["JSON body:", '      "a": [', "        1,", "  -     2", "  +     4"],
        ),
        (b"name=x\nrest", b"name=y\nrest", ["body:", "  - 1  name=x", "  + 1  name=y", "    2  rest"]),
        (b"\xff\x00", b"\xfe\x00", ["body:", r"  - 1  \xff\x00", r"  + 1  \xfe\x00"]),
        (b"1", b"1.0", ["JSON body:", "  - 1", "  + 1.0"]),
        (b"1", b"true", ["JSON body:", "  - 1", "  + true"]),
        (b"", b"x", ["body:", '  - 1  ""', "  + 1  x"]),
    ],
)
def test_other_bodies_are_shown_as_json_or_text(before: bytes, now: bytes, lines: list[str]) -> None:
    """Whatever it is, a line of it can be read."""
    uri = "https://b.example/a"
    shown = difference(post(now, uri), post(before, uri))
    assert shown[: len(lines)] == lines


def test_another_method_is_a_difference() -> None:
    """The address is right, what is done there is not."""
    assert difference(Request("PUT", "https://b.example/a", None, {}), get("https://b.example/a")) == [
        "method:",
        "  - 1  GET",
        "  + 1  PUT",
    ]


# Which recorded request is nearest


def number_of_nearest(request: Request, recorded: Sequence[Request], played: Collection[int] = ()) -> int:
    found = re.search(r"The nearest recorded one is number (\d+) of", text_of(request, recorded, played))
    assert found
    return int(found[1])


def test_the_nearest_has_most_parts_in_common() -> None:
    """A changed prompt is compared with the turn of the conversation that it belongs to."""
    other = post({"model": "m", "system": "Write.", "messages": BODY["messages"]})
    turns = [post({**BODY, "messages": BODY["messages"][:end]}) for end in (1, 2, 3)]
    for end in (1, 2, 3):
        now = post({**BODY, "system": "New.", "messages": BODY["messages"][:end]})
        assert number_of_nearest(now, [other, *turns, other]) == end + 1


def test_of_equally_many_parts_the_longest_equal_beginning_is_nearest() -> None:
    """A conversation that takes another turn is compared with the one that it left last."""

    def conversation(*texts: str) -> Request:
        return changed(lambda body: body.update(messages=[{"role": "user", "content": text} for text in texts]))

    recorded = [conversation("a"), conversation("b", "c", "d"), conversation("b", "x", "y")]
    assert number_of_nearest(conversation("b", "x", "z"), recorded, {2}) == 3


def test_of_equally_near_ones_one_that_is_not_played_comes_first_then_the_next_in_order() -> None:
    """What has been answered already is hardly what was meant."""
    recorded = [get(f"https://b.example/a?q={number}&x=1") for number in range(5)]
    now = get("https://b.example/a?q=new&x=1")
    assert number_of_nearest(now, recorded, {0}) == 2
    assert number_of_nearest(now, recorded, {0, 1, 3}) == 3
    assert number_of_nearest(now, recorded, {0, 1, 3, 4}) == 3
    assert "already played" in text_of(now, recorded, range(5))
    assert number_of_nearest(get("https://b.example/a?q=new&y=1"), [*recorded, get("https://b.example/a?y=1&z=0")]) == 6


# How lines are shown


def test_long_lines_are_cut_around_the_first_difference() -> None:
    """A passage on one line shows where it differs, not how it begins."""
    line = "".join(f"word{number} " for number in range(500))
    now = changed(lambda body: body.update(system=f"{line}\n{line.replace('word250', 'WORD250')}\n{line}"))
    lines = difference(now, changed(lambda body: body.update(system=f"{line}\n{line}\n{line}")))
    assert [line[:12] for line in lines] == [
        "system promp",
        "    1  word0",
        *[line[:12] for line in lines[2:4]],
        "    3  word0",
    ]
    assert "…" in lines[2]
    assert "word249 word250 word251" in lines[2]
    assert "word249 WORD250 word251" in lines[3]
    assert all(len(line) < 130 for line in lines)


def test_many_lines_are_counted() -> None:
    """Another prompt altogether shows its beginning on both sides, and says how much more there is."""
    now = changed(lambda body: body.update(system="\n".join(f"New {number}" for number in range(100))))
    lines = difference(now, changed(lambda body: body.update(system=PROMPT)))
    assert sum(line.startswith("  - ") for line in lines) == sum(line.startswith("  + ") for line in lines) == 7
    assert "  - … 24 more lines" in lines
    assert "  + … 94 more lines" in lines


def test_what_has_no_room_is_counted() -> None:
    """Many changes in one text, and changes in many places, do not fill the screen."""
    every_fourth = re.sub(r"Rule (\d*[02468]):", r"Point \1:", PROMPT)
    lines = difference(changed(lambda body: body["system"][0].update(text=every_fourth)))
    assert lines[-1].endswith("more lines differ")
    shown = sum(line.startswith(("  - ", "  + ")) for line in lines)
    assert int(lines[-1].split()[1]) + shown == 2 * len(re.findall("Point", every_fourth))
    tools = [{"name": f"tool{number}", "description": "x"} for number in range(20)]
    before = changed(lambda body: body.update(tools=tools))
    lines = difference(
        changed(lambda body: body.update(tools=[{**tool, "description": "y"} for tool in tools])), before
    )
    assert lines[0] == "tool tool0, description:"
    assert lines[-1].startswith("14 further places: tool tool6, description; tool tool7, description; ")


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        ("a\u202eb", "a\u202ec", [r"  - 1  a\u202eb", r"  + 1  a\u202ec"]),
        ("\x1b[31mred", "\x1b[32mred", [r"  - 1  \x1b[31mred", r"  + 1  \x1b[32mred"]),
        ("a\tb", "a b", [r"  - 1  a\tb", "  + 1  a b"]),
        ("a\r\nb", "a\nb", [r"  - 1  a\r", "  + 1  a"]),
        ("a", "a\n", ["    1  a", '  + 2  ""']),
        ("a\n\nb", "a\n  \nb", ["    1  a", '  - 2  ""', '  + 2  "  "']),
        ("in\u200bvisible", "invisible", [r"  - 1  in\u200bvisible", "  + 1  invisible"]),
        (
            "👩\u200d👩\u200d👧 a",
            "👩\u200d👩\u200d👧 b",
            ["  - 1  👩\u200d👩\u200d👧 a", "  + 1  👩\u200d👩\u200d👧 b"],
        ),
    ],
)
def test_what_hides_or_acts_on_a_terminal_is_spelt_out(before: str, now: str, lines: list[str]) -> None:
    """An invisible difference is a difference, and nobody's text paints the reader's terminal."""
    recorded = changed(lambda body: body.update(system=before))
    assert difference(changed(lambda body: body.update(system=now)), recorded)[1 : 1 + len(lines)] == lines


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("a b", "a\u00a0b", "character 2: U+0020 SPACE recorded, U+00A0 NO-BREAK SPACE now"),
        ("a b ", "a b", "character 4: U+0020 SPACE recorded, the end of the line now"),
        (
            "paris",
            "p\u0430ris",
            "character 2: U+0061 LATIN SMALL LETTER A recorded, U+0430 CYRILLIC SMALL LETTER A now",
        ),
        (
            "é",
            "e\u0301",
            "character 1: U+00E9 LATIN SMALL LETTER E WITH ACUTE recorded, U+0065 LATIN SMALL LETTER E now",
        ),
        ("a b", "a c", ""),
        ("a b", "ab", ""),
        (f"{'x' * 20_000}a", f"{'x' * 20_000}b", ""),
        (f"{'x' * 20_000} ", "x" * 20_000, "character 20001: U+0020 SPACE recorded, the end of the line now"),
    ],
)
def test_lines_that_look_alike_are_told_apart_in_words(before: str, now: str, said: str) -> None:
    """A no-break space, a space at the end, a letter of another alphabet: nobody could see them."""
    recorded = changed(lambda body: body.update(system=before))
    lines = difference(changed(lambda body: body.update(system=now)), recorded)
    assert [line for line in lines if line.startswith("  ? ")] == ([f"  ? {said}"] if said else [])


# Any request at all

TEXTS = st.text(st.sampled_from("ab é\n\r\t\x1b\u202e\u200b😀{}[]\"'"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.just(1.0) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "role", "name", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "tool_result", "tool_use", "x"])},
        optional={"text": TEXTS, "content": VALUES, "input": VALUES},
    ),
    max_size=3,
)
BODIES = (
    st.fixed_dictionaries(
        {},
        optional={
            "model": TEXTS,
            "system": TEXTS | BLOCKS | VALUES,
            "tools": VALUES | st.lists(st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"d": VALUES})),
            "messages": VALUES
            | st.lists(
                st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS | BLOCKS | VALUES}), max_size=4
            ),
        },
    )
    | VALUES
)
REQUESTS = st.builds(
    Request,
    st.sampled_from(["GET", "POST", "\x1b[1m"]),
    st.sampled_from(
        [
            MESSAGES,
            f"{MESSAGES}?beta=true",
            "http://a.example/x?key=1",
            "http://me:pw@a.example/x?b=%ff%0a",
            "http://h:x/?@",
        ]
    ),
    BODIES.map(json.dumps).map(str.encode) | st.binary(max_size=20) | st.none(),
    st.just({}),
)


@given(REQUESTS, st.lists(REQUESTS, max_size=4), st.sets(st.integers(0, 3)))
def test_any_request_is_explained(request: Request, recorded: list[Request], played: set[int]) -> None:
    """Whatever an agent sends, the message is bounded and harmless; where requests differ, it shows how."""
    text = text_of(request, recorded, {position for position in played if position < len(recorded)})
    if digest(request) not in map(digest, recorded):
        assert "nothing that can be shown" not in text


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"system": "a\n" * 100_000}, {"system": "b\na\n" * 100_000}),
        ({"system": "a\nb\n" * 300}, {"system": "b\nb\na\n" * 300}),
        ({"system": "".join(f"{n % 7}\n" for n in range(399))}, {"system": "".join(f"{n % 5}\n" for n in range(399))}),
        ({"system": "x" * 2_000_000}, {"system": "x" * 2_000_000 + "\u202e" * 1_000_000}),
        ({"system": "e" + "\u0301" * 500_000}, {"system": "f" + "\u0301" * 500_000}),
        ({"system": "\u0301" * 500_000 + " "}, {"system": "\u0301" * 500_000}),
        (
            {"tools": [{"name": f"{n}", "x": n} for n in range(20_000)]},
            {"tools": [{"name": f"{n}"} for n in range(20_000)]},
        ),
        ({"messages": [{"role": "user"}] * 100_000}, {"messages": [{"role": "me"}] * 100_001}),
        ({"metadata": {str(n): n for n in range(50_000)}}, {"metadata": {str(n): -n for n in range(50_000)}}),
        ({str(n): n for n in range(50_000)}, {str(n): -n for n in range(50_000)}),
        (b"[" * 100_000, b"{" * 100_000),
        (b"\xff" * 500_000, b"\xfe" * 500_000),
    ],
    ids=[
        "lines",
        "repeated",
        "mixed",
        "bidi",
        "marks",
        "marks before",
        "tools",
        "messages",
        "wide",
        "parameters",
        "deep text",
        "bytes",
    ],
)
@pytest.mark.usefixtures("_ends")
def test_a_hostile_body_is_explained_in_time(before: Any, now: Any) -> None:
    """Time grows with length only, and the message stays a page long."""
    text_of(post(now), [post(before)] * 2)


@pytest.mark.parametrize("levels", [30, 300, 450, 2_000])
@pytest.mark.usefixtures("_ends")
def test_content_within_content_is_explained(levels: int) -> None:
    """No stack overflows on blocks that hold blocks."""
    left, right = '[{"type":"tool_result","content":' * levels, "}]" * levels

    def nested(text: str) -> Request:
        return post(f'{{"messages":[{{"role":"user","content":{left}"{text}"{right}}}]}}'.encode())

    text_of(nested("one"), [nested("two")])
