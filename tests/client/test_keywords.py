"""Old and wrong keywords get the right one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardserve as ss

#: Without its types, which refuse these keywords too.
CLIENT: Any = ss.Client


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ss.jit(in_axis_resources=None),
            r"ss\.jit has no keyword 'in_axis_resources'; it is called 'in_shardings'",
        ),
        (lambda: ss.jit(out_axis_resources=None), "it is called 'out_shardings' here"),
        (lambda: ss.jit(out_sharding=None), "did you mean 'out_shardings'"),
        (lambda: ss.jit(in_specs=None), "it is called 'in_shardings' here"),
        (lambda: ss.jit(static_argnums=0), "close over the value"),
        (lambda: ss.jit(donate_argnums=0), "never consumed"),
        (lambda: ss.xmap(in_axis=["i"]), "did you mean 'in_axes'"),
        (lambda: ss.xmap(axis_resource={}), "did you mean 'axis_resources'"),
        (lambda: ss.vmap(ss.dot, in_axis=0), "did you mean 'in_axes'"),
        (lambda: ss.vmap(ss.dot, spmd_axis_name="x"), "has no keyword 'spmd_axis_name'; ss.xmap .* by axis_resources"),
        (lambda: ss.xmap(spmd_axis_name="x"), "it is called 'axis_resources' here"),
        (lambda: CLIENT(timeout_s=3), "Client has no keyword 'timeout_s'; it is called 'timeout'"),
        (lambda: CLIENT(api_keys="x"), "Client has no keyword 'api_keys'"),
    ],
)
def test_keywords_of_transforms_and_clients(call: Any, message: str) -> None:
    with pytest.raises(ss.ProgramError, match=message):
        call()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"in_axis_resources": None}, r"client\.dot has no keyword 'in_axis_resources'; it is called 'in_shardings'"),
        ({"out_sharding": None}, "did you mean 'out_shardings'"),
        ({"in_specs": None}, "it is called 'in_shardings' here"),
        ({"preferred_element_type": "int32"}, "it is called 'dtype' here"),
        ({"dtyp": "int32"}, "did you mean 'dtype'"),
        ({"out": None}, "the result is a new array"),
    ],
)
def test_keywords_of_kernel_calls(keywords: Any, message: str) -> None:
    with ss.Client("http://127.0.0.1:9") as client, pytest.raises(ss.ProgramError, match=message):
        client.dot(np.ones(2), np.ones(2), **keywords)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"tll": 3}, r"client\.put has no keyword 'tll'; did you mean 'ttl'"),
        ({"named": "a"}, "did you mean 'name'"),
        ({"pin": True}, "did you mean 'pinned'"),
        ({"sharding": ss.P("x")}, "it is called 'spec' here"),
        ({"out_shardings": ss.P("x")}, "it is called 'spec' here"),
        ({"ttl_s": 3}, "it is called 'ttl' here"),
        ({"device": 0}, "the server chooses its devices"),
    ],
)
def test_keywords_of_a_put(keywords: Any, message: str) -> None:
    client: Any = ss.Client("http://127.0.0.1:9")
    with pytest.raises(ss.ProgramError, match=message):
        client.put(np.ones(2), **keywords)


def test_keywords_of_a_get() -> None:
    client: Any = ss.Client("http://127.0.0.1:9")
    with pytest.raises(ss.ProgramError, match=r"client\.get has no keyword 'oot'; did you mean 'out'"):
        client.get("a", oot=np.ones(2))
    with pytest.raises(ss.ProgramError, match="it is called 'timeout' here"):
        client.get("a", timeout_s=3)


def test_keywords_of_run_belong_to_the_transforms() -> None:
    with ss.Client("http://127.0.0.1:9") as client, pytest.raises(ss.ProgramError, match="client.run has no keyword"):
        client.run(lambda x: x, np.ones(2), in_shardings=None)  # type: ignore[call-arg]


def test_a_misspelled_parameter_of_a_call_by_name_gets_the_nearest() -> None:
    with ss.Client("http://127.0.0.1:9") as client, pytest.raises(ss.ProgramError, match="did you mean 'norm'"):
        client.call("normalize", np.ones(2), nrom="sum")
