"""The way out: proxies, exceptions, certificates, and addresses with a path, against servers on this machine."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx2
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from caveat.model import open_model
from caveat.settings import SettingsError, read_settings
from caveat.turn import ModelError
from caveat_tools.clock import FakeClock
from caveat_tools.faults import FaultPlan
from caveat_tools.network import NetworkError, NetworkTransport, environment_proxies, proxy_for, without_password
from caveat_tools.outcome import Failed, Found
from caveat_tools.retry import RetryPolicy
from caveat_tools.search import Searcher
from caveat_tools.snapshots import Snapshots
from caveat_tools.source import Ask
from caveat_tools.sources import SourcesError, SourceSettings, open_source
from scripted import message, sse, stream_of, text
from servers import FakeMediaWiki, LocalServer, Reply, TunnelProxy, refused_url

WIKI = FakeMediaWiki({"Kariba Dam": "The Kariba Dam is a dam between Zambia and Zimbabwe."})
TURN = Reply(200, {"content-type": "text/event-stream"}, sse(*stream_of(message([text("ready")]))))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority of our own."""
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """What a server on 127.0.0.1 needs to speak HTTPS with a certificate of that authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the authority in SSL_CERT_FILE."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


async def searched(address: str) -> Found | Failed:
    """Search wikipedia at an address, as a run does, with one attempt."""
    clock, faults = FakeClock(), FaultPlan()
    settings = SourceSettings(addresses={"wikipedia": address})
    async with open_source("wikipedia", settings, faults=faults, clock=clock) as source:
        searcher = Searcher(
            [source], clock=clock, snapshots=Snapshots([]), faults=faults, policy=RetryPolicy(attempts=1)
        )
        outcome = await searcher.search("wikipedia", Ask("Kariba"))
    assert outcome is not None
    assert outcome.status != "empty"
    return outcome


async def test_a_source_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the proxy can find is found; the request carries the whole address and who asks."""
    with LocalServer(WIKI) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        outcome = await searched("http://wiki.test/w/api.php")
    assert isinstance(outcome, Found)
    assert proxy.requests[0].headers["host"] == "wiki.test"
    assert proxy.requests[0].headers["user-agent"].startswith("caveat/")


@pytest.mark.usefixtures("trusted")
async def test_https_goes_through_a_tunnel_and_its_certificate_is_checked(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext
) -> None:
    """The proxy sees the server's name and nothing of what is asked; SSL_CERT_FILE says whom to trust."""
    with LocalServer(WIKI, tls=tls) as server, TunnelProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        outcome = await searched(f"{server.url}/w/api.php")
    assert isinstance(outcome, Found)
    assert [(r.method, r.path) for r in proxy.requests] == [("CONNECT", server.url.removeprefix("https://"))]


async def test_a_certificate_that_nobody_vouches_for_is_named(tls: ssl.SSLContext) -> None:
    """A company's own certificates are a setting away, and the message says what it is about."""
    with LocalServer(WIKI, tls=tls) as server:
        outcome = await searched(f"{server.url}/w/api.php")
    assert isinstance(outcome, Failed)
    assert (outcome.error_type, outcome.message) == (
        "unavailable",
        "the certificate of 127.0.0.1 was not accepted (TLS)",
    )


async def test_what_no_proxy_names_goes_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of one's own is reached past the company's proxy."""
    with LocalServer(WIKI) as server, LocalServer(Reply(502)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "example.org, 127.0.0.0/8")
        outcome = await searched(f"{server.url}/w/api.php")
    assert isinstance(outcome, Found)
    assert proxy.requests == []


@pytest.mark.parametrize("status", [403, 407])
async def test_a_proxy_that_refuses_is_named(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the service but the proxy said no."""
    with TunnelProxy(Reply(status)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        outcome = await searched("https://wiki.test/w/api.php")
    assert isinstance(outcome, Failed)
    assert outcome.message == "the proxy on the way to wiki.test refused the connection"


async def test_a_proxy_that_does_not_answer_is_named_and_not_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it looks at the proxy; for a source and for the model."""
    monkeypatch.setenv("HTTPS_PROXY", refused_url())
    monkeypatch.setenv("HTTP_PROXY", refused_url())
    for address in ("https://wiki.test/w/api.php", "http://wiki.test/w/api.php"):
        outcome = await searched(address)
        assert isinstance(outcome, Failed)
        assert outcome.message == "the proxy on the way to wiki.test cannot be reached"
    settings, _ = read_settings({"base_url": "https://model.test"})
    async with open_model(settings, clock=FakeClock(), faults=FaultPlan(), policy=RetryPolicy(attempts=1)) as model:
        with pytest.raises(ModelError, match=r"the proxy http://127.0.0.1:\d+ cannot be reached; check HTTPS_PROXY"):
            await model.turn("s", [{"role": "user", "content": "?"}], [])


@pytest.mark.parametrize("address", ["socks5://127.0.0.1:1", "http://", "http://h:99999", "://x", "http://[::1"])
async def test_a_proxy_that_is_none_is_refused_before_anything_is_spent(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable; for a source and for the model."""
    monkeypatch.setenv("HTTPS_PROXY", address)
    with pytest.raises(NetworkError, match="HTTPS_PROXY"):
        environment_proxies()
    with pytest.raises(SourcesError, match="HTTPS_PROXY"):
        await searched("http://wiki.test/")
    settings, _ = read_settings({"base_url": "http://127.0.0.1:9"})
    with pytest.raises(ModelError, match="HTTPS_PROXY"):
        async with open_model(settings, clock=FakeClock(), faults=FaultPlan()):
            pass


def test_certificates_that_cannot_be_read_are_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that is not there, and one that holds none."""
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "none.pem", tmp_path / "no.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        with pytest.raises(NetworkError, match="SSL_CERT_FILE"):
            NetworkTransport()


@pytest.mark.usefixtures("trusted")
async def test_the_model_is_asked_through_the_proxy_at_an_address_with_a_path(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext
) -> None:
    """A gateway under a path prefix, behind a proxy, with a certificate of the company: all three at once."""
    with LocalServer(TURN, tls=tls) as server, TunnelProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        settings, _ = read_settings({"base_url": f"{server.url}/gateway/anthropic/"})
        async with open_model(settings, clock=FakeClock(), faults=FaultPlan()) as model:
            turn = await model.turn("s", [{"role": "user", "content": "?"}], [])
    assert turn.text == "ready"
    assert server.requests[0].path == "/gateway/anthropic/v1/messages"
    assert len(proxy.requests) == 1


@pytest.mark.parametrize(
    ("url", "no_proxy", "goes_straight"),
    [
        ("https://api.example.org/", "", False),
        ("https://api.example.org/", "*", True),
        ("https://api.example.org/", "example.org", True),
        ("https://api.example.org/", ".example.org", True),
        ("https://api.example.org/", "*.example.org", True),
        ("https://API.example.org./", "EXAMPLE.ORG", True),
        ("https://badexample.org/", "example.org", False),
        ("https://example.org.evil/", "example.org", False),
        ("https://api.example.org:8443/", "example.org:8443", True),
        ("https://api.example.org/", "example.org:8443", False),
        ("https://api.example.org/", "example.org:443", True),
        ("https://10.1.2.3/", "10.0.0.0/8", True),
        ("https://11.1.2.3/", "10.0.0.0/8", False),
        ("https://10.1.2.3/", "10.1.2.3", True),
        ("https://[::1]/", "::1", True),
        ("https://[fd00::7]/", "fd00::/8", True),
        ("https://[::1]/", "[::1]", True),
        ("https://localhost/", "a, ,localhost", True),
        ("https://x.org/", "/, %%, :, [", False),
    ],
)
def test_no_proxy_is_read_as_other_tools_read_it(url: str, no_proxy: str, goes_straight: bool) -> None:
    """Names with all below them, ports, addresses, networks; nonsense matches nothing and breaks nothing."""
    way = proxy_for(httpx2.URL(url), {"https": "http://proxy:3128", "no": no_proxy})
    assert (way is None) == goes_straight


def test_each_scheme_has_its_proxy_and_all_stands_for_both() -> None:
    """HTTPS_PROXY is not used for http."""
    proxies = {"https": "http://secure:1", "all": "http://any:2", "no": ""}
    assert proxy_for(httpx2.URL("https://x.org"), proxies) == "http://secure:1"
    assert proxy_for(httpx2.URL("http://x.org"), proxies) == "http://any:2"
    assert proxy_for(httpx2.URL("http://x.org"), {"no": ""}) is None


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:pass@proxy:3128", "http://…@proxy:3128"),
        ("me:p@ss@proxy:3128", "…@proxy:3128"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("https://x.org/works?api_key=abc&page=2", "https://x.org/works?api_key=…&page=2"),
        ("http://me:pa/ss@w@rd@h:1/v", "http://…@h:1/v"),
        ("http://me:12/34@h/v", "http://…@h/v"),
        ("http://me:pa?x=1@h", "http://…@h"),
        ("http://me:1?2@h", "http://…@h"),
        ("http://me:pa#ss@h", "http://…@h"),
        ("http://a://b@h", "http://…@h"),
        ("me:a://b@h", "…@h"),
        ("https://x.org/works?mailto=me@y.org", "https://x.org/works?mailto=me@y.org"),
        ("https://[::1]:80/w?sig=a/b&x=1#auth=z", "https://[::1]:80/w?sig=…&x=1#auth=…"),
        ("https://x.org/?PWD=a&my_pass=b&api%4bey=c", "https://x.org/?PWD=…&my_pass=…&api%4bey=…"),
        ("http://…@h", "http://…@h"),
    ],
)
def test_a_password_in_an_address_is_not_shown(address: str, shown: str) -> None:
    """In no message and no report, whatever signs it holds."""
    assert without_password(address) == shown


@given(
    st.text(st.sampled_from(":/@?#&=[]%a1 é"), max_size=12).map(lambda inner: f"PLANTED{inner}PLANTED"),
    st.sampled_from(["", "http://"]),
)
def test_any_password_at_all_is_hidden(password: str, scheme: str) -> None:
    """Also one that no parser takes for one."""
    assert "PLANTED" not in without_password(f"{scheme}me:{password}@example.org:80/v1")


PLANTED = [
    "http://me:PLANTED@127.0.0.1:9/v",
    "http://me:PLANTED/x@127.0.0.1:9/v",
    "http://me:x@PLANTED@127.0.0.1:9/v",
    "http://127.0.0.1:9/v?api_key=PLANTED",
    "http://me:PLANTED@127.0.0.1:99999999/v",
    "http://me:PLANTED@[::1/v",
    "http://127.0.0.1:9/v?token=PLANTED\x07",
    "ftp://me:PLANTED@127.0.0.1/v",
    "http://me:PLANTED @127.0.0.1/v",
]


@pytest.mark.parametrize("address", PLANTED)
async def test_no_message_about_the_models_server_shows_a_password(address: str) -> None:
    """Whether the address cannot be one, nobody answers there, or what answers is no Messages API."""
    told = ""
    try:
        settings, _ = read_settings({"base_url": address})
        async with open_model(settings, clock=FakeClock(), faults=FaultPlan(), policy=RetryPolicy(attempts=1)) as model:
            await model.turn("s", [{"role": "user", "content": "?"}], [])
    except (ModelError, SettingsError) as error:
        told = str(error)
    assert told
    assert "PLANTED" not in told


@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_that_is_none_is_named_without_its_password(status: int) -> None:
    """The address shows which server, and no login."""
    with LocalServer(Reply(status, {"content-type": "text/html"}, b"<html>")) as server:
        settings, _ = read_settings({"base_url": server.url.replace("://", "://me:PLANTED@") + "?key=PLANTED"})
        with pytest.raises(ModelError) as caught:
            async with open_model(
                settings, clock=FakeClock(), faults=FaultPlan(), policy=RetryPolicy(attempts=1)
            ) as model:
                await model.turn("s", [{"role": "user", "content": "?"}], [])
    assert "…@127.0.0.1" in str(caught.value)
    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize("address", PLANTED)
@pytest.mark.parametrize("name", ["wikipedia", "openalex", "arxiv", "crossref"])
async def test_no_message_about_a_source_shows_a_password(name: str, address: str) -> None:
    """Neither where it is nor why it cannot be."""
    settings = SourceSettings(addresses={name: address})
    try:
        async with open_source(name, settings, faults=FaultPlan(), clock=FakeClock()) as source:
            told = source.place
    except SourcesError as error:
        told = str(error)
    assert told
    assert "PLANTED" not in told
