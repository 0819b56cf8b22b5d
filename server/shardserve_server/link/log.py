"""The log: one JSON object a line on stderr, and never a reason for anything to fail."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


class Sink:
    """A text file that may be full, closed by its reader, or not there at all.

    Attributes:
        lost: lines that could not be written.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self.lost = 0

    def write(self, text: str) -> None:
        try:
            if self._file is None:
                raise ValueError("there is no stderr")
            self._file.write(text)
        except (OSError, ValueError):
            self.lost += 1

    def flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except (OSError, ValueError):
            self.lost += 1


def configure_logging() -> None:
    """Log to stderr, one event a line; called once by a command, never at import."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs each malformed request; a flood is no news
    logging.raiseExceptions = False
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=Sink(sys.stderr)),  # type: ignore[arg-type]  # it writes and flushes
    )
