"""A remembered trace never outlives what the function saw; and what did not change is not traced anew."""

from __future__ import annotations

import functools
import itertools
import types
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve._fingerprint import MOST_BYTES, MOST_OBJECTS, fingerprint
from shardserve._functions import traced
from shardserve._tree import flatten

from .interpreter import interpret

X = np.arange(1.0, 5.0)
Change = tuple[Callable[[Any], Any], Callable[[], object]]

scale: Any = 2.0
absent: Any = None
present: Any = 2.0
settings = types.ModuleType("settings")


def remembered(function: Callable[..., Any], *args: Any) -> Any:
    """The result by a trace that may be an earlier one, as in `client.run`."""
    leaves, tree = flatten(args)
    return interpret(traced(function, tree, leaves), leaves)


class Layer:
    factor = 2.0

    def __init__(self) -> None:
        self.weights = np.ones(4)
        self.options = {"shift": 1.0}

    def __call__(self, x: Any) -> Any:
        return self.shifted(x) * self.weights[0] * self.factor

    def shifted(self, x: Any) -> Any:
        return x + self.options["shift"] * scale

    @property
    def gain(self) -> float:
        gain: float = self.options["shift"] + scale
        return gain

    @staticmethod
    def scaled(x: Any) -> Any:
        return x * scale


@dataclass(slots=True)
class Slotted:
    shift: float = 1.0


class Duck:
    """What NumPy makes an array of, by a way that nobody can watch."""

    def __init__(self, values: Any) -> None:
        self._values = iter(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.full(4, next(self._values))


def set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


def an_element_of_an_array() -> Change:
    w = np.arange(4.0)
    return lambda x: x * w[0], lambda: w.__setitem__(0, 9)


def an_array_in_an_expression() -> Change:
    w = np.arange(4.0)
    return lambda x: x * (w * 2), lambda: w.__setitem__(0, 9)


def a_captured_array() -> Change:
    w = np.arange(4.0)
    return lambda x: x * w, lambda: w.__setitem__(0, 9)


def an_array_with_its_shape() -> Change:
    w = np.ones((2, 2))
    return lambda x: x * w.ndim, lambda: w.resize((4,), refcheck=False)


def one_of_two_equal_0d_arrays() -> Change:
    p, q = np.array(2.0), np.array(2.0)
    return lambda x: x * p + q, lambda: q.__setitem__((), 5)


def an_array_of_objects() -> Change:
    w = np.array([1.0, 2.0], object)
    return lambda x: x * w[0], lambda: w.__setitem__(0, 9.0)


def an_element_of_a_large_array() -> Change:
    w = np.zeros(MOST_BYTES)
    return lambda x: x * w[0], lambda: w.__setitem__(0, 9)


def several_arrays_that_are_large_together() -> Change:
    ws = [np.zeros(MOST_BYTES // 16) for _ in range(3)]
    return lambda x: x * ws[0][0], lambda: ws[0].__setitem__(0, 9)


def a_dict() -> Change:
    cfg: dict[str, Any] = {"s": {"t": [2.0]}}
    return lambda x: x * cfg["s"]["t"][0], lambda: cfg["s"]["t"].__setitem__(0, 9.0)


def a_captured_list() -> Change:
    values = [1.0, 2.0, 3.0, 4.0]
    return lambda x: x * values, lambda: values.__setitem__(0, 9.0)


def the_order_of_a_dict() -> Change:
    cfg = {"a": 1.0, "b": 2.0}
    return lambda x: x * next(iter(cfg.values())), lambda: cfg.update(a=cfg.pop("a"))


def two_containers_that_exchange_an_element() -> Change:
    first, second = [1.0, 2.0], [3.0]
    return lambda x: x * len(first), lambda: second.insert(0, first.pop())


def a_large_dict() -> Change:
    cfg = dict.fromkeys(range(MOST_OBJECTS + 1), 1.0)
    return lambda x: x * cfg[0], lambda: cfg.__setitem__(0, 9.0)


def a_long_list_of_lists() -> Change:
    rows = [[1.0] for _ in range(MOST_OBJECTS)]
    return lambda x: x * rows[-1][0], lambda: rows[-1].__setitem__(0, 9.0)


def a_set() -> Change:
    names = {"a"}
    return lambda x: x * len(names), lambda: names.add("b")


def a_deque() -> Change:
    history = deque([1.0])
    return lambda x: x * history[-1], lambda: history.append(3.0)


def an_array_of_python() -> Change:
    values = array("d", [1.0, 2.0])
    return lambda x: x * values[0], lambda: values.__setitem__(0, 9.0)


def a_namespace() -> Change:
    cfg = types.SimpleNamespace(scale=2.0)
    return lambda x: x * cfg.scale, lambda: setattr(cfg, "scale", 3.0)


def an_attribute_of_self() -> Change:
    layer = Layer()
    return layer.shifted, lambda: layer.options.update(shift=5.0)


def an_array_of_self() -> Change:
    layer = Layer()
    return layer, lambda: layer.weights.__setitem__(0, 7)


def an_attribute_of_an_instance() -> Change:
    layer = Layer()
    return lambda x: layer(x), lambda: setattr(layer, "options", {"shift": 4.0})  # noqa: PLW0108


def an_attribute_behind_a_property() -> Change:
    layer = Layer()
    return lambda x: x * layer.gain, set_global("scale", 6.0)


def a_global_in_a_method() -> Change:
    layer = Layer()
    return lambda x: layer.shifted(x), set_global("scale", 7.0)  # noqa: PLW0108


def a_global_in_a_static_method() -> Change:
    return lambda x: Layer.scaled(x), set_global("scale", 8.0)  # noqa: PLW0108


def an_attribute_of_a_class() -> Change:
    return lambda x: x * Layer.factor, lambda: setattr(Layer, "factor", Layer.factor + 1)


def an_inherited_attribute() -> Change:
    class Deeper(Layer):
        pass

    deeper = Deeper()
    return lambda x: x * deeper.factor, lambda: setattr(Layer, "factor", Layer.factor + 1)


def an_attribute_in_a_slot() -> Change:
    slotted = Slotted()
    return lambda x: x * slotted.shift, lambda: setattr(slotted, "shift", 4.0)


def an_attribute_of_a_module() -> Change:
    settings.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * settings.scale, lambda: setattr(settings, "scale", 3.0)


def a_partial() -> Change:
    cfg = {"s": 2.0}
    return functools.partial(lambda cfg, x: x * cfg["s"], cfg), lambda: cfg.update(s=3.0)


def a_decorated_function() -> Change:
    cfg = {"s": 2.0}

    def decorated(x: Any) -> Any:
        return x * cfg["s"]

    return functools.wraps(decorated)(lambda x: decorated(x) + 0), lambda: cfg.update(s=3.0)


def a_default() -> Change:
    cfg = {"s": 2.0}

    def function(x: Any, *, cfg: dict[str, float] = cfg) -> Any:
        return x * cfg["s"]

    return function, lambda: cfg.update(s=3.0)


def two_globals_that_change_places() -> Change:
    def exchange() -> None:
        global absent, present
        absent, present = present, absent

    return lambda x: x * 2 if absent is None else x * 3 + bool(present), exchange


def an_object_that_numpy_makes_an_array_of() -> Change:
    duck = Duck(itertools.count(1.0))
    return lambda x: x * duck, lambda: None


def in_axes_of_a_transform() -> Change:
    axes: dict[int, str] = {0: "i"}
    return ss.xmap(lambda x: ss.psum(x, "i"), axes, [...]), lambda: axes.clear() or axes.update({1: "i"})  # type: ignore[func-returns-value]


CHANGES = [
    an_element_of_an_array, an_array_in_an_expression, a_captured_array, an_array_with_its_shape,
    one_of_two_equal_0d_arrays, an_array_of_objects, an_element_of_a_large_array,
    several_arrays_that_are_large_together, a_dict, a_captured_list, the_order_of_a_dict,
    two_containers_that_exchange_an_element, a_large_dict, a_long_list_of_lists, a_set, a_deque, an_array_of_python,
    a_namespace, an_attribute_of_self, an_array_of_self, an_attribute_of_an_instance, an_attribute_behind_a_property,
    a_global_in_a_method, a_global_in_a_static_method, an_attribute_of_a_class, an_inherited_attribute,
    an_attribute_in_a_slot, an_attribute_of_a_module, a_partial, a_decorated_function, a_default,
    two_globals_that_change_places,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_what_a_function_reads_is_read_anew_once_it_has_changed(make: Callable[[], Change]) -> None:
    function, change = make()
    before = remembered(function, X)
    np.testing.assert_array_equal(before, function(X))
    change()
    after = remembered(function, X)
    np.testing.assert_array_equal(after, function(X))
    assert not np.array_equal(before, after)


def test_an_object_that_numpy_makes_an_array_of_is_asked_for_each_call() -> None:
    function, _ = an_object_that_numpy_makes_an_array_of()
    np.testing.assert_array_equal(remembered(function, X), X)
    np.testing.assert_array_equal(remembered(function, X), X * 2)


def test_axes_that_are_changed_after_the_transform_was_made_count() -> None:
    function, change = in_axes_of_a_transform()
    square = np.arange(4.0).reshape(2, 2)
    np.testing.assert_array_equal(remembered(function, square), square.sum(0))
    change()
    np.testing.assert_array_equal(remembered(function, square), square.sum(1))


def test_a_function_that_changes_what_it_refers_to_gives_what_python_gives() -> None:
    calls: list[int] = []

    def function(x: Any) -> Any:
        calls.append(1)
        return x * len(calls)

    for number in (1, 2, 3):
        np.testing.assert_array_equal(remembered(function, X), X * number)


CYCLE: list[Any] = [1.0]
CYCLE.append(CYCLE)


def times_the_length_of(values: list[Any]) -> Callable[[Any], Any]:
    return lambda x: x * len(values)


STEADY: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "a plain function": lambda: lambda x: np.exp(x) + ss.sum(x) + scale,
    "a captured array": lambda: (lambda w: lambda x: x * w)(np.ones(4)),
    "a dict": lambda: (lambda cfg: lambda x: x * cfg["s"])({"s": 2.0, "nan": float("nan"), "w": np.ones(3)}),
    "an instance": Layer,
    "a cycle": lambda: times_the_length_of(CYCLE),
    "a function of ours": lambda: ss.sum,
    "a transform of ours": lambda: ss.vmap(ss.sum),
    "a function of numpy": lambda: np.sum,
    "a transform": lambda: ss.vmap(lambda x: x * scale),
    "a list of the code": lambda: lambda x: x * [1.0, 2.0, 3.0, 4.0],
}


@pytest.mark.parametrize("name", STEADY)
def test_what_did_not_change_is_not_traced_anew(name: str) -> None:
    function = STEADY[name]()
    leaves, tree = flatten((X,))
    assert traced(function, tree, leaves) is traced(function, tree, leaves)
    assert fingerprint(function) == fingerprint(function)


def test_a_method_is_not_traced_anew_though_each_look_at_it_makes_another() -> None:
    layer = Layer()
    leaves, tree = flatten((X,))
    assert traced(layer.shifted, tree, leaves) is traced(layer.shifted, tree, leaves)


def test_the_code_of_libraries_is_not_looked_into() -> None:
    import logging

    log = logging.getLogger("test")
    assert fingerprint(lambda x: log.getChild(str(x))) is not None
    assert fingerprint(lambda x: pytest.approx(x)) is not None  # noqa: PLW0108
