"""The entry of the command `shardserve`, also as `python -m shardserve_server`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which extra brings it: the base install is the client alone."""
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
