"""The SDK's examples as its design writes them, against a real server; arrays that stay on the server come later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve import P

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(30, 20)).astype(np.float32), RNG.normal(size=(20, 10)).astype(np.float32)
V1, V2 = RNG.normal(size=(1001, 3)), RNG.normal(size=(1001, 3))
DOTS = np.vecdot(V1, V2)
V1S, V2S = V1.T, V2.T
ARR = RNG.uniform(size=(100, 100))


def test_numpy_in_numpy_out(client: ss.Client) -> None:
    assert len(client.devices()) == 8
    assert repr(client.devices()[0]).startswith("Device(id=0, kind='cpu'")
    np.testing.assert_allclose(client.matmul(A, B), A @ B, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(client.vecdot(V1, V2), DOTS, rtol=1e-13)


def test_einsum_s_labels_are_named_axes(client: ss.Client) -> None:
    call = client.call("einsum", V1S, V2S, subscripts="ki,ki->i", axis_resources={"i": "devices"})
    np.testing.assert_allclose(call.value, DOTS, rtol=1e-13)
    assert call.report.arguments[0].spec == (None, "devices")
    assert call.report.outputs[0].spec == ("devices",)
    assert call.report.outputs[0].shard_shape == (126,)
    direct = client.einsum("ki,ki->i", V1S, V2S, axis_resources={"i": "devices"})
    np.testing.assert_array_equal(direct, call.value)


def test_many_dot_products_over_a_named_batch(client: ss.Client) -> None:
    y = client.dot(
        V1S, V2S, in_axes=({1: "batch"}, {1: "batch"}), out_axes=["batch", ...], axis_resources={"batch": "devices"}
    )
    np.testing.assert_allclose(y, DOTS, rtol=1e-13)
    np.testing.assert_allclose(client.dot(V1, V2, in_axes=0), DOTS, rtol=1e-13)
    np.testing.assert_allclose(client.dot(V1S, V2, in_axes=(-1, 0)), DOTS, rtol=1e-13)


@ss.xmap(in_axes=["rows", "cols"], out_axes=["rows", "cols"], axis_resources={"rows": "x", "cols": "y"})
def normalize(x: Any) -> Any:
    return x / ss.psum(x, ("rows", "cols"))


@ss.jit(in_shardings=None, out_shardings=P("devices"))
def dots(v1: Any, v2: Any) -> Any:
    return ss.vmap(ss.dot, in_axes=(0, 0))(v1, v2)


def test_a_function_over_named_axes_and_the_kernel_give_the_same(client: ss.Client) -> None:
    with client.mesh({"x": 4, "y": -1}), client.record() as log:
        out = client.run(normalize, ARR)
        same = client.normalize(
            ARR, norm="sum", in_axes=["rows", "cols"], out_axes=["rows", "cols"],
            axis_resources={"rows": "x", "cols": "y"},
        )  # fmt: skip
    np.testing.assert_allclose(out, ARR / ARR.sum(), rtol=1e-13)
    np.testing.assert_allclose(same, ARR / ARR.sum(), rtol=1e-13)
    for call in log:
        assert call.report.mesh == (("x", 4), ("y", 2))
        assert call.report.arguments[0].spec == call.report.outputs[0].spec == ("x", "y")
        assert call.report.outputs[0].shard_shape == (25, 50)


def test_a_function_with_shardings(client: ss.Client) -> None:
    with client.record() as log:
        y = client.run(dots, V1, V2)
    np.testing.assert_allclose(y, DOTS, rtol=1e-13)
    (call,) = log
    assert [argument.spec for argument in call.report.arguments] == [None, None]
    assert call.report.outputs[0].spec == ("devices",)


def test_a_copy_with_options_of_its_own(client: ss.Client) -> None:
    tp = client.with_options(mesh={"data": 4, "model": 2}, precision="default")
    with tp.record() as log, client.record() as nothing:
        z = tp.matmul(A, B, in_shardings=(P("data", None), P(None, "model")), out_shardings=P("data", "model"))
    np.testing.assert_allclose(z, A @ B, rtol=1e-4, atol=1e-4)
    assert log[0].report.precision == "default"
    assert log[0].report.mesh == (("data", 4), ("model", 2))
    assert log[0].report.outputs[0].padded_shape == (32, 10)
    assert len(nothing) == 0


def test_what_happened_is_recorded_and_printed(client: ss.Client) -> None:
    with client.record() as log:
        client.matmul(A, B)
        client.matmul(A, B)
    text = str(log)
    assert text.startswith("1. matmul: ")
    for part in ("2. matmul: ", "precision highest", "run ", "float32[30, 10]", "sent", "received"):
        assert part in text
    assert not log[1].report.compiled


def test_the_rank_0_mistake_is_told_with_its_fix(client: ss.Client) -> None:
    with pytest.raises(ss.ShardingError, match="rank 0.*in_axes=.*batch"):
        client.dot(V1[0], V2[0], out_shardings=P("devices"))
    assert client.dot(V1[0], V2[0], out_shardings=P()) == pytest.approx(DOTS[0])
    assert client.dot(V1[0], V2[0], out_shardings=None) == pytest.approx(DOTS[0])


def test_what_the_server_says_of_itself(client: ss.Client) -> None:
    info = client.info()
    assert info.device_count == 8
    assert info.limits["segments"] == 256
    assert any("subnormal" in note for note in info.notes)
    kernels = {kernel.name: kernel for kernel in client.kernels()}
    assert kernels["matmul"].signature == "matmul(x, y, *, dtype=None)"


def test_an_unknown_kernel_and_mesh_get_the_nearest_name(client: ss.Client) -> None:
    with pytest.raises(ss.NotFound, match="'mamtul'; did you mean 'matmul'"):
        client.call("mamtul", A, B)
    with pytest.raises(ss.NotFound, match="grdi"):
        client.matmul(A, B, mesh="grdi")
    with pytest.raises(ss.ShardingError, match="'modl'.*did you mean 'model'"):
        client.matmul(A, B, mesh={"model": 8}, in_shardings=(P("modl"), None))


def test_jax_s_own_specs_are_taken(client: ss.Client) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    call = client.call(
        "identity", ARR, in_shardings=NamedSharding(mesh, PartitionSpec("x", "y")),
        out_shardings=PartitionSpec(("x", "y"), None),
    )  # fmt: skip
    np.testing.assert_array_equal(call.value, ARR)
    assert call.report.mesh == (("x", 4), ("y", 2))
    assert call.report.arguments[0].spec == ("x", "y")
    assert call.report.outputs[0].shard_shape == (13, 100)


def test_jax_specs_that_mean_more_than_a_placement_are_refused(client: ss.Client) -> None:
    from jax.sharding import PartitionSpec

    with pytest.raises(ss.ShardingError, match="UNCONSTRAINED"):
        client.identity(ARR, in_shardings=PartitionSpec(PartitionSpec.UNCONSTRAINED))
    with pytest.raises(ss.ShardingError, match="unreduced"):
        client.identity(ARR, out_shardings=PartitionSpec("x", unreduced={"y"}))
