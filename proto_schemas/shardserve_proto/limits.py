"""The protocol's limits, in one table; `/v1/info` prints it, and a server's settings may lower some of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Limits:
    """Upper bounds that decoders hold before they allocate.

    Attributes:
        header_bytes: bytes of one frame's header.
        header_tokens: msgpack values in one header (bounds its size once decoded).
        header_depth: nesting of maps and arrays in one header, and of JSON.
        segments: arrays in one frame.
        rank: dimensions of an array.
        name_bytes: UTF-8 bytes of an axis, kernel, mesh or parameter name.
        parameters: static parameters of one step.
        steps: steps of a program, those of nested programs included.
        program_depth: programs nested in each other.
        axes: named axes of one program, those of nested programs included.
        body_bytes: bytes of one frame.
        json_bytes: bytes of a JSON body.
        inline_bytes: a segment up to this size rides in the engine's message itself.
    """

    header_bytes: int = 256 * 1024
    header_tokens: int = 20_000
    header_depth: int = 33
    segments: int = 256
    rank: int = 32
    name_bytes: int = 64
    parameters: int = 64
    steps: int = 1024
    program_depth: int = 8
    axes: int = 32
    body_bytes: int = 16 * 2**30
    json_bytes: int = 1024 * 1024
    inline_bytes: int = 64 * 1024

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


LIMITS = Limits()
