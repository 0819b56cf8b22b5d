"""The entry of the command `shardserve`, also as `python -m shardserve_server`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line, or say which extra brings it: the base install is the client alone."""
    if os.getpid() == 1:  # the first process of a container has no default for a signal, and would pass over this one
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _fill_standard_descriptors()
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:  # before the command had begun
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("shardserve"):
            raise
        sys.exit(
            f"shardserve: the command needs {error.name!r}, which is not installed; "
            "pip install 'shardserve[cli]' brings the client's commands, 'shardserve[server]' all of them"
        )


def _fill_standard_descriptors() -> None:
    """Without them, a socket would take the number of stdout, and whatever is printed would go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


if __name__ == "__main__":
    main()
