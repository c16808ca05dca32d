"""The markup of titles and abstracts in scholarly records, JATS, MathML and some HTML, becomes text."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element

from caveat_tools.documents import unescaped
from caveat_tools.safe_xml import XmlError, parse_xml

MAX_MARKUP_CHARS: Final = 50_000

_PREFIXES: Final = 'xmlns:jats="jats" xmlns:mml="mml" xmlns:xlink="xlink"'
_TAG: Final = re.compile(
    r"""</?(?: (?:jats|mml):(?P<name>[\w.-]++)
             | (?P<html>p|i|b|u|em|strong|sub|sup|br|div|span|ul|ol|li|a|h[1-6])(?=\s*+/?>|\s++[a-z]++=) )
        [^<>]*+>""",
    re.VERBOSE | re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"\s*[-−+]?[0-9]")
_BLOCKS: Final = frozenset({"p", "title", "sec", "list", "list-item", "br", "break", "disp-formula", "div", "li"})
_UNSEEN: Final = frozenset({"tex-math", "annotation", "annotation-xml", "graphic"})
"""A formula is given several times over, in notations that are alternatives to each other."""
_BETWEEN: Final = {"msup": "^", "mfrac": "/", "msub": "_", "msubsup": "_^"}
"""What stands between the children of an element of MathML, so that 10 and 9 do not become 109."""


def markup_text(markup: str) -> str:
    """Return the text of a title or an abstract: paragraphs parted by blank lines, everything else on one line.

    Powers and fractions keep their sense: 10<sup>9</sup> becomes 10^9 and not 109. What is not well-formed loses its
    tags and nothing else.
    """
    markup = markup[:MAX_MARKUP_CHARS]
    if "<" in markup or "&" in markup:
        try:
            markup = _rendered(parse_xml(f"<x {_PREFIXES}>{markup}</x>"))
        except XmlError:
            markup = unescaped(_TAG.sub(_gap, markup))
    split = (" ".join(paragraph.split()) for paragraph in re.split(r"\n[ \t]*\n", markup))
    paragraphs = [paragraph for paragraph in split if paragraph]
    if len(paragraphs) > 1 and paragraphs[0].casefold() == "abstract":
        del paragraphs[0]  # a heading that says what the field says
    return "\n\n".join(paragraphs)


def _gap(tag: re.Match[str]) -> str:
    name = (tag["name"] or tag["html"]).lower()
    if name in _BLOCKS:
        return "\n\n"
    raised = name == "sup" and tag[0][1] != "/" and _NUMBER.match(tag.string, tag.end())
    return "^" if raised else ""


def _rendered(element: Element) -> str:
    name = element.tag.rpartition("}")[2].lower()
    if name in _UNSEEN:
        return ""
    inner = [element.text or ""]
    for number, child in enumerate(element):
        if number and name in _BETWEEN:
            inner.append(_BETWEEN[name][number - 1 : number])
        inner += [_rendered(child), child.tail or ""]
    text = "".join(inner)
    if name in _BLOCKS:
        return f"\n\n{text}\n\n"
    return f"^{text}" if name == "sup" and _NUMBER.match(text) else text
