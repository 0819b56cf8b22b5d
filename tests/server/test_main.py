"""The first moments of the command, before it is one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_STOPPED_WHILE_IT_LOADS = """
import os, signal, sys, time, types
real = os.getpid()
os.getpid = lambda: int(sys.argv[1]) or real
def main():
    os.kill(real, signal.SIGTERM)
    time.sleep(10)
sys.modules["shardserve_server.cli"] = types.SimpleNamespace(main=main)
from shardserve_server.__main__ import main
main()
"""


@pytest.mark.parametrize(("pid", "status"), [("1", 0), ("0", -15)])
def test_the_first_process_of_a_container_hears_sigterm_at_once(pid: str, status: int) -> None:
    """The system has no default for it there and passes over the signal; anywhere else its default will do."""
    done = subprocess.run([sys.executable, "-c", _STOPPED_WHILE_IT_LOADS, pid], timeout=20, check=False)
    assert done.returncode == status


_LOOK = """
import os
from shardserve_server.__main__ import _fill_standard_descriptors
_fill_standard_descriptors()
os._exit(0 if [os.readlink(f"/proc/self/fd/{n}") for n in range(3)] == ["/dev/null"] * 3 else 1)
"""


def test_missing_standard_descriptors_are_filled() -> None:
    """Started by a shell that closes them: closing them by `preexec_fn` would fork the tests, and so JAX."""
    without_any = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, _LOOK]
    assert subprocess.run(without_any, timeout=20, check=False).returncode == 0
