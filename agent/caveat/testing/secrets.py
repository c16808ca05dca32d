"""What never reaches the file of a cassette, and a scanner that finds what reached it all the same.

Scrubbing and scanning are the same walk over the same things: addresses, headers, JSON (also as text inside JSON),
forms, events, other text. What is found is replaced by a word in brackets, such as (api-key-removed), that no rule
finds again. What holds no secret is left as it is, byte for byte. What a secret looks like is in `secret_forms`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote_plus

import yaml
from vcr.request import Request

from caveat.testing.bodies import (
    CassetteFileError,
    events_in,
    events_text,
    json_text,
    json_value,
    simple_stream,
    uncompressed,
    unescaped,
)
from caveat.testing.cassette_yaml import LocatedText, located_scalar, read_yaml
from caveat.testing.deltas import with_pieces
from caveat.testing.matching import is_messages_api
from caveat.testing.secret_forms import (
    FIELDS_IN_TEXT,
    PLACEHOLDERS,
    Form,
    forms_of,
    kind_of_field,
    kind_of_parameter,
    may_name_a_secret,
    placeholder,
    says_who_asks,
)

KEPT_HEADERS: Final = frozenset(
    """
    content-type etag last-modified link location mediawiki-api-error retry-after retry-after-ms www-authenticate
    x-should-retry
    """.split()  # noqa: SIM905 - ten lines otherwise
)
"""Headers of responses that are kept: clients act on them. Rate limits are kept besides."""
_T = TypeVar("_T", str, bytes)
_RATE_LIMIT: Final = re.compile(r"(?:anthropic-|x-)?rate-?limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret in a file: its kind, the number of the line, and so much of it as tells which one it is."""

    kind: str
    where: int
    shown: str


def scrub_request(request: Request, *, environ: Mapping[str, str] | None = None) -> Request:
    """Return a request without its headers, without secrets in address and body, and without what says who asks.

    `environ` holds the variables whose values are secrets if their names say so; by default the process's.
    """
    scrub = _Scrub(environ)
    uri, body = _settled(scrub.uri, request.uri), request.body_bytes
    body = body and _settled(scrub.body, body)
    if body and not is_messages_api(uri):
        body = _from_anybody(body)
    return Request(request.method, _by_anybody(uri), body, {})


def scrub_response(
    response: dict[str, Any], *, keep_headers: Collection[str] = (), environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a response, its compression undone, without secrets in headers, body and the exception's message.

    Only headers of KEPT_HEADERS, those about rate limits and `keep_headers` are left. Raises CassetteFileError for a
    compression that cannot be undone.
    """
    scrub = _Scrub(environ)
    plain = uncompressed(response)
    wanted = KEPT_HEADERS | {name.lower() for name in keep_headers}
    headers = {
        name: [_settled(scrub.text, value) for value in ([values] if isinstance(values, str) else values)]
        for name, values in plain["headers"].items()
        if name.lower() in wanted or _RATE_LIMIT.match(name)
    }
    clean = {**plain, "headers": headers, "body": {"string": _settled(scrub.body, plain["body"]["string"])}}
    raises = response.get("raises")
    if raises and raises.get("message"):
        clean["raises"] = {**raises, "message": _settled(scrub.text, raises["message"])}
    return clean


def secrets_in(text: str, *, environ: Mapping[str, str] | None = None) -> list[Secret]:
    """Return the secrets in the text of a cassette's file, ours or vcrpy's; of other files, in the plain text."""
    scrub = _Scrub(environ)
    said: list[str] = []

    def located(event: yaml.ScalarEvent) -> Any:
        said.append(event.value)
        return located_scalar(event)

    try:
        document, _ = read_yaml(text, located)
    except CassetteFileError:
        scrub.raw(text)
    else:
        with scrub.looking_for_what_is_in("\n".join(said)):
            scrub.file(document)
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("#"):  # a comment, perhaps, which is nowhere in the document
                scrub.line = number
                scrub.text(line)
    return sorted(set(scrub.found), key=lambda secret: (secret.where, secret.kind, secret.shown))


def _by_anybody(uri: str) -> str:
    """Return an address without the parameters that say who asks."""
    address, mark, query = uri.partition("?")
    kept = [pair for pair in query.split("&") if not says_who_asks(*pair.partition("=")[::2])]
    return uri if "&".join(kept) == query else address + mark * bool(kept) + "&".join(kept)


def _from_anybody(body: bytes) -> bytes:
    """Return a body without the fields that say who asks, where it is a JSON object that has such."""
    text = body.decode(errors="replace")
    if not may_name_a_secret(text):
        return body
    try:
        value = json_value(text)
    except ValueError:
        return body
    if not isinstance(value, dict):
        return body
    kept = {name: inner for name, inner in value.items() if not says_who_asks(name, inner)}
    return json_text(kept).encode() if len(kept) < len(value) else body


def _settled(scrub: Callable[[_T], _T], dirty: _T) -> _T:
    """Scrub until there is nothing left to do: what one rule removes can bring together what another finds."""
    while (clean := scrub(dirty)) != dirty:
        dirty = clean
    return dirty


_MAX_NESTED: Final = 3  # JSON in a text in JSON in a text in JSON; what is below is plain text
_SEALED: Final = {"thinking": "signature", "signature_delta": "signature", "redacted_thinking": "data"}
"""Fields of the Messages API that only the server can make: a changed one is refused when it is sent back."""


class _Scrub:
    """Returns things without secrets, and remembers what it found, and in which line of a file."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self.found: list[Secret] = []
        self.line = 1
        self._nested = 0
        self._all_forms = forms_of(os.environ if environ is None else environ)
        self._forms: Sequence[Form] = self._all_forms

    def file(self, document: Any) -> None:
        """Look through what a file says: a cassette, ours or vcrpy's, or any YAML."""
        interactions = document.pop("interactions", None) if isinstance(document, dict) else None
        for entry in interactions if isinstance(interactions, list) else []:
            for part in entry.values() if isinstance(entry, dict) else []:
                self._request_or_response(part)
        self.value(document)

    def uri(self, uri: str) -> str:
        """Return an address without secrets."""
        self._at(uri)
        address, mark, query = uri.partition("?")
        query, hash_, fragment = query.partition("#")
        return self.text(address) + mark + self._form(query) + hash_ + self.text(fragment)

    def body(self, body: bytes) -> bytes:
        """Return a body of any form without secrets."""
        return self._body(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets."""
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        sealed = _SEALED.get(str(value.get("type")))
        clean = {}
        for name, inner in value.items():
            self._at(name)
            if name == sealed or name.startswith("encrypted_"):
                clean[name] = inner
            elif (secret := kind_of_field(name, inner, value)) is not None:
                clean[name] = self._hidden(secret, inner)
            else:
                clean[self.text(name)] = self.value(inner)
        return clean

    def raw(self, text: str) -> str:
        """Return a text of unknown form without secrets: also without what stands after the name of a secret field."""
        return self.text(self._without(FIELDS_IN_TEXT, text))

    def text(self, text: str) -> str:
        """Return a text without what is a secret by its value or form."""
        return self._without(self._forms, text)

    # -- what there is in a file

    def _request_or_response(self, part: Any) -> None:
        rest = dict(part) if isinstance(part, dict) else {"": part}
        if isinstance(rest.get("uri"), str):
            self.uri(rest.pop("uri"))
        self._stored(rest.pop("body", None))
        self.value(rest)

    def _stored(self, body: Any) -> None:
        """Look through a body as it stands in a file."""
        match body:
            case str():
                self._at(body)
                self._body(body)
            case bytes():
                with self.looking_for_what_is_in(body.decode(errors="replace")):  # it was packed so far
                    self.body(body)
            case {"events": [*events], **rest}:
                self._events(events)
                self._stored(rest)
            case {"base64": str(packed), **rest}:
                self._stored(packed)
                with suppress(ValueError):
                    self._stored(base64.b64decode(packed))
                self._stored(rest)
            case {**parts}:
                for part in parts.values():
                    if isinstance(part, str | bytes):
                        self._stored(part)
                    else:
                        self.value(part)

    # -- forms of a body

    def _body(self, text: str) -> str:
        if text.lstrip()[:1] in {"{", "["}:
            with self.looking_for_what_is_in(text):
                return self._string(text) if self._forms or may_name_a_secret(unescaped(text)) else text
        stream = events_in(simple_stream(text)) if _SSE.match(text) else None
        if stream:
            with self.looking_for_what_is_in(text):
                clean = self._events(stream[0]), self.raw(stream[1])
            return text if clean == stream else events_text(clean[0]) + clean[1]
        return self._form(text) if _FORM_BODY.fullmatch(text) else self.raw(text)

    def _string(self, text: str) -> str:
        """Return a text in JSON without secrets; it can be JSON itself."""
        self._at(text)
        if text.lstrip()[:1] not in {"{", "["}:
            return self.text(text)
        if self._nested == _MAX_NESTED:
            return self.raw(text)
        try:
            value = json_value(text)
        except ValueError:
            return self.raw(text)
        self._nested += 1
        clean = self.value(value)
        self._nested -= 1
        return text if clean == value else json_text(clean)

    def _form(self, text: str) -> str:
        """Return a query or a form body without secrets: here each value of a key-like name is one."""

        def pair(found: re.Match[str]) -> str:
            name, value = found["name"], unquote_plus(found["value"])
            kind = kind_of_parameter(name, value)
            clean = self._string(value) if kind is None else self._hidden(kind, value)
            return found[0] if clean == value else f"{name}={quote(clean, safe='()')}"

        with self.looking_for_what_is_in(f"{text}\n{unquote_plus(text)}"):
            return self.text(_PAIR.sub(pair, text))

    def _events(self, events: Sequence[Any]) -> list[Any]:
        """Return events without secrets, also without one that is split over several deltas of a block."""
        return [self.value(event) for event in with_pieces(events, self._pieces)]

    def _pieces(self, pieces: Sequence[str]) -> Sequence[str | None]:
        """Return the texts of a block's deltas without secrets: all in the first where a secret crosses deltas."""
        self._at(pieces[0])
        whole = "".join(pieces)
        with self.looking_for_what_is_in(whole):  # more than in the pieces, perhaps
            clean = self._string(whole)
        single = pieces if clean == whole else [self.text(piece) for piece in pieces]
        return single if "".join(single) == clean else [clean, *[None] * (len(pieces) - 1)]

    # -- one secret

    def _without(self, forms: Sequence[Form], text: str) -> str:
        folded = text.casefold() if forms else ""
        for form in forms:
            if form.may_be_in(text, folded):
                text = form.pattern.sub(partial(self._replacement, form), text)
        return text

    def _replacement(self, form: Form, found: re.Match[str]) -> str:
        kind = form.kind_of(found)
        if kind is None:
            return found[0]
        start, end = found.span("secret")
        word = self._hide(kind, found["secret"], self.line + found.string.count("\n", 0, start))
        return found.string[found.start() : start] + word + found.string[end : found.end()]

    def _hidden(self, kind: str, value: Any) -> Any:
        """Return what stands in the place of a secret field's value: a word for a text, 0 for a number."""
        if isinstance(value, list):
            return [self._hidden(kind, item) for item in value]
        if isinstance(value, dict):
            return self.value(value)
        if not value or value is True or value in PLACEHOLDERS:
            return value
        self._at(value)
        word = self._hide(kind, str(value), self.line)
        return word if isinstance(value, str) else 0

    def _hide(self, kind: str, secret: str, line: int) -> str:
        self.found.append(Secret(kind, line, f"{secret[: min(4, len(secret) // 4)]}… ({len(secret)} characters)"))
        return placeholder(kind)

    # -- where to look, and what for

    def _at(self, text: str) -> None:
        if isinstance(text, LocatedText):
            self.line = text.line

    @contextmanager
    def looking_for_what_is_in(self, text: str) -> Iterator[None]:
        """Look, inside, only for forms that stand in a text or in what it holds as JSON: one look saves thousands."""
        looks = [(look, look.casefold()) for look in {text, unescaped(text)}]
        before = self._forms
        self._forms = [form for form in self._all_forms if any(form.is_in(*look) for look in looks)]
        yield
        self._forms = before


_FORM_BODY: Final = re.compile(r"[^\s=&{}<>\[\]]{1,200}=[^\s{}<>\[\]]*")
_PAIR: Final = re.compile(r"(?P<name>[^=&;]+)=(?P<value>[^&;]*)")
_SSE: Final = re.compile(r"\s*(?:event|data|id|retry)?:")
