"""The tool: asks a tide service, and tries again where that is busy."""

from __future__ import annotations

import os
import time

import anthropic
import httpx2

TIDES: anthropic.types.ToolParam = {
    "name": "high_water",
    "description": "The time of high water at a port today.",
    "input_schema": {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]},
}


def high_water(port: str) -> str:
    """Return the time of high water, or why it cannot be said."""
    for wait in (1, 120):
        try:
            answer = httpx2.get(
                os.environ.get("TIDE_SERVICE", "https://tides.example/api"),
                params={"port": port, "api_key": os.environ.get("TIDE_KEY", "")},
                timeout=2.0,
            )
            answer.raise_for_status()
            return str(answer.json()["high_water"])
        except httpx2.HTTPError:
            time.sleep(wait)
    return "The tide service did not answer."
