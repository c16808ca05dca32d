"""The command `caveat`, one file a subcommand.

Nothing here imports the SDK, a source or the store until a command runs, so that --help is quick.
"""

from __future__ import annotations

import click

from caveat.cli.ask import ask
from caveat.cli.cassettes import cassettes
from caveat.cli.completion import completion
from caveat.cli.config import config
from caveat.cli.doctor import doctor
from caveat.cli.replay import replay
from caveat.cli.resume import resume
from caveat.cli.rm import rm
from caveat.cli.runs import runs
from caveat.cli.search import search
from caveat.cli.show import show
from caveat.cli.sources import sources
from caveat.cli.terminal import Group, begin
from caveat.cli.terminal import show as print_out

HELP = """A research agent that says what it could not find out.

\b
Examples:
  caveat ask "When was the Kariba dam finished?"
  caveat ask "What did we decide about backups?" --docs ~/notes
  caveat runs
  caveat search wikipedia "Kariba dam"
  caveat doctor

Settings come from caveat.toml in the current folder, your own file, the environment and flags, each stronger than
the one before; `caveat config` shows them all, and where each is from.
"""


def _version(context: click.Context, _option: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's form
    if asked and not context.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415

        print_out(f"caveat, version {version('caveat')}")
        context.exit()


@click.group(cls=Group, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Set up what every command needs."""
    begin()


for command in (ask, runs, show, resume, rm, search, sources, replay, cassettes, config, doctor, completion):
    main.add_command(command)
