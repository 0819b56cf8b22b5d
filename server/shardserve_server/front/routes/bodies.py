"""Bodies in JSON: held against the limits before they are read, and read where they hold up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from fastapi import Request

from ..body import BodyReader, check_media_type, content_length, headers_of
from ..json_text import parse_json
from ..services import services_of

#: So much JSON is read or written within a millisecond or two.
AT_ONCE_BYTES = 16 * 1024

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def json_length(request: Request) -> int:
    """The declared length of a JSON body.

    Raises:
        UnsupportedMediaType, LengthRequired, TooLarge: before a byte of it is read.
    """
    headers = headers_of(request.scope)
    check_media_type(headers, "application/json")
    return content_length(headers, limit=int(services_of(request).settings.json_bytes))


async def read_json(request: Request, length: int) -> Any:
    """The value of a JSON body of declared length.

    Raises:
        InvalidRequest: it is no JSON that is read here.
    """
    data = await BodyReader(request.receive, length=length).read_all()
    return await aside(parse_json, nbytes=length)(data)


def aside(function: Callable[Parameters, Result], *, nbytes: int) -> Callable[Parameters, Awaitable[Result]]:
    """A function that works on so many bytes of JSON: in a thread, where it would hold up all other requests."""

    async def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if nbytes <= AT_ONCE_BYTES:
            return function(*args, **kwargs)
        return await asyncio.to_thread(function, *args, **kwargs)

    return run
