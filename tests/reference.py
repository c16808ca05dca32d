"""`make reference`: write docs/commands.md anew, from the help text of every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from caveat.cli import main as caveat

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
WIDTH = 100


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call each command, the program's own first."""
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))


def page() -> str:
    """Return the page: each command's --help as it is printed."""
    parts = ["# Commands\n\nWritten by `make docs` from the commands themselves.\n"]
    for path in commands(caveat):
        shown = CliRunner().invoke(caveat, [*path, "--help"], prog_name="caveat", terminal_width=WIDTH).output
        text = "".join(f"    {line}".rstrip() + "\n" for line in shown.splitlines())
        parts.append(f"## {' '.join(('caveat', *path))}\n\n{text}")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
