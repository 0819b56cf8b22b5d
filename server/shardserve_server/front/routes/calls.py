"""`POST /v1/call`: a frame in, a frame out. A plain ASGI endpoint, since it is the hot one."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from shardserve_proto.errors import BadFrame
from shardserve_proto.frames import MEDIA_TYPE, PRELUDE_BYTES, decode_prelude

from ..body import BodyReader, check_media_type, content_length, headers_of
from ..calls import CallHead, Calls, send_reply

PATH = "/v1/call"


class CallEndpoint:
    """Receives a call into a shared buffer, has it run, and streams the reply.

    Arguments:
        body_bytes: the largest frame.
    """

    def __init__(self, calls: Calls, *, body_bytes: int) -> None:
        self._calls = calls
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        check_media_type(headers, MEDIA_TYPE)
        length = content_length(headers, limit=self._body_bytes)
        self._calls.admit(length)
        body = BodyReader(receive, length=length, scope=scope)
        header, head = await self._read_head(body, length)
        upload = self._calls.prepare(head)
        try:
            await self._calls.receive(body, head, upload, arrived=scope["state"]["arrived"])
            reply = await self._calls.run(header, head, upload, scope=scope)
        finally:
            upload.release()
        await send_reply(reply, scope=scope, send=send)

    async def _read_head(self, body: BodyReader, length: int) -> tuple[bytes, CallHead]:
        """The ordinary way for the first bytes: every limit is checked before room is made for the rest."""
        prelude = decode_prelude(await body.read(min(PRELUDE_BYTES, length)))
        _check_length(length, PRELUDE_BYTES + prelude.header_bytes, is_whole=False)
        header = await body.read(prelude.header_bytes)
        head = self._calls.head(header, declared=prelude.segments)
        _check_length(length, head.layout.total, is_whole=True)
        return header, head


def _check_length(length: int, needed: int, *, is_whole: bool) -> None:
    if length < needed:
        raise BadFrame(f"the frame is truncated: it takes {needed} bytes, the body has {length}")
    if is_whole and length > needed:
        raise BadFrame(f"{length - needed} bytes follow the last segment; a frame ends with it")
