"""Clients that die in the middle of an upload, of their computation, or of a download, at one of twenty points each."""

from __future__ import annotations

import http.client
import io
import json
import os
import secrets
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from shardserve_proto.frames import MEDIA_TYPE, encode_frame, encode_header
from shardserve_proto.messages import ArrayArgument, CallRequest, Keep, Segment, SegmentArgument, ids_segment
from shardserve_proto.programs import Program, Step
from tests.calls import Array
from tests.server.front.serving import eventually, post_head, read_answer

POINTS = 20
MIB = 2**20
#: Above what is gathered in one piece, so that it leaves as a stream.
STREAMED = (68 * MIB // 64, 8)
UPLOADED = np.random.default_rng(1).random((2 * MIB // 8 // 64, 64))
FACTOR = np.random.default_rng(2).random((384, 384)) / 200
NPY_TYPE = "application/x-npy"


@dataclass
class Report:
    """What happened: clients that died by phase, arrays that their puts left, descriptors before and after."""

    rounds: int = 0
    died: Counter[str] = field(default_factory=Counter)
    left: int = 0
    seconds: float = 0.0
    resident_bytes: int = 0
    descriptors: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    def __str__(self) -> str:
        died = ", ".join(f"{number} in {phase}" for phase, number in self.died.items())
        (front, engine), (front_after, engine_after) = self.descriptors
        return (
            f"{self.rounds} rounds of {POINTS} points in {self.seconds:.1f} s; clients that died: {died}\n"
            f"puts that were complete before their client died: {self.left} (deleted by this test)\n"
            f"ledger at the end: resident {self.resident_bytes} bytes, as the live handles; reserved 0; in transit 0\n"
            f"open descriptors before and after: front {front}, {front_after}; engine {engine}, {engine_after}"
        )


@dataclass
class Victim:
    """A server that loses its clients, and a connection that looks at its ledger.

    Attributes:
        pids: of its front and its engine.
        live: the handles that stay.
        within_s: by then everything must be back.
    """

    port: int
    pids: tuple[int, int]
    within_s: float = 10.0
    live: dict[str, str] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    compute_s: float = 0.0
    _watch: http.client.HTTPConnection | None = None

    # --- looking -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: bytes | None = None, media_type: str = "application/json") -> Any:
        """A question on the connection that stays."""
        self._watch = self._watch or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._watch.request(method, path, body=body, headers={"Content-Type": media_type} if body is not None else {})
        response = self._watch.getresponse()
        text = response.read()
        assert response.status < 300, text[:300]
        return json.loads(text) if text else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._watch is not None:
            self._watch.close()

    def is_settled(self) -> bool:
        """D3: the ledger is exactly the device bytes of the live handles; nothing is reserved or in transit."""
        memory, arrays = self.ask("GET", "/v1/memory"), self.ask("GET", "/v1/arrays")
        self.report.resident_bytes = sum(info["device_bytes"] for info in arrays)
        return bool(
            memory["resident_bytes"] == self.report.resident_bytes
            and memory["own_resident_bytes"] == self.report.resident_bytes
            and memory["reserved_bytes"] == memory["transit_bytes"] == 0
        )

    def settle(self) -> None:
        """Wait until it is so; then delete what was put by clients that died after the last byte."""
        eventually(self.is_settled, within_s=self.within_s)
        strays = [info["id"] for info in self.ask("GET", "/v1/arrays") if info["id"] not in self.live.values()]
        if strays:
            self.report.left += len(strays)
            self.ask("POST", "/v1/arrays/release", json.dumps({"ids": strays}).encode())
            eventually(self.is_settled, within_s=self.within_s)

    def descriptors(self) -> tuple[int, int]:
        """Open descriptors of front and engine."""
        front, engine = (len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)
        return front, engine

    def _settled_descriptors(self) -> tuple[int, int]:
        """Buffers are closed by a thread, a moment after they are given back, or when the engine has come to rest."""
        seen = [self.descriptors()]
        while len(seen) < 20 or len(set(seen[-20:])) > 1:
            time.sleep(0.05)
            seen.append(self.descriptors())
        return seen[-1]

    def _are_back(self, before: tuple[int, int]) -> bool:
        return all(now <= then for now, then in zip(self.descriptors(), before, strict=True))

    # --- dying -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The arrays that live through it all, and how long the computation takes."""
        for name, array in {"streamed": np.ones(STREAMED), "factor": FACTOR}.items():
            self.live[name] = self.ask("POST", f"/v1/arrays?name={name}", npy(array), NPY_TYPE)["id"]
        for _ in range(2):  # the first one compiles
            began = time.monotonic()
            with self._connect() as stream:
                stream.sendall(self._compute())
                assert read_answer(stream).status == 200
            self.compute_s = time.monotonic() - began
        self.settle()

    def rounds(self, number: int) -> Report:
        """The loop; every death is followed by a look at the ledger."""
        self.round(0)  # makes the connections and buffers that stay
        self.report = Report()
        before, began = self._settled_descriptors(), time.monotonic()
        for turn in range(number):
            self.round(turn)
            eventually(lambda: self._are_back(before), within_s=self.within_s)
        self.report.rounds, self.report.seconds = number, time.monotonic() - began
        self.report.descriptors = before, self.descriptors()
        return self.report

    def round(self, turn: int) -> None:
        for point in range(1, POINTS + 1):
            for phase in (self.die_in_upload, self.die_in_compute, self.die_in_download):
                phase(turn, point)
                self.settle()

    def die_in_upload(self, turn: int, point: int) -> None:
        """A frame or a .npy body, of which `point` twentieths are sent."""
        whole = put_frame(UPLOADED) if turn % 2 else put_npy(UPLOADED)
        with self._connect() as stream:
            stream.sendall(whole[: len(whole) * point // POINTS])
            self._die(stream, "upload", point)

    def die_in_compute(self, turn: int, point: int) -> None:
        """A call that keeps one result and returns another, left after `point` twentieths of its time."""
        del turn
        with self._connect() as stream:
            stream.sendall(self._compute())
            time.sleep(self.compute_s * point / POINTS)
            self._die(stream, "compute", point)

    def die_in_download(self, turn: int, point: int) -> None:
        """A stream of windows, or the reply of a call, of which `point` twentieths are read."""
        if turn % 2:
            ask, nbytes = call_frame("identity", UPLOADED), UPLOADED.nbytes
        else:
            path = f"/v1/arrays/{self.live['streamed']}"
            ask, nbytes = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), 8 * STREAMED[0] * STREAMED[1]
        with self._connect() as stream:
            stream.sendall(ask)
            left, room = nbytes * point // POINTS, bytearray(MIB)
            while left > 0:
                got = stream.recv_into(room, min(left, MIB))
                assert got, "the server ended the download"
                left -= got
            self._die(stream, "download", point)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def _die(self, stream: socket.socket, phase: str, point: int) -> None:
        """As the system closes the sockets of a killed process: by a reset, or in order when nothing was unread."""
        if point % 2:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.report.died[phase] += 1

    def _compute(self) -> bytes:
        """Sixty products of a resident matrix: the last is kept, its total comes back with the one before."""
        steps = (
            Step(kernel="matmul", operands=(0, 0)),
            *(Step(kernel="matmul", operands=(n, 0)) for n in range(1, 60)),
        )
        ids = bytes.fromhex(self.live["factor"]) + secrets.token_bytes(16)
        request = CallRequest(
            program=Program(inputs=1, steps=steps, outputs=(59, 60)),
            arguments=(ArrayArgument(array=0),),
            segments=(ids_segment(2),),
            ids=0,
            results=(None, Keep(array=1)),
        )
        return post(b"".join(encode_frame(encode_header(request.to_wire()), [memoryview(ids)])))


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def post(body: bytes) -> bytes:
    return post_head("/v1/call", len(body), MEDIA_TYPE) + body


def put_npy(array: Array) -> bytes:
    body = npy(array)
    return post_head("/v1/arrays", len(body), NPY_TYPE) + body


def put_frame(array: Array) -> bytes:
    """A put as the SDK sends it."""
    request = CallRequest(
        program=Program(inputs=1, outputs=(0,)),
        arguments=(SegmentArgument(segment=1),),
        segments=(ids_segment(), _segment(array)),
        ids=0,
        results=(Keep(array=0),),
    )
    parts = [memoryview(secrets.token_bytes(16)), array.data.cast("B")]
    return post(b"".join(encode_frame(encode_header(request.to_wire()), parts)))


def call_frame(kernel: str, array: Array) -> bytes:
    """A call whose result is as large as its argument."""
    request = CallRequest(
        program=Program.of_kernel(kernel, operands=1),
        arguments=(SegmentArgument(segment=0),),
        segments=(_segment(array),),
    )
    return post(b"".join(encode_frame(encode_header(request.to_wire()), [array.data.cast("B")])))


def _segment(array: Array) -> Segment:
    return Segment(dtype=array.dtype.name, shape=array.shape, nbytes=array.nbytes)
