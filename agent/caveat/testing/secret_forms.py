"""What a secret looks like: by its form (a key, a login, an e-mail address), by its name, or by its value.

No rule can know every secret. The values of the environment's own keys and tokens are known, and found wherever they
stand; keys of known forms are found by their form, other secrets by the name of the field or parameter that holds them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_plus

from caveat.testing.bodies import json_text

API_KEY, TOKEN, PASSWORD, PRIVATE_KEY = "API key", "token", "password", "private key"
COOKIE, LOGIN, EMAIL, ORGANISATION = "cookie", "login", "e-mail address", "organisation id"
VARIABLE: Final = "value of an environment variable"


def placeholder(kind: str) -> str:
    """Return the word that stands in the place of a secret. No rule finds it again."""
    return f"({kind.lower().replace(' ', '-')}-removed)"


PLACEHOLDERS: Final = frozenset(
    map(placeholder, (API_KEY, TOKEN, PASSWORD, PRIVATE_KEY, COOKIE, LOGIN, EMAIL, ORGANISATION, VARIABLE))
)


class Form(NamedTuple):
    """Something that is a secret by what it looks like: `secret` in a match of the pattern, if that is of a kind."""

    signs: tuple[str, ...]
    """One of them stands, whatever its case, in every text that holds such a secret."""
    pattern: re.Pattern[str]
    kind_of: Callable[[re.Match[str]], str | None]
    needs: re.Pattern[str] | None = None
    """What also stands in each such text, and is found faster than the whole."""

    def may_be_in(self, text: str, folded: str) -> bool:
        """Say quickly whether it makes sense to look; `folded` is the text without its case."""
        return any(sign in folded for sign in self.signs) and (self.needs is None or bool(self.needs.search(text)))

    def is_in(self, text: str, folded: str) -> bool:
        """Say whether there is such a secret in a text."""
        return self.may_be_in(text, folded) and any(map(self.kind_of, self.pattern.finditer(text)))


def forms_of(environ: Mapping[str, str]) -> list[Form]:
    """Return all forms, in the order in which to look for them.

    The first are those of what stands in variables that are named like keys: as it is, quoted, escaped for JSON.
    """
    values = {value for name, value in environ.items() if _VARIABLE_NAME.search(name) and len(value) >= 12}
    forms = []
    for value in sorted(values, key=len, reverse=True):
        spellings = sorted({value, quote(value, safe=""), json_text(value)[1:-1], json.dumps(value)[1:-1]}, key=len)
        if not any(spelling in word for spelling in spellings for word in PLACEHOLDERS):
            signs = tuple(spelling.casefold() for spelling in spellings)
            pattern = re.compile(f"(?P<secret>{'|'.join(map(re.escape, spellings))})")
            forms.append(Form(signs, pattern, lambda _: VARIABLE))
    return [*forms, *_FORMS]


def kind_of_field(name: str, value: Any, holder: Mapping[str, Any]) -> str | None:
    """Return the kind of secret that a field of a JSON object is, if it is one by its name.

    A `token` and the like is one only where it looks made up. Log probabilities have tokens that are words, and beside
    a page of results one says where the next page begins.
    """
    bare = _bare(name)
    if bare in _DOUBTFUL_FIELDS and isinstance(value, str) and _looks_made_up(value):
        is_page = any(isinstance(holder.get(page), list) for page in ("data", "results", "items"))
        return None if is_page or "logprob" in holder else _DOUBTFUL_FIELDS[bare]
    return _FIELDS.get(bare)


def kind_of_parameter(name: str, value: str) -> str | None:
    """Return the kind of secret that a parameter in the address of a request, or in a form, is by its name, if any.

    `key` can also be what is looked for: it is one only where the value looks made up.
    """
    bare = _bare(unquote_plus(name))
    if bare == "key" and not _looks_made_up(value):
        return None
    return _FIELDS.get(bare) or _DOUBTFUL_PARAMETERS.get(bare)


def says_who_asks(name: str, value: Any) -> bool:
    """Say whether a parameter, or a field of a body, is there only to tell a service who asks.

    What it is set to does not count in a replay, nor whether it is there: a replay needs no key.
    """
    bare = _bare(unquote_plus(name))
    if not isinstance(value, str | None):
        return False
    return bare in _FIELDS or bare in {"email", "mailto"} or (bare == "key" and value in {"", placeholder(API_KEY)})


def may_name_a_secret(text: str) -> bool:
    """Say quickly whether a field in a JSON text, its escapes undone, can be a secret by its name."""
    squeezed = text.casefold().encode(errors="surrogatepass").translate(None, b"-_\"'\\ \t\r\n")
    return any(name in squeezed for name in _NAMES)


# ---- by name


def _of_kind(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


_FIELDS: Final = (
    _of_kind(API_KEY, "apikey xapikey xgoogapikey apitoken apisecret subscriptionkey accesskey accesskeyid")
    | _of_kind(TOKEN, "authorization proxyauthorization authorizationtoken accesstoken refreshtoken idtoken authtoken")
    | _of_kind(TOKEN, "xauthtoken sessiontoken awssessiontoken bearertoken securitytoken csrftoken xcsrftoken jwt")
    | _of_kind(TOKEN, "xamzsignature xamzcredential xamzsecuritytoken xgoogsignature xgoogcredential")
    | _of_kind(PASSWORD, "password passwd pwd passphrase secret clientsecret appsecret webhooksecret secretkey")
    | _of_kind(PASSWORD, "secretaccesskey awssecretaccesskey privatekey signingkey encryptionkey")
    | _of_kind(COOKIE, "cookie cookies setcookie")
    | _of_kind(ORGANISATION, "organizationid organizationuuid organisationid orgid orguuid workspaceid")
    | _of_kind(ORGANISATION, "workspaceuuid accountid accountuuid")
)
"""Names of fields and parameters that hold a secret, in lower case and without - and _."""
_DOUBTFUL_FIELDS: Final = _of_kind(TOKEN, "token auth credential credentials")
"""Names of those that hold a secret only where the value looks like one."""
_DOUBTFUL_PARAMETERS: Final = (
    _DOUBTFUL_FIELDS | _of_kind(TOKEN, "sig signature") | _of_kind(EMAIL, "email mailto") | _of_kind(API_KEY, "key")
)
"""The same of parameters in some text. In the address of a request they always hold one."""
_NAMES: Final = [f"{name}{sign}".encode() for name in _FIELDS | _DOUBTFUL_FIELDS for sign in ":="]
"""How they stand before a value, in a text without quotes, spaces, - and _."""
_VARIABLE_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


@lru_cache(4_096)
def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _by_name(found: re.Match[str], doubtful: Mapping[str, str] = _DOUBTFUL_FIELDS) -> str | None:
    name = _bare(unquote_plus(found["name"]))
    return _FIELDS.get(name) or (doubtful.get(name) if _looks_made_up(found["secret"]) else None)


def _by_name_if_made_up(found: re.Match[str]) -> str | None:
    return _by_name(found) if _looks_made_up(found["secret"]) else None


def _looks_made_up(value: str) -> bool:
    """Say whether a value can be a key: eight signs or more without a space, letters and digits among them."""
    return len(value) >= 8 and all(map(re.search, (r"[A-Za-z]", r"\d"), (value, value))) and not re.search(r"\s", value)


# ---- by form


def _form(
    kind: str, signs: str, secret: str, *, before: str = "", accept: Callable[[str], object] = bool, needs: str = ""
) -> Form:
    """Return the form of a secret that `accept` says yes to, after what stands `before` it."""
    return Form(
        tuple(signs.split()),
        re.compile(f"{before}(?P<secret>{secret})"),
        lambda found: kind if accept(found["secret"]) else None,
        re.compile(needs) if needs else None,
    )


def _keys(kind: str, rest: str, *prefixes: str, inside: str = "A-Za-z0-9") -> Iterator[Form]:
    r"""Yield forms of keys by their prefixes. These stand inside no word, but may follow an escape like \n or %20."""
    escapes = (r"\\[bfnrt]", r"\\u[0-9A-Fa-f]{4}", "%[0-9A-Fa-f]{2}")
    for prefix in prefixes:
        starts = (f"(?<![{inside}]{prefix})", *(f"(?<={escape}{prefix})" for escape in escapes))
        yield _form(kind, prefix.lower(), f"{prefix}(?:{'|'.join(starts)}){rest}")


_NOBODY: Final = (
    r"git@|[\w.+'-]+(?:@|%40|\\u0040)(?:[\w-]+\.)*"
    r"(?i:example(?:\.(?:com|net|org))?|invalid|test|localhost)(?![\w-]|\.\w)"
)
"""What begins no address of a person: git@github.com, and names that nobody has (RFC 2606 and RFC 6761)."""


def _addresses(letters: str, top: str) -> Form:
    """Return the form of e-mail addresses with these letters before the @, and this pattern of a domain at the end."""
    host = rf"(?:@|%40|\\u0040)(?:[^\W_][\w-]{{0,62}}\.){{1,8}}{top}"
    escape = r"(?:(?<=\\)(?:[bfnrt]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2})?+"
    before = f"(?<![{letters}]){escape}"
    return _form(EMAIL, r"@ %40 \u0040", f"(?!{_NOBODY})[{letters}]++{host}", before=before, needs=host)


_TOPS: Final = (
    "(?:(?i:[a-z]{2}|com|net|org|edu|gov|mil|int|info|biz|name|pro|coop|museum|aero|jobs|mobi|travel|asia|cat|email"
    "|online|site|store|shop|app|dev|cloud|tech|xyz|top|club|live|life|world|work|space|website|digital|agency|studio"
    "|design|group|team|network|systems|solutions|services|software|foundation|academy|university|education|institute"
    "|school|science|health|care|legal|law|consulting|earth|eco|news|blog|media|art|local|lan|internal|corp|home))"
    r"(?![\w-]|\.[A-Za-z]{2,24}(?![\w-]))"
)
"""Domains that are taken for one, of those in Latin letters: code is full of name@agent.tool."""


def _is_login(value: str) -> bool:
    """Say whether what follows the word Basic is base64 of name:password, and no English."""
    try:
        return b":" in base64.b64decode(value, validate=True)
    except binascii.Error:
        return False


_UNQUOTED: Final = r"[^\s\"'\\,;&<>(){}\[\]]{8,4000}"
_NAMED: Final = r"(?<![\w-])(?P<name>[A-Za-z][\w-]{1,40})\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}"
FIELDS_IN_TEXT: Final = (
    Form((":", "="), re.compile(_NAMED + r"\\{0,7}[\"'](?P<secret>[^\"'\\(][^\"'\\]{0,4000})"), _by_name),
    Form((":", "="), re.compile(f"{_NAMED}(?P<secret>{_UNQUOTED})"), _by_name_if_made_up),
)
"""What stands after the name of a secret field, in text that is no prose: broken JSON, code, settings."""
_PARAMETER: Final = re.compile(r"[?&;#](?P<name>[A-Za-z][\w.%-]{0,63})=(?P<secret>[^&#;\s\"'<>\\()]+)")
_ASSIGNED: Final = re.compile(
    r"(?i)(?P<name>api[-_]?key|authorization|access[-_]?token|client[-_]?secret)"
    r"[\"'\\]{0,8}\s{0,4}[:=]\s{0,4}[\"'\\]{0,8}(?:token\s)?(?P<secret>" + f"{_UNQUOTED})"
)
"""What is assigned to these names, also in prose and where they are the end of a longer name."""
_FORMS: Final = (
    Form(("=",), _PARAMETER, lambda found: _by_name(found, _DOUBTFUL_PARAMETERS)),
    _form(  # name:password before the @ of an address, or a token alone
        LOGIN,
        "://",
        r"""[^\s/?#@"'<>\\:]{1,200}:[^\s/?#@"'<>\\]{1,200}(?=@)|[^\s/?#@"'<>\\:]{16,200}(?=@)""",
        before=r"://(?!\(login-removed\)@)",
    ),
    *_keys(API_KEY, r"[\w-]{8,}", "sk-ant-", "tvly-"),
    *_keys(API_KEY, r"(?=[A-Za-z_-]{0,40}\d)[\w-]{20,}", "sk-"),
    *_keys(API_KEY, r"[A-Za-z0-9]{20,}", "gsk_", "hf_", "npm_", "pplx-", "xai-"),
    *_keys(API_KEY, r"[A-Za-z0-9]{20,}", "ghp_", "gho_", "ghr_", "ghs_", "ghu_"),
    *_keys(API_KEY, r"\w{20,}", "github_pat_"),
    *_keys(API_KEY, r"[\w-]{20,}", "glpat-", "jina_"),
    *_keys(API_KEY, r"[\w-]{35}", "AIza"),
    *_keys(API_KEY, r"[\w-]{10,}", "xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-"),
    *_keys(API_KEY, r"[A-Za-z0-9]{10,}", "sk_live_", "sk_test_", "rk_live_", "rk_test_"),
    *_keys(API_KEY, r"[0-9a-f]{32}", "fc-"),
    *_keys(API_KEY, r"[A-Z0-9]{16}(?![A-Za-z0-9])", "AKIA", "ASIA"),
    *_keys(TOKEN, r"\.[\w-]{20,}", "ya29"),
    *_keys(TOKEN, r"[\w-]{8,}+\.[\w-]{4,}+\.[\w-]{8,}+", "eyJ", inside=r"\w.-"),
    *_keys(ORGANISATION, r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,}", "org-", "org_"),
    *_keys(ORGANISATION, r"[A-Za-z0-9]{8,}", "wrkspc_"),
    _form(
        ORGANISATION,
        "org workspace account",
        r"(?!0{8}-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        before=r"(?i)(?:organi[sz]ation|org|workspace|account)[\s_:=#\"'(-]{0,4}(?:id|uuid)?[\s_:=\"'(-]{1,4}",
        needs=r"(?i)-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    _form(TOKEN, "bearer", r"(?=\S{24}|\S{0,23}\d)[\w.~+/-]{8,}+=*", before=r"(?i)bearer\s{1,4}"),
    _form(LOGIN, "basic", r"[\w+/-]{4,}+=*", before=r"(?i)basic\s{1,4}", accept=_is_login),
    _form(COOKIE, "cookie", r"[\w.-]{1,100}=[^\s\"'\\(][^\r\n\"'\\]{0,4000}", before=r"(?i)cookie[\"']?\s*:\s*[\"']?"),
    Form(
        ("apikey", "api-key", "api_key", "authorization", "accesstoken", "access-token", "access_token", "client"),
        _ASSIGNED,
        _by_name_if_made_up,
    ),
    _form(
        PRIVATE_KEY,
        "private",
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[ \t]{0,8}\\{0,8}\r?\n|\\{1,8}[nr])"
        r"(?:(?!-----)[\w+/=\s:,.()\\-]){40,}+(?:-----END[A-Z0-9 ]{0,80}-----)?",
    ),
    _addresses(r"A-Za-z0-9_.+'-", _TOPS),
    _addresses(r"\w.+'-", r"[^\W\d_A-Za-z]{2,24}"),
)
