"""The address of a server, as somebody on its own host writes it."""

from __future__ import annotations

#: What listens everywhere is reached at this host's own addresses.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - connected to, not bound


def url_at(host: str, port: int | str) -> str:
    """The address to connect to.

    Arguments:
        host: that the server listens on; a bare IPv6 address or one in brackets.
    """
    bare = host.strip("[]")
    reached = _EVERYWHERE.get(bare, bare)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
