"""Trees of arguments and results: tuples, named tuples, lists, dicts and None, taken apart and put together.

The wire is flat; a tree is the client's affair. A *prefix* of a tree has the same containers from the top, and one leaf
wherever it stops: that leaf stands for the whole subtree there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardserve_proto.errors import ShardserveError


@dataclass(frozen=True)
class Tree:
    """The shape of a tree without its leaves.

    Attributes:
        kind: the container's class; None for a leaf; `type(None)` for None, which holds no leaf.
        keys: of a dict, in its own order.
        children: the subtrees.
    """

    kind: type[Any] | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return self.kind is None

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.is_leaf else sum(child.leaves for child in self.children)

    def paths(self, root: str) -> list[str]:
        """How each leaf is written, for messages: `argument 0['w']`."""
        if self.is_leaf:
            return [root]
        steps = [f"[{key!r}]" for key in self.keys] or [f"[{index}]" for index in range(len(self.children))]
        return [path for step, child in zip(steps, self.children, strict=True) for path in child.paths(root + step)]

    def __str__(self) -> str:
        if self.is_leaf:
            return "an array"
        if self.kind is type(None):
            return "None"
        if self.keys:
            return f"a dict with the keys {', '.join(map(repr, self.keys))}"
        return f"a {self.kind.__name__} of {len(self.children)}" if self.kind else ""


LEAF = Tree()
NONE = Tree(type(None))


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of a value, in order, and its shape."""
    leaves: list[Any] = []
    return leaves, _take_apart(value, leaves)


def _take_apart(value: Any, leaves: list[Any]) -> Tree:
    if value is None:
        return NONE
    if isinstance(value, dict):
        return Tree(dict, tuple(value), tuple(_take_apart(child, leaves) for child in value.values()))
    if type(value) in (tuple, list) or is_named_tuple(value):
        return Tree(type(value), (), tuple(_take_apart(child, leaves) for child in value))
    leaves.append(value)
    return LEAF


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    """The value of this shape with the next leaves."""
    if tree.kind is None:
        return next(leaves)
    if tree.kind is type(None):
        return None
    children = [unflatten(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, children, strict=True))
    if tree.kind in (tuple, list):
        return tree.kind(children)
    return tree.kind(*children)  # a named tuple


@dataclass(frozen=True)
class Prefix:
    """How prefixes of one kind are read.

    Attributes:
        what: the keyword, for messages ("in_axes").
        is_leaf: whether a value is one specification, and no container of several.
        error: raised when a prefix does not match.
        fits_leaf: whether a container may be read as one specification where the tree has a single array.
    """

    what: str
    is_leaf: Callable[[Any], bool]
    error: type[ShardserveError]
    fits_leaf: Callable[[Any], bool] = lambda value: False  # noqa: ARG005

    def broadcast(self, prefix: Any, tree: Tree) -> list[Any]:
        """One specification for each leaf of the tree.

        Raises:
            ShardserveError: of the class `error`; the prefix has other containers than the tree.
        """
        return self._broadcast(prefix, tree, self.what, is_top=self.what.startswith("in_"))

    def _broadcast(self, prefix: Any, tree: Tree, path: str, *, is_top: bool = False) -> list[Any]:
        if self.is_leaf(prefix) or (tree.is_leaf and self.fits_leaf(prefix)):
            return [prefix] * tree.leaves
        children = self._children(prefix, tree)
        if children is None:
            raise self.error(self._misfit(prefix, tree, path, is_top=is_top))
        pairs = zip(children, tree.children, strict=True)
        return [leaf for (step, child), sub in pairs for leaf in self._broadcast(child, sub, path + step)]

    def _children(self, prefix: Any, tree: Tree) -> list[tuple[str, Any]] | None:
        """The parts of a prefix beside the children of the tree; None if they do not match."""
        if tree.kind is dict:
            if not isinstance(prefix, dict) or prefix.keys() != set(tree.keys):
                return None
            return [(f"[{key!r}]", prefix[key]) for key in tree.keys]
        if tree.is_leaf or not isinstance(prefix, list | tuple) or len(prefix) != len(tree.children):
            return None
        return [(f"[{index}]", child) for index, child in enumerate(prefix)]

    def _misfit(self, prefix: Any, tree: Tree, path: str, *, is_top: bool) -> str:
        _, given = flatten(prefix)
        shown = "one specification" if given.is_leaf else str(given)
        if not is_top:
            return f"{path} is {shown}, but {tree} stands there; {self.what} is a prefix of the tree that it describes"
        count = len(tree.children)
        message = f"{path} is {shown}, but there {'is 1 argument' if count == 1 else f'are {count} arguments'}"
        if count == 1:
            message += f"; if it describes the parts of the one argument, wrap it in a 1-tuple: {path}=({prefix!r},)"
        return message
