"""The names of the built-in sources, where they can be had without importing any."""

from __future__ import annotations

from typing import Final

SOURCE_NAMES: Final = ("local", "wikipedia", "openalex", "arxiv", "crossref")
"""In the order in which they are offered as alternatives."""
