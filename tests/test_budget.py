"""What a run may spend: prices, limits, the estimate, and how each limit ends in a report."""

from __future__ import annotations

import asyncio
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import caveat
from caveat import Report, research
from caveat.budget import Budget, Limits, Usage, dollars, duration, estimate
from caveat.events import RunStarted
from caveat.prices import TurnUsage, as_of, price_of
from caveat_tools.clock import FakeClock, SystemClock
from caveat_tools.retry import RetryPolicy
from caveat_tools.source import Ask, Page
from caveat_tools.stop import Stop
from scripted import ScriptedModel, ScriptedSource, message, passage, tool_use

PRICES = tomllib.loads((Path(caveat.__file__).parent / "prices.toml").read_text())
MILLION = 1_000_000


def test_every_listed_model_has_a_price_of_each_kind_and_the_list_has_a_date() -> None:
    """A reader of a report can see how old its prices are, and no price is nothing."""
    assert date.fromisoformat(as_of()) <= date.fromisoformat("2026-12-31")
    for name in PRICES["models"]:
        price = price_of(name)
        assert price is not None
        assert min(price.rates.input, price.rates.output, price.rates.cache_write, price.rates.cache_read) > 0


def test_each_kind_of_token_has_its_own_price() -> None:
    """A cached prompt costs what the list says for the cache, and not what a fresh one does."""
    price = price_of("claude-sonnet-5-5")
    assert price is not None
    assert price.cost(TurnUsage(input=MILLION)) == pytest.approx(2.0)
    assert price.cost(TurnUsage(cache_write=MILLION)) == pytest.approx(2.5)
    assert price.cost(TurnUsage(cache_read=MILLION)) == pytest.approx(0.1)
    assert price.cost(TurnUsage(output=MILLION)) == pytest.approx(10.0)


def test_a_long_prompt_has_its_own_price_where_the_model_has_one() -> None:
    """Each turn is priced by the size of its own prompt, caches included."""
    price = price_of("claude-haiku-5-5")
    assert price is not None
    assert price.cost(TurnUsage(input=100_000)) == pytest.approx(0.01)
    assert price.cost(TurnUsage(input=50_000, cache_read=50_001)) == pytest.approx(0.025 + 0.0025, rel=1e-3)


def test_a_model_with_a_date_behind_its_name_has_the_price_of_the_model() -> None:
    """And one that nobody knows has none."""
    assert price_of("claude-haiku-4-5-20251001") == price_of("claude-haiku-4-5")
    assert price_of("gemma3-270m") is None


def test_usage_counts_tokens_and_cost_and_survives_nonsense() -> None:
    """A server that counts nothing, or sends no numbers, costs nothing and breaks nothing."""
    price = price_of("claude-sonnet-5-5")
    usage = Usage(price)
    usage.add({"input_tokens": 1_000, "cache_read_input_tokens": 9_000, "output_tokens": 100}, price)
    nonsense: list[object] = [None, [], {"input_tokens": "7", "output_tokens": True}, {"input_tokens": -5}]
    for nothing in nonsense:
        usage.add(nothing, price)
    assert (usage.input_tokens, usage.output_tokens, usage.tokens) == (10_000, 100, 10_100)
    assert usage.cost == pytest.approx((1_000 * 2 + 9_000 * 0.1 + 100 * 10) / MILLION)
    unknown = Usage()
    unknown.add({"input_tokens": 1_000}, None)
    assert unknown.cost is None


def test_a_server_that_answers_with_another_model_has_no_cost() -> None:
    """A local server takes any name for its own model; what the named one costs says nothing about it."""
    usage = Usage(price_of("claude-sonnet-5-5"))
    usage.add({"input_tokens": 1_000}, price_of("SmolLM2-135M"))
    assert usage.cost is None


def spent(limits: Limits, *, tokens: int = 0, seconds: float = 0.0) -> Budget:
    price, clock = price_of("claude-sonnet-5-5"), FakeClock()
    usage = Usage(price)
    budget = Budget(limits, usage, clock)
    usage.add({"input_tokens": tokens}, price)
    clock.slept.append(seconds)
    return budget


def test_retrieval_leaves_a_reserve_for_the_report() -> None:
    """At 85 % of any limit retrieval ends; what writes the report may go on to the whole of it."""
    assert set(spent(Limits(tokens=1_000), tokens=849).met()) == set()
    budget = spent(Limits(tokens=1_000), tokens=850)
    assert budget.met() == {"tokens": "1,000 tokens"}
    assert budget.without_reserve().met() == {}
    assert spent(Limits(cost=0.001), tokens=430).met() == {"cost": "$0.0010"}
    late = spent(Limits(seconds=60), seconds=55)
    assert late.met() == {"time": "1 min"}
    assert late.without_reserve().met() == {}


def test_the_model_is_warned_before_a_limit_is_met() -> None:
    """At four fifths of what it may spend."""
    budget = spent(Limits(tokens=1_000), tokens=700)
    assert (set(budget.met()), set(budget.nearly_met())) == (set(), {"tokens"})


def test_a_limit_of_cost_without_a_price_is_not_named() -> None:
    """Nobody is told of a limit that cannot be kept."""
    budget = Budget(Limits(), Usage(), FakeClock())
    assert set(budget.in_words()) == {"tokens", "time"}


@given(st.integers(1, 10**6), st.integers(1_000, 10**6), st.floats(0.001, 100))
def test_an_estimate_never_exceeds_the_limits(first: int, tokens: int, cost: float) -> None:
    """Whatever the prompt's size; and without a price it names tokens only."""
    limits = Limits(tokens=tokens, cost=cost)
    likely = estimate(first, price_of("claude-sonnet-5-5"), limits)
    assert 0 < likely.tokens <= tokens
    assert likely.cost is not None
    assert 0 < likely.cost <= cost
    assert estimate(first, None, limits).cost is None


@pytest.mark.parametrize(
    ("amount", "words"), [(0.0, "$0.00"), (0.0123, "$0.0123"), (0.5, "$0.50"), (1.0, "$1.00"), (1234.5, "$1,234.50")]
)
def test_money_is_shown_with_the_digits_that_matter(amount: float, words: str) -> None:
    """A tenth of a cent is not shown as nothing."""
    assert dollars(amount) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45, "45 s"), (90, "90 s"), (60, "1 min"), (1800, "30 min"), (7200, "2 h"), (150, "2.5 min")],
)
def test_time_is_shown_in_its_own_unit(seconds: float, words: str) -> None:
    """As people say it."""
    assert duration(seconds) == words


async def test_a_fake_clock_rings_when_enough_was_slept_elsewhere() -> None:
    """A test of a time limit takes no time."""
    clock = FakeClock()
    alarm = asyncio.ensure_future(clock.wait_until(10.0))
    await clock.sleep(9.0)
    assert not alarm.done()
    await clock.sleep(1.0)
    await asyncio.wait_for(alarm, 1)


async def test_the_real_clock_returns_at_once_for_a_moment_that_has_passed() -> None:
    """And keeps nothing waiting."""
    clock = SystemClock()
    await asyncio.wait_for(clock.wait_until(clock.monotonic() - 5), 1)


# ---- whole runs


SENTENCE = "The Kariba Dam was finished in 1959 after five years of work."
SEARCH = [tool_use("search", topic_id="T1", source="wiki", query="kariba dam")]
EVIDENCE = {"topic_id": "T1", "text": "It was finished in 1959.", "evidence": [{"id": "S1", "quote": SENTENCE}]}
FINDINGS = [tool_use("report_findings", findings=[EVIDENCE])]
SECTIONS = [tool_use("write_sections", sections=[{"topic_id": "T1", "text": "It was finished in 1959 [C1]."}])]


class SlowSource(ScriptedSource):
    """Takes its time by the clock, and then answers."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__([[passage(SENTENCE)]])
        self._clock = clock
        self._seconds = seconds

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        await self._clock.sleep(self._seconds)
        for _ in range(10):
            await asyncio.sleep(0)  # whoever was woken by the clock comes first
        return await super().page(ask, cursor)


async def run(
    *replies: Any, limits: Limits, home: Path, seconds: float = 0.0, name: str = "claude-sonnet-5-5"
) -> tuple[Report, list[Any]]:
    clock = FakeClock()
    events: list[Any] = []
    model = ScriptedModel(replies).model(clock, RetryPolicy(attempts=1), name=name)
    report = await research(
        "When was the Kariba dam finished?",
        sources=[SlowSource(clock, seconds)],
        model=model,
        clock=clock,
        limits=limits,
        home=home,
        on_event=events.append,
    )
    return report, events


async def test_a_report_says_what_it_has_cost_and_by_which_prices(tmp_path: Path) -> None:
    """Every turn is counted, also that which wrote the prose."""
    report, events = await run(SEARCH, FINDINGS, SECTIONS, limits=Limits(), home=tmp_path)
    assert report.run.cost == pytest.approx(3 * (10 * 2 + 5 * 10) / MILLION)
    assert report.run.prices_as_of == as_of()
    assert f"$0.0002 by the prices of {as_of()}" in report.markdown
    [started] = [event for event in events if isinstance(event, RunStarted)]
    assert started.estimate.cost is not None
    assert started.estimate.cost < 1
    assert started.at_most == ("400,000 tokens", "$1.00", "30 min")


async def test_a_model_without_a_price_is_counted_in_tokens_only_and_the_report_says_so(tmp_path: Path) -> None:
    """No cost is made up."""
    report, events = await run(SEARCH, FINDINGS, SECTIONS, limits=Limits(), home=tmp_path, name="my-model")
    assert report.run.cost is None
    assert "30 tokens in, 15 out, cost not known: no price of this model is listed" in report.markdown
    [started] = [event for event in events if isinstance(event, RunStarted)]
    assert started.estimate.cost is None
    assert started.at_most == ("400,000 tokens", "30 min")


def costly(content: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    return message(content, usage={"input_tokens": tokens, "output_tokens": 0})


@pytest.mark.parametrize(
    ("limits", "end", "size"),
    [
        (Limits(cost=0.01), "cost_spent", "$0.0100"),
        (Limits(tokens=5_000), "tokens_spent", "5,000 tokens"),
    ],
)
async def test_spent_money_ends_in_a_report_with_what_was_found(
    limits: Limits, end: str, size: str, tmp_path: Path
) -> None:
    """The model gets one turn to hand over; one that does not use it leaves a report that names the limit."""
    report, _ = await run(costly(SEARCH, 5_000), SEARCH, limits=limits, home=tmp_path)
    assert report.run.end == end
    [gap] = [gap for gap in report.gaps if gap.error_type == end]
    assert f"the limit of {size} was reached" in gap.why
    assert gap.try_next == (f"raise the limit of {end.removesuffix('_spent')} (--max-{end.removesuffix('_spent')})",)
    assert "Passages that matched" in report.markdown
    assert report.exit_code == 3


async def test_the_reserve_pays_for_the_prose(tmp_path: Path) -> None:
    """Retrieval ended at its share of the money; the report is still written by the model."""
    report, _ = await run(costly(SEARCH, 4_300), FINDINGS, SECTIONS, limits=Limits(cost=0.01), home=tmp_path)
    assert report.run.end == "finished"
    assert "It was finished in 1959 [S1]." in report.markdown


async def test_nothing_left_leaves_the_verified_findings_as_they_came(tmp_path: Path) -> None:
    """No turn begins beyond the limit, also not the one that would write the prose."""
    report, _ = await run(
        costly(SEARCH, 4_400), costly(FINDINGS, 1_000), SECTIONS, limits=Limits(cost=0.01), home=tmp_path
    )
    assert report.run.model_calls == 2
    assert "No prose" in report.markdown
    assert "It was finished in 1959." in report.markdown


async def test_time_that_is_over_ends_what_is_under_way(tmp_path: Path) -> None:
    """A slow source is cut short; the report comes, and says that time was the reason."""
    report, _ = await run(SEARCH, FINDINGS, SECTIONS, limits=Limits(seconds=60), home=tmp_path, seconds=61)
    assert report.run.end == "time_spent"
    [gap] = [gap for gap in report.gaps if gap.error_type == "time_spent"]
    assert gap.why == "the research did not come to its end: the limit of 1 min was reached"
    assert gap.try_next == ("raise the limit of time (--max-time)",)
    assert [query.error_type for query in report.topics[0].queries] == ["cancelled"]


async def test_a_person_who_stops_first_is_the_reason(tmp_path: Path) -> None:
    """The first to ask says why."""
    stop = Stop()
    stop.ask()
    stop.ask("time")
    assert stop.reason == "request"


def test_the_limit_of_cost_is_kept_by_the_asked_models_price_where_the_answering_one_has_none() -> None:
    """A limit that is announced is kept; the report's cost stays unknown."""
    usage = Usage(price_of("claude-sonnet-5-5"))
    budget = Budget(Limits(cost=0.01), usage, FakeClock())
    usage.add({"input_tokens": 6_000}, price_of("a-gateway-of-ours"))
    assert usage.cost is None
    assert budget.met() == {"cost": "$0.0100"}


async def test_a_report_says_by_which_price_the_limit_of_cost_was_kept(tmp_path: Path) -> None:
    """Where a gateway answers by a name of its own."""
    renamed = [{**message(content), "model": "a-gateway-of-ours"} for content in (SEARCH, FINDINGS, SECTIONS)]
    report, _ = await run(*renamed, limits=Limits(), home=tmp_path)
    assert report.run.cost is None
    assert "kept by the price of claude-sonnet-5-5; none is listed of a-gateway-of-ours" in report.markdown
