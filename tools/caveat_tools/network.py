"""The way out: a transport that goes through the proxy which the environment names, or straight on.

httpx2 reads HTTPS_PROXY and NO_PROXY only where it makes its transport itself; ours are handed in. The certificates
that SSL_CERT_FILE or SSL_CERT_DIR name count for servers and for https proxies alike.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Final

import httpx2


class NetworkError(ValueError):
    """A proxy or certificates that cannot be used; the message says which variable to correct."""


def environment_proxies() -> dict[str, str]:
    """Return the proxies that are named: addresses by scheme or under "all", and what NO_PROXY lists under "no".

    They are named by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, also in lower case, or by the system's settings
    where it has such. Raises NetworkError where one is no proxy's address.
    """
    named = urllib.request.getproxies()
    proxies = {scheme: named[scheme] for scheme in ("http", "https", "all") if named.get(scheme)}
    if {"http", "https"} <= proxies.keys():
        proxies.pop("all", None)  # nothing would ask it, so that it need not be one that we can use
    for scheme, address in proxies.items():
        proxies[scheme] = address if "://" in address else f"http://{address}"
        if not is_address(proxies[scheme]):
            shown = without_password(address)
            raise NetworkError(f"{scheme.upper()}_PROXY is {shown}, which is no address such as http://proxy:3128")
    return {**proxies, "no": named.get("no", "")}


def is_address(text: str) -> bool:
    """Say whether a text is an http or https address with a host, and with a port that can exist if with any."""
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, UnicodeError):
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and (url.port is None or 0 < url.port < 65_536)


def proxy_for(url: httpx2.URL, proxies: Mapping[str, str]) -> str | None:
    """Return the address of the proxy for a request, or None where it goes straight.

    NO_PROXY lists exceptions: hosts with all below them, host:port, addresses, networks such as 10.0.0.0/8, * for all.
    """
    address = proxies.get(url.scheme) or proxies.get("all")
    return None if not address or _is_exception(url, proxies.get("no", "")) else address


def without_password(address: str) -> str:
    """Return an address for people's eyes: a login in it is not shown, nor what a key-like parameter is set to.

    All before the last @ counts as the login, since a password may hold any sign, also unquoted; where the host comes
    first for certain, an @ in the query is left alone.
    """
    scheme = _SCHEME.match(address)
    rest = address[scheme.end() :] if scheme else address
    query = _QUERY_AFTER_HOST.match(rest)
    end = query.end("place") if query else len(rest)
    at = rest.rfind("@", 0, end)
    shown = rest if at < 0 else f"…{rest[at:]}"
    return _PARAMETER.sub(_hidden, (scheme[0] if scheme else "") + shown)


_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]*://")
_QUERY_AFTER_HOST: Final = re.compile(
    r"(?P<place>(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?(?:/[^@?#]*)?)\?[^=&#?]+=[^?#]*$"
)
_PARAMETER: Final = re.compile(r"([?&;#])([^=&;#?\s]+)=([^&#\s]+)")
_KEY_LIKE: Final = re.compile(r"key|token|secret|pass|pwd|sig|auth|credential", re.IGNORECASE)


def _hidden(parameter: re.Match[str]) -> str:
    before, name, _ = parameter.groups()
    return f"{before}{name}=…" if _KEY_LIKE.search(urllib.parse.unquote(name)) else parameter[0]


def _is_exception(url: httpx2.URL, listed: str) -> bool:
    host = url.host.lower().rstrip(".")
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return any(_names(entry, host, port) for entry in listed.lower().replace(",", " ").split())


def _names(entry: str, host: str, port: int | None) -> bool:
    """Say whether one entry of NO_PROXY names a host: as curl and Go read it."""
    if entry == "*":
        return True
    name, _, digits = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
    if digits and digits != str(port):
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")) in ipaddress.ip_network(name.strip("[]"), strict=False)
    except ValueError:
        bare = name.removeprefix("*").lstrip(".")
        return bool(bare) and (host == bare or host.endswith(f".{bare}"))


def certificates() -> ssl.SSLContext:
    """Return the TLS settings with the certificates of SSL_CERT_FILE, SSL_CERT_DIR or the system.

    Raises NetworkError where a named file holds none.
    """
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        raise NetworkError(f"SSL_CERT_FILE or SSL_CERT_DIR names no readable certificates: {error}") from error


class UnreachableProxyError(httpx2.ProxyError):
    """The proxy itself did not answer: neither the service's fault nor the model's."""


class NetworkTransport(httpx2.AsyncBaseTransport):
    """The innermost layer for the network. vcrpy patches the transports that it asks."""

    def __init__(self) -> None:
        """Read proxies and certificates, once for all connections. Raises NetworkError."""
        self._proxies = environment_proxies()
        self._certificates = certificates()
        self._ways: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request through its proxy, or straight."""
        address = proxy_for(request.url, self._proxies)
        if address not in self._ways:
            tls = self._certificates if address and address.startswith("https:") else None
            proxy = httpx2.Proxy(address, ssl_context=tls) if address else None
            self._ways[address] = httpx2.AsyncHTTPTransport(verify=self._certificates, proxy=proxy)
        try:
            return await self._ways[address].handle_async_request(request)
        except httpx2.ConnectError as error:
            if address is None:
                raise
            raise UnreachableProxyError(f"the proxy {without_password(address)} cannot be reached") from error

    async def aclose(self) -> None:
        """Close all connections."""
        for way in self._ways.values():
            await way.aclose()
