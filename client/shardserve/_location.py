"""Where in the user's own code something happens, for messages."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from types import CodeType, FrameType

import numpy as np

#: Frames of this package, of NumPy and of context managers are between the user's line and us.
_BETWEEN = (
    *(os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (__file__, np.__file__)),
    os.path.abspath(contextlib.__file__),
)
_LONGEST = 100


def user_line() -> str:
    """The innermost line that is neither ours nor NumPy's: `line 12 of model.py: if x > 0:`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return _describe(frame.f_code.co_filename, frame.f_lineno) + (f": `{_cut(text)}`" if text else "")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def line_of(function: object) -> str:
    """Where a function is defined, if it is a Python function."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return repr(function)
    return _describe(code.co_filename, code.co_firstlineno)


def _describe(file: str, line: int) -> str:
    # The name is enough to find the line; a full path of somebody's machine has no place in a log.
    return f"line {line} of {os.path.basename(file)}"
