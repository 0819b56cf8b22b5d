"""An engine whose limits are a thousandth of the real ones, so that some MiB take every step that many GiB take.

Started as `python -m tests.integration.small_windows`, with the arguments of the engine's own program.
"""

from __future__ import annotations

import os
import sys

from shardserve_server.engine import call, main, stream

STREAM_BYTES = 256 * 1024
WINDOW_BYTES = 64 * 1024 + 64  # no divisor of anything


def shrink() -> None:
    vars(stream)["WINDOW_BYTES"] = WINDOW_BYTES
    vars(call)["STREAM_BYTES"] = STREAM_BYTES


if __name__ == "__main__":
    shrink()
    os._exit(main.main(sys.argv[1:]))
