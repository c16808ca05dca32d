"""`make package`: build wheel and sdist, install them as a user would, and use them from another folder.

Ends with a sentence for each thing that was tried, and with an exit code other than 0 for the first that fails. Needs a
package index, and no network beside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import sample_agent

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
NEEDED = {
    "caveat/prices.toml",
    "caveat/cli/ask.py",
    "caveat/py.typed",
    "caveat_prompts/coordinator.md",
    "caveat_prompts/synthesis.md",
    "caveat_tools/py.typed",
    "caveat_tools/sources/local.py",
}
QUESTION = "When was the Kariba Dam finished?"
NOTE = "# Kariba\n\nThe Kariba Dam was finished in 1959.\n"


def run(*command: str | Path, cwd: Path, may_fail: bool = False, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output; end with its errors where it fails and may not."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and not may_fail:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def try_out(caveat: Path, folder: Path) -> None:
    """Ask the installed command a question in a folder that is not the repository."""
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "kariba.md").write_text(NOTE)
    home = {"CAVEAT_HOME": str(folder / "home")}
    report = json.loads(
        run(caveat, "ask", QUESTION, "--docs", "notes", "--sources", "local", "--json", "-", cwd=folder, variables=home)
    )
    assert [topic["state"] for topic in report["topics"]] == ["covered"], report
    found = json.loads(
        run(caveat, "search", "local", "Kariba", "--docs", "notes", "--json", cwd=folder, variables=home)
    )
    assert found["status"] == "found", found


def main() -> None:
    """Build, look inside, install in each way, and use."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
        [wheel] = (work / "dist").glob("*.whl")
        [sdist] = (work / "dist").glob("*.tar.gz")
        missing = NEEDED - set(zipfile.ZipFile(wheel).namelist())
        assert not missing, missing
        with tarfile.open(sdist) as archive:
            inside = {member.partition("/")[2] for member in archive.getnames()}
        assert {"tests/test_cli.py", "cassettes/README.md", "docs/commands.md", "Makefile"} <= inside, inside
        print(
            f"package: built {wheel.name} ({wheel.stat().st_size // 1000} kB) and {sdist.name}, from which the wheel is"
        )

        run(sys.executable, "-m", "venv", work / "venv", cwd=work)
        pip: list[str | Path] = [work / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS]
        run(*pip, wheel, cwd=work)
        try_out(work / "venv" / "bin" / "caveat", work)
        print("package: the wheel answers a question in another folder")

        run(sys.executable, "-m", "venv", work / "sample-venv", cwd=work)
        python = work / "sample-venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, f"{wheel}[testing]", cwd=work)
        sample_agent.try_out(python, work, run)
        print("package: an agent of somebody else's records and replays a session with the pytest plugin")

        run(*pip, "uv", "pipx", cwd=work)
        tools = {"UV_TOOL_DIR": str(work / "uv"), "UV_TOOL_BIN_DIR": str(work / "uv-bin")}
        run(
            work / "venv" / "bin" / "uv", "tool", "install", "--python", sys.executable, ROOT, cwd=work, variables=tools
        )
        try_out(work / "uv-bin" / "caveat", work)
        tools = {"PIPX_HOME": str(work / "pipx"), "PIPX_BIN_DIR": str(work / "pipx-bin")}
        run(work / "venv" / "bin" / "pipx", "install", "--python", sys.executable, ROOT, cwd=work, variables=tools)
        try_out(work / "pipx-bin" / "caveat", work)
        print("package: uv tool install and pipx install give a command that works")


if __name__ == "__main__":
    main()
