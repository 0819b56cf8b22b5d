"""Small bodies in JSON: held against the limits before they are read."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from ..body import BodyReader, check_media_type, content_length, headers_of
from ..json_text import parse_json
from ..services import services_of


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
    return parse_json(await BodyReader(request.receive, length=length).read_all())
