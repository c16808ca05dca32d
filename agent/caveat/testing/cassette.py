"""A cassette: every request of a session and every answer, recorded once and played back.

vcrpy is the store, and its stand-ins for other HTTP libraries are used as they are. What is added: a request is found
by its digest, a request that is not there ends the test, secrets stay out, and a header says how it was recorded.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import shlex
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias
from urllib.parse import urlsplit

import vcr.cassette
from vcr.patch import CassettePatcherBuilder
from vcr.record_mode import RecordMode
from vcr.request import Request

from caveat.testing.cassette_file import CassetteFileError, from_text, to_text
from caveat.testing.isolation import isolated
from caveat.testing.matching import Index, message_request, stored_url
from caveat.testing.miss import CassetteError, CassetteMissError, explanation, listed
from caveat.testing.secrets import scrub_request, scrub_response
from caveat.testing.transports import LIBRARIES, is_playable, recorded_transports

Mode: TypeAlias = Literal["none", "once", "new_episodes", "all", "rewrite"]
"""Replay only; record where there is no file; record what is not there; the last two record all of it anew."""

_PACKAGES: Final = ("caveat", "anthropic", "httpx2", "vcrpy")
_ONE_AT_A_TIME: Final = threading.Lock()


class Cassette(vcr.cassette.Cassette):  # type: ignore[misc] # vcrpy has no types
    """A cassette in use.

    `header` is what stands in the file beside the interactions; while recording, a test may add to it. `asked` are the
    requests of this session so far; `requests` and `responses` are those on the cassette, in vcrpy's forms. `ended_by`
    says why the session cannot go on, if so: mostly the first request that was not there. `on_play` hears of what is
    played back.
    """

    def __init__(
        self, path: Path, mode: Mode = "none", *, keep_headers: Collection[str] = (), how_to_record: str = ""
    ) -> None:
        """Read the file, where the mode wants it. Raises CassetteFileError."""
        has_file = mode not in {"all", "rewrite"} and path.exists()
        self.is_recording = mode != "none" and not (mode == "once" and has_file)
        self.header: dict[str, Any] = {}
        self.asked: list[Request] = []
        self.ended_by: str | None = None
        self.was_written = False
        self.on_play: Callable[[Request, dict[str, Any]], None] = lambda _request, _response: None
        self._index = Index()
        self._begun: list[Request] = []
        self._answered: dict[Request, tuple[Request, dict[str, Any]]] = {}
        self._servers: set[str] = set()
        self._keep_headers = keep_headers
        record_mode = RecordMode.NEW_EPISODES if self.is_recording else RecordMode.NONE
        super().__init__(str(path), record_mode=record_mode, skip_patchers=LIBRARIES)
        if has_file:
            self.header, requests, responses = from_text(_read(path))
            recorded = self.header.get("recorded", {})
            if not (isinstance(recorded, dict) and isinstance(recorded.get("servers", []), list)):
                raise CassetteFileError(f"{_shown(path)} is damaged: what stands under recorded is of another form")
            for number, response in enumerate(responses, 1):
                if "raises" in response and not is_playable(response["raises"]):
                    raise CassetteFileError(
                        f"{_shown(path)} is damaged: interaction {number} raises what nothing raises"
                    )
            self.data = list(zip(requests, responses, strict=True))
            for request in requests:
                self._index.add(request)
        self._loaded = len(self.data)
        self._how_to_record = how_to_record or _how_to_record(self.header)

    @property
    def write_protected(self) -> bool:
        """Say whether this is a replay."""
        return not self.is_recording

    @property
    def play_count(self) -> int:
        """The number of interactions that were played back."""
        return len(self._index.played)

    @property
    def not_played(self) -> list[int]:
        """The positions of the recorded interactions that were not played back; of what is recorded now, none is."""
        return sorted(set(range(self._loaded)) - self._index.played)

    @property
    def all_played(self) -> bool:
        """Say whether all that was on the cassette was played back."""
        return not self.not_played

    def answer(self, request: Request) -> dict[str, Any] | None:
        """Return what a request gets from the cassette, None where it is to be sent. Raises CassetteError."""
        self._go_on()
        self._begun.append(request)
        asked = request
        position = self._index.take(asked)  # most requests hold no secret, and looking for one takes time
        if position is None:
            asked = _kept(request)
            position = self._index.take(asked)
        if position is None:
            self.asked.append(asked)
            return None if self.is_recording else self._miss(asked)
        asked, response = self.data[position]
        self.asked.append(asked)
        self._answered[request] = asked, response
        self.on_play(asked, response)
        return copy.deepcopy(response)

    def record(self, request: Request, response: dict[str, Any]) -> dict[str, Any]:
        """Put a request and what came of it on the cassette, and return that as a replay will have it.

        Raises CassetteError where a cassette cannot hold it.
        """
        try:
            clean = scrub_response(response, keep_headers=self._keep_headers)
            _, [asked], [kept] = from_text(to_text({}, [_kept(request)], [clean]))
        except CassetteFileError as error:
            self.end(f"the answer to {request.method} {_kept(request).uri} cannot be recorded: {error}")
        self._servers.add(_server(request))
        self.data.append((asked, kept))
        self._answered[request] = asked, kept
        return kept

    def append(self, request: Request, response: dict[str, Any]) -> None:
        """Do the same for vcrpy's own stand-ins."""
        self.asked.append(_kept(request))
        self._begun.append(request)
        response.update(self.record(request, response))  # the stand-ins of http.client answer with it

    def can_play_response_for(self, request: Request) -> bool:
        """Say for vcrpy's own stand-ins, which ask more than once, whether there is an answer. Raises as `answer`."""
        self._go_on()
        has_one = self._index.has(request) or self._index.has(_kept(request))
        return has_one or (False if self.is_recording else self._miss(_kept(request)))

    def play_response(self, request: Request) -> dict[str, Any]:
        """Give vcrpy's own stand-ins that answer. Raises as `answer`, also where another thread has taken it."""
        return self.answer(request) or self._miss(_kept(request))

    def end(self, why: str) -> NoReturn:
        """End the session: now, and again for whatever it asks for later. Raises CassetteError."""
        self.ended_by = why
        raise CassetteError(why)

    def _go_on(self) -> None:
        if self.ended_by is not None:
            raise CassetteError(self.ended_by)  # what a session asks after its end is not looked at

    def _miss(self, asked: Request) -> NoReturn:
        self.ended_by = explanation(
            asked, self.requests, self._index.played, file=_shown(self.path), how_to_record=self._how_to_record
        )
        raise CassetteMissError(self.ended_by)

    def discard(self) -> None:
        """Forget what was recorded, so that nothing is written."""
        self._answered.clear()
        self._servers.clear()

    def write(self) -> None:
        """Write the session that was recorded; nothing where nothing was. What was on the cassette and not used goes.

        Interactions stand in the order in which they were asked for, so that identical ones beside each other find
        their own answers. Raises CassetteFileError.
        """
        if not self._answered or not (self._servers or (self.is_recording and self.not_played)):
            return
        session = [self._answered[request] for request in self._begun if request in self._answered]
        requests, responses = [request for request, _ in session], [answer for _, answer in session]
        before = self.header.get("recorded", {})
        new = _provenance(requests, self._servers.union(map(str, before.get("servers", ())))) if self._servers else {}
        self.header["recorded"] = {**before, **new}
        text = to_text(self.header, requests, responses)
        path = Path(self.path)
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise CassetteFileError(f"{_shown(path)} cannot be written: {error.strerror}") from error
        self.was_written = True

    def partly_played(self) -> str:
        """Return what to say of a session that ended before the cassette did."""
        return (
            f"{_shown(self.path)} holds {len(self.data)} interactions, and this session asked for "
            f"{self.play_count} of them. Not asked for any more:\n\n{listed(self.requests, self.not_played)}\n\n"
            f"If the session is meant to be shorter now, record it anew:\n\n    {self._how_to_record}"
        )


@contextmanager
def use_cassette(
    path: Path, mode: Mode = "none", *, keep_headers: Collection[str] = (), how_to_record: str = ""
) -> Iterator[Cassette]:
    """Record to, or play back from, the cassette at `path`; in a replay nothing connects and nothing really waits.

    `keep_headers` names response headers to keep beside the usual ones; `how_to_record` is the command that is named
    after a miss, by default that of the test which the header names. A recording is written when the block ends
    without an exception, so that no half session is. One cassette at a time: it is in use in the whole process.
    Raises CassetteFileError for a file that is no cassette, CassetteMissError for a request that is not on it, and
    RuntimeError where another one is in use.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise RuntimeError("another cassette is in use: there can be one at a time in a process")
    with ExitStack() as stack:
        stack.callback(_ONE_AT_A_TIME.release)
        cassette = Cassette(path, mode, keep_headers=keep_headers, how_to_record=how_to_record)
        for patcher in CassettePatcherBuilder(cassette).build():
            stack.enter_context(patcher)
        stack.enter_context(recorded_transports(cassette))
        if not cassette.is_recording:
            stack.enter_context(isolated(cassette.end))
        yield cassette
        if cassette.ended_by is None:
            cassette.write()


def _server(request: Request) -> str:
    """Return whom a request goes to, without the address of this machine or of a private one."""
    place = urlsplit(stored_url(request.uri)).hostname or ""
    if message_request(request) is None:
        return place
    host = urlsplit(request.uri).hostname or ""
    return host if host.endswith(".anthropic.com") else "a Messages API at another address"


def _kept(request: Request) -> Request:
    """Return a request as a cassette holds it: without secrets, and without the address of this machine."""
    clean = scrub_request(request)
    return Request(clean.method, stored_url(clean.uri), clean.body, {})


def _how_to_record(header: Mapping[str, Any]) -> str:
    """Return the command that records a session anew, as far as its header tells."""
    test = header.get("recorded", {}).get("test")
    return f"pytest {shlex.quote(str(test)) if test else '…'} --record-mode=rewrite"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CassetteFileError(f"{_shown(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CassetteFileError(f"{_shown(path)} is no cassette: it is not UTF-8") from error


def _shown(path: str | Path) -> str:
    """Return a path as people type it: from the current folder on, where it lies below."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _provenance(requests: Sequence[Request], servers: Collection[str]) -> dict[str, Any]:
    """Return how a session was recorded: when, from which servers, with which models, prompts and packages."""
    models: dict[str, None] = {}
    prompts: dict[str, None] = {}
    for request in requests:
        body = message_request(request)
        if body is not None:
            models[str(body.get("model"))] = None
            prompts[f"system {_short_digest(body.get('system'))}, tools {_short_digest(body.get('tools'))}"] = None
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "servers": sorted(servers),
        "models": list(models),
        "prompts": list(prompts),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
    }


def _short_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12] if value else "none"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
