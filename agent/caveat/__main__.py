"""`python -m caveat` is the command `caveat`."""

from caveat.cli import main

main(prog_name="caveat")
