"""What a test says when it asks for something that its cassette does not hold.

The reader has changed a word of a prompt, or nothing at all, and has read no documentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from caveat.testing.diff_text import WIDTH, clipped, in_lines, visible
from caveat.testing.differences import differences, equal_inside, equal_parts, parts
from caveat.testing.matching import digest, is_messages_api, path, place, stored_url
from caveat_tools.network import without_password

if TYPE_CHECKING:
    from vcr.request import Request

MAX_ADDRESSES: Final = 8


class CassetteError(BaseException):
    """What ends a session on a cassette. The message says why, and what to do.

    It is a BaseException, as pytest's own outcomes are: an agent or an SDK that takes any Exception for an outage, to
    retry it or to tell the model of it, must not get hold of a test that is out of date.
    """


class CassetteMissError(CassetteError):
    """A request that is not on the cassette. The message is an `explanation`."""


def explanation(
    request: Request, recorded: Sequence[Request], played: Collection[int], *, file: str, how_to_record: str
) -> str:
    """Say which request is not on the cassette, how it differs from the nearest one that is, and what to do.

    `recorded` is what the cassette holds, in order; `played` the positions in it that the test has used so far; `file`
    the cassette as the reader should see it; `how_to_record` the command to type. At most 60 lines and 8 kB. A recorded
    request that is the same is taken to be played.
    """
    copies = sum(digest(other) == digest(request) for other in recorded)
    there = [position for position, other in enumerate(recorded) if _where(other) == _where(request)]
    if not recorded:
        found, (meant, not_meant) = ["The cassette is empty, or there is none yet."], _NEW
    elif copies:
        asked = f"It is recorded {_times(copies)}, and was now asked {_times(copies + 1)}."
        found, (meant, not_meant) = [asked], _ONCE_MORE
    elif there:
        found, (meant, not_meant) = _compared(request, recorded, played, there), _CHANGED
    else:
        listed = _addresses(request, recorded)
        found, (meant, not_meant) = ["Nothing is recorded for that address. What is recorded:", *listed], _ELSEWHERE
    return "\n".join(
        [
            f"this session ends here: it sent a request that is not recorded in {visible(file)}.",
            "",
            f"Request {len(played) + 1} of this session: {_address(request)}",
            *found,
            "",
            f"{meant}. That asks the services themselves, and may cost money:",
            f"    {how_to_record}",
            not_meant,
        ]
    )


_NEW: Final = (
    "If the test is new, record it",
    "If it was recorded before, do not: the file was lost, or the test has another name than the file.",
)
_ONCE_MORE: Final = (
    "If it is meant that this is asked more often, record again",
    "If it is not, do not record: look for a retry, or for a loop that goes round once more than it did.",
)
_CHANGED: Final = (
    "If you meant this change, record again",
    """If you did not, do not record: undo the change. If you changed nothing, look for what differs from run to run
(a date, a random id, the order of a set, a path of this machine), and let the test set it.""",
)
_ELSEWHERE: Final = (
    "If the test is meant to ask there, record again",
    "If it is not, do not record: look for the setting or the code that sends it there.",
)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _compared(
    request: Request, recorded: Sequence[Request], played: Collection[int], there: Sequence[int]
) -> list[str]:
    """Say which request to the same address is nearest, what of it is the same, and what differs."""
    now = parts(request)

    def nearness(position: int) -> tuple[int, int, bool, int]:
        before = parts(recorded[position])
        return (
            len(equal_parts(before, now)),
            equal_inside(before, now),
            position not in played,
            -abs(position - len(played)),
        )

    nearest = max(there, key=nearness)
    before = parts(recorded[nearest])
    state = "already played" if nearest in played else "not played yet"
    same = [name for name in equal_parts(before, now) if now[name] and name != "method"]
    both = f" The same in both: {', '.join(same)}." if same else ""
    return [
        f"The nearest recorded one is number {nearest + 1} of {len(recorded)}, {state}.{both}",
        "What differs (- recorded, + now):",
        *in_lines(list(differences(before, now))),
    ]


def _where(request: Request) -> tuple[str, str]:
    return place(request.uri), path(request.uri)


def _address(request: Request, *, with_query: bool = True) -> str:
    """Return method and address without secrets; of a Messages API without the host, which does not count."""
    shown = without_password(stored_url(request.uri))
    if not with_query:
        shown = shown.partition("?")[0]
    if is_messages_api(request.uri):
        shown = shown[max(0, shown.find("/v1/messages")) :] + " (Messages API)"
    return clipped(f"{request.method} {shown}", 2 * WIDTH)


def _addresses(request: Request, recorded: Sequence[Request]) -> list[str]:
    """Return the addresses that are recorded, those at the same place first."""
    counts = Counter((place(other.uri) != place(request.uri), _address(other, with_query=False)) for other in recorded)
    lines = [f"  {count:4} × {address}" for (_, address), count in sorted(counts.items())]
    further = len(lines) - MAX_ADDRESSES
    return lines[:MAX_ADDRESSES] + ([f"       … and {further} further"] if further > 0 else [])


def listed(recorded: Sequence[Request], positions: Sequence[int]) -> str:
    """Return the requests at these positions, one a line, with their numbers."""
    lines = [f"  {position + 1:4}. {_address(recorded[position])}" for position in positions[:MAX_ADDRESSES]]
    further = len(positions) - MAX_ADDRESSES
    return "\n".join(lines + ([f"        … and {further} further"] if further > 0 else []))
