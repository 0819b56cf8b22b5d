"""What a kernel is, and the registry that holds them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import DType, scalar_array
from shardserve_proto.messages import KernelInfo
from shardserve_proto.signatures import BUILTIN, Signature

#: An operand is a traced array, or a Python scalar that stands in the program as a constant.
Operand = Any


@dataclass(frozen=True)
class Context:
    """What a kernel may know while it is traced.

    Attributes:
        operands: abstract values of the operands, as the signature's rule saw them.
        results: abstract values that the rule promised; the kernel must return exactly these.
        scope: the named axes in sight.
        precision: of float32 products and totals.
    """

    operands: tuple[Aval, ...]
    results: tuple[Aval, ...]
    scope: Scope
    precision: jax.lax.Precision

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result."""
        return self.results[0].strong_dtype


Implementation = Callable[..., Any]


@dataclass(frozen=True)
class Kernel:
    """A server-side function with a documented signature.

    Attributes:
        signature: operands, parameters and the rule of the result.
        implementation: `(context, *operands, **parameters) -> array or tuple of arrays`, traced under jit and vmap.
        doc: claim, dtype rule, special values, communication.
    """

    signature: Signature
    implementation: Implementation
    doc: str

    def info(self) -> KernelInfo:
        """The signature and documentation as `/v1/kernels` shows them."""
        summary, _, _ = self.doc.partition("\n")
        return KernelInfo(
            name=self.signature.name,
            signature=str(self.signature),
            operands=self.signature.operands,
            is_variadic=self.signature.is_variadic,
            parameters=tuple(parameter.info() for parameter in self.signature.parameters),
            summary=summary,
            doc=self.doc,
        )


class Registry(Mapping[str, Kernel]):
    """Kernels by name; `add` opens it to more."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}

    def add(self, kernel: Kernel) -> None:
        """Register a kernel.

        Raises:
            ValueError: the name is taken or is not ASCII.
        """
        name = kernel.signature.name
        if name in self._kernels:
            raise ValueError(f"a kernel named {name!r} is registered already")
        if not name.isascii() or not name.isidentifier():
            raise ValueError(f"a kernel's name is an ASCII identifier, not {name!r}")
        self._kernels[name] = kernel

    def builtin(self, name: str, *, doc: str | None = None) -> Callable[[Implementation], Implementation]:
        """Register the decorated function as the implementation of a built-in signature."""

        def register(implementation: Implementation) -> Implementation:
            text = doc or implementation.__doc__ or ""
            self.add(Kernel(BUILTIN[name], implementation, inspect.cleandoc(text)))
            return implementation

        return register

    @property
    def signatures(self) -> dict[str, Signature]:
        return {name: kernel.signature for name, kernel in self._kernels.items()}

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)


def cast(operand: Operand, dtype: DType) -> jax.Array:
    """An operand in the given dtype, explicitly: the engine allows no implicit promotion."""
    if isinstance(operand, bool | int | float | complex):
        return jnp.asarray(scalar_array(operand, dtype))
    if operand.dtype == dtype:
        return jnp.asarray(operand)
    if dtype == np.bool_:
        return jnp.asarray(operand != jnp.zeros((), operand.dtype))
    if operand.dtype == np.bool_ and dtype.kind not in "iu":
        # XLA takes the product with a converted bool for a choice between `x` and 0, which loses NaN, infinity and -0.
        return jnp.where(operand, jnp.ones((), dtype), jnp.zeros((), dtype))
    return jax.lax.convert_element_type(operand, dtype)


def exact_divide(x: jax.Array, divisor: jax.Array) -> jax.Array:
    """`x / divisor`, correctly rounded.

    XLA turns a division by a broadcast value into a product with its reciprocal: another number in a quarter of all
    elements, and zero where the reciprocal is subnormal.
    """
    shape = jnp.broadcast_shapes(x.shape, divisor.shape)
    x, divisor = jnp.broadcast_to(x, shape), jnp.broadcast_to(divisor, shape)
    if np.issubdtype(x.dtype, np.complexfloating):
        return _complex_divide(x, divisor)
    return jnp.divide(x, entangle(divisor, x))


def _complex_divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """NumPy's own steps (Smith's), so that zeros and infinities give its NaNs; XLA follows C's Annex G."""
    by_real = abs(y.real) >= abs(y.imag)
    large, small = jnp.where(by_real, y.real, y.imag), jnp.where(by_real, y.imag, y.real)
    ratio = exact_divide(small, large)
    scale = exact_divide(jnp.ones_like(large), settle(large + settle(small * ratio)))
    real = jnp.where(by_real, x.real + settle(x.imag * ratio), settle(x.real * ratio) + x.imag)
    imag = jnp.where(by_real, x.imag - settle(x.real * ratio), settle(x.imag * ratio) - x.real)
    is_zero = (large == jnp.zeros_like(large)) & by_real
    zero = abs(large)
    return jax.lax.complex(
        jnp.where(is_zero, exact_divide(x.real, zero), settle(real) * scale),
        jnp.where(is_zero, exact_divide(x.imag, zero), settle(imag) * scale),
    )


def entangle(y: jax.Array, x: jax.Array) -> jax.Array:
    """`y` where `x` is a number, else NaN; of one shape, and of the named axes of both.

    To a sum, difference or quotient with `x` it is the same as `y`, but XLA cannot see that it is constant.
    """
    if np.issubdtype(y.dtype, np.complexfloating):
        return jax.lax.complex(entangle(y.real, x.real), entangle(y.imag, x.imag))
    return jax.lax.select(x == x, y, jnp.full_like(y, np.nan))


def settle(result: jax.Array) -> jax.Array:
    """A float result that stands as it was rounded; what is done to it later is done to that number.

    XLA rewrites across operations for speed: `(x * a) * b` to `x * (a * b)`, `(x + a) - a` to `x`, `(a / b) / c` to
    `a / (b * c)`, `log(exp(x))` to `x`, and LLVM contracts `x * y + z` to one rounding (openxla/xla#41579). NumPy
    does none of these. No rewrite looks behind the choice between a number and NaN, and it costs no pass over memory:
    it is fused as any other operation. An optimization barrier ends the fusion on JAX 0.12 and lets LLVM contract on
    0.10.2.
    """
    return result if result.dtype.kind in "biu" else entangle(result, result)
