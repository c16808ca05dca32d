"""Which sentences of the passages found answer a topic."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, Final

from caveat.stand_in.calls import Body
from caveat_tools.words import content_terms, sentences, terms

MAX_FINDINGS: Final = 3
"""For one topic."""
NOTHING_TO_QUOTE: Final = "nothing to quote was found for: {}"
"""The open point of a topic without a finding."""
_ENOUGH: Final = {1: 1.0, 2: 0.6, 3: 0.5}
"""Share of a topic's weighted terms that a sentence must hold to be reported, by the number of terms it holds, up to 3.

Measured on XQuAD (English, Russian, Chinese) with the five best of 240 passages, without titles: where all passages of
the question's article are taken away, 2.1, 1.5 and 0.3 % of the questions still get a finding; where they are there,
the sentence with the answer is among the findings for 66, 58 and 57 %.
"""
_ABOUT: Final = 0.5
"""What a term counts that stands in the passage's title or address and not in the sentence."""
_BEST_TERMS, _NAMED_TERMS, _BEST_SHARE = 4, 2, 0.3
"""Where no sentence has enough, those will do that hold this share and the first number of terms, or the second number
in a section whose heading is made of the topic's words."""
WORD: Final = re.compile(r"\w+(?:[-'’.+]\w+)*")
_STATEMENT_END: Final = re.compile(r"(?<!\.)[.!。！।۔](?:[\"'”’»)\]*_`」』）]|\[\d+\])*$")
_CONTENTS_ENTRY: Final = re.compile(r"\[[^\]\n]*\]\([^)\n]*\)\s*[:–—-]")
_LINE_NUMBER: Final = re.compile(r":\d+$")
_CODE_SIGNS: Final = frozenset("{}[]<>=|\\$#@~^")
_MARKUP_START: Final = ("#", "|", "```", ">>>", "$ ")


class Passage(Body):
    """A result of a search, read with patience."""

    id: str = ""
    title: str = ""
    url: str = ""
    text: str = ""

    @property
    def about(self) -> str:
        """What names the passage: its title and its address, without the line number in a file."""
        return f"{self.title} {_LINE_NUMBER.sub('', self.url)}"

    def is_named_by(self, wanted: frozenset[str]) -> bool:
        """Say whether it stands in a section whose heading is made of these terms."""
        _, inside, heading = self.title.rpartition(" › ")
        named = content_terms(heading) if inside else []
        return bool(named) and wanted.issuperset(named)


Words = tuple[str, ...]
"""A sentence's words, by which it is told from others: neither case nor marks nor spaces count."""


class Finding(Body):
    """What somebody has reported: only its text is looked at."""

    text: str = ""


def words_of(sentence: str) -> Words:
    """Return the words that make two sentences the same."""
    return tuple(WORD.findall(sentence.casefold()))


def quoted(topic: str, passages: Iterable[Passage], said: Collection[Words] = ()) -> list[dict[str, Any]]:
    """Return the best sentences on a topic as findings, each with its quote; those `said` already are left out.

    A passage without an id cannot be quoted.
    """
    best = _best_sentences(topic, [passage for passage in passages if passage.id])
    return [
        {"text": text, "evidence": [{"id": passage.id, "quote": quote}]}
        for text, quote, passage in best
        if words_of(text) not in said
    ]


def _best_sentences(topic: str, passages: Iterable[Passage]) -> list[tuple[str, str, Passage]]:
    """Return up to three (text, quote, passage) whose sentence holds most of the topic's terms, the best first.

    A term counts the more, the fewer of the sentences contain it; one that none contains counts most, so that sentences
    about everything but the point of the question stay out. Every number that is asked about must be there. To a
    sentence with a term of its own, those in the title and address of its passage are added. Sentences of the same
    words are one.
    """
    wanted = frozenset(content_terms(topic))
    found: dict[Words, tuple[str, Passage]] = {}
    for passage in passages:
        for sentence in sentences(passage.text):
            found.setdefault(words_of(sentence), (sentence, passage))
    own = {key: wanted.intersection(terms(sentence)) for key, (sentence, _) in found.items()}
    numbers = {term for term in wanted if term.isdecimal()}
    held = {key: own[key] and own[key] | wanted.intersection(terms(found[key][1].about)) for key in found}
    frequency = Counter(chain.from_iterable(held.values()))
    weight = {term: 1 + math.log((len(found) + 1) / (frequency[term] + 1)) for term in wanted}
    total = sum(weight[term] for term in sorted(wanted))
    share = {
        key: sum(weight[term] * (1.0 if term in own[key] else _ABOUT) for term in sorted(held[key])) / total
        for key, (sentence, _) in found.items()
        if held[key] and numbers <= held[key] and _is_statement(sentence)
    }
    ranked = sorted(share, key=lambda key: -share[key] * (1.0 if 30 <= len(found[key][0].encode()) <= 400 else 0.7))
    best = [key for key in ranked if share[key] >= _ENOUGH[min(3, len(held[key]))]]
    best = best or [
        key
        for key in ranked
        if share[key] >= _BEST_SHARE
        and len(held[key]) >= (_NAMED_TERMS if found[key][1].is_named_by(wanted) else _BEST_TERMS)
    ]
    return [(" ".join(found[key][0].split()), *found[key]) for key in best[:MAX_FINDINGS]]


def _is_statement(sentence: str) -> bool:
    """Say whether this is a whole sentence that states something: no heading, fragment, question, table row or code.

    Nor two words ("Chapter 2.") or an entry of a list of links ("[Retries](retries.md): waits and limits.").
    """
    if sentence.startswith(_MARKUP_START) or "\n    " in sentence or not _STATEMENT_END.search(sentence):
        return False
    if len(terms(sentence)) < 3 or _CONTENTS_ENTRY.match(sentence):
        return False
    return sum(char in _CODE_SIGNS for char in sentence) <= 0.06 * len(sentence)
