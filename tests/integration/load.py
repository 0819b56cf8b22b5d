"""A load of small calls at a steady rate, every answer of which is checked and counted."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

THREADS = 10


@dataclass
class Load:
    """What became of each request.

    Attributes:
        outcomes: "right", "refused" (503 draining, as it should be), "unanswered" (the server closed before a byte of
            an answer), or what else was wrong.
    """

    port: int
    outcomes: Counter[str] = field(default_factory=Counter)
    first_refusal: float | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _work(self, number: int, pause_s: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        turn = number
        while not self._stop.wait(pause_s):
            turn += THREADS
            if turn % 3 == 0:  # new connections among the old ones
                connection.close()
            self._count(_outcome(connection, turn))
        connection.close()

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1
            if outcome == "refused" and self.first_refusal is None:
                self.first_refusal = time.monotonic()


def _outcome(connection: http.client.HTTPConnection, turn: int) -> str:
    body = json.dumps({"arguments": [[turn, 2, 3], [4, 5, turn]]})
    try:
        connection.request("POST", "/v1/kernels/dot", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException):
        connection.close()
        return "unanswered"
    answer = json.loads(response.read())
    if response.status == 200:
        is_right = answer["results"][0]["data"] == 4 * turn + 10 + 3 * turn
        return "right" if is_right else f"wrong: {answer['results']}"
    error = answer["error"]
    is_polite = response.headers["Retry-After"] and response.headers["Connection"] == "close"
    return "refused" if error["code"] == "draining" and is_polite else f"{response.status} {error['code']}"


@contextmanager
def load(port: int, *, per_second: float = 50.0) -> Iterator[Load]:
    """Ask so often until the block ends."""
    made = Load(port)
    threads = [threading.Thread(target=made._work, args=(n, THREADS / per_second)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made._stop.set()
        for thread in threads:
            thread.join()
