"""What never reaches the file of a cassette, and a scanner that finds what reached it all the same.

Scrubbing and scanning are the same walk over the same things: addresses, headers, JSON (also as text inside JSON),
forms, events, other text. What is found is replaced by a word in brackets, such as (api-key-removed), that no rule
finds again. What holds no secret is left as it is, byte for byte.

No rule can know every secret. The values of the environment's own keys and tokens are known, and found wherever they
stand; keys of known forms are found by their form, other secrets by the name of the field or parameter that holds them.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote_plus

import yaml
from vcr.request import Request

from caveat.testing.bodies import (
    CassetteFileError,
    body_of,
    events_in,
    events_text,
    json_text,
    json_value,
    uncompressed,
)
from caveat.testing.cassette_yaml import LocatedText, located_scalar, read_yaml

KEPT_HEADERS: Final = frozenset(
    {
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
        "mediawiki-api-error",
        "retry-after",
        "retry-after-ms",
        "www-authenticate",
        "x-should-retry",
    }
)
"""Headers of responses that are kept: clients act on them. Rate limits are kept besides."""
_RATE_LIMIT: Final = re.compile(r"(?:anthropic-|x-)?rate-?limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret in a file: its kind, the number of the line, and so much of it as tells which one it is."""

    kind: str
    where: int
    shown: str


def scrub_request(request: Request, *, environ: Mapping[str, str] | None = None) -> Request:
    """Return a request without its headers, and without secrets in address and body.

    `environ` holds the variables whose values are secrets if their names say so; by default the process's.
    """
    scrub = _Scrub(environ)
    body = request.body_bytes
    return Request(request.method, scrub.uri(request.uri), body and scrub.body(body), {})


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
        name: [scrub.text(value) for value in ([values] if isinstance(values, str) else values)]
        for name, values in plain["headers"].items()
        if name.lower() in wanted or _RATE_LIMIT.match(name)
    }
    clean = {**plain, "headers": headers, "body": {"string": scrub.body(body_of(plain))}}
    raises = response.get("raises")
    if raises and raises.get("message"):
        clean["raises"] = {**raises, "message": scrub.text(raises["message"])}
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
        with scrub.only_what_is_in("\n".join(said)):
            scrub.file(document)
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("#"):  # a comment, perhaps, which is nowhere in the document
                scrub.line = number
                scrub.text(line)
    return sorted(set(scrub.found), key=lambda secret: (secret.where, secret.kind, secret.shown))


# ---- kinds

_API_KEY, _TOKEN, _PASSWORD, _PRIVATE_KEY = "API key", "token", "password", "private key"
_COOKIE, _LOGIN, _EMAIL, _ORGANISATION = "cookie", "login", "e-mail address", "organisation id"
_VARIABLE: Final = "value of an environment variable"


def _placeholder(kind: str) -> str:
    return f"({kind.lower().replace(' ', '-')}-removed)"


_KINDS: Final = (_API_KEY, _TOKEN, _PASSWORD, _PRIVATE_KEY, _COOKIE, _LOGIN, _EMAIL, _ORGANISATION, _VARIABLE)
_PLACEHOLDERS: Final = frozenset(map(_placeholder, _KINDS))


def _of_kind(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


_FIELDS: Final[Mapping[str, str]] = {
    **_of_kind(
        _API_KEY, "apikey xapikey apitoken apisecret subscriptionkey accesskey accesskeyid awsaccesskeyid xgoogapikey"
    ),
    **_of_kind(
        _TOKEN,
        "authorization proxyauthorization authorizationtoken accesstoken refreshtoken idtoken authtoken sessiontoken "
        "bearertoken securitytoken awssessiontoken csrftoken xcsrftoken xauthtoken jwt",
    ),
    **_of_kind(
        _PASSWORD,
        "password passwd pwd passphrase secret secretkey clientsecret appsecret secretaccesskey awssecretaccesskey "
        "privatekey signingkey encryptionkey webhooksecret",
    ),
    **_of_kind(_COOKIE, "cookie cookies setcookie"),
    **_of_kind(
        _ORGANISATION,
        "organizationid organizationuuid organisationid orgid orguuid workspaceid workspaceuuid accountid accountuuid "
        "anthropicorganizationid anthropicworkspaceid openaiorganization",
    ),
}
"""Names of fields and parameters that hold a secret, in lower case and without - and _."""
_DOUBTFUL_FIELDS: Final[Mapping[str, str]] = _of_kind(_TOKEN, "token auth credential credentials")
"""Names of fields that hold a secret only where the value looks like one."""
_NAMES: Final = (*_FIELDS, *_DOUBTFUL_FIELDS)
_NAME_ENDS: Final = tuple(
    f"{name}{sign}".encode()
    for name in _NAMES
    if not any(name != other and name.endswith(other) for other in _NAMES)
    for sign in ":="
)
"""What each of those names ends in before its value, in a text without quotes, spaces, - and _."""
_PARAMETERS: Final[Mapping[str, str]] = {
    **_FIELDS,
    **_of_kind(_TOKEN, "xamzsignature xamzcredential xamzsecuritytoken xgoogsignature xgoogcredential"),
}
_DOUBTFUL_PARAMETERS: Final[Mapping[str, str]] = {
    **_DOUBTFUL_FIELDS,
    **_of_kind(_TOKEN, "sig signature"),
    **_of_kind(_EMAIL, "email mailto"),
    **_of_kind(_API_KEY, "key"),
}
"""Names of parameters that hold a secret in the address of a request; in other text where the value looks like one."""


@lru_cache(4_096)
def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _looks_made_up(value: str) -> bool:
    """Say whether a value can be a key: eight signs or more without a space, letters and digits among them."""
    return len(value) >= 8 and all(map(re.search, (r"[A-Za-z]", r"\d"), (value, value))) and not re.search(r"\s", value)


# ---- forms


class _Form(NamedTuple):
    """Something that is a secret by its form. `signs` stand in every text, in lower case, that holds one."""

    kind: str
    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    accept: Callable[[str], bool] = bool
    needs: re.Pattern[str] | None = None
    """What also stands in each such text, and is found faster than the whole."""

    def may_be_in(self, text: str, lowered: str) -> bool:
        return any(sign in lowered for sign in self.signs) and (self.needs is None or bool(self.needs.search(text)))

    def is_in(self, text: str, lowered: str) -> bool:
        return self.may_be_in(text, lowered) and any(map(self.kind_of, self.pattern.finditer(text)))

    def kind_of(self, found: re.Match[str]) -> str | None:
        return self.kind if self.accept(found["secret"]) else None


def _key(kind: str, prefix: str, rest: str, inside: str = "A-Za-z0-9") -> _Form:
    r"""Return the form of a key by its prefix, which stands inside no word, but may follow an escape like \n or %20."""
    before = "|".join(
        (
            f"(?<![{inside}]{prefix})",
            rf"(?<=\\[bfnrt]{prefix})",
            rf"(?<=\\u[0-9A-Fa-f]{{4}}{prefix})",
            f"(?<=%[0-9A-Fa-f]{{2}}{prefix})",
        )
    )
    return _Form(kind, (prefix.replace("\\", "").lower(),), re.compile(f"(?P<secret>{prefix}(?:{before}){rest})"))


def _assigned(kind: str, name: str, *signs: str) -> _Form:
    """Return the form of what is assigned to a name in code, in a command or as a header."""
    return _Form(
        kind,
        signs,
        re.compile(
            name + r"[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}(?:token\s)?"
            r"(?P<secret>[^\s\"'\\,;&<>(){}\[\]]{8,4000})",
            re.IGNORECASE,
        ),
        _looks_made_up,
    )


def _is_login(value: str) -> bool:
    """Say whether what follows the word Basic is base64 of name:password, and no English."""
    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


def _is_bearer(value: str) -> bool:
    return len(value) >= 24 or any(map(str.isdigit, value))


def _names_somebody(uuid: str) -> bool:
    return uuid.strip("0-") != ""


_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FORMS: Final = (
    _Form(
        _LOGIN,
        ("://",),
        re.compile(
            r"""://(?!\(login-removed\)@)
            (?P<secret> [^\s/?\#@"'<>\\:]{1,200} : [^\s/?\#@"'<>\\]{1,200} | [^\s/?\#@"'<>\\:]{16,200} )(?=@)""",
            re.VERBOSE,
        ),
    ),
    _key(_API_KEY, "sk-ant-", r"[\w-]{8,}"),
    _key(_API_KEY, "sk-", r"(?=[A-Za-z_-]{0,40}\d)[\w-]{20,}"),
    _key(_API_KEY, "tvly-", r"[\w-]{8,}"),
    _key(_API_KEY, "gsk_", r"[A-Za-z0-9]{20,}"),
    _key(_API_KEY, "xai-", r"[A-Za-z0-9]{20,}"),
    _key(_API_KEY, "pplx-", r"[A-Za-z0-9]{20,}"),
    _key(_API_KEY, "jina_", r"[\w-]{20,}"),
    _key(_API_KEY, "fc-", r"[0-9a-f]{32}"),
    _key(_API_KEY, "hf_", r"[A-Za-z0-9]{20,}"),
    _key(_API_KEY, "gh[pousr]_", r"[A-Za-z0-9]{20,}")._replace(signs=("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    _key(_API_KEY, "github_pat_", r"\w{20,}"),
    _key(_API_KEY, "glpat-", r"[\w-]{20,}"),
    _key(_API_KEY, "npm_", r"[A-Za-z0-9]{30,}"),
    _key(_API_KEY, "A[KS]IA", r"[A-Z0-9]{16}(?![A-Za-z0-9])")._replace(signs=("akia", "asia")),
    _key(_API_KEY, "AIza", r"[\w-]{35}"),
    _key(_API_KEY, "xox[abeprs]-", r"[\w-]{10,}")._replace(signs=("xox",)),
    _key(_API_KEY, "[sr]k_(?:live|test)_", r"[A-Za-z0-9]{10,}")._replace(signs=("k_live_", "k_test_")),
    _key(_TOKEN, r"ya29\.", r"[\w-]{20,}"),
    _key(_TOKEN, "eyJ", r"[\w-]{8,}+\.[\w-]{4,}+\.[\w-]{8,}+", inside=r"\w.-"),
    _key(_ORGANISATION, "org[-_]", r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,}")._replace(signs=("org-", "org_")),
    _key(_ORGANISATION, "wrkspc_", r"[A-Za-z0-9]{8,}"),
    _Form(
        _ORGANISATION,
        ("org", "workspace", "account"),
        re.compile(
            r"(?:org(?:ani[sz]ation)?|workspace|account)[\s_:=#\"'(-]{0,4}(?:id|uuid)?[\s_:=\"'(-]{1,4}"
            rf"(?P<secret>{_UUID})",
            re.IGNORECASE,
        ),
        _names_somebody,
        re.compile(r"-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"),
    ),
    _Form(
        _TOKEN,
        ("bearer",),
        re.compile(r"bearer(?:\s|%20|\+){1,4}(?P<secret>[\w.~+/-]{8,}+=*)", re.IGNORECASE),
        _is_bearer,
    ),
    _Form(
        _LOGIN, ("basic",), re.compile(r"basic(?:\s|%20|\+){1,4}(?P<secret>[\w+/-]{4,}+=*)", re.IGNORECASE), _is_login
    ),
    _Form(
        _COOKIE,
        ("cookie",),
        re.compile(
            r"cookie[\"']?\s{0,2}:\s{0,2}[\"']?(?P<secret>[\w.-]{1,100}=[^\s\"'\\(][^\r\n\"'\\]{0,4000})", re.IGNORECASE
        ),
    ),
    _assigned(_API_KEY, "api[-_]?key", "apikey", "api-key", "api_key"),
    _assigned(_TOKEN, "authorization", "authorization"),
    _assigned(_TOKEN, "access[-_]?token", "accesstoken", "access-token", "access_token"),
    _assigned(_PASSWORD, "client[-_]?secret", "clientsecret", "client-secret", "client_secret"),
    _Form(
        _PRIVATE_KEY,  # the last one: what it removes may hold line breaks
        ("private key",),
        re.compile(
            r"(?P<secret>-----BEGIN\ (?:[A-Z0-9]{1,20}\ ){0,4}PRIVATE\ KEY(?:\ BLOCK)?-----"
            r"(?:[ \t]{0,8}\\{0,8}\r?\n|\\{1,8}[nr])"
            r"(?:(?!-----)[\w+/=\s:,.()\\-]){40,}+(?:-----END[A-Z0-9 ]{0,80}-----)?)"
        ),
    ),
)
_PARAMETER: Final = re.compile(r"[?&;#](?P<name>[A-Za-z][\w.%-]{0,63})=(?P<secret>[^&#;\s\"'<>\\()]+)")
_NAMED: Final = r"(?<![\w-])(?P<name>[A-Za-z][\w-]{1,40})\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}"
_QUOTED_FIELD: Final = re.compile(_NAMED + r"\\{0,7}[\"'](?P<secret>[^\"'\\(][^\"'\\]{0,4000})")
_BARE_FIELD: Final = re.compile(_NAMED + r"(?P<secret>[^\s\"'\\,;&<>(){}\[\]]{8,4000})")
_FORM_BODY: Final = re.compile(r"[^\s=&{}<>\[\]]{1,200}=[^\s{}<>\[\]]*")
_ESCAPED_CHARACTER: Final = re.compile(r"\\+u([0-9A-Fa-f]{4})")
_SSE: Final = re.compile(r"\s*(?:event|data|id|retry)?:")
_PAIR: Final = re.compile(r"(?P<name>[^=&;]+)=(?P<value>[^&;]*)")


_AT: Final = re.compile(
    r"(?:@|%40|\\u0040)(?P<host>(?:[^\W_][\w-]{0,62}\.){1,8}(?P<top>[A-Za-z]{2,24}(?![\w-])|[^\W\d_A-Za-z]{2,24}))"
)
_LOCAL_PART: Final = re.compile(r"[A-Za-z0-9_.+'-]+")
_ANY_LOCAL_PART: Final = re.compile(r"[\w.+'-]+")
_ESCAPE: Final = re.compile(r"(?<=\\)(?:[bfnrt]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}")
_TOPS: Final = frozenset(
    """
    com net org edu gov mil int info biz name pro coop museum aero jobs mobi travel asia cat email online site store
    shop app dev cloud tech xyz top club live life world work space website digital agency studio design group team
    network systems solutions services software foundation academy university education institute school science health
    care legal law consulting earth eco news blog media art local lan internal corp home
    """.split()  # noqa: SIM905 - sixty lines otherwise
)
"""Domains above two letters that are taken for one: code is full of name@agent.tool."""
_NO_TOPS: Final = frozenset({"js", "ts"})
_EXAMPLES: Final = re.compile(r"(?:.*\.)?(?:example|invalid|test|localhost|example\.(?:com|net|org))", re.IGNORECASE)
"""Names that nobody has: RFC 2606 and RFC 6761."""
_NO_PEOPLE: Final = frozenset({"git", "hg", "svn"})
"""Users that repositories are fetched as: git@github.com is no address of anybody."""


def _address_parts(text: str) -> Iterable[tuple[int, int]]:
    """Yield where the e-mail addresses in a text begin and end."""
    end = 0
    for found in _AT.finditer(text):
        top, at = found["top"].lower(), found.start()
        before = text[max(end, at - 64) : at][::-1]
        local = (_LOCAL_PART if top.isascii() else _ANY_LOCAL_PART).match(before)
        start = at - len(local[0]) if local else at
        escape = _ESCAPE.match(text, start)
        start = escape.end() if escape else start
        is_top = top in _TOPS or (len(top) == 2 and top not in _NO_TOPS) or not top.isascii()
        if start < at and is_top and not _EXAMPLES.fullmatch(found["host"]) and text[start:at] not in _NO_PEOPLE:
            yield start, found.end()
            end = found.end()


# ---- the walk

_SECRET_VARIABLE: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_VALUE: Final = 12
_MAX_NESTED: Final = 3
"""JSON in a text in JSON in a text in JSON; what is below is plain text."""
_SEALED: Final[Mapping[Any, str]] = {
    "thinking": "signature",
    "signature_delta": "signature",
    "redacted_thinking": "data",
}
"""Fields of the Messages API that only the server can make: a changed one is refused when it is sent back."""
_DELTAS: Final[Mapping[Any, str]] = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
}


class _Scrub:
    """Returns things without secrets, and remembers what it found, and in which line of a file."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self.found: list[Secret] = []
        self.line = 1
        self._nested = 0
        self._forms: Sequence[_Form] = _FORMS
        self._is_quiet = False
        """Whether no text holds a secret by its value or form. Fields still may, by their name."""
        self._is_clean = False
        """Whether no field does, either."""
        variables = os.environ if environ is None else environ
        secrets = [v for name, v in variables.items() if _SECRET_VARIABLE.search(name) and len(v) >= _SHORTEST_VALUE]
        self._values = {
            form: re.compile(f"(?P<secret>{re.escape(form)})")
            for value in sorted(secrets, key=len, reverse=True)
            for form in (value, quote(value, safe=""), json_text(value)[1:-1], json.dumps(value)[1:-1])
            if not any(form in placeholder for placeholder in _PLACEHOLDERS)
        }

    def _hide(self, kind: str, secret: str, line: int) -> str:
        shown = secret[: min(4, len(secret) // 4)]
        self.found.append(Secret(kind, line, f"{shown}… ({len(secret)} characters)"))
        return _placeholder(kind)

    def _at(self, text: str) -> None:
        if isinstance(text, LocatedText):
            self.line = text.line

    @staticmethod
    def _settled(once: Callable[[str], str], text: str) -> str:
        """Do it until there is nothing left to do: what one rule removes can bring together what another finds."""
        while (clean := once(text)) != text:
            text = clean
        return text

    @contextmanager
    def only_what_is_in(self, text: str) -> Iterator[None]:
        """Look, inside, only for forms that stand in a text or in what it holds as JSON: one look saves thousands."""
        before = self._forms, self._is_quiet, self._is_clean
        plain = _unescaped(text)
        lowered = plain.lower()
        self._forms = [form for form in _FORMS if form.is_in(plain, lowered)]
        self._is_quiet = not (
            self._forms
            or any(value in plain or value in text for value in self._values)
            or any(map(_parameter, _PARAMETER.finditer(plain)))
            or any(_address_parts(plain))
        )
        names = lowered.encode(errors="surrogatepass").translate(None, b"-_\"'\\ \t\r\n")
        self._is_clean = self._is_quiet and not any(name in names for name in _NAME_ENDS)
        try:
            yield
        finally:
            self._forms, self._is_quiet, self._is_clean = before

    # -- texts

    def text(self, text: str) -> str:
        """Return a text without what is a secret by its value or form."""
        self._at(text)
        return text if self._is_quiet else self._settled(self._text, text)

    def _text(self, text: str) -> str:
        for value, pattern in self._values.items():
            if value in text:
                text = self._replaced(text, pattern, lambda _: _VARIABLE)
        if "=" in text:
            text = self._replaced(text, _PARAMETER, _parameter)
        lowered = text.lower() if self._forms else ""
        for form in self._forms:
            if form.may_be_in(text, lowered):
                text = self._replaced(text, form.pattern, form.kind_of)
        if "@" in text or "%40" in text or "\\u0040" in text:
            text = self._without_addresses(text)
        return text

    def _replaced(self, text: str, pattern: re.Pattern[str], kind_of: Callable[[re.Match[str]], str | None]) -> str:
        def hidden(found: re.Match[str]) -> str:
            kind = kind_of(found)
            if kind is None:
                return found[0]
            start, end = found.span("secret")
            placeholder = self._hide(kind, found["secret"], self._line_at(text, start))
            return text[found.start() : start] + placeholder + text[end : found.end()]

        return pattern.sub(hidden, text)

    def _line_at(self, text: str, at: int) -> int:
        return self.line + text.count("\n", 0, at)

    def _without_addresses(self, text: str) -> str:
        parts, at = [], 0
        for start, end in _address_parts(text):
            parts += [text[at:start], self._hide(_EMAIL, text[start:end], self._line_at(text, start))]
            at = end
        return "".join([*parts, text[at:]])

    def raw(self, text: str) -> str:
        """Return a text of unknown form without secrets: also without what stands after the name of a secret field."""
        self._at(text)
        text = self._replaced(text, _QUOTED_FIELD, _quoted_field)
        return self.text(self._replaced(text, _BARE_FIELD, _bare_field))

    def string(self, text: str) -> str:
        """Return a text in JSON without secrets; it can be JSON itself."""
        self._at(text)
        if text.lstrip()[:1] not in {"{", "["}:
            return self.text(text)
        try:
            value = json_value(text) if self._nested < _MAX_NESTED else None
        except ValueError:
            value = None
        if value is None:
            return self.raw(text)
        self._nested += 1
        clean = self.value(value)
        self._nested -= 1
        return text if clean == value else json_text(clean)

    # -- structures

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets."""
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        sealed = _SEALED.get(kind) if isinstance(kind, str) else None
        clean = {}
        for name, inner in value.items():
            self._at(name)
            if name == sealed or name.startswith("encrypted_"):
                clean[name] = inner
            elif (secret := _FIELDS.get(_bare(name)) or _doubtful(name, inner, value)) is not None:
                clean[name] = self._hidden(secret, inner)
            else:
                clean[self.text(name)] = self.value(inner)
        return clean

    def _hidden(self, kind: str, value: Any) -> Any:
        """Return what stands in the place of a secret field's value: a word for a text, 0 for a number."""
        if isinstance(value, str):
            if not value or value in _PLACEHOLDERS:
                return value
            self._at(value)
            return self._hide(kind, value, self.line)
        if isinstance(value, list):
            return [self._hidden(kind, item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            self._hide(kind, str(value), self.line)
            return 0
        return self.value(value)

    def events(self, events: Sequence[Any]) -> list[Any]:
        """Return events without secrets, also without one that is split over several deltas of a block."""
        blocks: dict[tuple[Any, str], list[int]] = {}
        for number, event in enumerate(events):
            name = _delta_name(event)
            if name is not None:
                blocks.setdefault((event["data"].get("index"), name), []).append(number)
        clean = list(events)
        for (_, name), numbers in blocks.items():
            pieces = [events[number]["data"]["delta"][name] for number in numbers]
            for number, piece in zip(numbers, self._pieces(pieces), strict=True):
                clean[number] = None if piece is None else _with_delta(events[number], name, piece)
        return [self.value(event) for event in clean if event is not None]

    def _pieces(self, pieces: Sequence[str]) -> Sequence[str | None]:
        """Return the texts of a block's deltas without secrets: all in the first where a secret crosses deltas."""
        self._at(pieces[0])
        whole = "".join(pieces)
        with self.only_what_is_in(whole):  # more than in the pieces, perhaps
            clean = self.string(whole)
        if clean == whole:
            return pieces
        before = len(self.found)
        single = [self.text(piece) for piece in pieces]
        del self.found[before:]
        return single if "".join(single) == clean else [clean, *[None] * (len(pieces) - 1)]

    # -- what a request and a response have

    def body(self, body: bytes) -> bytes:
        """Return a body of any form without secrets."""
        text = body.decode(errors="surrogateescape")
        clean = self.body_text(text)
        return body if clean == text else clean.encode(errors="surrogateescape")

    def body_text(self, text: str) -> str:
        """Return the text of a body without secrets."""
        self._at(text)
        return self._settled(self._body_text, text)

    def _body_text(self, text: str) -> str:
        if text.lstrip()[:1] in {"{", "["}:
            with self.only_what_is_in(text):
                return text if self._is_clean else self.string(text)
        stream = events_in(_simple_stream(text)) if _SSE.match(text) else None
        if stream:
            with self.only_what_is_in(text):
                clean = self.events(stream[0]), self.raw(stream[1])
            return text if clean == stream else events_text(clean[0]) + clean[1]
        return self._form(text) if _FORM_BODY.fullmatch(text) else self.raw(text)

    def uri(self, uri: str) -> str:
        """Return an address without secrets."""
        self._at(uri)
        return self._settled(self._uri, uri)

    def _uri(self, uri: str) -> str:
        address, mark, query = uri.partition("?")
        query, hash_, fragment = query.partition("#")
        return self.text(address) + mark + self._form(query) + hash_ + self.text(fragment)

    def _form(self, text: str) -> str:
        """Return a query or a form body without secrets: here each value of a key-like name is one."""

        def pair(found: re.Match[str]) -> str:
            name, value = found["name"], unquote_plus(found["value"])
            bare = _bare(unquote_plus(name))
            kind = _PARAMETERS.get(bare) or _DOUBTFUL_PARAMETERS.get(bare)
            clean = self.string(value) if kind is None else cast("str", self._hidden(kind, value))
            return found[0] if clean == value else f"{name}={quote(clean, safe='()')}"

        with self.only_what_is_in(f"{text}\n{unquote_plus(text)}"):
            return self.text(_PAIR.sub(pair, text))

    def file(self, document: Any) -> None:
        """Look through what a file says: a cassette, ours or vcrpy's, or any YAML."""
        if isinstance(document, dict):
            interactions = document.pop("interactions", None)
            for entry in interactions if isinstance(interactions, list) else []:
                self._interaction(entry)
        self.value(document)

    def _interaction(self, entry: Any) -> None:
        for part in entry.values() if isinstance(entry, dict) else []:
            rest = dict(part) if isinstance(part, dict) else {"": part}
            uri = rest.get("uri")
            if isinstance(uri, str):
                self.uri(uri)
                del rest["uri"]
            self._stored(rest.pop("body", None))
            self.value(rest)

    def _stored(self, body: Any) -> None:
        """Look through a body as it stands in a file."""
        if isinstance(body, str):
            self.body_text(body)
        elif isinstance(body, bytes):
            self._forms, self._is_quiet = _FORMS, False  # nobody has looked into what is packed
            self.body(body)
        elif isinstance(body, dict):
            for form, value in body.items():
                if form == "events" and isinstance(value, list):
                    self.events(value)
                elif form == "base64" and isinstance(value, str):
                    self._at(value)
                    self._stored(_unpacked(value))
                elif isinstance(value, str | bytes):
                    self._stored(value)
                else:
                    self.value(value)


def _parameter(found: re.Match[str]) -> str | None:
    name = _bare(unquote_plus(found["name"]) if "%" in found["name"] else found["name"])
    doubtful = _DOUBTFUL_PARAMETERS.get(name)
    return _PARAMETERS.get(name) or (doubtful if doubtful and _looks_made_up(found["secret"]) else None)


def _quoted_field(found: re.Match[str]) -> str | None:
    name = _bare(found["name"])
    doubtful = _DOUBTFUL_FIELDS.get(name)
    return _FIELDS.get(name) or (doubtful if doubtful and _looks_made_up(found["secret"]) else None)


def _bare_field(found: re.Match[str]) -> str | None:
    return _quoted_field(found) if _looks_made_up(found["secret"]) else None


def _doubtful(name: str, value: Any, holder: Mapping[str, Any]) -> str | None:
    """Return the kind of a field that can hold a secret, if this one does.

    Log probabilities have tokens that are words, and beside a page of results one says where the next page begins.
    """
    kind = _DOUBTFUL_FIELDS.get(_bare(name))
    if kind is None or not isinstance(value, str) or not _looks_made_up(value):
        return None
    is_page = any(isinstance(holder.get(name), list) for name in ("data", "results", "items"))
    return None if is_page or "logprob" in holder else kind


def _delta_name(event: Any) -> str | None:
    """Return the name of the field that an event of a Messages API adds text to, if it does."""
    match event:
        case {"data": {"delta": {"type": str(kind), **delta}, **data}} if isinstance(data.get("index"), int | None):
            name = _DELTAS.get(kind)
            return name if name and isinstance(delta.get(name), str) else None
    return None


def _unescaped(text: str) -> str:
    """Return a text without the escapes of JSON, however deep JSON stands in it. Backslashes may be left over."""
    if "\\u" in text:
        text = _ESCAPED_CHARACTER.sub(lambda found: chr(int(found[1], 16)), text)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t"), ('\\"', '"'), ("\\/", "/")):
        text = text.replace(escape, character)
    return text


def _with_delta(event: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    data = event["data"]
    return {**event, "data": {**data, "delta": {**data["delta"], name: text}}}


def _simple_stream(text: str) -> str:
    """Return a stream without what carries nothing here: comments, ids, waits, other line ends."""
    lines = re.sub(r"\r\n?", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^(?::|id:|retry:).*\n", "", lines, flags=re.MULTILINE)).lstrip("\n")


def _unpacked(stored: str) -> bytes:
    try:
        return base64.b64decode("".join(stored.split()), validate=True)
    except ValueError:
        return stored.encode()
