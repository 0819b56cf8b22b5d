"""Specs, meshes and axis specifications: every form that is accepted, and every error that can be seen here."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shardserve_proto import frames
from shardserve_proto.errors import AxisError, InvalidRequest, ShapeError, ShardingError
from shardserve_proto.programs import Mapping, validate
from shardserve_proto.specs import (
    AUTO,
    Axes,
    P,
    WireMesh,
    WireSpec,
    check_shape,
    check_spec,
    parse_axes,
    parse_resources,
    resolve_mesh,
    spec_from_wire,
    spec_to_wire,
)

MESH = (("data", 4), ("model", 2))
entries = st.none() | st.sampled_from("xyz") | st.lists(st.sampled_from("xyz"), min_size=1, max_size=3).map(tuple)
specs = st.lists(entries, max_size=5).map(lambda chosen: P(*chosen))


class Message(BaseModel):
    """A carrier for the wire types."""

    model_config = {"strict": True}
    spec: WireSpec = None
    mesh: WireMesh | None = None


@given(specs | st.just(AUTO))
def test_a_spec_comes_back_from_the_wire(spec: Any) -> None:
    packed = frames.encode_header({"spec": spec_to_wire(spec)})
    assert spec_from_wire(validate(Message, frames.decode_header(packed)).spec) == spec


def test_p_and_none_are_the_same_on_the_wire() -> None:
    assert spec_to_wire(P()) is None
    assert spec_from_wire(None) == P()


def test_a_spec_prints_as_it_is_written() -> None:
    assert repr(P("data", None, ("x", "y"))) == "P('data', None, ('x', 'y'))"
    assert repr(AUTO) == "AUTO"


@pytest.mark.parametrize("entry", [1, 1.5, ("x", 2), b"x", ["x"], np.int64(0), ("x", None)])
def test_an_entry_that_is_no_mesh_axis_is_refused(entry: Any) -> None:
    with pytest.raises(ShardingError, match="a mesh axis, a tuple of them, or None"):
        P(entry)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (("",), "a name is 1 to 64 bytes"),
        ((("x", ""),), "a name is 1 to 64 bytes"),
        (("x" * 65,), "a name is 1 to 64 bytes"),
        ((tuple("abcdefghi"),), "at most 8"),
        ((None,) * 33, "at most 32"),
    ],
    ids=str,
)
def test_what_the_wire_has_no_room_for_is_refused_where_it_is_written(entries: Any, text: str) -> None:
    with pytest.raises(ShardingError, match=text):
        P(*entries)


@dataclasses.dataclass
class Placement:
    spec: P


@pytest.mark.parametrize("spec", [P(), P("x"), P(None), P("x", None), P("x", None, ("y", "z")), P(("x", "y"))], ids=str)
def test_a_spec_survives_copies_pickles_and_dataclasses(spec: P) -> None:
    pickles = [pickle.loads(pickle.dumps(spec, version)) for version in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301
    copies = [copy.copy(spec), copy.deepcopy(spec), dataclasses.asdict(Placement(spec))["spec"], *pickles]
    assert all(type(other) is P and other == spec for other in copies)


@pytest.mark.parametrize(
    ("spec", "ndim", "text"),
    [
        (
            P("modl"),
            2,
            r"argument 0: axis 'modl' of P\('modl'\) is not on the mesh \(data=4, model=2\); did you mean 'model'\?",
        ),
        (P("data", "data"), 2, "mesh axis 'data' stands twice"),
        (P(("data", "data")), 1, "mesh axis 'data' stands twice"),
        (P("data", "model", None), 1, "3 entries, but the array has rank 1"),
        (P("data"), 0, r"rank 0 \(a single number\).*batch axis"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_with_names(spec: P, ndim: int, text: str) -> None:
    """Cases B24 and B25."""
    with pytest.raises(ShardingError, match=text):
        check_spec(spec, ndim=ndim, mesh=MESH, what="argument 0")


@pytest.mark.parametrize(
    ("spec", "ndim"), [(P(), 0), (P("data"), 1), (P(("data", "model")), 1), (P("data"), 3), (P(None, "model"), 2)]
)
def test_a_spec_that_fits_is_accepted(spec: P, ndim: int) -> None:
    check_spec(spec, ndim=ndim, mesh=MESH, what="argument 0")


@pytest.mark.parametrize(
    "wire", ["replicated", ("x", 1), (("x", None),), ("",), ("x" * 65,), (None,) * 33, {"x": 1}, True]
)
def test_a_wire_spec_of_another_form_is_refused(wire: Any) -> None:
    with pytest.raises(InvalidRequest, match="spec"):
        validate(Message, {"spec": wire})


# --- meshes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ((("d", -1),), (("d", 8),)),
        ((("x", 4), ("y", -1)), (("x", 4), ("y", 2))),
        ((("x", -1), ("y", 3)), (("x", 2), ("y", 3))),
        ((("x", 5),), (("x", 5),)),
        ((("x", 1), ("y", 1)), (("x", 1), ("y", 1))),
        ((("größe", 2),), (("größe", 2),)),
    ],
)
def test_a_mesh_is_completed_from_the_devices(axes: Any, expected: Any) -> None:
    assert resolve_mesh(axes, devices=8) == expected


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ((("x", 4), ("x", 2)), "names an axis twice"),
        ((("x", 0),), "size below 1"),
        ((("x", -2),), "size below 1"),
        ((("x", -1), ("y", -1)), "leaves two sizes open"),
        ((("x", 9),), "needs 9 devices, but the server has 8"),
        ((("x", 4), ("y", 3)), r"mesh \(x=4, y=3\) needs 12 devices"),
        ((("x", 16), ("y", -1)), "needs 16 devices"),
        ((("x", 2**62), ("y", 2**62)), "devices"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(axes: Any, text: str) -> None:
    with pytest.raises(ShardingError, match=text):
        resolve_mesh(axes, devices=8)


@pytest.mark.parametrize("mesh", [(), ((),), (("x",),), (("x", True),), (("x", 1.0),), (("x", 1, 2),), 5, (("", 1),)])
def test_a_wire_mesh_of_another_form_is_refused(mesh: Any) -> None:
    with pytest.raises(InvalidRequest, match="mesh"):
        validate(Message, {"mesh": mesh})


# --- axis specifications ---------------------------------------------------------------------------------------------

# The table of jax-notes 1.2: form, names, asserted rank, ranks that fit and ranks that do not.
FORMS: list[tuple[Any, dict[int, str], int | None, list[int], list[int]]] = [
    ({1: "batch"}, {1: "batch"}, None, [2, 3], [0, 1]),
    ({0: "a", 2: "b"}, {0: "a", 2: "b"}, None, [3, 4], [2]),
    ({}, {}, None, [0, 1, 5], []),
    (["a", "b", ...], {0: "a", 1: "b"}, None, [2, 3], [0, 1]),
    (["a", "..."], {0: "a"}, None, [1, 2], [0]),
    (["a", None, "b"], {0: "a", 2: "b"}, 3, [3], [2, 4]),
    (["a", "b"], {0: "a", 1: "b"}, 2, [2], [1, 3]),
    ([...], {}, None, [0, 1, 5], []),
    ([], {}, 0, [0], [1, 2]),
    ([None], {}, 1, [1], [0, 2]),
    (["a", None, ...], {0: "a"}, None, [1, 2, 3], [0]),
    (("a", ...), {0: "a"}, None, [1, 2], [0]),
    (("a", None, "b"), {0: "a", 2: "b"}, 3, [3], [2, 4]),
    ({"1": "batch"}, {1: "batch"}, None, [2], [1]),  # JSON's keys are texts
    ({np.int64(1): "batch"}, {1: "batch"}, None, [2], [1]),
]


@pytest.mark.parametrize(("given", "names", "rank", "fits", "misfits"), FORMS, ids=lambda value: str(value)[:20])
def test_every_form_of_an_axis_specification(
    given: Any, names: dict[int, str], rank: int | None, fits: list[int], misfits: list[int]
) -> None:
    axes = parse_axes(given)
    assert dict(axes.names) == names
    assert axes.rank == rank
    for ndim in fits:
        axes.check_rank(ndim, what="argument 0")
    for ndim in misfits:
        with pytest.raises(AxisError, match=f"argument 0 has rank {ndim}"):
            axes.check_rank(ndim, what="argument 0")


def test_parsed_axes_pass_through() -> None:
    axes = parse_axes({0: "i"})
    assert parse_axes(axes) is axes


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({-1: "i"}, "position -1 of axis 'i' is negative"),
        ({"-1": "i"}, "negative"),
        ({0: "i", 1: "i"}, "axis 'i' stands twice"),
        (["i", "i"], "axis 'i' stands twice"),
        (["i", ..., "j"], "ellipsis stands last"),
        ([..., "i"], "ellipsis stands last"),
        ([..., ...], "ellipsis stands last"),
        ({True: "i"}, "positions"),
        ({"a": "i"}, "positions"),
        ({"--5": "i"}, "positions"),
        ({"²": "i"}, "positions"),
        ({"1234567890": "i"}, "positions"),
        ({1.0: "i"}, "positions"),
        ({0: 5}, "an axis name is a text, not 5"),
        ([5], "an axis name is a text"),
        ([b"i"], "an axis name is a text"),
        ({0: ""}, "1 to 64 bytes"),
        ({0: "x" * 65}, "1 to 64 bytes"),
        ({0: "ü" * 33}, "1 to 64 bytes"),
        ({0: "\ud800"}, "1 to 64 bytes"),
        ("ij", "a dict or a list"),
        (5, "a dict or a list"),
        (None, "a dict or a list"),
        ({"i"}, "a dict or a list"),
        ([None] * 33, "at most 32 dimensions"),
        ([f"a{i}" for i in range(40)], "at most 32 dimensions"),
        ({i: f"a{i}" for i in range(40)}, "at most 32 dimensions"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_a_bad_axis_specification_is_named(given: Any, text: str) -> None:
    """Case B36, and the errors of jax-notes 1.5 that a specification alone can show."""
    with pytest.raises(AxisError, match=text):
        parse_axes(given, what="in_axes of argument 0")


@pytest.mark.parametrize("name", ["i", "größe", "a b", "x" * 64, "ü" * 32, "軸", "...i"])
def test_any_text_up_to_64_bytes_is_an_axis_name(name: str) -> None:
    assert parse_axes({0: name}).positions() == {name: 0}


def test_two_positions_in_one_dict_need_distinct_numbers() -> None:
    with pytest.raises(AxisError, match="position 1 has two names"):
        parse_axes({1: "i", "1": "j"})


@pytest.mark.parametrize("rank", [-1, 33, 2**40, True])
def test_an_asserted_rank_is_bounded_on_the_wire(rank: int) -> None:
    """A rank of 2**40 once made an error message of that many entries."""
    with pytest.raises(InvalidRequest, match="rank"):
        validate(Axes, {"names": (), "rank": rank})


def test_axes_print_as_they_are_written() -> None:
    written: list[Any] = [["a", None, "b"], {1: "batch"}, []]
    assert [str(parse_axes(given)) for given in written] == ["['a', None, 'b']", "{1: 'batch'}", "[]"]
    assert str(parse_axes(["a", ...])) == "['a', ...]"
    assert str(parse_axes([...])) == "[...]"


@given(st.integers(0, 5), st.data())
def test_dropping_the_named_dimensions_and_putting_them_back_is_the_identity(ndim: int, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=ndim, max_size=ndim)))
    positions = data.draw(st.lists(st.integers(0, ndim - 1), unique=True)) if ndim else []
    axes = parse_axes({position: f"axis{position}" for position in positions})
    sizes = {f"axis{position}": shape[position] for position in positions}
    positional = axes.drop_named(shape)
    assert len(positional) == ndim - len(positions)
    assert axes.insert_named(positional, sizes, what="output 0") == shape


def test_output_positions_are_those_of_the_final_array() -> None:
    assert parse_axes({1: "i"}).insert_named((5, 6), {"i": 3}, what="output 0") == (5, 3, 6)
    with pytest.raises(AxisError, match="output 0 has rank 1, but its axes .* name position 2"):
        parse_axes({2: "i"}).insert_named((), {"i": 3}, what="output 0")


def test_resources_are_read_in_every_form() -> None:
    assert parse_resources({"i": "x", "j": ("y", "z"), "k": ["w"], "l": ()}) == (
        ("i", ("x",)), ("j", ("y", "z")), ("k", ("w",)), ("l", ())
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "text"),
    [({"i": 5}, "'i'"), ({"i": ("x", 5)}, "'i'"), ({5: "x"}, "5"), ({"i": None}, "'i'"), ({"i": ("x", "x")}, "twice"),
     ([("i", "x")], "a dict"), ("x", "a dict"), (None, "a dict")],
)  # fmt: skip
def test_bad_resources_are_named(given: Any, text: str) -> None:
    with pytest.raises(AxisError, match=text):
        parse_resources(given)


def test_a_mapping_comes_back_from_the_wire() -> None:
    mapping = Mapping(
        in_axes=(parse_axes({1: "batch"}), parse_axes([])),
        out_axes=(parse_axes(["batch", ...]),),
        axis_sizes=(("batch", 4),),
        axis_resources=(("batch", ("x", "y")),),
    )
    assert validate(Mapping, frames.decode_header(frames.encode_header(mapping.to_wire()))) == mapping
    assert mapping.to_wire()["in_axes"][0] == {"names": ((1, "batch"),)}


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "text"),
    [((1,) * 33, "rank 33"), ((-1,), "not negative"), ((3, -5, 2), "not negative"), ((2**32, 2**32), "any array"),
     ((16, 2**60 + 2), "any array"), ((0, 2**63), "any array"), ((10**30,), "any array"), ((2**64 - 1,), "any array")],
)  # fmt: skip
def test_a_shape_beyond_what_can_be_is_refused(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        check_shape(shape, what="segment 0")


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1,) * 32, (2**31 + 8,), (10_000_000, 10_000_000)])
def test_a_shape_that_can_be_is_accepted(shape: tuple[int, ...]) -> None:
    check_shape(shape, what="segment 0")


def test_no_error_shows_an_address_or_a_class() -> None:
    """Case B25: no repr of an internal object."""
    for spec, ndim in itertools.product([P("nope"), P("data", "data"), P("data", "model", None)], [0, 1]):
        with pytest.raises(ShardingError) as caught:
            check_spec(spec, ndim=ndim, mesh=MESH, what="output 0")
        assert " at 0x" not in str(caught.value)
        assert "object" not in str(caught.value)
