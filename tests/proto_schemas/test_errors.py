"""The error table: tree, codes, classes and statuses say the same thing everywhere."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardserve_proto import errors
from shardserve_proto.errors import BY_CODE, BadReply, ShapeError, ShardserveError, Unavailable, from_wire, nearest

CLASSES: list[type[ShardserveError]] = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, ShardserveError) and cls is not ShardserveError
]
CODED = [cls for cls in CLASSES if cls.code]

#: Design.md section 7: status -> codes, and the builtins that a NumPy user would catch.
TABLE: dict[int | None, set[str]] = {
    400: {"bad_frame", "bad_request"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"not_found"},
    405: {"method_not_allowed"},  # beyond the design: what routers refuse has a name too
    408: {"too_slow"},
    409: {"name_taken"},
    410: {"expired"},
    411: {"length_required"},
    413: {"too_large"},
    415: {"unsupported_media_type"},
    422: {"shape_error", "dtype_error", "sharding_error", "axis_error", "program_error", "compile_failed"},
    429: {"quota_exceeded"},
    431: {"head_too_large"},
    500: {"internal_error"},
    503: {"overloaded", "draining", "engine_starting", "engine_lost"},
    504: {"deadline_exceeded", "compile_timeout"},
    507: {"out_of_memory"},
    None: {"connect_failed", "timed_out", "bad_reply", "unsupported_array", "untraceable_function"},
}
BUILTINS: dict[str, type[Exception]] = {
    "shape_error": ValueError, "dtype_error": TypeError, "sharding_error": ValueError, "axis_error": ValueError,
    "deadline_exceeded": TimeoutError, "compile_timeout": TimeoutError, "out_of_memory": MemoryError,
    "timed_out": TimeoutError, "unsupported_array": TypeError, "untraceable_function": TypeError,
}  # fmt: skip

DRAWN = re.compile(
    r"^[ │]*[├└]── (?P<name>\w+)(?: \((?P<base>\w+)\))?(?:\s+(?P<code>[a-z_]+)(?=\s|$))?(?:\s+(?P<status>\d+))?"
)


def drawn_tree() -> dict[str, re.Match[str]]:
    """The lines of the tree at the top of the module, by class name."""
    lines = [DRAWN.match(line.removeprefix("    ")) for line in (errors.__doc__ or "").splitlines()]
    return {match["name"]: match for match in lines if match}


def test_the_design_s_table_and_the_classes_say_the_same() -> None:
    by_status: dict[int | None, set[str]] = {}
    for cls in CODED:
        by_status.setdefault(cls.status, set()).add(cls.code)
    assert by_status == TABLE


def test_every_class_is_drawn_in_the_tree_and_every_line_is_a_class() -> None:
    assert drawn_tree().keys() == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_line_of_the_tree_tells_code_status_and_builtin(cls: type[ShardserveError]) -> None:
    line = drawn_tree()[cls.__name__]
    assert (line["code"] or "") == cls.code or not cls.code
    assert line["status"] is None or int(line["status"]) == cls.status
    if line["base"]:
        assert line["base"] in {base.__name__ for base in cls.__mro__}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_hangs_under_the_class_above_it(cls: type[ShardserveError]) -> None:
    lines = (errors.__doc__ or "").splitlines()
    index = next(i for i, line in enumerate(lines) if re.search(rf"── {cls.__name__}\b", line))
    depth = lines[index].index("──")
    above = (line for line in reversed(lines[:index]) if "──" in line and line.index("──") < depth)
    parent = re.search(r"── (\w+)", next(above, "── ShardserveError"))
    assert parent
    assert cls.__bases__[0].__name__ == parent[1]


def test_each_code_has_one_class() -> None:
    assert len({cls.code for cls in CODED}) == len(CODED)
    assert {cls.code: cls for cls in CODED} == BY_CODE


@pytest.mark.parametrize("code", BUILTINS)
def test_a_numpy_user_catches_the_builtin(code: str) -> None:
    assert issubclass(BY_CODE[code], BUILTINS[code])


def example(cls: type[ShardserveError]) -> ShardserveError:
    return cls("what was wrong", details={"shape": [3, 4]}, retry_after_s=1.5, error_id="e1")


def fields(error: ShardserveError) -> tuple[Any, ...]:
    return type(error), error.message, error.details, error.retry_after_s, error.error_id, str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling_and_copying(cls: type[ShardserveError]) -> None:
    error = example(cls)
    assert fields(pickle.loads(pickle.dumps(error))) == fields(error)  # noqa: S301 - our own bytes
    assert fields(copy.copy(error)) == fields(error)


@pytest.mark.parametrize("cls", [cls for cls in CODED if cls.status], ids=lambda cls: cls.__name__)
def test_an_error_crosses_the_wire(cls: type[ShardserveError]) -> None:
    error = example(cls)
    body = json.loads(json.dumps(error.to_wire()))
    assert fields(from_wire(body, status=cls.status or 0)) == fields(error)
    plain = cls("what was wrong")
    assert plain.to_wire() == {"error": {"code": cls.code, "message": "what was wrong", "details": {}}}


@pytest.mark.parametrize("cls", [cls for cls in CODED if cls.status is None], ids=lambda cls: cls.__name__)
def test_a_server_cannot_raise_what_belongs_to_the_client(cls: type[ShardserveError]) -> None:
    """A forged `connect_failed` would make the client send the call again."""
    assert type(from_wire(example(cls).to_wire(), status=500)) is BadReply


@pytest.mark.parametrize(
    "body",
    [None, [], "error", 5, {}, {"error": None}, {"error": "x"}, {"error": {}},
     {"error": {"code": "nope", "message": "x"}}, {"error": {"code": 5, "message": "x"}},
     {"error": {"code": ["shape_error"], "message": "x"}},
     {"error": {"code": "shape_error"}}, {"error": {"code": "shape_error", "message": 5}}, {"detail": "Not Found"}],
    ids=str,
)  # fmt: skip
def test_a_body_that_is_no_error_of_ours_is_a_bad_reply(body: Any) -> None:
    error = from_wire(body, status=502)
    assert type(error) is BadReply
    assert "502" in str(error)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"code": st.just("overloaded") | json_values, "message": st.just("x") | json_values},
        optional={"details": json_values, "retry_after_s": json_values, "id": json_values},
    )
)
def test_any_body_becomes_an_error_and_never_another_exception(error: dict[str, Any]) -> None:
    assert isinstance(from_wire({"error": error}, status=503), ShardserveError)


@pytest.mark.parametrize("seconds", [10**400, -1, float("nan"), float("inf"), True, "5"])
def test_a_retry_time_that_is_no_time_is_left_out(seconds: Any) -> None:
    body = {"error": {"code": "overloaded", "message": "x", "retry_after_s": seconds}}
    assert from_wire(body, status=503).retry_after_s is None


def test_the_id_is_shown_to_the_person_who_reports_the_error() -> None:
    assert str(errors.InternalError("a fault", error_id="abc")) == "a fault (error id abc)"


def test_a_message_that_echoes_a_long_text_is_cut_on_the_wire() -> None:
    message = ShapeError("x" * 100_000).to_wire()["error"]["message"]
    assert len(message) == errors.MESSAGE_LENGTH
    assert message.endswith("…")


def test_unavailable_catches_all_that_may_pass_by_itself() -> None:
    assert {cls.code for cls in CODED if issubclass(cls, Unavailable)} == TABLE[503]


def test_the_nearest_word_is_offered_and_a_far_one_is_not() -> None:
    assert nearest("modl", ["data", "model"]) == "; did you mean 'model'?"
    assert nearest("zzz", ["data", "model"]) == ""
    assert nearest("x", []) == ""
