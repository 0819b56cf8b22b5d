"""Traced functions, element by element: arithmetic, comparisons, where. Dtypes and broadcasting are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._traced import TracedArray, apply

Unary = Callable[[Any], TracedArray]
Binary = Callable[[Any, Any], TracedArray]


def _finish(function: Any, name: str, claim: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{claim}\n\n"
        f"Shapes broadcast and the dtype follows as in NumPy; a Python scalar adapts to its partner.\n\n"
        f"Communication: none."
    )
    return function


def _unary(name: str, claim: str) -> Unary:
    def function(x: Any) -> TracedArray:
        return apply(name, x)

    unary: Unary = _finish(function, name, claim)
    return unary


def _binary(name: str, claim: str) -> Binary:
    def function(x: Any, y: Any) -> TracedArray:
        return apply(name, x, y)

    binary: Binary = _finish(function, name, claim)
    return binary


negative = _unary("negative", "The negative of each element.")
exp = _unary("exp", "e to the power of each element.")
log = _unary("log", "The natural logarithm of each element; NaN below zero, -inf at zero.")
sqrt = _unary("sqrt", "The square root of each element; NaN below zero.")
tanh = _unary("tanh", "The hyperbolic tangent of each element.")
abs = _unary("abs", "The absolute value of each element; of a complex one its magnitude.")

add = _binary("add", "The sum of two arrays, element by element.")
subtract = _binary("subtract", "The difference of two arrays, element by element.")
multiply = _binary("multiply", "The product of two arrays, element by element.")
divide = _binary("divide", "The true quotient of two arrays, correctly rounded; integers divide as float64.")
power = _binary("power", "The first array raised to the second, element by element.")
maximum = _binary("maximum", "The larger of two elements; NaN if one of them is.")
minimum = _binary("minimum", "The smaller of two elements; NaN if one of them is.")
equal = _binary("equal", "Where two arrays are equal.")
not_equal = _binary("not_equal", "Where two arrays differ.")
less = _binary("less", "Where the first array is less than the second.")
less_equal = _binary("less_equal", "Where the first array is not greater than the second.")
greater = _binary("greater", "Where the first array is greater than the second.")
greater_equal = _binary("greater_equal", "Where the first array is not less than the second.")


def where(condition: Any, x: Any, y: Any) -> TracedArray:
    """Elements of `x` where the condition holds, of `y` elsewhere.

    Arguments:
        condition: of any dtype; what is not zero holds.
        x, y: arrays or scalars that broadcast with it.

    Returns: an array of the broadcast shape, in the common dtype of `x` and `y`.

    Communication: none.
    """
    return apply("where", condition, x, y)
