"""What `caveat doctor` finds out: key, model, sources, store, disk, proxy, certificates; and the report of it."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import platform
import re
import shutil
import socket
import sqlite3
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import httpx2

from caveat import prices
from caveat.model import asks_a_server, open_model
from caveat.places import cache_folder, runs_folder
from caveat.settings import KEY_VARIABLES, Origin, Settings
from caveat.turn import ModelError
from caveat_tools.clock import Clock, SystemClock
from caveat_tools.faults import FaultPlan
from caveat_tools.names import SOURCE_NAMES
from caveat_tools.network import (
    NetworkError,
    NetworkTransport,
    environment_proxies,
    is_address,
    proxy_for,
    without_password,
)
from caveat_tools.outcome import Failed
from caveat_tools.pace import Pace, paces_for
from caveat_tools.plain_text import one_line
from caveat_tools.retry import RetryPolicy
from caveat_tools.search import Searcher
from caveat_tools.snapshots import Snapshots
from caveat_tools.source import Ask
from caveat_tools.sources import SourcesError, open_source
from caveat_tools.sources.local import LocalFolderError

State: TypeAlias = Literal["works", "note", "fails"]
PROBE: Final = "water"
LEAST_FREE_BYTES: Final = 500_000_000
HOSTED_URL: Final = "https://api.anthropic.com"
SERVER_SECONDS: Final = 15.0
_ONE_TRY: Final = RetryPolicy(attempts=1, deadline=15.0)
_PACKAGES: Final = ("caveat", "anthropic", "httpx2", "pydantic", "pydantic-settings", "tenacity", "click", "rich")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: its state, what was seen, and what to do where something is to be done."""

    name: str
    state: State
    what: str
    todo: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the check, fit for JSON."""
        return asdict(self)


async def diagnose(settings: Settings, *, with_turn: bool = False) -> list[Check]:
    """Look at everything and return what was found, in a fixed order. Raises nothing that can be named."""
    clock = SystemClock()
    paces = paces_for(clock)
    used = settings.asked_sources()
    model, sources = await asyncio.gather(
        _model(settings, with_turn=with_turn),
        asyncio.gather(*(_source(name, settings, clock, paces, is_used=name in used) for name in SOURCE_NAMES)),
    )
    return [_python(), *_network(), *model, *sources, *_store(settings)]


def _python() -> Check:
    what = f"Python {platform.python_version()}, caveat {version('caveat')}, SQLite {sqlite3.sqlite_version}"
    return Check("program", "works", what)


def _network() -> Iterator[Check]:
    try:
        proxies = environment_proxies()
    except NetworkError as error:
        yield Check("proxy", "fails", str(error), "correct or unset the variable")
        return
    named = [f"{name}: {without_password(address)}" for name, address in proxies.items() if name != "no" and address]
    exceptions = f"; not for {proxies['no']}" if proxies["no"] and named else ""
    yield Check("proxy", "works", ("; ".join(named) + exceptions) if named else "none is set")
    variable = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), None)
    where = f"{os.environ[variable]} ({variable})" if variable else "the system's"
    try:
        NetworkTransport()
        yield Check("certificates", "works", where)
    except NetworkError as error:
        yield Check(
            "certificates", "fails", str(error), "let the variable name a PEM file of certificates, or unset it"
        )


# ---- the model


async def _model(settings: Settings, *, with_turn: bool) -> list[Check]:
    keys = [name for name in KEY_VARIABLES if os.environ.get(name)]
    if not asks_a_server(settings):
        why = "offline is set" if settings.offline else "there is no key and no base_url"
        todo = (
            ""
            if settings.offline
            else "set ANTHROPIC_API_KEY for the hosted model, or ANTHROPIC_BASE_URL for a server of yours"
        )
        return [Check("model", "note", f"the embedded stand-in, which is no language model ({why})", todo)]
    listed = prices.price_of(settings.model)
    price = Check("price", "works", f"{settings.model}: listed, prices of {prices.as_of()}")
    if listed is None:
        price = Check(
            "price",
            "note",
            f"{settings.model} is not in the price list of {prices.as_of()}",
            "limit tokens and time instead",
        )
    key = (
        Check("key", "works", f"{keys[0]} is set")
        if keys
        else Check("key", "note", "none is set; local servers need none")
    )
    checks = [key, await _server(settings), price]
    if with_turn:
        checks.append(await _turn(settings))
    return checks


async def _server(settings: Settings, *, seconds: float = SERVER_SECONDS) -> Check:
    """Ask the server for the model: the hosted API answers 200, or says whether key or model is wrong."""
    base = (settings.base_url or HOSTED_URL).rstrip("/")
    name = f"model server {without_password(base)}"
    if not is_address(base):
        return Check(name, "fails", "this is no address", "set ANTHROPIC_BASE_URL to one such as http://127.0.0.1:8080")
    key = os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN") or "none"
    headers = {"authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"}
    if not key.isascii() or not key.isprintable():
        return Check("key", "fails", "the key holds characters that no key has", "copy the key again")
    todo = "check network and proxy, or set ANTHROPIC_BASE_URL to a server that runs"
    asked = f"{base}/v1/models/{urllib.parse.quote(settings.model, safe='')}"
    try:
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(transport=NetworkTransport(), timeout=10.0) as client,
            client.stream("GET", asked, headers=headers) as response,  # the status says all; a body may never end
        ):
            way = proxy_for(httpx2.URL(base), environment_proxies())
    except TimeoutError:
        return Check(name, "fails", f"did not answer within {seconds:.0f} s", todo)
    except (NetworkError, httpx2.InvalidURL, httpx2.RequestError) as error:
        return Check(name, "fails", f"{type(error).__name__}: {one_line(str(error), 200)}", todo)
    return _answered(name, settings, response.status_code, f", through {without_password(way)}" if way else "")


def _answered(name: str, settings: Settings, status: int, through: str) -> Check:
    """Say what the status of the server's answer means."""
    if status in {401, 403}:
        return Check(name, "fails", f"refused the key (status {status})", "set ANTHROPIC_API_KEY to a valid key")
    if status == 200:
        return Check(name, "works", f"answers and knows {settings.model}{through}")
    if settings.base_url is None and status == 404:
        return Check(name, "fails", f"knows no model {settings.model}", "set model (--model) to one that exists")
    if status >= 500:
        return Check(name, "fails", f"answered with status {status}", "try again later")
    what = f"answers{through}, but cannot say whether it knows {settings.model} (status {status})"
    return Check(name, "note", what, "try `caveat doctor --turn`")


async def _turn(settings: Settings) -> Check:
    clock = SystemClock()
    began = clock.monotonic()
    asked = [{"role": "user", "content": "Answer with one word: ready"}]
    try:
        async with open_model(settings, clock=clock, faults=FaultPlan(), policy=_ONE_TRY) as model:
            turn = await model.turn("You answer in one word.", asked, [])
    except ModelError as error:
        return Check("model turn", "fails", error.message)
    seconds = clock.monotonic() - began
    return Check("model turn", "works", f"{one_line(turn.text, 40) or '(no text)'} after {seconds:.1f} s")


# ---- sources and store


async def _source(name: str, settings: Settings, clock: Clock, paces: Mapping[str, Pace], *, is_used: bool) -> Check:
    """Ask a source. That one which the settings leave out cannot be asked is no failure."""
    check = await _asked_source(name, settings, clock, paces)
    if is_used or check.state != "fails":
        return check
    return Check(check.name, "note", f"{check.what}; the settings leave it out")


async def _asked_source(name: str, settings: Settings, clock: Clock, paces: Mapping[str, Pace]) -> Check:
    shown = f"source {name}"
    if name == "local" and settings.docs is None:
        return Check(shown, "note", "no folder is set", "name one with --docs, or set docs in caveat.toml")
    faults = FaultPlan()
    try:
        async with open_source(name, settings.for_sources(), faults=faults, clock=clock) as source:
            searcher = Searcher(
                [source], clock=clock, snapshots=Snapshots([]), faults=faults, policy=_ONE_TRY, paces=paces
            )
            outcome = await searcher.search(name, Ask(PROBE, limit=1))
            place = source.place
    except (SourcesError, LocalFolderError) as error:
        return Check(shown, "fails", str(error))
    if isinstance(outcome, Failed):
        todo = "check network and proxy; until then leave it out with --sources"
        return Check(shown, "fails", f"{outcome.error_type}: {outcome.message} ({place})", todo)
    return Check(shown, "works", f"{place} answers")


def _store(settings: Settings) -> Iterator[Check]:
    for name, folder in (("runs", runs_folder(settings.home)), ("cache", cache_folder(settings.home))):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".doctor-{os.getpid()}"
            with sqlite3.connect(probe) as connection:
                connection.execute("CREATE TABLE t (x)")
            connection.close()
            probe.unlink()
            free = shutil.disk_usage(folder).free
        except (OSError, sqlite3.Error) as error:
            todo = "set home (CAVEAT_HOME) to a folder that can be written; until then reports are not kept"
            yield Check(name, "fails", f"{folder} cannot be written: {error}", todo)
            continue
        state: State = "works" if free > LEAST_FREE_BYTES else "fails"
        todo = "" if state == "works" else "make room, or set home (CAVEAT_HOME) to another disk"
        yield Check(name, state, f"{folder}, {free / 1e9:,.1f} GB free", todo)


# ---- the report for a bug tracker


def redacted_report(checks: Sequence[Check], settings: Settings, origins: Mapping[str, Origin]) -> str:
    """Return all that was found, as JSON, without what is nobody's business.

    Keys and tokens, proxies, e-mail addresses, and the names of the user, the machine and the user's folders are
    replaced; of addresses scheme, host and port are left. Texts of documents and questions were never in it.
    """
    body = {
        "caveat": version("caveat"),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "checks": [(_PROXY_CHECK[check.state] if check.name == "proxy" else check).as_dict() for check in checks],
        "settings": {
            name: {"value": _HIDDEN.get(name, value) if value else value, "from": origins[name].in_words()}
            for name, value in settings.model_dump(mode="json").items()
        },
        "environment": sorted(name for name in os.environ if _OURS.match(name)),
    }
    return json.dumps(_redacted(body, _replaced(settings)), ensure_ascii=False, indent=2) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_HIDDEN: Final = {"docs": "(docs)", "home": "(home)", "contact": "(contact)"}
_OURS: Final = re.compile(r"ANTHROPIC_|CAVEAT_|SSL_|\w+_PROXY$", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(
    r"KEY|TOKEN|SECRET|PASS|.PWD(?<!OLDPWD)|SIG|CREDENTIAL|AUTH|COOKIE|_PROXY$", re.IGNORECASE
)
_PROXY_CHECK: Final[Mapping[State, Check]] = {
    "works": Check("proxy", "works", "none, or set to an address"),
    "fails": Check("proxy", "fails", "set to what is no address"),
}
_ADDRESS: Final = re.compile(r"[A-Za-z][\w+.-]*://\S+")
_PATTERNS: Final = (
    (re.compile(r"\b(?:sk|pk|key)-[\w-]{6,}"), "(key)"),
    (re.compile(r"(?i)bearer\s+[\w.~+/-]+=*"), "Bearer (key)"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "(e-mail)"),
)


def _replaced(settings: Settings) -> list[tuple[str, str]]:
    """Return what is nobody's business, and what stands in its place: the longest first."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6]
    folders = [(settings.docs, "(docs)"), (settings.home, "(home)"), (Path.cwd(), "(here)"), (Path.home(), "~")]
    replaced = [(shown, "(secret)") for value in secrets for shown in (value, without_password(value))]
    replaced += [(str(folder.resolve()), shown) for folder, shown in folders if folder and folder.resolve().name]
    return sorted(replaced, key=lambda pair: -len(pair[0]))


def _redacted(value: Any, replaced: Sequence[tuple[str, str]]) -> Any:
    """Return a JSON value with every text in it redacted."""
    if isinstance(value, dict):
        return {name: _redacted(inner, replaced) for name, inner in value.items()}
    if isinstance(value, list):
        return [_redacted(inner, replaced) for inner in value]
    if not isinstance(value, str):
        return value
    text = _ADDRESS.sub(lambda found: _outline(found[0]), value)
    for secret, shown in replaced:
        text = text.replace(secret, shown)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    for name, shown in ((_user(), "(user)"), (socket.gethostname(), "(machine)")):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, text) if len(name) > 2 else text
    return text


def _outline(address: str) -> str:
    """Return scheme, host and port of an address, with a sign for all that follows; of no other text anything."""
    shown = without_password(address).replace("{language}", "language").rstrip(",;:)")
    if not is_address(shown):
        return "(address)"
    url = httpx2.URL(shown)
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = f":{url.port}" if url.port else ""
    return f"{url.scheme}://{host}{port}{'/…' if url.path != '/' or url.query or url.fragment else ''}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
