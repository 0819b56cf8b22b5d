"""einsum: contractions by labels, which are named axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardserve_proto.einsum import Labels, parse_subscripts

from .dot import contract
from .registry import Context, Operand, Registry


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


def _product(labels: Labels):  # type: ignore[no-untyped-def]
    """jnp.einsum with explicit labels as numbers, so that an ellipsis needs no second reading."""
    numbers = {label: number for number, label in enumerate(sorted({a for own in labels.inputs for a in own}))}

    def product(*arrays: jax.Array, precision: jax.lax.Precision, preferred_element_type: object) -> jax.Array:
        interleaved: list[object] = []
        for array, own in zip(arrays, labels.inputs, strict=True):
            interleaved += [array, [numbers[label] for label in own]]
        output = [numbers[label] for label in labels.output]
        return jnp.einsum(  # type: ignore[call-overload,no-any-return]
            *interleaved, output, precision=precision, preferred_element_type=preferred_element_type
        )

    return product
