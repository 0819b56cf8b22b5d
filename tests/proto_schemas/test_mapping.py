"""Programs over named axes, and every error of xmap that shapes alone can show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto.abstract import Aval, Scope, evaluate, evaluate_mapped
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import AxisError, ShapeError
from shardserve_proto.programs import Constant, Mapping, Program, Step
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import MeshShape, parse_axes, parse_resources

from .evaluation import F32, GRID, I64, IDENTITY, aval, kernel, mapped

ADD = kernel("add", 2)

#: x / psum(x, ("rows", "cols")): the normalization of the README.
NORMALIZE = Program(
    inputs=1,
    steps=(
        Step(kernel="psum", operands=(0,), params={"axis_name": ("rows", "cols")}),
        Step(kernel="divide", operands=(0, 1)),
    ),
    outputs=(2,),
)

# --- what works ------------------------------------------------------------------------------------------------------


def test_a_normalization_over_two_names_keeps_its_shape() -> None:
    axes = ["rows", "cols"]
    assert mapped(NORMALIZE, aval(100, 100), in_axes=[axes], out_axes=[axes], resources={"rows": "x", "cols": "y"}) == [
        aval(100, 100)
    ]


def test_a_batched_dot_puts_its_batch_where_out_axes_say() -> None:
    batch: dict[int, str] = {1: "batch"}
    given: dict[str, Any] = {"in_axes": [batch, batch], "resources": {"batch": ("x", "y")}}
    assert mapped(kernel("dot", 2), aval(3, 80), aval(3, 80), out_axes=[["batch", ...]], **given) == [aval(80)]


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "shape", "expected"),
    [
        ({1: "i"}, {0: "i"}, (3, 4), (4, 3)),
        ({0: "i"}, {1: "i"}, (3, 4), (4, 3)),
        (["i", "j"], ["j", "i"], (3, 4), (4, 3)),
        (["i", ...], {2: "i"}, (3, 4, 5), (4, 5, 3)),
        ([...], [...], (3, 4), (3, 4)),
        ([], [], (), ()),
        (["i", None], [None, "i"], (3, 4), (4, 3)),
        ({0: "i", 2: "j"}, {1: "j", 0: "i"}, (3, 4, 5), (3, 5, 4)),
    ],
)
def test_positions_count_in_the_full_array(in_axes: Any, out_axes: Any, shape: Any, expected: Any) -> None:
    assert mapped(IDENTITY, aval(*shape), in_axes=[in_axes], out_axes=[out_axes]) == [aval(*expected)]


def test_a_name_that_a_value_does_not_carry_is_broadcast() -> None:
    """The old testBroadcast: `xmap(lambda x: x, {}, ['i'], axis_sizes={'i': 4})(2.)` is [2, 2, 2, 2]."""
    assert mapped(IDENTITY, aval(), in_axes=[{}], out_axes=[["i"]], sizes={"i": 4}) == [aval(4)]


def test_axis_sizes_alone_define_a_name() -> None:
    program = Program(inputs=0, steps=(Step(kernel="axis_index", params={"axis_name": "i"}),), outputs=(0,))
    assert mapped(program, in_axes=[], out_axes=[["i", ...]], sizes={"i": 6}) == [Aval((6,), I64)]


def test_names_meet_by_name_across_arguments() -> None:
    assert mapped(ADD, aval(3), aval(4), in_axes=[["i"], ["j"]], out_axes=[["j", "i"]]) == [aval(4, 3)]


def test_an_input_may_be_an_output() -> None:
    program = Program(inputs=2, steps=(), outputs=(1, 0, 1))
    assert evaluate(program, [aval(2), aval(3)], Scope(), BUILTIN)[0] == [aval(3), aval(2), aval(3)]


def test_a_constant_output_takes_its_own_dtype() -> None:
    program = Program(inputs=0, steps=(Step(kernel="add", operands=(Constant.of(1), Constant.of(2.5))),), outputs=(0,))
    ((result,), _) = evaluate(program, [], Scope(), BUILTIN)
    assert (result.shape, result.strong_dtype) == ((), DTYPES["float64"])


def test_the_results_of_every_step_are_told() -> None:
    axes = parse_axes(["rows", "cols"])
    scope = Scope(sizes={"rows": 4, "cols": 5})
    inside = Aval((), F32, frozenset({"rows", "cols"}))
    outputs, steps = evaluate(NORMALIZE, [inside], scope, BUILTIN)
    assert steps == [[Aval((), F32)], [inside]]
    assert outputs == [inside]
    assert axes.positions() == {"rows": 0, "cols": 1}


@given(st.integers(0, 3), st.integers(0, 3), st.permutations(["i", "j"]))
def test_sizes_of_any_kind_work_empty_ones_too(rows: int, cols: int, order: list[str]) -> None:
    expected = (rows, cols) if order == ["i", "j"] else (cols, rows)
    assert mapped(IDENTITY, aval(rows, cols), in_axes=[["i", "j"]], out_axes=[order]) == [aval(*expected)]


# --- nested programs -------------------------------------------------------------------------------------------------


def nest(inner: Program, in_axes: Any, out_axes: Any, **mapping: Any) -> Program:
    step = Step(
        program=inner,
        mapping=Mapping(in_axes=tuple(map(parse_axes, in_axes)), out_axes=tuple(map(parse_axes, out_axes)), **mapping),
        operands=tuple(range(inner.inputs)),
    )
    return Program(inputs=inner.inputs, steps=(step,), outputs=(inner.inputs,))


def test_vmap_is_a_nested_program() -> None:
    program = nest(kernel("dot", 2), [{0: "_0"}, {0: "_0"}], [{0: "_0"}])
    assert evaluate(program, [aval(10, 3), aval(10, 3)], Scope(), BUILTIN)[0] == [aval(10)]


def test_an_inner_program_sees_outer_names() -> None:
    inner = Program(
        inputs=1, steps=(Step(kernel="psum", operands=(0,), params={"axis_name": ("i", "j")}),), outputs=(1,)
    )
    program = nest(inner, [{0: "j"}], [{}])
    assert mapped(program, aval(3, 4), in_axes=[{0: "i"}], out_axes=[[]]) == [aval()]


def test_an_outer_name_rides_through_an_inner_program() -> None:
    program = nest(IDENTITY, [{0: "j"}], [{0: "j"}])
    assert mapped(program, aval(3, 4), in_axes=[{0: "i"}], out_axes=[{1: "i"}]) == [aval(4, 3)]


def test_a_nested_name_may_not_shadow_an_outer_one() -> None:
    program = nest(IDENTITY, [{0: "i"}], [{0: "i"}])
    with pytest.raises(AxisError, match="axis 'i' is already bound outside; a nested program needs another name"):
        mapped(program, aval(3, 4), in_axes=[{0: "i"}], out_axes=[{0: "i"}])


def test_the_same_name_may_be_used_by_two_programs_side_by_side() -> None:
    mapping = Mapping(in_axes=(parse_axes({0: "i"}),), out_axes=(parse_axes({0: "i"}),))
    inner = Step(program=IDENTITY, mapping=mapping, operands=(0,))
    program = Program(inputs=1, steps=(inner, inner), outputs=(1, 2))
    assert evaluate(program, [aval(3)], Scope(), BUILTIN)[0] == [aval(3), aval(3)]


def test_a_nested_program_without_a_mapping_is_a_plain_call() -> None:
    program = Program(inputs=1, steps=(Step(program=IDENTITY, operands=(0,)),), outputs=(1,))
    assert evaluate(program, [aval(3, 4)], Scope(), BUILTIN)[0] == [aval(3, 4)]


# --- the errors of xmap ----------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], list[Aval], str]] = [
    (
        "sizes that do not agree",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i"]]},
        [aval(5), aval(7)],
        r"axis 'i' has size 5 in argument 0 of shape \(5,\), but size 7 in argument 1 of shape \(7,\)",
    ),
    (
        "a size that axis_sizes contradict",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i"]], "sizes": {"i": 6}},
        [aval(5), aval(5)],
        "axis 'i' has size 5 in argument 0 .*, but size 6 in axis_sizes",
    ),
    (
        "a negative size",
        {"in_axes": [{}, {}], "out_axes": [["i"]], "sizes": {"i": -1}},
        [aval(), aval()],
        "axis_sizes gives axis 'i' the size -1",
    ),
    (
        "a size that nothing defines",
        {"in_axes": [["i"], ["i"]], "out_axes": [["j", "i"]]},
        [aval(5), aval(5)],
        "out_axes name axis 'j', whose size nothing defines",
    ),
    (
        "a rank that is too small",
        {"in_axes": [{1: "i"}, {}], "out_axes": [["i"]]},
        [aval(5), aval(5)],
        r"argument 0 has rank 1, but its axes \{1: 'i'\} name position 1",
    ),
    (
        "another rank than the asserted one",
        {"in_axes": [["i", None], [...]], "out_axes": [["i", ...]]},
        [aval(5), aval(5)],
        r"argument 0 has rank 1, but its axes \['i', None\] assert rank 2; add \.\.\.",
    ),
    (
        "another output rank than the asserted one",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i", None]]},
        [aval(5), aval(5)],
        "output 0 has rank 1, but its axes .* assert rank 2",
    ),
    (
        "an output position beyond the rank",
        {"in_axes": [["i"], ["i"]], "out_axes": [{1: "i"}]},
        [aval(5), aval(5)],
        "output 0 has rank 1, but its axes .* name position 1",
    ),
    (
        "a forgotten name",
        {"in_axes": [["i"], ["i"]], "out_axes": [[...]]},
        [aval(3), aval(3)],
        r"output 0 varies along axis 'i', but its out_axes \[\.\.\.\] do not name it; .*psum\(\.\.\., 'i'\)",
    ),
    (
        "too few in_axes",
        {"in_axes": [["i"]], "out_axes": [["i"]]},
        [aval(5), aval(5)],
        "in_axes has 1 specifications for 2 arguments",
    ),
    (
        "too many out_axes",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i"], ["i"]]},
        [aval(5), aval(5)],
        "out_axes has 2 specifications for 1 outputs",
    ),
    (
        "resources for an unknown axis",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i"]], "resources": {"k": "x"}},
        [aval(5), aval(5)],
        "axis_resources name axis 'k'; known axes: 'i'",
    ),
    (
        "a resource that is not on the mesh",
        {"in_axes": [["i"], ["i"]], "out_axes": [["i"]], "resources": {"i": "z"}},
        [aval(5), aval(5)],
        r"axis_resources put axis 'i' on mesh axis 'z', which is not on the mesh \(x=4, y=2\)",
    ),
    (
        "two names on one resource that meet in an input",
        {"in_axes": [["i", "j"], {}], "out_axes": [["i", "j"]], "resources": {"i": "x", "j": "x"}},
        [aval(5, 5), aval()],
        "argument 0 carries the axes 'i' and 'j', which are both on mesh axis 'x'; give one of them another",
    ),
    (
        "two names on one resource that meet in an intermediate",
        {"in_axes": [["i"], ["j"]], "out_axes": [["i", "j"]], "resources": {"i": "x", "j": ("y", "x")}},
        [aval(5), aval(5)],
        "add: result 0 carries the axes 'i' and 'j', which are both on mesh axis 'x'",
    ),
]


@pytest.mark.parametrize(("axes", "inputs", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_an_error_of_xmap_is_named_before_any_compilation(axes: Any, inputs: list[Aval], text: str) -> None:
    """Cases B29 and B36, and jax-notes 1.5."""
    with pytest.raises(AxisError, match=text):
        mapped(ADD, *inputs, **axes)


def test_two_names_on_one_resource_meet_when_an_output_is_broadcast() -> None:
    with pytest.raises(AxisError, match="output 0 carries the axes 'i' and 'j', which are both on mesh axis 'x'"):
        mapped(
            IDENTITY, aval(5), in_axes=[["i"]], out_axes=[["i", "j"]], sizes={"j": 3}, resources={"i": "x", "j": "x"}
        )


def test_two_names_may_share_a_resource_as_long_as_they_never_meet() -> None:
    """`sum(x{a}) + sum(y{b})`, both on x."""
    program = Program(
        inputs=2,
        steps=(
            Step(kernel="psum", operands=(0,), params={"axis_name": "a"}),
            Step(kernel="psum", operands=(1,), params={"axis_name": "b"}),
            Step(kernel="add", operands=(2, 3)),
        ),
        outputs=(4,),
    )
    resources = {"a": "x", "b": "x"}
    assert mapped(program, aval(4), aval(6), in_axes=[["a"], ["b"]], out_axes=[[]], resources=resources) == [aval()]


def test_the_same_resource_twice_for_one_axis_is_refused() -> None:
    mapping = Mapping(in_axes=(parse_axes(["i"]),), out_axes=(parse_axes(["i"]),), axis_resources=(("i", ("x", "x")),))
    with pytest.raises(AxisError, match="axis_resources give axis 'i' the same mesh axis twice"):
        evaluate_mapped(IDENTITY, mapping, [aval(5)], Scope(mesh=GRID), BUILTIN)
    twice = mapping.model_copy(update={"axis_resources": (("i", ("x",)), ("i", ("y",)))})
    with pytest.raises(AxisError, match="axis_resources name axis 'i' twice"):
        evaluate_mapped(IDENTITY, twice, [aval(5)], Scope(mesh=GRID), BUILTIN)


@pytest.mark.parametrize(
    ("names", "text"),
    [(((-1, "i"),), "position -1 of axis 'i' is negative"), (((0, "i"), (1, "i")), "axis 'i' stands twice"),
     (((0, "i"), (0, "j")), "position 0 has two names")],
)  # fmt: skip
def test_axes_that_came_by_wire_are_checked_like_those_that_were_written(names: Any, text: str) -> None:
    for side in ("in_axes", "out_axes"):
        fine, bad = parse_axes({}), parse_axes({}).model_copy(update={"names": names})
        mapping = Mapping(in_axes=(fine,), out_axes=(fine,)).model_copy(update={side: (bad,)})
        with pytest.raises(AxisError, match=f"{side} of (argument|output) 0: {text}"):
            evaluate_mapped(IDENTITY, mapping, [aval(5, 6)], Scope(), BUILTIN)


def test_the_number_of_names_is_bounded() -> None:
    sizes = {f"axis{i}": 1 for i in range(32)}
    assert mapped(IDENTITY, aval(), in_axes=[{}], out_axes=[list(sizes)], sizes=sizes)[0].ndim == 32
    inner = nest(IDENTITY, [{}], [{}], axis_sizes=(("one more", 1),))
    with pytest.raises(AxisError, match="more than 32 named axes"):
        mapped(inner, aval(), in_axes=[{}], out_axes=[[...]], sizes=sizes)


def test_a_result_of_more_than_32_dimensions_is_refused() -> None:
    names = [f"axis{i}" for i in range(20)]
    sizes = dict.fromkeys(names, 1)
    with pytest.raises(ShapeError, match="output 0 would have rank 40"):
        mapped(IDENTITY, aval(*(1,) * 20), in_axes=[{}], out_axes=[[*names, ...]], sizes=sizes)


# --- resources by default --------------------------------------------------------------------------------------------


def scope_inside(resources: dict[str, Any], mesh: MeshShape | None = GRID) -> dict[str, tuple[str, ...]]:
    """The resources in sight of a program over the names x and i."""
    from shardserve_proto.abstract import enter

    mapping = Mapping(
        in_axes=(parse_axes(["x", "i"]),), out_axes=(parse_axes(["x", "i"]),), axis_resources=parse_resources(resources)
    )
    return dict(enter(mapping, [aval(4, 5)], Scope(mesh=mesh)).resources)


def test_a_name_that_is_a_mesh_axis_goes_there_unless_told_otherwise() -> None:
    assert scope_inside({}) == {"x": ("x",)}
    assert scope_inside({"i": "y"}) == {"x": ("x",), "i": ("y",)}
    assert scope_inside({"x": "y"}) == {"x": ("y",)}
    assert scope_inside({"x": ()}) == {}
    assert scope_inside({"i": "x"}) == {"i": ("x",)}  # the mesh axis is taken
    assert scope_inside({}, mesh=None) == {}
