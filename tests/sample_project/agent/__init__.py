"""An agent that knows nothing of caveat: it says when the tide is high."""

from __future__ import annotations

import anthropic
from tools.tides import TIDES, high_water

SYSTEM = """You answer questions about tides.
Look every time up with the tool; never guess."""


def ask(question: str) -> str:
    """Return the model's answer to a question."""
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": question}]
    with anthropic.Anthropic() as client:
        while True:
            turn = client.messages.create(
                model="claude-sonnet-5-5", max_tokens=500, system=SYSTEM, tools=[TIDES], messages=messages
            )
            if turn.stop_reason != "tool_use":
                return "".join(block.text for block in turn.content if block.type == "text")
            messages.append({"role": "assistant", "content": turn.content})
            results: list[anthropic.types.ToolResultBlockParam] = [
                {"type": "tool_result", "tool_use_id": block.id, "content": high_water(**block.input)}
                for block in turn.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
