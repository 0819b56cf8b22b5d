"""Every failure leaves as the same JSON: the outermost middleware, and the answers for what FastAPI refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardserve_proto.errors import Draining, InvalidRequest, MethodNotAllowed, NotFound, ShardserveError
from shardserve_proto.handles import EPOCH_FIELD

from ..link.tracebacks import forget_frames
from .body import ClientGone
from .protocol import connection_of
from .telemetry import named_error, server_timing


class ErrorBoundary:
    """Turns exceptions into error replies, and gives every reply the epoch and a `Server-Timing`; plain ASGI.

    An exception that comes after the reply has begun can only cut the connection.

    Arguments:
        epoch: of the ids that the app knows.
    """

    def __init__(self, app: ASGIApp, epoch: str) -> None:
        self.app = app
        self._epoch = (EPOCH_FIELD.encode(), epoch.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived = time.monotonic()
        has_begun = False

        async def send_timed(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = self._completed(message, time.monotonic() - arrived)
            await send(message)

        scope.setdefault("state", {})["arrived"] = arrived
        try:
            await self.app(scope, receive, send_timed)
        except ClientGone as error:
            forget_frames(error)
        except Exception as error:
            if has_begun:
                raise
            named = named_error(error, method=scope["method"], path=scope["path"])
            connection = connection_of(scope)
            forget_frames(error)
            leaves_body = connection is not None and connection.must_close()
            await send_error(named, send_timed, close=leaves_body or isinstance(named, Draining))

    def _completed(self, message: Message, seconds: float) -> list[tuple[bytes, bytes]]:
        """The fields of a reply; the route may have timed it better."""
        headers = [*message.get("headers", ()), self._epoch]
        if not any(name == b"server-timing" for name, _ in headers):
            headers.append((b"server-timing", server_timing({"total": seconds})))
        return headers


async def send_error(error: ShardserveError, send: Send, *, close: bool) -> None:
    """Answer with an error.

    Arguments:
        close: end the connection with it.
    """
    body = json.dumps(error.to_wire()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    if close:
        headers.append((b"connection", b"close"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", str(error.details.get("allowed", "")).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_of_refusal(refusal: HTTPException, *, scope: Scope, routes: Iterable[BaseRoute]) -> ShardserveError:
    """What FastAPI's own refusals become.

    Arguments:
        routes: all that there are: a path may have several, each with methods of its own.
    """
    method, path = scope["method"], scope["path"]
    if refusal.status_code == 404:
        return NotFound(f"there is no route {path[:200]!r}; /openapi.json lists the routes")
    if refusal.status_code == 405:
        matching = [route for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE]
        allowed = ", ".join(sorted({name for route in matching for name in route.methods or ()}))
        return MethodNotAllowed(
            f"the route {path[:200]!r} has no method {method[:20]}; it has {allowed}", details={"allowed": allowed}
        )
    return InvalidRequest(f"the request was refused with HTTP {refusal.status_code}")
