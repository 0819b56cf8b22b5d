"""The largest array that a product in a program reads or writes, known before anything is compiled.

Products are not fused: each operand and each result lies in memory whole. The compiler's own account comes too late
for those that can never fit: XLA of JAX 0.12 ends the process (SIGFPE) while it compiles a product of 2**18 x 2**18.
"""

from __future__ import annotations

import math
import re

from shardserve_proto.errors import TooLarge

_PRODUCT = re.compile(r"stablehlo\.dot_general .*? : (\(.*)")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(complex<f\d+>|[a-z]+\d+)")


def check_products(lowered_text: str, memory_bytes: int) -> None:
    """Refuse a program in which a single array of a product is larger than all devices together.

    Raises:
        TooLarge: with both sizes.
    """
    needed = largest_product_bytes(lowered_text)
    if needed > memory_bytes:
        raise TooLarge(
            f"a product inside the program has an array of {needed} bytes, but the devices hold {memory_bytes}; split "
            "the call, or reduce before you multiply",
            details={"needed_bytes": needed, "limit_bytes": memory_bytes},
        )


def largest_product_bytes(lowered_text: str) -> int:
    """Bytes of the largest operand or result of a `dot_general` in StableHLO text; 0 if there is none."""
    types = (match for product in _PRODUCT.findall(lowered_text) for match in _TENSOR.findall(product))
    return max((_tensor_bytes(shape, element) for shape, element in types), default=0)


def _tensor_bytes(shape: str, element: str) -> int:
    bits = int(re.sub(r"\D", "", element)) * (2 if element.startswith("complex") else 1)
    return math.prod(int(size) for size in shape.split("x") if size) * max(bits // 8, 1)
