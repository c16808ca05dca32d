"""Titles and abstracts with markup become text that says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.markup import markup_text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("plain words", "plain words"),
        ("<jats:p>One.</jats:p>\n  <jats:p>Two.</jats:p>", "One.\n\nTwo."),
        ("<jats:title>Abstract</jats:title><jats:p>One.</jats:p>", "One."),
        ("<jats:title>ABSTRACT</jats:title>", "ABSTRACT"),
        (
            "<jats:sec><jats:title>Aim</jats:title><jats:p>To <jats:bold>see</jats:bold>.</jats:p></jats:sec>",
            "Aim\n\nTo see.",
        ),
        ("<p>a &lt; b &amp; c&#x2009;d</p>", "a < b & c d"),
        ("a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
        ("10<jats:sup>9</jats:sup> cells<sup>a</sup>, H<sub>2</sub>O", "10^9 cellsa, H2O"),
        ("a<b and c>d & <b>e", "a<b and c>d & e"),
        (
            "<mml:math xmlns:mml='m'>22×<mml:msup><mml:mn>10</mml:mn><mml:mn>9</mml:mn></mml:msup></mml:math>",
            "22×10^9",
        ),
        ("<mml:mfrac><mml:mn>1</mml:mn><mml:mn>2</mml:mn></mml:mfrac>", "1/2"),
        ("<mml:msubsup><mml:mi>x</mml:mi><mml:mn>1</mml:mn><mml:mn>2</mml:mn></mml:msubsup>", "x_1^2"),
        (
            "<jats:inline-formula><jats:tex-math>$x$</jats:tex-math><mml:math>x</mml:math></jats:inline-formula>",
            "x",
        ),
        ("p<0.05 and <i>q</i>>2<p>x", "p<0.05 and q>2\n\nx"),
        ("a<b and c>d", "a<b and c>d"),
        ("AT&T &nbsp; <jats:p>x", "AT&T\n\nx"),
        ("10<sup>9</sup> and the 9<sup>th</sup> & more", "10^9 and the 9th & more"),
        ("<!-- unseen --><p>seen</p>", "seen"),
        ("", ""),
        ("<jats:p/>", ""),
    ],
)
def test_markup_becomes_text_that_says_the_same(markup: str, text: str) -> None:
    """Well-formed or not; a power is not a longer number."""
    assert markup_text(markup) == text


@pytest.mark.parametrize("unit", ["<", "<jats:", "<jats:p ", "&", "&#9", "<p>", "<a<b", " \n", "<!DOCTYPE x>"])
def test_hostile_markup_is_only_text(unit: str) -> None:
    """A megabyte of it is cut before it is read, and neither nesting nor a document type ends the run."""
    assert len(markup_text(f"tea {unit * (1_000_000 // len(unit))}")) <= 100_000


@given(st.text(st.sampled_from("<>/&;ab p:\njatsmupx\"'="), max_size=60))
def test_any_markup_is_text(markup: str) -> None:
    """Whatever is opened and never closed."""
    assert markup_text(markup) == markup_text(markup).strip()
