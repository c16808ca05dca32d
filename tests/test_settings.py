"""Settings: four places, each stronger than the one before, and clear words for what cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat.settings import FOLDER_KEYS, Settings, SettingsError, read_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_BASE_URL", *(f"CAVEAT_{field.upper()}" for field in Settings.model_fields)):
        monkeypatch.delenv(name, raising=False)


def test_each_place_is_stronger_than_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's file, the user's file, the environment, flags; and each value says where it is from."""
    user = tmp_path / "config.toml"
    (tmp_path / "caveat.toml").write_text("max_calls = 1\nmax_turns = 2\nmax_tokens = 3000\nmax_cost = 4\n")
    user.write_text("max_turns = 20\nmax_tokens = 30000\nmax_cost = 40\n")
    monkeypatch.setenv("CAVEAT_MAX_TOKENS", "300000")
    monkeypatch.setenv("CAVEAT_MAX_COST", "400")
    settings, origins = read_settings({"max_cost": 4_000.0, "model": None}, folder=tmp_path, file=user)
    assert (settings.max_calls, settings.max_turns, settings.max_tokens, settings.max_cost) == (1, 20, 300_000, 4_000)
    assert [origins[name].kind for name in ("max_calls", "max_turns", "max_tokens", "max_cost", "model")] == [
        "folder's file",
        "user's file",
        "environment",
        "flag",
        "default",
    ]
    assert origins["max_cost"].name == "--max-cost"
    assert origins["max_tokens"].name == "CAVEAT_MAX_TOKENS"
    assert str(user) in origins["max_turns"].name


def test_without_any_place_there_are_defaults(tmp_path: Path) -> None:
    """Files that do not exist are no error."""
    settings, origins = read_settings({}, folder=tmp_path, file=tmp_path / "none.toml")
    assert settings == Settings()
    assert {origin.kind for origin in origins.values()} == {"default"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_cots = 1", "max_cots, which is no setting; did you mean max_cost"),
        ("zzz = 1", "zzz, which is no setting; there are: "),
        ("[table]\nx = 1", "table, which is no setting"),
        ("max_cost = 'a lot'", "'a lot' is not possible: input should be a valid number"),
        ("max_cost = -1", "greater than 0"),
        ("max_cost = nan", "max_cost: 'nan' is not possible"),
        ("max_turns = 1", "greater than or equal to 2"),
        ("max_time = 'soon'", "max_time: 'soon' is not possible"),
        ("max_calls = 10000000000000000000000", "less than or equal to 500"),
        ("sources = 7", "sources: '7' is not possible"),
        ("model = ''", "at least 1 character"),
        ("api_key = 'sk-ant-secret'", "keys are not kept in files; set ANTHROPIC_API_KEY"),
        ("base_url = 'http://evil.example'", "a folder's file cannot: whoever wrote the folder"),
        ("wikipedia_url = 'http://evil.example'", "a folder's file cannot"),
        ("not toml", "is not TOML"),
        ("x = " + "[" * 3_000, "nested too deeply"),
        ("max_calls = " + "1" * 5_000, "is not TOML"),
        ("docs = 5", "docs: '5' is not possible: a path is a text"),
        ('docs = "a\\u0000b"', "no path holds a NUL character"),
        ('"two\\nlines" = 1', "sets two lines, which is no setting"),
        ('max_time = "1h30m"', "'1h30m' is not possible: a time is seconds, or like 90s, 30m or 2h"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_possible(text: str, words: str, tmp_path: Path) -> None:
    """The message says which file and which setting; a key's value is never repeated."""
    (tmp_path / "caveat.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings({}, folder=tmp_path)
    assert words in str(caught.value)
    assert "caveat.toml" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_users_own_file_may_set_addresses(tmp_path: Path) -> None:
    """It is the user's; a base URL there is one place less to type it."""
    user = tmp_path / "config.toml"
    user.write_text('base_url = "http://127.0.0.1:8080/prefix"\ncontact = "me@example.org"\n')
    settings, _ = read_settings({}, file=user)
    assert (settings.base_url, settings.contact) == ("http://127.0.0.1:8080/prefix", "me@example.org")
    assert not {"base_url", "home", "contact", "wikipedia_url"} & FOLDER_KEYS


def test_the_variable_of_the_sdk_names_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """ANTHROPIC_BASE_URL is what every tool of the kind reads."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1/x")
    settings, origins = read_settings()
    assert settings.base_url == "http://127.0.0.1:1/x"
    assert origins["base_url"].name == "ANTHROPIC_BASE_URL"


def test_an_unknown_variable_is_an_error_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that was misspelt must not be no limit."""
    monkeypatch.setenv("CAVEAT_MAX_COTS", "0.10")
    with pytest.raises(SettingsError, match=r"CAVEAT_MAX_COTS.*did you mean CAVEAT_MAX_COST"):
        read_settings()


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As shells and containers set it."""
    monkeypatch.setenv("CAVEAT_MODEL", "")
    assert read_settings()[0].model == Settings().model


def test_relative_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    """A project can be asked from its own folder, wherever it lies; ~ is the user's home."""
    (tmp_path / "caveat.toml").write_text('docs = "notes"\n')
    assert read_settings({}, folder=tmp_path)[0].docs == tmp_path / "notes"
    (tmp_path / "caveat.toml").write_text('docs = "~/notes"\n')
    assert read_settings({}, folder=tmp_path)[0].docs == Path("~/notes").expanduser()


@pytest.mark.parametrize(("given_", "seconds"), [("90s", 90), ("30m", 1_800), ("1.5h", 5_400), ("45", 45), (45, 45)])
def test_time_has_a_unit_or_is_seconds(given_: str | int, seconds: float) -> None:
    """As people write it."""
    assert read_settings({"max_time": given_})[0].max_time == seconds


@pytest.mark.parametrize("sources", ["local, wikipedia", ["local", "wikipedia"], ("local", "wikipedia")])
def test_sources_are_a_list_or_words_with_commas(sources: object) -> None:
    """In a file, in the environment and as a flag."""
    assert read_settings({"sources": sources})[0].sources == ("local", "wikipedia")


@given(st.binary(max_size=200))
def test_any_file_gives_settings_or_a_sentence(data: bytes) -> None:
    """No bytes in caveat.toml end in a traceback."""
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "caveat.toml").write_bytes(data)
        try:
            read_settings({}, folder=Path(folder))
        except SettingsError as error:
            assert str(error)


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_what_is_no_file_in_the_place_of_one_is_a_sentence(kind: str, tmp_path: Path) -> None:
    """It is said and not ignored, and a pipe is not waited for."""
    path = tmp_path / "caveat.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(SettingsError, match=r"caveat\.toml is no file"):
        read_settings({}, folder=tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_setting(tmp_path: Path) -> None:
    """As editors on Windows write it."""
    (tmp_path / "caveat.toml").write_bytes(b"\xef\xbb\xbfmax_calls = 7\n")
    assert read_settings({}, folder=tmp_path)[0].max_calls == 7


def test_the_time_of_a_flag_names_its_forms() -> None:
    """`--max-time 1h30m` says how to write it."""
    with pytest.raises(SettingsError, match=r"--max-time: '1h30m' .* 90s, 30m or 2h"):
        read_settings({"max_time": "1h30m"})
