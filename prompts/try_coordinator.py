"""Run one question with a given coordinator prompt under given faults; print what was done after each failure.

    python prompts/try_coordinator.py my_coordinator.md "Why is jitter added to backoff?" --docs docs

Uses the model that ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL names; the embedded stand-in ignores prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from caveat import research
from caveat.errors import USAGE_ERRORS, NoReportError


def main() -> int:
    """Run the question and print what was done; return 0, 2 for wrong usage, or 4 where no report could be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "coordinator", type=Path, help="a prompt file; prompts/caveat_prompts/coordinator.md to begin with"
    )
    parser.add_argument("question")
    parser.add_argument("--docs", type=Path, required=True, help="folder of documents to search")
    parser.add_argument(
        "--inject", default="local:timeout*3", help="faults, as for caveat ask  [default: local:timeout*3]"
    )
    options = parser.parse_args()
    try:
        report = asyncio.run(
            research(
                options.question,
                sources=["local", "wikipedia"],
                docs=options.docs,
                inject=options.inject,
                prompts={"coordinator": options.coordinator},
            )
        )
    except (*USAGE_ERRORS, NoReportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 4 if isinstance(error, NoReportError) else 2
    for topic in report.topics:
        print(f"{topic.id} {topic.state}: {topic.topic}")
        for query in topic.queries:
            outcome = query.error_type or query.status
            print(f"  {query.source} “{query.query}”: {outcome}" + (f" → {query.next}" if query.next else ""))
    if report.run.offline:
        print("No language model was used, so the prompt made no difference.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
