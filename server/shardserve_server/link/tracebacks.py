"""What an error holds on to after it was handled."""

from __future__ import annotations


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that was handled, and of those behind it.

    Whoever waited for its outcome holds the error and is held by its frames, and these hold the call's arrays and
    buffers: only the collector would end that cycle, and the memory would stay mapped until then.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
