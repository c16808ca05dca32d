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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal, TypeAlias

import httpx2

from caveat import prices
from caveat.model import KEY_VARIABLES, asks_a_server, open_model
from caveat.places import cache_folder, runs_folder
from caveat.settings import Origin, Settings
from caveat.turn import ModelError
from caveat_tools.clock import SystemClock
from caveat_tools.faults import FaultPlan
from caveat_tools.names import SOURCE_NAMES
from caveat_tools.network import NetworkError, NetworkTransport, environment_proxies, proxy_for, without_password
from caveat_tools.outcome import Failed
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
    model, sources = await asyncio.gather(
        _model(settings, with_turn=with_turn),
        asyncio.gather(*(_source(name, settings) for name in SOURCE_NAMES)),
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


async def _server(settings: Settings) -> Check:
    """Ask the server for the model: the hosted API answers 200, or says whether key or model is wrong."""
    base = (settings.base_url or HOSTED_URL).rstrip("/")
    name = f"model server {without_password(base)}"
    key = os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN") or "none"
    headers = {"authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"}
    if not key.isascii() or not key.isprintable():
        return Check("key", "fails", "the key holds characters that no key has", "copy the key again")
    try:
        async with httpx2.AsyncClient(transport=NetworkTransport(), timeout=10.0) as client:
            way = proxy_for(httpx2.URL(base), environment_proxies())
            response = await client.get(f"{base}/v1/models/{settings.model}", headers=headers)
    except (NetworkError, httpx2.InvalidURL, httpx2.RequestError) as error:
        what = f"{type(error).__name__}: {one_line(str(error), 200)}"
        return Check(name, "fails", what, "check network and proxy, or set ANTHROPIC_BASE_URL to a server that runs")
    through = f", through {without_password(way)}" if way else ""
    if response.status_code in {401, 403}:
        return Check(
            name, "fails", f"refused the key (status {response.status_code})", "set ANTHROPIC_API_KEY to a valid key"
        )
    if response.status_code == 200:
        return Check(name, "works", f"answers and knows {settings.model}{through}")
    if settings.base_url is None and response.status_code == 404:
        return Check(name, "fails", f"knows no model {settings.model}", "set model (--model) to one that exists")
    if response.status_code >= 500:
        return Check(name, "fails", f"answered with status {response.status_code}", "try again later")
    what = f"answers{through}, but cannot say whether it knows {settings.model} (status {response.status_code})"
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


async def _source(name: str, settings: Settings) -> Check:
    shown = f"source {name}"
    if name == "local" and settings.docs is None:
        return Check(shown, "note", "no folder is set", "name one with --docs, or set docs in caveat.toml")
    clock, faults = SystemClock(), FaultPlan()
    try:
        async with open_source(name, settings.for_sources(), faults=faults, clock=clock) as source:
            searcher = Searcher([source], clock=clock, snapshots=Snapshots([]), faults=faults, policy=_ONE_TRY)
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

    Keys and tokens, passwords in addresses, e-mail addresses, and the names of the user, the machine and the user's
    folders are replaced. Texts of documents and questions were never in it.
    """
    body = {
        "caveat": version("caveat"),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "checks": [check.as_dict() for check in checks],
        "settings": {
            name: {"value": _HIDDEN.get(name, value) if value else value, "from": " ".join(filter(None, origins[name]))}
            for name, value in settings.model_dump(mode="json").items()
        },
        "environment": sorted(name for name in os.environ if _OURS.match(name)),
    }
    return _redacted(json.dumps(body, ensure_ascii=False, indent=2), settings) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_HIDDEN: Final = {"docs": "(docs)", "home": "(home)", "contact": "(contact)"}
_OURS: Final = re.compile(r"ANTHROPIC_|CAVEAT_|SSL_|\w+_PROXY$", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_PATTERNS: Final = (
    (re.compile(r"\b(?:sk|pk|key)-[\w-]{6,}"), "(key)"),
    (re.compile(r"(?<=://)[^/@\s\"]+@"), "(login)@"),
    (re.compile(r"(?i)(?<=[?&])([\w-]*(?:key|token|secret|password|auth)[\w-]*)=[^&\s\"]+"), r"\1=(secret)"),
    (re.compile(r"(?i)bearer\s+[\w.~+/-]+=*"), "Bearer (key)"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "(e-mail)"),
)


def _redacted(text: str, settings: Settings) -> str:
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6]
    folders = [(settings.docs, "(docs)"), (settings.home, "(home)"), (Path.cwd(), "(here)"), (Path.home(), "~")]
    replaced = [(value, "(secret)") for value in secrets]
    replaced += [(str(folder.resolve()), shown) for folder, shown in folders if folder]
    for value, shown in sorted(replaced, key=lambda pair: -len(pair[0])):
        text = text.replace(json.dumps(value, ensure_ascii=False)[1:-1], shown)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    for name, shown in ((_user(), "(user)"), (socket.gethostname(), "(machine)")):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, text) if len(name) > 2 else text
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
