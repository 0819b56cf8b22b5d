"""Descriptors of shared buffers, passed once each to an engine over a socket pair of their own (SCM_RIGHTS)."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import resource
import socket
import struct

from .background import Background

RECORD = struct.Struct("<QQ")  # number of the buffer, its capacity


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as the system allows it: connections and buffers take some each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def send_descriptor(end: socket.socket, *, number: int, capacity: int, descriptor: int) -> None:
    """Pass one buffer.

    Raises:
        BlockingIOError: the other end has too many to take already.
    """
    socket.send_fds(end, [RECORD.pack(number, capacity)], [descriptor])


class MappedBuffers:
    """The engine's end: maps each buffer at its first use, read-only for uploads and writable for outputs.

    The front sends a descriptor before the first message that names its buffer, so a buffer that is not known yet
    is already on its way.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._descriptors: dict[int, tuple[int, int]] = {}
        self._readable: dict[int, mmap.mmap] = {}
        self._writable: dict[int, mmap.mmap] = {}
        self._closer = Background()

    def readable(self, number: int) -> mmap.mmap:
        """The read-only mapping of a buffer."""
        return self._map(number, self._readable, mmap.ACCESS_READ)

    def writable(self, number: int) -> mmap.mmap:
        """The writable mapping of a buffer."""
        return self._map(number, self._writable, mmap.ACCESS_WRITE)

    def forget(self, number: int) -> None:
        """Let a buffer go; its memory follows when the last array on it does."""
        known = self._descriptors.pop(number, None)
        mappings = [self._readable.pop(number, None), self._writable.pop(number, None)]
        if known is not None:
            self._closer.submit(functools.partial(_let_go, known[0], mappings))

    def _map(self, number: int, mappings: dict[int, mmap.mmap], access: int) -> mmap.mmap:
        if number not in mappings:
            descriptor, capacity = self._descriptor(number)
            mappings[number] = mmap.mmap(descriptor, capacity, access=access)
        return mappings[number]

    def _descriptor(self, number: int) -> tuple[int, int]:
        while number not in self._descriptors:
            record, descriptors, _, _ = socket.recv_fds(self._socket, RECORD.size, 1)
            if len(record) != RECORD.size or len(descriptors) != 1:
                raise ConnectionError("the front closed the socket of the descriptors")
            arrived, capacity = RECORD.unpack(record)
            self._descriptors[arrived] = (descriptors[0], capacity)
        return self._descriptors[number]


def _let_go(descriptor: int, mappings: list[mmap.mmap | None]) -> None:
    """Runs in a thread: unmapping a GiB takes the system 0.3 s, during which no message should wait."""
    os.close(descriptor)
    mappings.clear()
