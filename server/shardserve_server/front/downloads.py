"""A resident array, or a slice of it, on its way out: as a `.npy` file, or as a frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..link.transfer import EngineReply
from .calls import reply_phases, send_reply
from .connection import connection_of
from .npy import NPY_TYPE
from .sending import Sender
from .telemetry import server_timing

Body = Callable[[Scope, Send], Awaitable[None]]


class Download(Response):
    """A response whose body comes from shared memory, piece by piece.

    Arguments:
        body: sends head and body.
    """

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._send_all = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        await self._send_all(scope, send)


def as_frame(reply: EngineReply) -> Download:
    """The reply as the frame that it is."""

    async def body(scope: Scope, send: Send) -> None:
        await send_reply(reply, scope=scope, send=send)

    return Download(body)


def as_npy(reply: EngineReply, beginning: bytes, *, filename: str) -> Download:
    """The one output of a reply as a file.

    Arguments:
        beginning: the header of the file.
        filename: under which a browser or `curl -OJ` stores it; letters, digits and `._-` only.
    """

    async def body(scope: Scope, send: Send) -> None:
        total = len(beginning) + sum(reply.sizes)
        phases = reply_phases(reply, arrived=scope["state"]["arrived"])
        sender = Sender(send, connection_of(scope), total=total)
        try:
            if reply.stream is not None:
                await reply.stream.begin()
            await send({"type": "http.response.start", "status": 200, "headers": _headers(total, filename, phases)})
            if reply.stream is None:
                await sender.send_all([beginning, *reply.segments])
            else:
                await sender.send(beginning)
                async for lease in reply.stream.segment(0):
                    await sender.send_lease(lease)
        finally:
            sender.when_sent(reply.release)

    return Download(body)


def _headers(total: int, filename: str, phases: Mapping[str, float]) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", NPY_TYPE.encode()),
        (b"content-length", b"%d" % total),
        (b"content-disposition", f'attachment; filename="{filename}"'.encode()),
        (b"server-timing", server_timing(phases)),
    ]
