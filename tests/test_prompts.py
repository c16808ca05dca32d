"""The prompts: what they name exists, and all that exists is taught."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

import caveat_prompts
from caveat.budget import Limits
from caveat.coordinator import PlanTopicsTool, ReportFindingsTool, SearchTool
from caveat.ledger import Ledger, State
from caveat.request import prompt_values
from caveat.synthesis import WriteSectionsTool
from caveat_prompts import ROLES, PromptError
from caveat_tools.clock import FakeClock
from caveat_tools.faults import FaultPlan
from caveat_tools.outcome import ALTERNATIVES, ERROR_KINDS, Empty, Failed, Found
from caveat_tools.search import Searcher
from caveat_tools.snapshots import Snapshots
from scripted import ScriptedSource
from servers import refused_url

SOURCES = ("wikipedia", "local")
DATED = [ScriptedSource([], name=name, accepts_dates=name == "local") for name in SOURCES]
UNDATED = [ScriptedSource([], name=name) for name in SOURCES]
VALUES = prompt_values(Limits(), DATED)


def coordinator_tools(sources: Sequence[ScriptedSource] = DATED) -> list[dict[str, Any]]:
    ledger = Ledger("q", FakeClock().now)
    searcher = Searcher(sources, clock=FakeClock(), snapshots=Snapshots([]), faults=FaultPlan())
    return [
        tool.definition() for tool in (PlanTopicsTool(ledger), SearchTool(ledger, searcher), ReportFindingsTool(ledger))
    ]


def names_in_schema(schema: Any) -> set[str]:
    """All property names of a JSON Schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(names_in_schema, schema))
    if not isinstance(schema, dict):
        return set()
    own = set(schema.get("properties", {}))
    return own.union(*(names_in_schema(value) for value in schema.values()))


def wire_names() -> set[str]:
    return set().union(*(names_in_schema(m.model_json_schema(by_alias=True)) for m in (Found, Empty, Failed)))


def identifiers(text: str) -> set[str]:
    """Words of a prompt that can only be names: snake_case or camelCase."""
    return set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]+(?:[A-Z][a-z]+)+\b", text))


@pytest.mark.parametrize("sources", [DATED, UNDATED])
def test_every_name_in_the_coordinators_prompt_exists(sources: Sequence[ScriptedSource]) -> None:
    """No tool, parameter, errorType or alternative is taught that this run does not have."""
    tools = coordinator_tools(sources)
    exist = {tool["name"] for tool in tools} | wire_names() | set(ERROR_KINDS)
    exist |= {name for tool in tools for name in names_in_schema(tool["input_schema"])}
    exist |= {name.split(":")[0] for name in ALTERNATIVES}
    assert identifiers(caveat_prompts.load("coordinator", prompt_values(Limits(), sources))) <= exist


def test_every_name_in_the_synthesis_prompt_exists() -> None:
    """The same for synthesis."""
    tool = WriteSectionsTool({}).definition()
    exist = {tool["name"]} | names_in_schema(tool["input_schema"]) | set(get_args(State))
    assert identifiers(caveat_prompts.load("synthesis", VALUES)) <= exist


def test_all_that_the_coordinator_can_meet_or_do_is_taught() -> None:
    """Every tool, errorType, alternative, status and field of a failure stands in the prompt, every source too."""
    prompt = caveat_prompts.load("coordinator", VALUES)
    must = {tool["name"] for tool in coordinator_tools()} | set(ERROR_KINDS) | set(ALTERNATIVES) | set(SOURCES)
    must |= {"found", "empty", "failed", "servedFrom", "snapshot"}
    must |= set(Failed.model_json_schema(by_alias=True)["properties"]) - {"status", "source", "truncated"}
    assert {name for name in must if name not in prompt} == set()


def test_every_parameter_of_every_tool_is_described() -> None:
    """No parameter is left for the model to guess."""

    def undescribed(schema: Any) -> list[str]:
        if isinstance(schema, list):
            return [name for item in schema for name in undescribed(item)]
        if not isinstance(schema, dict):
            return []
        own = [name for name, prop in schema.get("properties", {}).items() if not prop.get("description")]
        return own + [name for value in schema.values() for name in undescribed(value)]

    assert (
        undescribed([tool["input_schema"] for tool in (*coordinator_tools(), WriteSectionsTool({}).definition())]) == []
    )


def test_every_topic_state_is_explained_to_synthesis() -> None:
    """The states that synthesis is shown are the ones it is told of."""
    prompt = caveat_prompts.load("synthesis", VALUES)
    assert all(state in prompt for state in get_args(State))


@pytest.mark.parametrize("role", ROLES)
def test_no_number_is_typed_into_a_prompt(role: str) -> None:
    """Limits come from code, so that they cannot contradict each other."""
    text = (Path(caveat_prompts.__file__).parent / f"{role}.md").read_text()
    without_lists_and_ids = re.sub(r"^\d\.|\b[SCT]\d\b", "", text, flags=re.MULTILINE)
    assert re.findall(r"\d+", without_lists_and_ids) == []
    assert "$" not in caveat_prompts.load(role, VALUES)


def test_the_sources_stand_in_the_search_tools_schema() -> None:
    """A model can only name a source that is there."""
    search = coordinator_tools()[1]
    assert search["input_schema"]["properties"]["source"]["enum"] == list(SOURCES)
    assert '"title"' not in json.dumps(search)


@pytest.mark.parametrize(
    ("text", "hint"), [("$nonsense", "nonsense"), ("costs $ 5", "write \\$\\$"), (b"\xff\xfe\xfa", "cannot be read")]
)
def test_a_prompt_file_that_cannot_be_used_says_why(tmp_path: Path, text: Any, hint: str) -> None:
    """A wrong placeholder, a lone dollar sign, a file that is no text."""
    path = tmp_path / "coordinator.md"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PromptError, match=hint):
        caveat_prompts.load("coordinator", VALUES, path)


def test_the_iteration_script_prints_what_was_done_after_each_failure(tmp_path: Path) -> None:
    """One question, one prompt file, one fault: a line for each query, with the decision after each failure."""
    root = Path(__file__).parent.parent
    (tmp_path / "dam.md").write_text("The Kariba Dam was finished in 1959.")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_"))}
    environment |= {"CAVEAT_HOME": str(tmp_path / "home"), "CAVEAT_WIKIPEDIA_URL": refused_url()}
    script, prompt = root / "prompts" / "try_coordinator.py", root / "prompts" / "caveat_prompts" / "coordinator.md"
    arguments = [str(prompt), "Kariba Dam finished", "--docs", str(tmp_path), "--inject", "local:timeout*3"]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "local “Kariba Dam finished”: timeout → retried_changed" in done.stdout
    wrong = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "no.md"), *arguments[1:]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "prompt cannot be read" in wrong.stderr
