"""What differs between two requests: part by part, of a Messages API by system prompt, tools and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from caveat.testing.diff_text import WIDTH, Difference
from caveat.testing.matching import canonical, is_messages_api, parsed, query
from caveat_tools.network import without_password

if TYPE_CHECKING:
    from vcr.request import Request

_ABSENT: Final[Any] = object()


def parts(request: Request) -> dict[str, Any]:
    """Take a request apart into what is compared one by one."""
    parts: dict[str, Any] = {
        "method": request.method,
        "query parameters": [[_valid(name), _valid(value)] for name, value in query(request.uri)],
    }
    body = request.body_bytes or b""
    try:
        value = parsed(body)
    except ValueError:
        return {**parts, "body": body.decode(errors="backslashreplace")}
    if not (is_messages_api(request.uri) and isinstance(value, dict)):
        return {**parts, "JSON body": value}
    named = {"system prompt": "system", "tools": "tools", "messages": "messages"}
    shown = {name: value.pop(key) for name, key in named.items() if value.get(key) is not None}
    return {**parts, "parameters": value, **shown}


def _valid(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _same(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    try:
        return canonical(one) == canonical(other)
    except ValueError:
        return False


def equal_parts(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of the parts that are the same in both."""
    return [name for name, value in now.items() if _same(before.get(name, _ABSENT), value)]


def equal_inside(before: dict[str, Any], now: dict[str, Any]) -> int:
    """Count the messages before the first that differs; without messages, the equal query parameters and members."""
    if "messages" in before and _are_objects(before["messages"], now.get("messages")):
        return _first_different(before["messages"], now["messages"])
    parameters, others = (Counter(map(tuple, parts["query parameters"])) for parts in (before, now))
    body, other = (parts.get("JSON body", _ABSENT) for parts in (before, now))
    members = body.items() if _are_objects([body, other]) else ()
    return (parameters & others).total() + sum(_same(value, other.get(name, _ABSENT)) for name, value in members)


def _first_different(before: Sequence[Any], now: Sequence[Any]) -> int:
    pairs = enumerate(zip(before, now, strict=False))
    return next((number for number, pair in pairs if not _same(*pair)), min(len(before), len(now)))


def _are_objects(*lists: Any) -> bool:
    """Say whether each is a list of JSON objects, as messages, contents and tools are."""
    return all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in lists)


def differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Difference]:
    """Yield what differs, part by part."""
    for name in dict.fromkeys([*now, *before]):
        one, other = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if _same(one, other):
            continue
        if name == "query parameters":
            yield _of_query(name, one, other)
        elif name == "parameters" and _are_objects([one, other]):
            yield _of_parameters(name, one, other)
        elif name == "tools" and _are_tools(one) and _are_tools(other):
            yield from _of_tools(one, other)
        elif name == "messages" and _are_objects(one, other):
            yield from _of_messages(one, other)
        else:
            yield from _of_content(name, one, other, depth=1)


def _of_query(title: str, before: list[list[str]], now: list[list[str]]) -> Difference:
    """Return the parameters that differ, one a line. What a key-like one is set to is not shown."""
    one, other = (Counter(map(tuple, pairs)) for pairs in (before, now))
    gone, new = (sorted(pairs.elements()) for pairs in (one - other, other - one))
    hidden = {name for name, _ in gone + new if without_password(f"http://host/?{urlencode({name: 1})}").endswith("…")}
    return Difference(
        title,
        [f"{name}={'…' if name in hidden else value}" for name, value in gone],
        [f"{name}={'… (another value)' if name in hidden else value}" for name, value in new],
    )


def _of_parameters(title: str, before: dict[str, Any], now: dict[str, Any]) -> Difference:
    """Return the members that differ, short ones on one line each."""
    different = {key for key in {**before, **now} if not _same(before.get(key, _ABSENT), now.get(key, _ABSENT))}

    def lines(members: dict[str, Any]) -> Iterator[str]:
        for key in sorted(different & members.keys()):
            first, *rest = _pretty(members[key])
            short = " ".join([first, *map(str.strip, rest)])
            yield from [f"{key}: {short}"] if len(short) < WIDTH else [f"{key}: {first}", *rest]

    return Difference(title, list(lines(before)), list(lines(now)))


def _are_tools(value: Any) -> bool:
    """Say whether a value is a list of tools, each with a name of its own."""
    if not _are_objects(value):
        return False
    names = [tool.get("name") for tool in value]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _of_tools(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[Difference]:
    one, other = ({tool["name"]: tool for tool in tools} for tools in (before, now))
    if new := [name for name in other if name not in one]:
        yield Difference(f"tools that are new: {', '.join(new)}")
    if gone := [name for name in one if name not in other]:
        yield Difference(f"tools that are gone: {', '.join(gone)}")
    kept = [name for name in other if name in one]
    if kept != [name for name in one if name in other]:
        yield Difference("order of the tools", [", ".join(one)], [", ".join(other)])
    for name in kept:
        yield from _of_members(f"tool {name}", one[name], other[name])


def _of_messages(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[Difference]:
    """Yield how the first message that differs does, and how many others do."""
    first, both = _first_different(before, now), min(len(before), len(now))
    if first < both:
        yield from _of_members(f"message {first + 1}, {now[first].get('role')}", before[first], now[first], depth=2)
        yield from _further("message", map(_same, before[first + 1 :], now[first + 1 :]))
    if len(before) != len(now):
        yield Difference(f"number of messages: {len(before)} recorded, {len(now)} now")
    if first == both:
        role = (before if len(before) > both else now)[first].get("role")
        one, other = (messages[first] if first < len(messages) else _ABSENT for messages in (before, now))
        yield _of_values(f"message {first + 1}, {role}", one, other)


def _of_content(title: str, before: Any, now: Any, *, depth: int) -> Iterator[Difference]:
    """Yield how two contents differ: texts by line, lists of blocks by the first block that does."""
    if not depth or not _are_objects(before, now):
        yield _of_values(title, before, now)
        return
    first = _first_different(before, now)
    one, other = (blocks[first] if first < len(blocks) else _ABSENT for blocks in (before, now))
    kind = (one if other is _ABSENT else other).get("type")
    if max(len(before), len(now)) > 1:
        title = f"{title}, block {first + 1}, {kind}"
    elif kind != "text":
        title = f"{title}, {kind}"
    if _are_objects([one, other]) and one.get("type") == kind:
        yield from _of_members(title, one, other, depth=depth - 1)
    else:
        yield _of_values(title, one, other)
    pairs = zip_longest(before[first + 1 :], now[first + 1 :], fillvalue=_ABSENT)
    yield from _further("block", (_same(*pair) for pair in pairs))


def _of_members(title: str, before: dict[str, Any], now: dict[str, Any], *, depth: int = 0) -> Iterator[Difference]:
    """Yield the members of an object that differ, content block by block."""
    for key in dict.fromkeys([*now, *before]):
        one, other = before.get(key, _ABSENT), now.get(key, _ABSENT)
        if _same(one, other):
            continue
        if key == "content":
            yield from _of_content(title, one, other, depth=depth)
        else:
            yield _of_values(title if key == now.get("type") else f"{title}, {key}", one, other)


def _further(noun: str, equal: Iterator[bool]) -> Iterator[Difference]:
    if count := sum(not each for each in equal):
        yield Difference(f"{count} further {noun}{'s differ' if count > 1 else ' differs'}")


def _of_values(title: str, before: Any, now: Any) -> Difference:
    """Return the lines of two values: text as it is, JSON that stands in a text as JSON, all else as JSON."""
    if not (isinstance(before, str) and isinstance(now, str)):
        one, other = ([] if value is _ABSENT else _pretty(value) for value in (before, now))
        return Difference(title, one, other)
    one, other = _json_inside(before), _json_inside(now)
    if one and other and one != other:
        return Difference(title, one, other)
    return Difference(title, before.split("\n"), now.split("\n"), numbered=True)


def _pretty(value: Any) -> list[str]:
    try:
        return msgspec.json.format(canonical(value), indent=2).decode().split("\n")
    except (ValueError, RecursionError):
        return ["(nested too deep to be shown)"]


def _json_inside(text: str) -> list[str]:
    """Return the lines of a text that is a JSON object or list; none of any other text."""
    try:
        return _pretty(parsed(text.encode())) if text.lstrip().startswith(("{", "[")) else []
    except ValueError:
        return []
