"""What never reaches a cassette: each kind of secret in each place, and nothing that is none."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vcr.request import Request

from caveat.testing.bodies import events_in, events_text
from caveat.testing.cassette_file import from_text, to_text
from caveat.testing.secrets import Secret, scrub_request, scrub_response, secrets_in

CASSETTES = Path(__file__).parent.parent / "cassettes"
RECORDINGS = Path(__file__).parent.parent.parent / "shared" / "recordings" / "messages.jsonl"
MESSAGES = "https://api.anthropic.com/v1/messages"
UUID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
ENVIRON = {"SERVICE_TOKEN": "plain words, but of ours", "HOME": "/home/somebody-or-other"}

# Made up. In two parts, so that no scanner of this repository takes them for real ones.
BY_FORM = {
    "anthropic": ("API key", "sk-ant-" + "api03-Zk4x_9QmTn2-vB7"),
    "openai": ("API key", "sk-" + "proj-Zk4x9QmTn2vB7Lr0WcY"),
    "tavily": ("API key", "tvly-" + "dev-Zk4x9QmTn2vB7"),
    "github": ("API key", "ghp_" + "Zk4x9QmTn2vB7Lr0WcYp5Sd8Fg1HjK3a6b7c"),
    "github fine-grained": ("API key", "github_pat_" + "11AZk4x9Q_mTn2vB7Lr0WcYp5Sd8"),
    "aws": ("API key", "AKIA" + "Q3EGRZ7WN5XK2YTP"),
    "google": ("API key", "AIza" + "SyZk4x9QmTn2vB7Lr0WcYp5Sd8Fg1HjK3a6"),
    "slack": ("API key", "xoxb-" + "123456789012-Zk4x9QmTn2"),
    "hugging face": ("API key", "hf_" + "Zk4xQmTnvBLrWcYpSdFgHjKabcdefghij"),
    "groq": ("API key", "gsk_" + "Zk4x9QmTn2vB7Lr0WcYp5Sd8"),
    "stripe": ("API key", "sk_" + "live_Zk4x9QmTn2vB7"),
    "jwt": ("token", "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.Zk4x9QmTn2vB7Lr0WcYp5Sd8"),
    "bearer": ("token", "Bearer " + "Zk4x9QmTn2vB7"),
    "basic": ("login", "Basic " + base64.b64encode(b"ana:hunter2").decode()),
    "login": ("login", "https://ana:" + "hunter2@db.acme.io/x"),
    "parameter": ("API key", "https://api.acme.io/v1?q=a&api_key=" + "hunter2"),
    "e-mail": ("e-mail address", "ana.lee+news" + "@mail.acme.co.uk"),
    "e-mail in other letters": ("e-mail address", "анна" + "@почта.рф"),
    "organisation in prose": ("organisation id", f"your organization (org: {UUID})"),
    "organisation": ("organisation id", "org-" + "Zk4x9QmTn2vB7Lr0WcYp5Sd8"),
    "workspace": ("organisation id", "wrkspc_" + "01Zk4x9QmTn2vB7"),
    "private key": (
        "private key",
        (
            f"-----BEGIN RSA {'PRIVATE'} KEY-----\nMIIEowIBAAKCAQEAZk4x9QmTn2vB7Lr0WcYp5Sd8Fg1HjK3a6b7c\nq8=\n"
            "-----END RSA PRIVATE KEY-----"
        ),
    ),
    "cookie": ("cookie", "Set-Cookie: session=" + "Zk4x9QmTn2; Path=/"),
    "header in a command": ("API key", "curl -H 'x-api-key: " + "Zk4x9QmTn2vB7'"),
    "environment": ("value of an environment variable", ENVIRON["SERVICE_TOKEN"]),
}
SECRET_PART = {
    "bearer": "Zk4x9QmTn2vB7",
    "basic": base64.b64encode(b"ana:hunter2").decode(),
    "login": "hunter2",
    "parameter": "hunter2",
    "organisation in prose": UUID,
    "private key": "MIIEowIBAAKCAQEAZk4x9QmTn2vB7Lr0WcYp5Sd8Fg1HjK3a6b7c",
    "cookie": "Zk4x9QmTn2",
    "header in a command": "Zk4x9QmTn2vB7",
}
BY_NAME = {
    "api_key": "API key",
    "X-Api-Key": "API key",
    "Authorization": "token",
    "accessToken": "token",
    "refresh_token": "token",
    "authorization_token": "token",
    "client_secret": "password",
    "password": "password",
    "Set-Cookie": "cookie",
    "organization_uuid": "organisation id",
    "workspace_id": "organisation id",
}


def answer(body: bytes = b"", **headers: str) -> dict[str, Any]:
    """A response as vcrpy has it."""
    named = {name.replace("_", "-"): [value] for name, value in headers.items()}
    return {"status": {"code": 200, "message": "OK"}, "headers": named, "body": {"string": body}}


def scrubbed(body: bytes, environ: Mapping[str, str] = ENVIRON) -> bytes:
    """The body of an answer that is scrubbed, twice, and of the request with the same body."""
    clean = scrub_response(answer(body), environ=environ)
    assert scrub_response(clean, environ=environ) == clean
    again: bytes = clean["body"]["string"]
    assert scrub_request(Request("POST", MESSAGES, again, {}), environ=environ).body == again
    return again


def found(body: bytes, environ: Mapping[str, str] = ENVIRON) -> list[Secret]:
    """What the scanner finds in a cassette with this body in an answer."""
    return secrets_in(to_text({}, [Request("GET", "https://a.acme.io/", None, {})], [answer(body)]), environ=environ)


def deltas(*texts: str, kind: str = "text_delta", name: str = "text") -> bytes:
    """A stream of a Messages API with these deltas of one block."""
    events = [
        {
            "event": "content_block_delta",
            "data": {"type": "content_block_delta", "index": 0, "delta": {"type": kind, name: t}},
        }
        for t in texts
    ]
    return events_text([{"event": "ping", "data": {"type": "ping"}}, *events]).encode()


def places(secret: str) -> dict[str, bytes]:
    """A secret in each form that a body has."""
    inside = f"It is:\n{secret}\nDo not tell."
    return {
        "text": inside.encode(),
        "json": json.dumps({"a": [{"b": inside}]}).encode(),
        "a name in json": json.dumps({secret: 1}).encode(),
        "json in json": json.dumps({"content": json.dumps({"a": inside})}).encode(),
        "json in json in json": json.dumps([json.dumps([json.dumps({"a": inside})])]).encode(),
        "escaped json": ('{"a": "' + "".join(f"\\u{ord(sign):04x}" for sign in inside) + '"}').encode(),
        "cut json": json.dumps({"a": inside}, ensure_ascii=False).encode()[:-2],
        "cut json in json": json.dumps({"a": json.dumps({"a": inside}, ensure_ascii=False)[:-2]}).encode(),
        "one delta": deltas(inside),
        "many deltas": deltas(*[inside[at : at + 3] for at in range(0, len(inside), 3)]),
        "arguments of a tool": deltas(*json.dumps({"a": inside}), kind="input_json_delta", name="partial_json"),
        "a stream with comments": b": hello\r\n" + deltas(*inside).replace(b"\n", b"\r\n"),
        "a cut stream": deltas("a") + b"event: x\ndata: " + json.dumps({"a": inside}, ensure_ascii=False).encode()[:-1],
        "bytes": b"\xff\x00" + inside.encode() + b"\xfe",
    }


@pytest.mark.parametrize("name", BY_FORM)
def test_a_secret_of_a_known_form_is_found_and_removed_wherever_it_stands(name: str) -> None:
    """In each kind of body: nothing is left of it, the scanner finds it before and nothing after."""
    kind, secret = BY_FORM[name]
    part = SECRET_PART.get(name, secret)
    for place, body in places(secret).items():
        clean = scrubbed(body)
        written = to_text({}, [Request("GET", "https://a.acme.io/", None, {})], [answer(clean)])
        assert part not in written, place
        assert part not in "".join(json.dumps(clean.decode(errors="replace"), ensure_ascii=False)), place
        assert "removed)" in clean.decode(errors="replace"), place
        assert kind in {secret.kind for secret in found(body)}, place
        assert found(clean) == [], place


@pytest.mark.parametrize("name", BY_NAME)
def test_a_secret_is_known_by_the_name_of_its_field(name: str) -> None:
    """In JSON, in JSON in JSON, in forms, in text that looks like either."""
    secret = "correct-horse"
    for body in (
        json.dumps({"a": [{name: secret}]}),
        json.dumps({"a": json.dumps({name: secret})}),
        json.dumps({name: [secret]}),
        json.dumps({"ok": 1, name: secret})[:-1],
        f"a=1&{name}={secret}",
        f"{name}={secret}",
        f"var x = {{'{name}': '{secret}'}}",
    ):
        clean = scrubbed(body.encode()).decode()
        assert secret not in clean, body
        assert {secret.kind for secret in found(body.encode())} == {BY_NAME[name]}, body
        assert found(clean.encode()) == []


KEYS = [
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "gsk_", "hf_", "xai-", "pplx-", "jina_", "glpat-", "github_pat_", "npm_"),
    *("sk-", "sk-ant-", "tvly-", "AIza", "xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "ya29."),
    *("sk_live_", "sk_test_", "rk_live_", "rk_test_", "org-", "org_", "wrkspc_"),
]
OTHERS = [
    "fc-" + "0123456789abcdef" * 2,
    "AKIA" + "Q3EGRZ7WN5XK2YTP",
    "ASIA" + "Q3EGRZ7WN5XK2YTP",
    "ana@" + "acme.com",
    "ana@" + "acme.foundation",
    "ana%40" + "acme.org",
    "https://" + "Zk4x9QmTn2vB7Lr0WcYp@git.acme.io",
    "authorization: token " + "Zk4x9QmTn2vB7",
    "accessToken = " + "Zk4x9QmTn2vB7",
    "client_secret: " + "Zk4x9QmTn2vB7",
    f"account_id={UUID}",
    f"workspace {UUID}",
    "https://a.acme.io/?signature=" + "Zk4x9QmTn2vB7",
    "https://a.acme.io/?X-Amz-Credential=" + "Zk4x9QmTn2vB7",
    'it is {"a": "api_key=\\"' + 'Zk4x9QmTn2vB7\\""}',
]


@pytest.mark.parametrize("secret", [*(f"{prefix}{'Zk4x9QmTn2vB7Lr0WcYp5Sd8Fg1HjK3a6b7'}" for prefix in KEYS), *OTHERS])
def test_keys_of_many_services_are_known_by_their_first_letters(secret: str) -> None:
    """Whatever service an agent asks; and what else is a secret by its form alone."""
    body = json.dumps({"a": f"so: {secret} ."}).encode()
    assert b"removed)" in scrubbed(body, {})
    assert found(body, {})


NAMES = """
    apikey x-api-key x_goog_api_key apiToken api_secret subscription-key access_key accessKeyId proxy-authorization
    idToken auth_token x-auth-token sessionToken aws_session_token bearerToken securityToken csrfToken x-csrf-token jwt
    X-Amz-Signature X-Amz-Credential X-Amz-Security-Token X-Goog-Signature X-Goog-Credential passwd pwd passphrase
    secret appSecret webhook_secret secret_key secretAccessKey aws_secret_access_key private_key signing_key
    encryption_key cookie cookies organizationId organisation_id orgId org_uuid workspace_uuid account_id account_uuid
    token auth credential credentials
"""


def test_every_name_of_a_secret_field_is_known_in_each_spelling() -> None:
    """Without regard to case, - and _."""
    fields = {name: f"Zk4x9QmTn{number}" for number, name in enumerate(NAMES.split())}
    assert [
        value for value in json.loads(scrubbed(json.dumps(fields).encode())).values() if "removed)" not in value
    ] == []


def test_a_number_that_is_an_account_becomes_zero() -> None:
    """A client that expects a number still gets one."""
    assert (
        scrubbed(b'{"account_id": 4711, "password": null, "n": 4711}') == b'{"account_id":0,"password":null,"n":4711}'
    )


@pytest.mark.parametrize(
    ("address", "clean"),
    [
        (
            "https://a.acme.io/v1?q=b&sig=x&email=a%40b.io",
            "https://a.acme.io/v1?q=b&sig=(token-removed)",
        ),
        ("https://a.acme.io/v1?key=Zk4x9QmTn2&q=b", "https://a.acme.io/v1?q=b"),
        ("https://a.acme.io/v1?api_key=x", "https://a.acme.io/v1"),
        ("https://a.acme.io/v1?q=ask%20ana%40acme.io", "https://a.acme.io/v1?q=ask%20(e-mail-address-removed)"),
        ("https://a.acme.io/v1?q=sk%2Dant%2Dapi03-Zk4x9QmTn2", "https://a.acme.io/v1?q=(api-key-removed)"),
        ("https://ana:pw@a.acme.io/", "https://(login-removed)@a.acme.io/"),
        ("https://a.acme.io/v1?sig=&keyword=x&author=y#token", "https://a.acme.io/v1?sig=&keyword=x&author=y#token"),
        ("https://a.acme.io/v1?mailto=me@example.org", "https://a.acme.io/v1"),
        (
            "https://a.acme.io/v1?a=%7B%22password%22%3A%22x%22%7D",
            "https://a.acme.io/v1?a=%7B%22password%22%3A%22(password-removed)%22%7D",
        ),
    ],
)
def test_an_address_keeps_what_is_asked_and_loses_who_asks(address: str, clean: str) -> None:
    """Each value of a key-like parameter is a secret here; all else stays as it stands."""
    request = scrub_request(Request("GET", address, None, {"authorization": "Bearer x"}), environ={})
    assert (request.method, request.uri, request.body, dict(request.headers)) == ("GET", clean, None, {})
    assert scrub_request(request, environ={}).uri == clean
    before = to_text({}, [Request("GET", address, None, {})], [answer()])
    assert bool(secrets_in(before, environ={})) == (address != clean)
    assert secrets_in(to_text({}, [request], [answer()]), environ={}) == []


@pytest.mark.parametrize("address", ["https://a.acme.io/v1?key=7", "https://a.acme.io/v1?key=tea&q=b"])
def test_what_is_looked_for_by_a_key_is_no_secret(address: str) -> None:
    """Two items of a catalogue must not be taken for one another."""
    assert scrub_request(Request("GET", address, None, {}), environ={}).uri == address


@pytest.mark.parametrize(
    ("body", "clean"),
    [
        ({"api_key": "Zk4x9QmTn2", "query": "tea"}, {"query": "tea"}),
        ({"apiKey": None, "query": "tea"}, {"query": "tea"}),
        ({"password": {"type": "string"}, "query": "tea"}, None),
    ],
)
def test_a_body_loses_the_fields_that_say_who_asks(body: dict[str, Any], clean: dict[str, Any] | None) -> None:
    """Whether a key is set does not count; a description of a field is none."""
    request = Request("POST", "https://a.acme.io/search", json.dumps(body).encode(), {})
    assert json.loads(scrub_request(request, environ={}).body) == (body if clean is None else clean)


def test_of_an_answers_headers_there_are_those_that_clients_act_on() -> None:
    """No cookie, no request id; rate limits of every spelling, and what the caller adds."""
    kept = {
        "Content-Type": "application/json",
        "retry-after": "2",
        "anthropic-ratelimit-requests-remaining": "9",
        "x-ratelimit-reset": "1",
        "RateLimit": "1",
        "x-rate-limit-interval": "1s",
        "location": "https://a.acme.io/?page=2",
        "x-mine": "1",
    }
    dropped = {"set-cookie": "a=b", "anthropic-organization-id": UUID, "request-id": "req_1", "cf-ray": "1"}
    clean = scrub_response(
        answer() | {"headers": {n: [v] for n, v in (kept | dropped).items()}}, keep_headers=["X-Mine"]
    )
    assert clean["headers"] == {name: [value] for name, value in kept.items()}
    located = scrub_response(answer(location="https://a.acme.io/?access_token=hunter2"), environ={})
    assert located["headers"] == {"location": ["https://a.acme.io/?access_token=(token-removed)"]}


def test_a_compressed_answer_hides_nothing() -> None:
    """Compression is undone first."""
    body = gzip.compress(b"ask ana@" + b"acme.io")
    clean = scrub_response(answer(body, content_encoding="gzip"), environ={})
    assert clean == answer(b"ask (e-mail-address-removed)")


def test_the_message_of_an_exception_is_scrubbed() -> None:
    """It can name the address, with the login of a proxy."""
    raises = {"error": "ConnectError", "message": "no way to http://ana:" + "pw@proxy:3128", "after_seconds": 0.0}
    clean = scrub_response({**answer(), "raises": raises}, environ={})
    assert clean["raises"] == {**raises, "message": "no way to http://(login-removed)@proxy:3128"}


def test_values_of_the_environment_are_found_in_each_form() -> None:
    """As they are, quoted for an address, and escaped for JSON; short ones and those of other variables are not."""
    environ = {
        "MY_SECRET": 'a "b"/é & c d',
        "API_KEY": "short",
        "PATH": "/usr/bin:/usr/local/bin",
        "A_TOKEN": "environment-variable",
    }
    value = environ["MY_SECRET"]
    for text in (value, quote(value, safe=""), json.dumps({"a": value}, ensure_ascii=False), f"[{json.dumps(value)}"):
        assert b"(value-of-an-environment-variable-removed)" in scrubbed(text.encode(), environ)
    innocent = b"short /usr/bin:/usr/local/bin"
    assert scrubbed(innocent, environ) == innocent


INNOCENT: list[Any] = [
    {"max_tokens": 1024, "usage": {"input_tokens": 5, "output_tokens": 7}, "budget_tokens": 1},
    {
        "logprobs": {
            "content": [
                {"token": "hello2world", "logprob": -0.1, "top_logprobs": [{"token": "a1b2c3d4", "logprob": 0}]}
            ]
        }
    },
    {"total": 9, "token": "PCOABAAAA77BAZQNNN42", "data": [1]},
    {"type": "thinking", "thinking": "Hm.", "signature": "EqQB sk-" + "ant-api03-Zk4x9QmTn2 ana@" + "acme.io"},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "sk-" + "ant-api03-Zk4x9"},
    },
    {"type": "redacted_thinking", "data": "sk-" + "ant-api03-Zk4x9QmTn2"},
    {"encrypted_content": "sk-" + "ant-api03-Zk4x9QmTn2"},
    {"input_schema": {"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string"}}}},
    {"text": "git clone git@github.com:a/b.git; user@host; me@example.com; a@b.test; icon@2x.png; b@agent.tool"},
    {"text": "@app.route, Basic authentication, bearer of news, Basic Steps, task-oriented-risk-management"},
    {"text": "(org: 00000000-0000-0000-0000-000000000000) organization, request 1b4e28ba-2fa1-41d2-883f-0016d3cca427"},
    {"text": "https://en.wikipedia.org/w/index.php?title=Key&keywords=a&token=&key=en https://host:8080/@name"},
    {"text": "-----BEGIN PRIVATE KEY----- stands on top of such a file"},
    {"text": "authorization: required; secret: nobody knows; password=…; cookie: a small cake", "cookie": ""},
    {"error": {"type": "authentication_error", "message": "invalid x-api-key"}},
    {"text": "(api-key-removed) (e-mail-address-removed)", "password": "(password-removed)"},
]


@pytest.mark.parametrize("value", INNOCENT)
def test_what_is_no_secret_stays_byte_for_byte(value: Any) -> None:
    """Counts of tokens, signatures, schemas, examples, code, prose about secrets, and what was removed already."""
    stream = events_text([{"event": "x", "data": value}])
    for body in (json.dumps(value), json.dumps(value, indent=3), stream, ": ping\n\nid: 7\n" + stream):
        assert scrubbed(body.encode()) == body.encode()
        assert found(body.encode()) == []


def test_a_secret_in_one_delta_leaves_the_other_deltas_as_they_are() -> None:
    """Only a secret that crosses deltas makes one of them; other blocks keep theirs."""
    secret = "ana@" + "acme.io"
    one = events_in(scrubbed(deltas("ask ", secret, " now")).decode())
    assert one is not None
    assert [event["data"]["delta"]["text"] for event in one[0][1:]] == ["ask ", "(e-mail-address-removed)", " now"]
    crossing = events_in(scrubbed(deltas("ask ", secret[:5], secret[5:])).decode())
    assert crossing is not None
    assert [event["data"]["delta"]["text"] for event in crossing[0][1:]] == ["ask (e-mail-address-removed)"]


# ---- the scanner


def test_the_scanner_says_where_and_masks() -> None:
    """The line of the file, also inside a block, and never the secret itself."""
    key = BY_FORM["anthropic"][1]
    text = to_text(
        {"note": "one\ntwo ana@" + "acme.io"},
        [Request("POST", "https://a.acme.io/?token=hunter2", json.dumps({"password": "x y z", "a": key}).encode(), {})],
        [answer(b"<p>\n" + key.encode() + b"\n", set_cookie="a=b")],
    )
    lines = text.split("\n")
    secrets = secrets_in(text + f"# {key}\n", environ={})
    assert [(s.kind, lines[s.where - 1].strip() if s.where <= len(lines) - 1 else "#") for s in secrets] == [
        ("e-mail address", "two ana@" + "acme.io"),
        ("token", "uri: https://a.acme.io/?token=hunter2"),
        ("password", "password: x y z"),
        ("API key", f"a: {key}"),
        ("cookie", "set-cookie: a=b"),
        ("API key", key),
        ("API key", "#"),
    ]
    assert secrets[3].shown == f"sk-a… ({len(key)} characters)"


@pytest.mark.parametrize("name", BY_FORM)
def test_the_scanner_finds_a_secret_that_somebody_wrote_into_the_file(name: str) -> None:
    """As a block, quoted in both ways, in the header, and in a file that is broken."""
    kind, secret = BY_FORM[name]
    one_line = secret.replace("\n", "\\n")
    block = "\n".join(f"    {line}" for line in secret.split("\n"))
    single = secret.replace("'", "''").replace("\n", "\n\n")
    for text in (
        f"caveat_cassette: 1\nnote: |\n{block}\ninteractions: []\n...\n",
        f'caveat_cassette: 1\nnote: "{one_line}"\ninteractions: []\n...\n',
        f"caveat_cassette: 1\nnote: '{single}'\ninteractions: []\n...\n",
        f"interactions: [\nnote: |\n{block}\n",
    ):
        assert kind in {secret.kind for secret in secrets_in(text, environ=ENVIRON)}, text


@pytest.mark.parametrize("path", sorted(CASSETTES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_scrubbing_changes_nothing_of_a_cassette_of_this_repository(path: Path) -> None:
    """What it is matched with today is what was recorded."""
    _, requests, responses = from_text(path.read_text())
    for request in requests:
        clean = scrub_request(request)
        assert (clean.uri, clean.body) == (request.uri, request.body)
    for response in responses:
        assert scrub_response(response)["body"] == response["body"]


@pytest.mark.skipif(not RECORDINGS.exists(), reason="needs ../shared/recordings, which is not part of the project")
def test_real_answers_hold_no_secret_and_stay_as_they_are() -> None:
    """A hundred answers of a Messages API: signatures, token counts and prose about keys are left alone."""
    for row in RECORDINGS.read_text().splitlines():
        body = json.loads(row)["body"].encode()
        assert scrub_response(answer(body), environ={})["body"]["string"] == body


# ---- any input

words = st.sampled_from(
    [
        *(secret for _, secret in BY_FORM.values()),
        *SECRET_PART.values(),
        *BY_NAME,
        *"@./:=&?#\\\"'{}[]()-_%a1\n ",
        *("\\n", "%40", "token", "key", "sk-", "eyJ", "org-", "(login-removed)", "://", "data: "),
        "event: x\n",
        "\n\n",
        "Bearer ",
        "-----BEGIN PRIVATE KEY-----\n",
    ]
)
mixed = st.lists(words, max_size=10).map("".join)
values = st.recursive(
    mixed | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(mixed, inner, max_size=3)
)


@given(st.binary() | mixed.map(str.encode) | values.map(lambda value: json.dumps(value).encode()))
def test_scrubbing_twice_is_scrubbing_once_and_the_scanner_agrees(body: bytes) -> None:
    """For any body: what is scrubbed has no secret left, in the scanner's eyes, too (`scrubbed` looks again)."""
    clean = scrubbed(body)
    assert found(clean) == []
    if not found(body):
        assert clean == body


@given(mixed | st.text())
def test_any_address_and_any_file_can_be_looked_at(text: str) -> None:
    """Never a traceback, and twice is once."""
    request = scrub_request(Request("GET", "https://a.acme.io/?" + text, None, {}), environ=ENVIRON)
    assert scrub_request(request, environ=ENVIRON).uri == request.uri
    for start in (
        "",
        "interactions:\n- request:\n    uri: ",
        "interactions: [{request: {body: [], uri: 5}, response: {body: {events: [5]}}}, ",
    ):
        secrets_in(start + text, environ=ENVIRON)


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize(
    "near_miss",
    [
        "a",
        "@",
        "a@",
        "a@a.",
        "a.b@c.",
        "%40a.",
        "sk-",
        "sk-a",
        "eyJ",
        "eyJ-",
        "eyJaaaaaaaa.",
        "org-",
        "org: ",
        "account ",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----\n",
        "bearer ",
        "basic aaaa",
        "cookie:",
        "cookie: a",
        "://",
        "://a:",
        "api_key",
        "api_key=",
        "api_key: a",
        "password = ",
        "&a=",
        "?token=a",
        "\\",
        "\\n",
        '"',
        "{",
        "data: 1\n\n",
        ": \n",
        "\n",
        " ",
        "1b4e28ba-2fa1-41d2-883f-0016d3cca42-",
    ],
)
def test_a_flood_of_near_misses_takes_time_by_its_length_only(near_miss: str) -> None:
    """A flood of what almost is a secret, as text, in JSON and as a file."""
    flood = near_miss * (100_000 // len(near_miss))
    scrub_response(answer(flood.encode()), environ=ENVIRON)
    scrub_response(answer(json.dumps({"a": flood}).encode()), environ=ENVIRON)
    scrub_request(Request("GET", "https://a.acme.io/?a=" + flood[:50_000], None, {}), environ=ENVIRON)
    secrets_in(flood, environ=ENVIRON)
