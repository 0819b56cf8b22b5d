"""The transport of a blocking client: our own, or httpx's where a proxy stands in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._config import Address, has_proxy
from ._direct import DirectTransport

if TYPE_CHECKING:
    from ._transport import ProxiedTransport


def blocking_transport(address: Address) -> DirectTransport | ProxiedTransport:
    """Connections to an address; nothing is sent yet."""
    if not has_proxy(address):
        return DirectTransport(address)
    from ._transport import ProxiedTransport  # httpx takes most of the time of an import

    return ProxiedTransport(address)
