"""einsum: contractions by labels, which are named axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.einsum import Labels, parse_subscripts

from .dot import Product, contract, inner_product
from .registry import Context, Operand, Registry, cast


def register(registry: Registry) -> None:
    @registry.builtin("einsum")
    def einsum(context: Context, *operands: Operand, subscripts: str, dtype: str | None) -> jax.Array:  # noqa: ARG001
        """Einstein summation, as numpy.einsum; `axis_resources` may place its labels.

        Arguments:
            operands: one array for each term, any computable dtype.
            subscripts: as in NumPy, for example `"ki,ki->i"`; letters and one `...` in each term.
            dtype: of the result; the operands are cast to it first.

        Returns: one dimension for each output label.

        Raises:
            ShapeError: a label with two sizes, or a term that does not match its operand's rank.
            ProgramError: subscripts that are not well formed.

        Communication: one all-reduce over the mesh axes of the contracted labels; none for the others.
        """
        labels = parse_subscripts(subscripts, [aval.ndim for aval in context.operands])
        return contract(context, _product(labels), *operands)


def _product(labels: Labels) -> Product:
    contracted = _inner_label(labels)
    return _general(labels) if contracted is None else _inner(labels, contracted)


def _inner_label(labels: Labels) -> str | None:
    """The contracted label, if the subscripts only multiply two arrays element by element and add along one label."""
    if len(labels.inputs) != 2 or any(len(set(own)) < len(own) for own in labels.inputs):
        return None
    left, right = map(set, labels.inputs)
    contracted = left - set(labels.output)
    return contracted.pop() if left == right and len(contracted) == 1 else None


def _inner(labels: Labels, contracted: str) -> Product:
    order = (*labels.output, contracted)

    def product(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
        aligned = [
            jnp.transpose(array, [own.index(label) for label in order])
            for array, own in zip((x, y), labels.inputs, strict=True)
        ]
        return inner_product(*aligned, **options)

    return product


def _is_one_product(labels: Labels) -> bool:
    """Whether one product of two arrays does it all: no diagonal, and no label that one operand sums out alone."""
    if len(labels.inputs) != 2 or any(len(set(own)) < len(own) for own in labels.inputs):
        return False
    left, right = map(set, labels.inputs)
    return left ^ right <= set(labels.output)


def _general(labels: Labels) -> Product:
    """jnp.einsum with explicit labels as numbers, so that an ellipsis needs no second reading."""
    is_product = _is_one_product(labels)
    numbers = {label: number for number, label in enumerate(sorted({a for own in labels.inputs for a in own}))}
    einsum: Callable[..., jax.Array] = jnp.einsum  # its overloads know no interleaved form

    def product(*arrays: jax.Array, preferred_element_type: Any, **options: Any) -> jax.Array:
        if not is_product:  # jnp.einsum totals and multiplies intermediates in the operands' dtype
            arrays = tuple(cast(array, np.dtype(preferred_element_type)) for array in arrays)
        options["preferred_element_type"] = preferred_element_type
        interleaved: list[Any] = []
        for array, own in zip(arrays, labels.inputs, strict=True):
            interleaved += [array, [numbers[label] for label in own]]
        return einsum(*interleaved, [numbers[label] for label in labels.output], **options)

    return product
