"""Reading JSON from strangers: bounded in depth before it is parsed, and strict about what JSON is."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from shardserve_proto.errors import InvalidRequest
from shardserve_proto.limits import LIMITS

# Strings are skipped whole, so that brackets inside them do not count; an unclosed one runs to the end.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(data: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidRequest: not UTF-8, not JSON, nested too deep, a key given twice, or a number that nobody can hold.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    _check_depth(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except InvalidRequest:
        raise
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise InvalidRequest("the body holds a number of too many digits") from None
    if "\\u" in text:
        _check_text(value)
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for match in _BRACKETS.finditer(text):
        found = match.group()
        if found in "[{":
            depth += 1
            if depth > LIMITS.header_depth:
                raise InvalidRequest(f"the body nests deeper than {LIMITS.header_depth} levels")
        elif found in "]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f'{name} is not JSON; write it as the text "{name}"')


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise InvalidRequest("a key stands twice in one object of the body")
    return value


def _check_text(value: Any) -> None:
    """Escapes can spell half of a surrogate pair, which is no text and has no UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the body holds a text with a lone surrogate") from None
