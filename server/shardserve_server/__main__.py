"""The entry of the command `shardserve`, also as `python -m shardserve_server`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line, or say which extra brings it: the base install is the client alone."""
    if os.getpid() == 1:  # the first process of a container has no default for a signal, and would pass over this one
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        from .cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("shardserve"):
            raise
        sys.exit(
            f"shardserve: the command needs {error.name!r}, which is not installed; "
            "pip install 'shardserve[cli]' brings the client's commands, 'shardserve[server]' all of them"
        )


if __name__ == "__main__":
    main()
