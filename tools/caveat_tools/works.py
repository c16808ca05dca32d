"""Scholarly works: the identifiers by which two records are known to be of one work, and the line that names it.

A work has several: a preprint has its arXiv id and, once it is published, a DOI. Two records are of the same work
where they share one identifier, so that a record which names both brings the other two together.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, unquote

from caveat_tools.plain_text import one_line
from caveat_tools.source import UnsearchableError

MAX_IDENTIFIER_CHARS: Final = 200
MAX_IDENTIFIERS: Final = 12
MAX_AUTHORS: Final = 5
MAX_NAME_CHARS: Final = 80
MAX_TITLE_CHARS: Final = 300

_DOI_FORM: Final = re.compile(
    r"(?P<address>(?:https?://)?(?:dx\.|www\.)?doi\.org/)?(?:doi:\s*)?(?P<doi>10\.[0-9]{4,9}(?P<slash>/|%2f).+)"
)
_DOI: Final = re.compile(r"10\.[0-9]{4,9}/\S+")
_AFTER_A_DOI: Final = ".,;"
_ARXIV_DOI: Final = "10.48550/arxiv."
_ARXIV: Final = re.compile(
    r"""(?: (?:https?://)?(?:www\.|export\.)?arxiv\.org/(?:abs|pdf|html)/
          | (?:https?://)?(?:dx\.|www\.)?doi\.org/10\.48550/arxiv\. | 10\.48550/arxiv\.
          | arxiv:\s* )?
        (?P<id> [0-9]{4}\.[0-9]{4,5} | (?P<archive>[a-z-]+)(?:\.[a-z]{2})?/(?P<number>[0-9]{7}) )
        (?:v[0-9]+)?(?:\.pdf)?/?
        (?: [?\#]\S* | \s*\[[a-z.-]+\] )?   # the rest of an address; the subject class, as arXiv writes it""",
    re.VERBOSE,
)
_SIGNS_AT_END: Final = re.compile(r"(?<=[^\W_])[+#]{1,3}(?![\w+#])")
_INSIDE: Final = "-'’."
_SEVERAL_INSIDE: Final = re.compile(f"[{_INSIDE}]{{2,}}")


def doi_identifier(text: str) -> str | None:
    """Return `doi:10.…` in lower case for a DOI in any of its written forms, None for anything else.

    (DOI Handbook, 2.4: DOIs do not differ by case.) The DOIs that arXiv gives, 10.48550/arXiv.…, are the arXiv id.
    What is encoded in an address is decoded, and a comma, full stop or semicolon at the end is the sentence's.
    """
    match = _DOI_FORM.fullmatch(text.strip().lower())
    if match is None:
        return None
    is_encoded = match["address"] or match["slash"] != "/"
    doi = (unquote(match["doi"]).lower() if is_encoded else match["doi"]).rstrip(_AFTER_A_DOI)
    if not _DOI.fullmatch(doi) or len(doi) > MAX_IDENTIFIER_CHARS:
        return None
    return arxiv_identifier(doi) if doi.startswith(_ARXIV_DOI) else f"doi:{doi}"


def arxiv_identifier(text: str) -> str | None:
    """Return `arxiv:2101.01234` or `arxiv:math/0309136`, without version and subject class.

    For an id, its address, or a DOI that arXiv gave; None for anything else. The two forms are those of
    https://info.arxiv.org/help/arxiv_identifier.html.
    """
    match = _ARXIV.fullmatch(text.strip().lower())
    if match is None:
        return None
    return f"arxiv:{match['archive']}/{match['number']}" if match["archive"] else f"arxiv:{match['id']}"


def identifiers(*candidates: str | None) -> frozenset[str]:
    """Return the candidates that are one, at most the first MAX_IDENTIFIERS of them."""
    return frozenset(list(dict.fromkeys(filter(None, candidates)))[:MAX_IDENTIFIERS])


def address_of(identifier: str) -> str:
    """Return the stable address of a work by its normalised identifier."""
    kind, _, name = identifier.partition(":")
    return f"https://{'doi.org' if kind == 'doi' else 'arxiv.org/abs'}/{quote(name, safe='/:;()<>.,_-+')}"


def words_of(query: str, *, with_signs: bool = False) -> list[str]:
    """Return the words of a query, in which nothing is left that a search service could take for an operator.

    A word is letters, marks and digits of any script, with single hyphens, apostrophes and full stops inside, and
    `with_signs` also with `+` and `#` at its end (C++, C#). Words that are operators where they stand alone, such as
    NOT, are still words here.
    """
    normal = unicodedata.normalize("NFC", query)
    signs = {at for match in _SIGNS_AT_END.finditer(normal) for at in range(*match.span())} if with_signs else set()
    kept = "".join(
        c if at in signs or c in _INSIDE or unicodedata.category(c)[0] in "LMN" else " " for at, c in enumerate(normal)
    )
    return [word for part in _SEVERAL_INSIDE.split(kept) for each in part.split() if (word := each.strip(_INSIDE))]


def searchable(query: str, *, with_signs: bool = False) -> list[str]:
    """Return the query's words, as `words_of`. Raises UnsearchableError where there is none to look for."""
    words = words_of(query, with_signs=with_signs)
    if not words:
        raise UnsearchableError("the query holds no word that can be searched")
    return words


def citation(authors: Sequence[str], title: str, venue: str, date: str | None) -> str:
    """Return who wrote it, its title, where it appeared and the year, as far as the record tells; "" if it does not.

    Of more than MAX_AUTHORS authors the first are named, followed by "…". `title` may be "" to leave it out.
    """
    named = [name for name in (one_line(author, MAX_NAME_CHARS) for author in authors[: MAX_AUTHORS + 1]) if name]
    people = ", ".join([*named[:MAX_AUTHORS], *(["…"] if len(authors) > MAX_AUTHORS else [])])
    where = ", ".join(part for part in (one_line(venue, MAX_TITLE_CHARS), (date or "")[:4]) if part)
    return ". ".join(part for part in (people, one_line(title, MAX_TITLE_CHARS), where) if part)


def strings(values: Iterable[object]) -> list[str]:
    """Return those values that are text with something in it."""
    return [value for value in values if isinstance(value, str) and value.strip()]
