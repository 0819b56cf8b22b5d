"""The ceiling with touched memory on the server's side too: no page is made while bytes arrive."""

from __future__ import annotations

from ..raw_socket import peer


class Contender(peer.Contender):
    """As the raw socket, into memory that its server keeps."""

    keeps_memory = True
