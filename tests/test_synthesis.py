"""Synthesis: prose that holds is used, prose that does not goes back once, and then its claims speak."""

from __future__ import annotations

from typing import Any

import pytest

from caveat.budget import Budget, Limits
from caveat.claims import Claim, check
from caveat.synthesis import Synthesis, TopicClaims, numbers_in, paragraph_problem, synthesise
from caveat_tools.clock import FakeClock
from caveat_tools.retry import RetryPolicy
from caveat_tools.stop import Stop
from scripted import ScriptedModel, text, tool_use

STORED = {"S1": "The Kariba Dam was finished in 1959 and is 128 metres high.", "S2": "Filling took until 1963."}


def claim(words: str, evidence: str, topic: str = "T1") -> Claim:
    return check(words, topic, [(evidence, STORED[evidence])], STORED)


CLAIMS = {"C1": claim("It was finished in 1959.", "S1"), "C2": claim("It was full in 1963.", "S2")}
TOPIC = TopicClaims("T1", "Kariba", "covered", CLAIMS)


async def written(*replies: Any) -> tuple[Synthesis, ScriptedModel]:
    script = ScriptedModel(replies)
    model = script.model(policy=RetryPolicy(attempts=1))
    budget = Budget(Limits(), model.usage, FakeClock())
    return await synthesise("When?", [TOPIC], model=model, system="s", budget=budget, stop=Stop()), script


def sections(*texts: str) -> list[dict[str, Any]]:
    return [tool_use("write_sections", sections=[{"topic_id": "T1", "text": words} for words in texts])]


async def test_prose_that_cites_its_claims_is_used() -> None:
    """A section with citations and no new numbers is the topic's text."""
    result, script = await written(sections("The dam was finished in 1959 [C1] and was full in 1963 [C2]."))
    assert result.sections == {"T1": "The dam was finished in 1959 [C1] and was full in 1963 [C2]."}
    assert (result.end.reason, len(script.requests)) == ("finished", 1)


async def test_prose_that_does_not_hold_goes_back_once_and_can_be_mended() -> None:
    """The model hears what is wrong and may send the section again."""
    result, script = await written(sections("It was finished long ago."), sections("It was finished in 1959 [C1]."))
    assert result.sections == {"T1": "It was finished in 1959 [C1]."}
    assert "cites no claim" in script.results(1)[0]["content"]["problems"][0]["problem"]


async def test_prose_that_fails_twice_is_left_out_with_the_reason() -> None:
    """Nothing unfounded is printed: the claims stand in for the text, and the reason is kept."""
    result, _ = await written(sections("It cost 480 million [C1]."))
    assert result.sections == {}
    assert "480" in result.rejected["T1"]


async def test_a_model_that_only_talks_gives_no_prose_and_no_crash() -> None:
    """A local model without tools leaves the claims as they are."""
    result, _ = await written([text("Here is the answer.")])
    assert result.sections == {}
    assert result.end.reason == "no_report"


@pytest.mark.parametrize(
    ("paragraph", "problem"),
    [
        ("Finished in 1959 [C1].", None),
        ("Finished in 1959 and full in 1963 [C1, C2].", None),
        ("It is 128 metres high [C1].", None),
        ("Finished in 1959.", "cites no claim"),
        ("Finished in 1959 [C9].", "no claim C9"),
        ("Finished in 1960 [C1].", "the number 1960"),
        ("Full in 1963 [C1].", "the number 1963"),
        ("Finished in 1959 [S1].", "only claims can be cited"),
        ("Finished in 1959 [C1]. Experts agree [S9].", "only claims can be cited"),
        ("## A heading", "headings"),
        ("Finished in 1959 [C1].\n# Everything covered\nNo source failed.", "headings"),
        ("Everything covered [C1]\n======", "headings"),
        ("> No language model was used. [C1]", "headings"),
        ("| a | b |\n| --- | --- |\n| [C1] | c |", "headings"),
        ("Finished in 1959 [C1].\n[C1]: https://evil.example/", "headings"),
        ("What could not be looked up [C1]\n--", "headings"),
        ("- ## Coverage [C1]", "headings"),
        ("1. # Coverage [C1]", "headings"),
        ("1. - ## What could not be looked up\n     Nothing. [C1]", "headings"),
        ("1. 1959. ## Coverage [C1]", "headings"),
        ("1. 1959. - ```\n[C1]", "headings"),
        ("- > No language model was used [C1]", "headings"),
        ("1. > quoted [C1]", "headings"),
        ("Finished [C1]\n1. ---", "headings"),
        ("topic [C1] | state\n--- | ---\nall topics | covered", "headings"),
        ("Finished [C1].\n* * *", "headings"),
        ("Finished [C1].\n*\n*\n*", "headings"),
        ("Finished [C1].\n1. * _ *", "headings"),
        ("Finished [C1].\n- [what\nelse]: https://evil.example/", "headings"),
        ("- Finished in 1959 [C1].\n- Full in 1963 [C2].", None),
        ("1. Finished in 1959 [C1].\n2. Full in 1963 [C2].", None),
        ("* **Finished** in 1959 - and not later [C1].", None),
        ("Opened in\n1959. [C1]", None),
        ("Opened in \u00b9\u2079\u2076\u2070 [C1].", "the number 1960"),
        ("It took \u00bd a year [C1].", "the number 1"),
        ("It took \u246b years [C1].", "the number 12"),
        ("Finished in \uff11\uff19\uff15\uff19, of 3 km\u00b2 [C1].", "the number 3 "),
        ("Finished in \uff11\uff19\uff15\uff19, in km\u00b2 and without CO\u2082 [C1].", None),
        ("", None),
    ],
)
def test_a_paragraph_holds_only_if_what_it_cites_exists_and_has_its_numbers(
    paragraph: str, problem: str | None
) -> None:
    """Citations must exist, and a number must stand in a claim that the same paragraph cites."""
    found = paragraph_problem(paragraph, CLAIMS)
    assert found is None if problem is None else problem in str(found)


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize("part", ["* ", "- ", "1. ", "*\n", "[\n", "[C1", "[C1 ,", "1", "1.", "_ ", "|\n", "- [x"])
def test_hostile_prose_does_not_keep_the_check_busy(part: str) -> None:
    """Prose that a model repeats without end is checked, and the check ends."""
    paragraph_problem(part * (50_000 // len(part)) + "x", CLAIMS)


async def test_a_section_that_is_too_long_to_be_prose_is_refused_in_plain_words() -> None:
    """A model that writes without end is told how long a section may be, and its claims speak."""
    result, _ = await written(sections("Finished in 1959 [C1]. " * 1_000))
    assert result.sections == {}
    assert result.rejected == {"T1": "the section is longer than 20,000 characters"}


def test_numbers_are_compared_by_value_and_not_by_spelling() -> None:
    """1,230 and 1230 are one number; 3.7 and 37 are two."""
    assert numbers_in("1,230 MW and 3,7 %") == {"1230", "3.7"}
    assert numbers_in("1\u00a0230") == {"1230"}
    assert numbers_in("3.7") != numbers_in("37")
