"""Fault injection: `--inject 'wikipedia:timeout*2,local:empty'`.

A fault acts where the real one does: below retry, at the source's transport or, for a source inside the process, at
its call. A subagent crashes where one of its turns begins. `faults.py` says which fault strikes which call;
`transport.py` makes it happen.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from caveat_tools.plain_text import clip

STATUS_FAULTS: Final = ("400", "401", "403", "404", "429", "500", "503", "529")
FAULTS: Final = ("timeout", "refused", "reset", "dribble", "cut", "html", "badjson", "empty", *STATUS_FAULTS)
MODEL_FAULTS: Final = (
    *(fault for fault in FAULTS if fault != "empty"),
    *("stream_error", "stream_cut", "refusal", "max_tokens", "bad_args"),
)
SUBAGENT_FAULTS: Final = ("crash",)
FORM: Final = "TARGET:FAULT, TARGET:FAULT*N or TARGET:FAULT@N"
GRAMMAR: Final = f"""\
TARGET:FAULT for every call, TARGET:FAULT*N for the first N, TARGET:FAULT@N for the N-th only; comma-separated.
TARGET is a source's name, model, subagent:N for the N-th that is sent out, or * for every source.
Each attempt of a retry is a call of its own; the calls of a subagent are its turns.
FAULT is one of {" ".join(FAULTS)};
for model also {" ".join(f for f in MODEL_FAULTS if f not in FAULTS)};
for subagent:N only {" ".join(SUBAGENT_FAULTS)}.
Examples: wikipedia:timeout*2,local:empty and subagent:2:crash@3"""

_ENTRY = re.compile(r"(?P<target>.+):(?P<fault>[^:*@]+)(?:(?P<mark>[*@])(?P<count>[0-9]+))?")
_SUBAGENT = re.compile(r"subagent:(?P<number>[0-9]+)")
_ANY_SUBAGENT: Final = "subagent:N"
_MAX_COUNT_DIGITS: Final = 6
_MAX_ECHO_CHARS: Final = 80


class FaultSyntaxError(ValueError):
    """An injection that cannot be understood; the message says which part, and what is possible."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One entry of the grammar: `first` N calls or only the `nth`, or every call where both are None."""

    target: str
    fault: str
    first: int | None = None
    nth: int | None = None

    def strikes(self, call: int) -> bool:
        """Say whether the call with this number, counted from 1, is struck."""
        if self.nth is not None:
            return call == self.nth
        return self.first is None or call <= self.first


@dataclass
class FaultPlan:
    """The injections of one run, with a count of the calls that each target has seen."""

    injections: Sequence[Injection] = ()
    _calls: Counter[str] = field(default_factory=Counter)

    def skip(self, target: str, calls: int) -> None:
        """Count calls to `target` that an earlier life of the run has seen."""
        self._calls[target] += calls

    def take(self, target: str) -> str | None:
        """Count a call to `target` and return the fault that strikes it, if any; the first entry that fits wins."""
        self._calls[target] += 1
        for entry in self.injections:
            is_source = target != "model" and not _SUBAGENT.fullmatch(target)
            named = entry.target == target or (entry.target == "*" and is_source)
            if named and entry.strikes(self._calls[target]):
                return entry.fault
        return None


def parse_faults(text: str, sources: Collection[str], *, model: bool = True) -> FaultPlan:
    """Read the grammar; targets are the names in `sources`, subagents and, where it can be struck, `model`.

    Raises FaultSyntaxError with what is wrong and, where one is near, the name that was probably meant.
    """
    targets = [*sources, *(["model"] if model else []), _ANY_SUBAGENT, "*"]
    return FaultPlan(tuple(_entry(part.strip(), targets) for part in text.split(",")) if text.strip() else ())


def _entry(text: str, targets: Collection[str]) -> Injection:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise FaultSyntaxError(f"cannot read the injection {_quoted(text)}. The form is {FORM}; see --help")
    target, fault = _target(match["target"], text, targets), match["fault"]
    possible = MODEL_FAULTS if target == "model" else SUBAGENT_FAULTS if _SUBAGENT.fullmatch(target) else FAULTS
    if fault not in possible:
        raise FaultSyntaxError(
            f"unknown fault {_quoted(fault)} for {target} in {_quoted(text)}; {_nearest(fault, possible)}"
        )
    if len(match["count"] or "") > _MAX_COUNT_DIGITS:
        raise FaultSyntaxError(f"the number in {_quoted(text)} is too long: it has at most {_MAX_COUNT_DIGITS} digits")
    count = int(match["count"]) if match["count"] else None
    if count == 0:
        raise FaultSyntaxError(f"calls are counted from 1, so {_quoted(text)} would never strike")
    return Injection(
        target,
        fault,
        first=count if match["mark"] == "*" else None,
        nth=count if match["mark"] == "@" else None,
    )


def _target(target: str, text: str, targets: Collection[str]) -> str:
    """Return the target as `FaultPlan.take` knows it. Raises FaultSyntaxError where there is no such."""
    subagent = _SUBAGENT.fullmatch(target)
    if subagent is not None:
        number = subagent["number"]
        if len(number) > _MAX_COUNT_DIGITS:
            raise FaultSyntaxError(
                f"the number of the subagent in {_quoted(text)} has more than {_MAX_COUNT_DIGITS} digits"
            )
        if int(number) == 0:
            raise FaultSyntaxError(f"subagents are counted from 1, so {_quoted(text)} would never strike")
        return f"subagent:{int(number)}"
    if target.startswith("subagent:") or (target == "subagent" and target not in targets):
        raise FaultSyntaxError(
            f"a subagent is named by its number, as in subagent:2:crash; cannot read {_quoted(text)}"
        )
    if target not in targets:
        raise FaultSyntaxError(f"unknown target {_quoted(target)} in {_quoted(text)}; {_nearest(target, targets)}")
    return target


def _quoted(text: str) -> str:
    return repr(clip(text, _MAX_ECHO_CHARS)[0])


def _nearest(word: str, possible: Collection[str]) -> str:
    near = difflib.get_close_matches(word, possible, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}possible are: {' '.join(possible)}"
