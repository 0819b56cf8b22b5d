"""One stop of the tour: run a call twice, compare it with NumPy, and show where it lay and where its time went."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import shardserve as ss

from .screen import Screen

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Tour:
    """A client of the tour's server, and the screen.

    Attributes:
        scale: divides the sizes of the large inputs; 1 is the tour itself.
    """

    client: ss.Client
    screen: Screen
    scale: int = 1

    def on(self, mesh: dict[str, int]) -> Tour:
        """The same tour on another mesh."""
        return replace(self, client=self.client.with_options(mesh=mesh))

    def compare(
        self,
        call: Callable[[ss.Client], Array],
        expected: Callable[[], Array],
        *,
        claim: str,
        rtol: float,
        atol: float = 0.0,
        draw: bool = True,
    ) -> None:
        """Run a call and NumPy's own computation, show both, and check that they agree.

        Arguments:
            claim: what the check shows, when it passes.
            draw: whether to show the layout; a second call of a chapter has that of the first.
        """
        with self.client.record() as log:
            call(self.client)
            result = call(self.client)
        numpy_s, wanted = timed(expected)
        first, again = log
        if draw:
            self.screen.layout(again.report)
            self.screen.picture(again)
        self.screen.times(first, again, numpy_s)
        is_equal = result.shape == wanted.shape and np.allclose(result, wanted, rtol=rtol, atol=atol)
        self.screen.check(claim, is_true=is_equal)

    def expect_error(
        self, call: Callable[[ss.Client], object], error: type[Exception], *words: str, claim: str
    ) -> None:
        """Run a call that must fail, and check that its error says what to do."""
        seconds, caught = timed(lambda: self._error_of(call))
        if caught is not None:
            self.screen.error(caught)
        is_named = isinstance(caught, error) and all(word in str(caught) for word in words)
        self.screen.check(f"{claim} ({seconds * 1e3:.0f} ms)", is_true=is_named)

    def _error_of(self, call: Callable[[ss.Client], object]) -> Exception | None:
        try:
            call(self.client)
        except ss.ShardserveError as error:
            return error
        return None


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result
