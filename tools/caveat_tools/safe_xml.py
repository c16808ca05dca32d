"""XML from strangers: no document type, so no entities and nothing fetched; bounded in depth and size."""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import (
    Element,
    ParseError,
    TreeBuilder,
    XMLParser,
)

MAX_DEPTH: Final = 64
MAX_ELEMENTS: Final = 50_000


class XmlError(ValueError):
    """What was given is not well-formed XML, or is more than is read here."""


def parse_xml(data: bytes | str) -> Element:
    """Return the root element; namespaces are in its tags as `{uri}name`. Comments and instructions are left out.

    Raises XmlError for what is not well-formed, has a document type, or is deeper than MAX_DEPTH or larger than
    MAX_ELEMENTS.
    """
    parser = XMLParser(target=_Builder())  # noqa: S314 - the builder refuses document types
    try:
        parser.feed(data)
        root: Element = parser.close()
    except ParseError as error:
        raise XmlError(f"not well-formed (line {error.position[0]})") from error
    except LookupError as error:
        raise XmlError("in an unknown encoding") from error
    except XmlError:
        raise
    except ValueError as error:
        raise XmlError("in an encoding that is not read") from error
    return root


class _Builder(TreeBuilder):
    """Builds the tree, and stops where it is no longer harmless."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise XmlError(f"nested more than {MAX_DEPTH} deep")
        if self._elements > MAX_ELEMENTS:
            raise XmlError(f"more than {MAX_ELEMENTS} elements")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, _name: str, _public: str | None, _system: str | None, /) -> None:
        raise XmlError("it has a document type")
