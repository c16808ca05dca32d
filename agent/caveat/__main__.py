"""The command `caveat`, and `python -m caveat`: from the first moment on, Ctrl-C leaves with exit code 130."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command; what takes time to import is imported when Ctrl-C is taken care of."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as after nohup
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from caveat.cli import main as command  # noqa: PLC0415

    command(prog_name="caveat")


if __name__ == "__main__":
    main()
