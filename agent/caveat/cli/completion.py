"""`caveat completion`: what a shell needs to complete caveat's words."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from caveat.cli.terminal import Command, show

SHELLS: Final = ("bash", "zsh", "fish")

HELP: Final = """Print the completion script for SHELL: bash, zsh or fish.

It completes commands, options, sources and faults.

\b
Examples:
  eval "$(caveat completion bash)"                                          in ~/.bashrc
  eval "$(caveat completion zsh)"                                           in ~/.zshrc
  caveat completion fish > ~/.config/fish/completions/caveat.fish
"""


@click.command(cls=Command, help=HELP, short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what click generates."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    show(kind(context.find_root().command, {}, "caveat", "_CAVEAT_COMPLETE").source())
