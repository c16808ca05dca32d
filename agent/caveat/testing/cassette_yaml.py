"""The YAML of a cassette's file: one document, written so that a diff says what has changed.

The writer is our own. Of PyYAML's two, the one in Python breaks a block scalar that holds U+0085 and takes twenty times
as long; libyaml's puts every text with an emoji in it on one escaped line. Both do that to a text with a tab, or with a
space at the end of a line. Reading is PyYAML's parser, and libyaml's where there is one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from caveat.testing.bodies import MAX_DEPTH, CassetteFileError, escaped

AGAIN: Final = "record the cassette anew"


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return a document of JSON values as YAML. Its last line is the mark for the end of a document."""
    lines: list[str] = []
    _write_mapping(lines, document, "", 0)
    return "\n".join([*lines, "...", ""])


def plain_scalar(event: yaml.ScalarEvent) -> Any:
    """Return what a scalar says, as JSON has it: a text, a number, true, false, null; or bytes, for vcrpy's bodies."""
    text: str = event.value
    if event.tag == _BINARY:
        return base64.b64decode("".join(text.split()), validate=True)
    if not event.implicit[0]:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _NUMBER.fullmatch(text)
    return text if number is None else float(text) if number["fraction"] or number["power"] else int(text)


def read_yaml(text: str, scalar: Callable[[yaml.ScalarEvent], Any] = plain_scalar) -> tuple[Any, bool]:
    """Return what one YAML document says, and whether its end is marked.

    `scalar` makes a value of each scalar. Goes through the parser's events, so that nothing grows beyond the text.
    Raises CassetteFileError where the text is not YAML, or makes use of anchors, tags, depth or names that no cassette
    needs.
    """
    try:
        return _read(text, scalar)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise CassetteFileError(
            f"the cassette is not YAML{line} ({error.problem or error.context}); restore it, or {AGAIN}"
        ) from error
    except yaml.YAMLError as error:
        raise CassetteFileError(f"the cassette holds characters that YAML has not; restore it, or {AGAIN}") from error
    except CassetteFileError:
        raise
    except ValueError as error:  # a number of many thousand digits, base64 that is none, a lone surrogate
        raise CassetteFileError(f"the cassette holds a value that cannot be read ({error!s:.80}); {AGAIN}") from error


class LocatedText(str):
    """A text that knows in which line of the file it begins."""

    __slots__ = ("line",)
    line: int


def located_scalar(event: yaml.ScalarEvent) -> Any:
    """Return what `plain_scalar` does, and of a text where it stands."""
    value = plain_scalar(event)
    if not isinstance(value, str):
        return value
    text = LocatedText(value)
    text.line = _line_of(event) + (event.style == "|")  # a block begins in the line after its sign
    return text


# ---- writing


def _write_mapping(lines: list[str], value: Mapping[str, Any], first: str, column: int) -> None:
    """Write a mapping; `first` stands before its first name, and the others begin in `column`."""
    pad = " " * column
    for name, inner in value.items():
        written = _written(name, "")
        if len(written) > _LONGEST_NAME:
            written = f"? {written}\n{pad}"
        _write(lines, f"{first}{written}:", inner, column)
        first = pad


def _write(lines: list[str], lead: str, value: Any, column: int) -> None:
    """Write a value after `lead` ("name:" or "-"), which stands in `column`."""
    if isinstance(value, Mapping) and value:
        is_item = lead.endswith("-")
        if not is_item:
            lines.append(lead)
        _write_mapping(lines, value, f"{lead} " if is_item else " " * (column + 2), column + 2)
    elif isinstance(value, list | tuple) and value:
        is_item = lead.endswith("-")
        if is_item:
            column += 2
        lines.append(lead)
        for item in value:
            _write(lines, f"{' ' * column}-", item, column)
    else:
        lines.append(f"{lead} {_written(value, ' ' * (column + 2))}")


def _written(value: Any, pad: str) -> str:
    """Return a scalar or an empty collection as YAML, in several lines where it is a text of several."""
    if isinstance(value, str):
        return _text(value, pad)
    if isinstance(value, float):
        digits = repr(value)
        return digits if "." in digits else digits.replace("e", ".0e")  # YAML 1.1 has no 1e+16
    return json.dumps(value, allow_nan=False)


def _text(text: str, pad: str) -> str:
    unseen = _NOT_AS_ITSELF.search(text)
    if "\n" in text and pad and not unseen:
        return _block(text, pad)
    if unseen or "\n" in text:
        return _quoted(text)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return "'" + text.replace("'", "''") + "'" if '"' in text or "\\" in text else f'"{text}"'


def _block(text: str, pad: str) -> str:
    """Return a literal block scalar: YAML 1.1, chapter 9.3."""
    content = text.rstrip("\n")
    breaks = len(text) - len(content)
    indicator = "2" if text[0] in " \t\n" else ""
    chomping = "-" if breaks == 0 else "" if breaks == 1 and content else "+"
    body = _LINE.sub(pad, content)
    return f"|{indicator}{chomping}\n{body}" + "\n" * (breaks - 1)


def _quoted(text: str) -> str:
    return _NOT_AS_ITSELF.sub(escaped, json.dumps(text, ensure_ascii=False))


_LONGEST_NAME: Final = 500
"""YAML takes at most 1 024 characters for a name that has no question mark before it."""
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What readers of YAML 1.1 take for something else than a text."""
_PLAIN: Final = re.compile(r"[^\W\d_](?:[^:#\t]|:(?! |\Z)|(?<! )#)*+(?<! )")
"""A line that needs no quotes: begins with a letter, holds no ": " and no " #", ends in no colon and no space."""
_NOT_AS_ITSELF: Final = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What must be escaped: all but YAML's printable characters, and of those U+2028, U+2029 and U+FEFF."""
_LINE: Final = re.compile(r"^(?=[^\n])", re.MULTILINE)


# ---- reading


def _read(text: str, scalar: Callable[[yaml.ScalarEvent], Any]) -> tuple[Any, bool]:
    tree = _Tree(scalar)
    ended = False
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent):
            tree.add(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            tree.close()
        elif isinstance(event, yaml.DocumentEndEvent):
            ended = bool(event.explicit)
    if len(tree.documents) > 1:
        raise CassetteFileError(f"the file holds several YAML documents; restore it, or {AGAIN}")
    return (tree.documents[0] if tree.documents else None), ended


class _Tree:
    """Puts values together, event by event; `holders` are those that are still open, `names` what is named in each."""

    def __init__(self, scalar: Callable[[yaml.ScalarEvent], Any]) -> None:
        self.documents: list[Any] = []
        self._scalar = scalar
        self._holders: list[Any] = [self.documents]
        self._names: list[str | None] = [None]

    def add(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None or getattr(event, "tag", None) not in {None, _BINARY}:
            raise _refused(event, "an anchor, an alias or a tag, which no cassette has")
        holder = self._holders[-1]
        if isinstance(holder, list):
            holder.append(self._value(event))
        elif self._names[-1] is None:
            self._names[-1] = self._name(event, holder)
        else:
            name, self._names[-1] = self._names[-1], None
            holder[name] = self._value(event)

    def close(self) -> None:
        self._holders.pop()
        self._names.pop()

    def _name(self, event: yaml.NodeEvent, holder: Mapping[str, Any]) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.value in holder:
            raise _refused(event, "a name that is no text or stands twice")
        name = self._scalar(event)
        return name if isinstance(name, str) else event.value

    def _value(self, event: yaml.NodeEvent) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if len(self._holders) > _MAX_OPEN:
            raise _refused(event, "something nested too deeply")
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._holders.append(value)
        self._names.append(None)
        return value


def _refused(event: yaml.Event, what: str) -> CassetteFileError:
    return CassetteFileError(f"line {_line_of(event)} of the cassette has {what}; {AGAIN}")


def _line_of(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BINARY: Final = "tag:yaml.org,2002:binary"
_MAX_OPEN: Final = MAX_DEPTH + 16
_CONSTANTS: Final[Mapping[str, bool | None]] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?P<fraction>\.\d+)?(?P<power>[eE][-+]?\d+)?", re.ASCII)
