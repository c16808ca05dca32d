"""Somebody else's agent, with folders `agent/` and `tools/` of its own, records and replays a session with the plugin.

Called by `make package`, with the wheel: it is installed into an environment in which nothing else of caveat is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from scripted import message, text, tool_use
from servers import LocalServer, json_reply, reset

PROJECT = Path(__file__).parent / "sample_project"
KEY = "sk-ant-api03-ThisKeyIsMadeUpForTheSampleProject"
TIDE_KEY = "tide-key-that-nobody-may-see"


def try_out(python: Path, folder: Path, run: Callable[..., str]) -> None:
    """Record the project's session against local servers, replay it without them, and change its prompt."""
    project = folder / "sample"
    shutil.copytree(PROJECT, project)
    run(python, "-m", "pip", "install", "--quiet", "-e", project, cwd=folder)
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    model = LocalServer(
        json_reply(message([tool_use("high_water", "toolu_1", port="Dover")])),
        json_reply(message([text("High water at Dover is at 11:42.")])),
    )
    tides = LocalServer(reset(), json_reply({"high_water": "11:42"}))
    with model, tides:
        variables = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY}
        variables |= {"TIDE_SERVICE": f"{tides.url}/api", "TIDE_KEY": TIDE_KEY}
        run(*pytest, "--record-mode=once", cwd=project, variables=variables)
        where = f"{tides.url}/api"
    [cassette] = (project / "cassettes").rglob("*.yaml")
    recorded = cassette.read_text(encoding="utf-8")
    assert KEY not in recorded, recorded
    assert TIDE_KEY not in recorded, recorded
    assert "ReadError" in recorded, recorded
    replay = {"TIDE_SERVICE": where, "ANTHROPIC_API_KEY": "none"}
    assert "1 passed" in run(*pytest, cwd=project, variables=replay)

    prompt = project / "agent" / "__init__.py"
    prompt.write_text(prompt.read_text().replace("never guess", "never, ever guess"))
    failed = run(*pytest, cwd=project, may_fail=True, variables=replay)
    for expected in ("1 failed", "never guess", "never, ever guess", "--record-mode=rewrite"):
        assert expected in failed, failed
    assert not re.search(r"Traceback|_base_client", failed), failed
