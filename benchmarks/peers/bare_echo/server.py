"""The bare echo that a small call is compared to: uvicorn, and an app that sends back the bytes that it got."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn

from ..base import announce, end_with_parent


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer with the body."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [
        (b"content-type", b"application/vnd.shardserve.frame"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    end_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(port=listener.getsockname()[1])
        config = uvicorn.Config(echo, lifespan="off", log_level="error", access_log=False, loop="uvloop")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
