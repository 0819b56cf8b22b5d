"""How long a call waits and asks again: only where asking again cannot run it twice."""

from __future__ import annotations

import random
import sys
import time

from shardserve_proto.errors import (
    ConnectFailed,
    Draining,
    EngineStarting,
    OutOfMemory,
    Overloaded,
    QuotaExceeded,
    ShardserveError,
    TimedOut,
)

from ._config import (
    CONNECT_ATTEMPTS,
    CONNECT_RETRY_S,
    QUIET_START_S,
    READ_TIMEOUT_S,
    RETRY_AFTER_S,
    RETRY_WAIT_S,
    START_WAIT_S,
)


class Patience:
    """The time of one call, all its tries together.

    Arguments:
        timeout_s: the call's own limit; None leaves those of `_config.py`.
        started: on the monotonic clock; None is now.
        has_answered: whether the address is known to be right, so that nobody there means a restart.
    """

    def __init__(self, timeout_s: float | None, *, started: float | None = None, has_answered: bool = False) -> None:
        self._timeout_s = timeout_s
        self._has_answered = has_answered
        self._started = time.monotonic() if started is None else started
        self._failed_connects = 0
        self._has_told = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def remaining_s(self) -> float | None:
        """Seconds until the call's own limit; None without one.

        Raises:
            TimedOut: it has passed.
        """
        if self._timeout_s is None:
            return None
        remaining = self._timeout_s - self.elapsed_s
        if remaining <= 0:
            raise self.timed_out()
        return remaining

    def timed_out(self, silence_s: float = READ_TIMEOUT_S) -> TimedOut:
        """The error for a wait that was too long, with the setting that allows a longer one.

        Arguments:
            silence_s: how long nothing moved, when the call has no limit of its own.
        """
        if self._timeout_s is not None:
            return TimedOut(f"the call took longer than timeout={self._timeout_s:g} s; a larger timeout= allows more")
        return TimedOut(
            f"nothing moved for {silence_s:g} s; a timeout= (seconds, of the call or of the Client) sets another limit"
        )

    def pause_after(self, error: ShardserveError) -> float:
        """Seconds to wait before the next try.

        A call that was handed to an engine which died is not among those that are tried again.

        Raises:
            ShardserveError: the given one, when there is nothing to wait for.
        """
        pause, limit_s = self._pause(error)
        if pause is None or self.elapsed_s + pause > (self._timeout_s or limit_s):
            raise error
        if isinstance(error, EngineStarting):
            self._tell(f"the server's engine ({error.message})")
        elif isinstance(error, ConnectFailed):
            self._tell(f"the server ({error.message})")
        elif isinstance(error, OutOfMemory):
            self._tell("room on the server, which others use now")
        return pause

    def _pause(self, error: ShardserveError) -> tuple[float | None, float]:
        jitter = random.uniform(1.0, 1.25)  # noqa: S311 - spreads clients in time, no secret
        if isinstance(error, ConnectFailed):
            self._failed_connects += 1
            is_last = self._failed_connects >= CONNECT_ATTEMPTS and not self._has_answered
            pause = min(CONNECT_RETRY_S * 2 ** (self._failed_connects - 1), RETRY_AFTER_S)
            return None if is_last else pause * jitter, RETRY_WAIT_S
        if isinstance(error, EngineStarting):
            return min(error.retry_after_s or RETRY_AFTER_S, RETRY_AFTER_S) * jitter, START_WAIT_S
        if isinstance(error, Overloaded | Draining | QuotaExceeded) and error.retry_after_s is not None:
            return error.retry_after_s * jitter, RETRY_WAIT_S
        if isinstance(error, OutOfMemory) and error.details.get("is_transient") is True:
            return (error.retry_after_s or RETRY_AFTER_S) * jitter, RETRY_WAIT_S
        return None, 0.0

    def _tell(self, waiting_for: str) -> None:
        if self.elapsed_s >= QUIET_START_S and not self._has_told:
            self._has_told = True
            print(f"shardserve: waiting for {waiting_for}", file=sys.stderr, flush=True)
