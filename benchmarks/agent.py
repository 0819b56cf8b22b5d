"""The client's side of one peer, in that peer's environment; told by lines of JSON what to time.

`python -m benchmarks.agent PEER` starts the peer and says that it is ready. An order is {"do": operation, …}, its
answer {"timed": {name: seconds of each call}} or {"error": text}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from typing import IO, Any

from . import inputs
from .cpu import cpu_s, tree_of
from .operations import OPERATIONS
from .peers.base import Peer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    peer: Peer = importlib.import_module(f"benchmarks.peers.{sys.argv[1]}.peer").Contender()
    try:
        peer.start()
        say(answers, ready=True)
        for line in sys.stdin:
            say(answers, **obey(peer, json.loads(line)))
    except Exception as error:
        say(answers, error=describe(error))
    finally:
        with contextlib.suppress(Exception):  # what did not start need not stop
            peer.stop()
        os._exit(0)  # libraries' own threads have nothing left to do


def say(answers: IO[str], **said: Any) -> None:
    answers.write(json.dumps(said) + "\n")
    answers.flush()


def obey(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order."""
    what = order.pop("do")
    if what == "release":
        inputs.release()
        return {"timed": {}}
    try:
        if what == "idle":
            return {"timed": {"idle CPU": [idle_cpu_s(peer, **order)]}}
        operation = peer.extras.get(what) or OPERATIONS[what]
        return {"timed": operation(peer, pids_of(peer), **order)}
    except Exception as error:  # one peer's failure is its own
        return {"error": describe(error)}


def pids_of(peer: Peer) -> list[int]:
    """Both sides: this process, and the server's."""
    root = peer.server_pid()
    return [os.getpid(), *(tree_of(root) if root is not None else [])]


def idle_cpu_s(peer: Peer, *, seconds: float) -> float:
    """CPU seconds per second that a peer takes while nobody calls it."""
    pids = pids_of(peer)
    before = cpu_s(pids)
    time.sleep(seconds)
    return (cpu_s(pids) - before) / seconds


def describe(error: Exception) -> str:
    """One line for the table."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


if __name__ == "__main__":
    main()
