"""Element-wise kernels: NumPy's ufuncs, in NumPy's dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.abstract import Aval
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.rules import BINARY, UNARY, elementwise_loop

from .registry import Context, Implementation, Operand, Registry, cast, entangle, exact_divide, settle


def _square_root(x: jax.Array) -> jax.Array:
    """NumPy's (C's): XLA forgets on which side of the cut a negative number lies, and infinity beside NaN."""
    root = jnp.sqrt(x)
    if x.dtype.kind != "c":
        return root
    infinity = jnp.full_like(x.real, np.inf)
    is_half_known = jnp.isnan(x.imag) & jnp.isinf(x.real)
    real = jnp.where(jnp.isinf(x.imag) | (is_half_known & (x.real == infinity)), infinity, root.real)
    imag = jnp.where(jnp.isinf(x.imag) | (is_half_known & (x.real == -infinity)), infinity, root.imag)
    return jax.lax.complex(real, jnp.copysign(imag, x.imag))


def _exponential(x: jax.Array) -> jax.Array:
    """NaN for a NaN: of one that it knows at compile time, XLA's float32 code makes any number (gone with JAX 0.12)."""
    if x.dtype.kind != "c":
        return jnp.where(jnp.isnan(x), x, jnp.exp(x))
    of_nan = jax.lax.complex(x.real, jnp.where(x.imag == 0, x.imag, x.real))
    return jnp.where(jnp.isnan(x.real), of_nan, jnp.exp(x))


#: kernel -> the function that computes it, once the operands are in NumPy's loop dtypes.
_FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "negative": jnp.negative, "exp": _exponential, "log": jnp.log, "sqrt": _square_root, "tanh": jnp.tanh,
    "abs": jnp.abs, "add": jnp.add, "subtract": jnp.subtract, "multiply": jnp.multiply, "divide": exact_divide,
    "power": jnp.power, "maximum": jnp.maximum, "minimum": jnp.minimum, "equal": jnp.equal, "not_equal": jnp.not_equal,
    "less": jnp.less, "less_equal": jnp.less_equal, "greater": jnp.greater, "greater_equal": jnp.greater_equal,
}  # fmt: skip

#: The product, the square and the exponent that are left.
PowerState = tuple[jax.Array, jax.Array, jax.Array]
#: No rewrite of these, alone or with a neighbour, gives another number: they round nothing.
_EXACT = frozenset({"negative", "abs", "maximum", "minimum"})


def _document(name: str, ufunc: np.ufunc) -> str:
    operands = "x" if ufunc.nin == 1 else "x, y"
    return (
        f"Element-wise {name} of {operands}, as numpy.{ufunc.__name__}.\n\n"
        "Operands broadcast; the dtype is that of NumPy's own loop, and Python scalars are weak. A 16-bit float\n"
        f"computes and answers in itself. Special values follow IEEE 754. Subnormals may count as zero.\n\n"
        "Communication: none."
    )


def _implementation(name: str, ufunc: np.ufunc) -> Implementation:
    function = _FUNCTIONS[name]

    def run(context: Context, *operands: Operand) -> jax.Array:
        loop = elementwise_loop(name, ufunc, context.operands)
        arrays = [cast(operand, dtype) for operand, dtype in zip(operands, loop, strict=False)]
        if {array.dtype for array in arrays} == {DTYPES["int64"], DTYPES["uint64"]}:
            return _compare_signed(name, arrays[0], arrays[1])
        if name == "power" and context.dtype.kind in "iu":
            return _integer_power(arrays[0], arrays[1], context.operands[1])
        if name in ("add", "subtract"):
            arrays = _with_zeros_kept(arrays, context)
        result = cast(function(*arrays), context.dtype)
        return result if name in _EXACT else settle(result)

    return run


def _integer_power(x: jax.Array, exponent: jax.Array, given: Aval) -> jax.Array:
    """Square and multiply, over all bits that the exponent can have; it is not negative. Products wrap, as in NumPy."""
    shape = jnp.broadcast_shapes(x.shape, exponent.shape)
    if isinstance(given.value, int):
        known: jax.Array = jax.lax.integer_pow(x, int(given.value))
        return jnp.broadcast_to(known, shape)
    x, exponent = jnp.broadcast_to(x, shape), jnp.broadcast_to(exponent, shape)
    # In rounds of 8 bits: written out, 64 bits of many steps would take minutes to compile; one by one, 64 passes.
    rounds = given.strong_dtype.itemsize
    state = (jnp.ones_like(x), x, exponent)
    if rounds > 1:
        state = jax.lax.fori_loop(1, rounds, lambda _, state: _power_of_byte(state), state)
    return _power_of_byte(state)[0]


def _power_of_byte(state: PowerState) -> PowerState:
    """The product so far times `square` to the power of the exponent's lowest byte, for the next byte."""
    product, square, exponent = state
    one = np.array(1, exponent.dtype)
    for _ in range(8):
        product = jnp.where(exponent & one == one, product * square, product)
        square, exponent = square * square, exponent >> one
    return product, square, exponent


def _with_zeros_kept(arrays: Sequence[jax.Array], context: Context) -> list[jax.Array]:
    """Sums with a constant zero are computed: XLA takes `x + 0.0` for `x`, but -0.0 + 0.0 is 0.0."""
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    full = [jnp.broadcast_to(array, shape) for array in arrays]
    if context.dtype.kind in "iu" or not any(aval.value == 0 for aval in context.operands if aval.value is not None):
        return list(arrays)
    return [
        array if aval.value is None or aval.value != 0 else entangle(array, other)
        for array, other, aval in zip(full, reversed(full), context.operands, strict=True)
    ]


def _compare_signed(name: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """NumPy compares int64 with uint64 exactly: a negative number is below every unsigned one."""
    signed_first = x.dtype == DTYPES["int64"]
    signed = x if signed_first else y
    is_negative = jnp.broadcast_to(signed < np.int64(0), jnp.broadcast_shapes(x.shape, y.shape))
    below = np.array(name in ("less", "less_equal") if signed_first else name in ("greater", "greater_equal"))
    answer = np.array(True) if name == "not_equal" else below
    unsigned = [array.astype(DTYPES["uint64"]) for array in (x, y)]
    return jnp.where(is_negative, answer, _FUNCTIONS[name](*unsigned))


def register(registry: Registry) -> None:
    for name, ufunc in (UNARY | BINARY).items():
        registry.builtin(name, doc=_document(name, ufunc))(_implementation(name, ufunc))

    @registry.builtin("where")
    def where(context: Context, condition: Operand, x: Operand, y: Operand) -> jax.Array:
        """Choose from `x` where the condition is true, else from `y`, as numpy.where with three arguments.

        The three broadcast; the dtype is the common one of `x` and `y`. Communication: none.
        """
        chosen = [cast(operand, context.dtype) for operand in (x, y)]
        return jnp.where(cast(condition, DTYPES["bool"]), chosen[0], chosen[1])

    @registry.builtin("identity")
    def identity(context: Context, x: Operand) -> jax.Array:
        """The array itself, bit for bit; with specs, a way to place it.

        A Python scalar becomes int64, float64, complex128 or bool. Communication: what a change of spec needs.
        """
        return cast(x, context.dtype)

    @registry.builtin("astype")
    def astype(context: Context, x: Operand, *, dtype: str) -> jax.Array:  # noqa: ARG001
        """Cast to a dtype of the table, as ndarray.astype.

        Casting a complex array to a real dtype is refused. Communication: none.
        """
        return cast(x, context.dtype)
