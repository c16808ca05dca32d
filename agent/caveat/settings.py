"""Settings: what can be set, in which of four places, and which of them wins.

From the weakest to the strongest: `caveat.toml` in the current folder, the user's own file, the environment, flags. The
folder's file is the weakest because it may be somebody else's; for the same reason it cannot set an address.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, PlainSerializer, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from caveat.budget import Limits
from caveat.places import index_folder, user_file
from caveat_tools.names import SOURCE_NAMES
from caveat_tools.network import without_password
from caveat_tools.plain_text import one_line
from caveat_tools.sources import SourceSettings

DEFAULT_MODEL: Final = "claude-sonnet-5-5"
FILE_NAME: Final = "caveat.toml"
KEY_VARIABLES: Final = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
"""Any of these means that a hosted model is to be asked. Keys stand in no file."""

_LIMITS: Final = Limits()

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)]
_TIME: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(?P<unit>[smh]?)")
_ADDRESS: Final = r"^https?://\S+$"
Address = Annotated[str, Field(pattern=_ADDRESS, max_length=500)]


class SettingsError(ValueError):
    """A setting that cannot be used: which, where it stands, and what is possible."""


class Settings(BaseSettings):
    """Every setting of caveat, checked. Read with `read_settings`."""

    model_config = SettingsConfigDict(env_prefix="CAVEAT_", env_ignore_empty=True, extra="forbid", frozen=True)

    docs: Path | None = Field(default=None, description="folder of your documents, for the source local")
    sources: Annotated[
        tuple[str, ...] | None,
        NoDecode,
        PlainSerializer(lambda names: names and ",".join(names), return_type=str | None),
    ] = Field(default=None, description=f"sources to use, in order: {', '.join(SOURCE_NAMES)}")
    model: str = Field(default=DEFAULT_MODEL, description="the model to ask", min_length=1, max_length=200)
    base_url: Address | None = Field(default=None, description="address of the Messages API (ANTHROPIC_BASE_URL)")
    offline: bool = Field(default=False, description="use the embedded stand-in even if a key is set")
    max_turns: int = Field(default=_LIMITS.turns, ge=2, le=100, description="model turns at most")
    max_calls: int = Field(default=_LIMITS.calls, ge=1, le=500, description="searches at most")
    max_tokens: int = Field(default=_LIMITS.tokens, ge=1_000, le=10**9, description="tokens at most, in and out")
    max_cost: float | None = Field(
        default=_LIMITS.cost, gt=0, le=10_000, allow_inf_nan=False, description="US dollars at most"
    )
    max_time: Seconds = Field(default=_LIMITS.seconds, description="seconds at most, or 90s, 30m, 2h")
    contact: str = Field(
        default="", max_length=200, description="your address, sent to public services in the User-Agent"
    )
    home: Path | None = Field(default=None, description="where runs, indexes and stored answers are kept")
    wikipedia_url: Address | None = Field(default=None, description="another MediaWiki API; {language} is the query's")
    openalex_url: Address | None = Field(default=None, description="another address of OpenAlex")
    arxiv_url: Address | None = Field(default=None, description="another address of arXiv's API")
    crossref_url: Address | None = Field(default=None, description="another address of Crossref's API")

    @field_validator("sources", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Take "local, wikipedia" for a list of names."""
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("max_time", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        """Take "90s", "30m" and "2h" for seconds."""
        if not isinstance(value, str):
            return value
        found = _TIME.fullmatch(value.strip())
        if found is None:
            raise ValueError("a time is seconds, or like 90s, 30m or 2h")
        return float(found["number"]) * {"": 1, "s": 1, "m": 60, "h": 3_600}[found["unit"]]

    @field_validator("docs", "home", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        """Refuse what is no path, in words that name no class."""
        if value is not None and not isinstance(value, str | os.PathLike):
            raise ValueError('a path is a text, such as "notes"')
        if value is not None and "\0" in os.fspath(value):
            raise ValueError("no path holds a NUL character")
        return value

    @field_validator("docs", "home")
    @classmethod
    def _expanded(cls, value: Path | None) -> Path | None:
        try:
            return value.expanduser() if value else None
        except RuntimeError as error:
            raise ValueError(f"{value}: {error}") from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what is handed in: `read_settings` reads the places one by one, to know what is from where."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    def limits(self) -> Limits:
        """Return what a run may spend."""
        return Limits(
            turns=self.max_turns,
            calls=self.max_calls,
            tokens=self.max_tokens,
            cost=self.max_cost,
            seconds=self.max_time,
        )

    def asked_sources(self) -> tuple[str, ...]:
        """Return the sources that a question is put to: those that are set, else local (with docs) and wikipedia."""
        return self.sources or (("local", "wikipedia") if self.docs else ("wikipedia",))

    def for_sources(self) -> SourceSettings:
        """Return what opening a source needs to know."""
        addresses = {name: getattr(self, f"{name}_url", None) for name in SOURCE_NAMES}
        return SourceSettings(
            docs=self.docs,
            index=index_folder(self.home),
            contact=self.contact,
            addresses={name: address for name, address in addresses.items() if address},
        )


FOLDER_KEYS: Final = frozenset(
    {"docs", "sources", "model", "offline", "max_turns", "max_calls", "max_tokens", "max_cost", "max_time"}
)
"""What a folder's file may set. Addresses would let whoever wrote the folder choose where keys and questions go."""

_SECRETS: Final = frozenset({"api_key", "key", "token", "auth_token", "anthropic_api_key"})


class Origin(NamedTuple):
    """Where a value is from: the kind of place, and the file, variable or flag."""

    kind: str
    name: str

    def in_words(self) -> str:
        """Return both, or the kind alone where there is no name."""
        return " ".join(filter(None, self))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One place with the values that stand in it, by setting."""

    kind: str
    values: Mapping[str, Any]
    names: Mapping[str, str]


def read_settings(
    flags: Mapping[str, Any] | None = None, *, folder: Path | None = None, file: Path | None = None
) -> tuple[Settings, dict[str, Origin]]:
    """Return the settings, and for each where it is from.

    `flags` hold what is not None; `folder` is the folder whose caveat.toml counts, `file` the user's own file; where
    either is None, none counts. Raises SettingsError.
    """
    layers = list(_layers(flags or {}, folder, file))
    values: dict[str, Any] = {}
    origins = {name: Origin("default", "") for name in Settings.model_fields}
    for layer in layers:
        values |= layer.values
        origins |= {name: Origin(layer.kind, layer.names[name]) for name in layer.values}
    try:
        return Settings(**values), origins
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        where = origins[name].name
        said = problem["msg"].removeprefix("Value error, ")
        value = str(values[name])
        shown = one_line(without_password(value) if name.endswith("_url") else value, 80)
        raise SettingsError(f"{where}: {shown!r} is not possible: {_said(said)}") from error


def _said(message: str) -> str:
    if "pattern" in message:
        return "an address begins with http:// or https:// and holds no spaces"
    return message[:1].lower() + message[1:]


def _layers(flags: Mapping[str, Any], folder: Path | None, file: Path | None) -> Iterator[_Layer]:
    if folder is not None:
        yield _file_layer("folder's file", folder / FILE_NAME, FOLDER_KEYS)
    if file is not None:
        yield _file_layer("user's file", file, frozenset(Settings.model_fields))
    yield _environment()
    given = {name: value for name, value in flags.items() if value is not None}
    yield _Layer("flag", given, {name: f"--{name.replace('_', '-')}" for name in given})


def _environment() -> _Layer:
    values = dict(EnvSettingsSource(Settings)())
    names = {name: f"CAVEAT_{name.upper()}" for name in values}
    unknown = [
        name
        for name in os.environ
        if name.startswith("CAVEAT_") and name.removeprefix("CAVEAT_").lower() not in Settings.model_fields
    ]
    if unknown:
        possible = [f"CAVEAT_{name.upper()}" for name in Settings.model_fields]
        raise SettingsError(f"the environment sets {unknown[0]}, which is no setting; {_nearest(unknown[0], possible)}")
    address = os.environ.get("ANTHROPIC_BASE_URL")
    if address:
        values["base_url"], names["base_url"] = address, "ANTHROPIC_BASE_URL"
    return _Layer("environment", values, names)


def _file_layer(kind: str, path: Path, possible: frozenset[str]) -> _Layer:
    values = _file_values(path)
    for name in values:
        shown = one_line(name, 60)
        if name.lower() in _SECRETS:
            raise SettingsError(f"{path} sets {shown}: keys are not kept in files; set ANTHROPIC_API_KEY instead")
        if name not in Settings.model_fields:
            raise SettingsError(f"{path} sets {shown}, which is no setting; {_nearest(name, sorted(possible))}")
        if name not in possible:
            raise SettingsError(
                f"{path} sets {name}, which a folder's file cannot: whoever wrote the folder would choose where keys "
                f"and questions go. Set it in {user_file()} or in the environment"
            )
    for name in ("docs", "home"):
        if isinstance(values.get(name), str) and not values[name].startswith("~"):
            values[name] = path.parent / values[name]
    return _Layer(kind, values, {name: f"{path}: {name}" for name in values})


def _file_values(path: Path) -> dict[str, Any]:
    """Return what stands in a file; nothing where there is none. What is there and no file is an error."""
    if not os.path.lexists(path):
        return {}
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a folder on the way cannot be entered
        raise SettingsError(f"{path} is no file that can be read: it is a folder, a pipe, or a link that leads nowhere")
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise SettingsError(f"{path} is not usable TOML: it is nested too deeply") from error
    except ValueError as error:  # not UTF-8, not TOML, or a number with more digits than Python reads
        raise SettingsError(f"{path} is not TOML: {one_line(str(error), 200)}") from error


def _nearest(word: str, possible: list[str]) -> str:
    near = difflib.get_close_matches(word, possible, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(possible)}"
