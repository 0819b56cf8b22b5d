"""Subscripts of `einsum`: which label each dimension carries. Labels are named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import ProgramError, ShapeError


@dataclass(frozen=True)
class Labels:
    """One label for each dimension; the dimensions of an ellipsis are labelled `...0`, `...1` from the right."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse_subscripts(subscripts: str, ranks: Sequence[int]) -> Labels:
    """Read subscripts as `numpy.einsum` does, with or without `->`.

    Raises:
        ProgramError: not well formed.
        ShapeError: the labels do not match the operands' number or ranks.
    """
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"{subscripts!r} has {len(terms)} terms for {len(ranks)} operands")
    inputs = tuple(_term(term, rank, subscripts) for term, rank in zip(terms, ranks, strict=True))
    if arrow:
        dots = max((sum(label.startswith("...") for label in own) for own in inputs), default=0)
        output = _expand(right, dots, subscripts)
        if dots and "..." not in right:
            raise ProgramError(f"the output of {subscripts!r} has no ..., but its operands have dimensions there")
    else:
        output = _implicit(inputs)
    return Labels(inputs, _checked_output(output, inputs, subscripts))


def _term(term: str, rank: int, subscripts: str) -> tuple[str, ...]:
    letters = len(term.replace("...", ""))
    dots = rank - letters if "..." in term else 0
    labels = _expand(term, max(dots, 0), subscripts)
    if dots < 0 or len(labels) != rank:
        raise ShapeError(f"term {term!r} of {subscripts!r} has {letters} labels for an operand of rank {rank}")
    return labels


def _expand(term: str, dots: int, subscripts: str) -> tuple[str, ...]:
    before, ellipsis, after = term.partition("...")
    if not all(letter.isascii() and letter.isalpha() for letter in before + after):
        raise ProgramError(f"{subscripts!r} is not well formed: labels are letters, with at most one ... in each term")
    middle = [f"...{index}" for index in reversed(range(dots))] if ellipsis else []
    return (*before, *middle, *after)


def _implicit(inputs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    labels = [label for own in inputs for label in own]
    dots = sorted({label for label in labels if label.startswith("...")}, reverse=True)
    return (*dots, *sorted(label for label in set(labels) if labels.count(label) == 1 and label not in dots))


def _checked_output(output: tuple[str, ...], inputs: Sequence[tuple[str, ...]], subscripts: str) -> tuple[str, ...]:
    known = {label for own in inputs for label in own}
    for label in output:
        if label not in known:
            raise ProgramError(f"output label {label!r} of {subscripts!r} is in no operand")
        if output.count(label) > 1:
            raise ProgramError(f"output label {label!r} of {subscripts!r} stands twice")
    return output
