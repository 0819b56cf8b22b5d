"""Handles: what they know without asking, what NumPy may do with them, and how calls refer to them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardserve as ss
from shardserve._array import RemoteArray
from shardserve_proto.messages import ArrayInfo, PlacementReport

from .handles import NOWHERE, answer, handle, header_of, ids_of, kept
from .replies import frame, http

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def client() -> Iterator[ss.Client]:
    """A client whose server does not exist: whatever asks it fails."""
    with ss.Client(NOWHERE) as client:
        yield client


@pytest.fixture(autouse=True)
def _releases_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they do not take an answer that is meant for a call."""
    monkeypatch.setattr("shardserve._releases.PAUSE_S", 60.0)


def info(**fields: Any) -> ArrayInfo:
    given: dict[str, Any] = {
        "id": "ab" * 16, "name": "weights", "dtype": "float32", "shape": (6, 4), "spec": ("x", None),
        "mesh": (("x", 4), ("y", 2)), "shard_shape": (2, 4), "nbytes": 96, "device_bytes": 256,
        "ttl_s": 60.0, "expires_in_s": 30.0,
    }  # fmt: skip
    return ArrayInfo(**(given | fields))


# --- what is known without asking ------------------------------------------------------------------------------------


def test_shape_dtype_and_the_rest_are_known_without_asking(client: ss.Client) -> None:
    h = handle(client, (4, 3), "bfloat16")
    assert (h.shape, h.ndim, h.size, h.nbytes, len(h)) == ((4, 3), 2, 12, 24, 4)
    assert h.dtype == ml_dtypes.bfloat16
    assert (h.spec, h.mesh, h.name, h.id) == (ss.P(), {}, None, "01" * 16)
    assert (np.shape(h), np.ndim(h), np.size(h)) == ((4, 3), 2, 12)


def test_the_repr_is_one_line_and_asks_nobody(client: ss.Client) -> None:
    assert repr(handle(client)) == "RemoteArray(float32[4, 3], on one device, 48 B)"
    attached = RemoteArray.attached(client, info())
    assert repr(attached) == "RemoteArray('weights', float32[6, 4], P('x', None) on x=4, y=2, 96 B)"
    assert repr(attached[:2]) == f"RemoteSlice(float32[2, 4] of {attached!r})"
    attached._forget()
    assert "deleted" in repr(attached)


def test_visualize_shows_which_device_holds_which_part_of_an_attached_array(client: ss.Client) -> None:
    text = RemoteArray.attached(client, info()).visualize()
    assert text.splitlines()[0] == "float32[6, 4] as P('x', None): 2×4 on each device"
    assert [row for row in ("0,1", "2,3", "4,5", "6,7") if row in text] == ["0,1", "2,3", "4,5", "6,7"]
    assert "padding" in text, "6 rows on 4 devices: the last one holds none"


def test_visualize_shows_the_devices_that_the_server_names(client: ss.Client) -> None:
    text = RemoteArray.attached(client, info(devices=tuple(range(17, 9, -1)))).visualize()
    assert [row for row in ("16,17", "14,15", "12,13", "10,11") if row in text] == ["16,17", "14,15", "12,13", "10,11"]


def test_a_handle_is_neither_pickled_nor_copied(client: ss.Client) -> None:
    h = handle(client)
    with pytest.raises(ss.InvalidRequest, match=r"attach\(name\)"):
        pickle.dumps(h)
    assert copy.copy(h) is h
    assert copy.deepcopy([h])[0] is h


def test_no_length_at_rank_0(client: ss.Client) -> None:
    with pytest.raises(TypeError, match="rank 0"):
        len(handle(client, ()))


# --- NumPy -----------------------------------------------------------------------------------------------------------

ADD: Any = np.add

REFUSED: dict[str, Callable[[Any], Any]] = {
    "operator": lambda h: h + 1,
    "reflected operator": lambda h: 1 - h,
    "operator of NumPy": lambda h: X @ h,
    "comparison": lambda h: h == 1,
    "unary": lambda h: -h,
    "ufunc": np.exp,
    "ufunc method": ADD.reduce,
    "function": np.sum,
    "stack": lambda h: np.stack([h, h]),
    "loop": list,
    "index by a list": lambda h: h[[0, 1]],
    "index by booleans": lambda h: h[np.ones(4, bool)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_download_silently_is_refused_with_the_way_to_compute_on_the_mesh(
    client: ss.Client, name: str
) -> None:
    with pytest.raises(ss.UnsupportedArray, match=r"client\.run.*\.numpy\(\)"):
        REFUSED[name](handle(client))


def test_asarray_downloads(raw_server: Any) -> None:
    server = raw_server(http(frame(X)))
    with ss.Client(server.url) as client:
        h = handle(client)
        np.testing.assert_array_equal(np.asarray(h), X)
        assert np.asarray(h, dtype=np.float64).dtype == np.float64
        assert np.array(h).tolist() == X.tolist()
        with pytest.raises(ValueError, match="copy=False"):
            np.array(h, copy=False)
    assert header_of(server.requests[0])["program"] == {"inputs": 1, "outputs": (0,)}
    assert ids_of(server.requests[0]) == [h.id]


def test_single_numbers_convert(raw_server: Any) -> None:
    server = raw_server(http(frame(np.ones((1, 1), np.float32))))
    with ss.Client(server.url) as client:
        h = handle(client, (1, 1))
        assert (float(h), int(h), bool(h), complex(h), h.item()) == (1.0, 1, True, 1 + 0j, 1.0)
        with pytest.raises(ValueError, match="12 elements"):
            float(handle(client))


def test_a_huge_implicit_download_is_refused_by_the_setting_s_name(client: ss.Client) -> None:
    h = handle(client, (2**15, 2**14))  # 2 GiB
    with pytest.raises(ss.TooLarge, match=r"2\.1 GB implicitly.*\.numpy\(\).*max_implicit_bytes"):
        np.asarray(h)
    with pytest.raises(ss.ConnectFailed):
        np.asarray(h[:2])  # a part of it is small


def test_the_limit_for_implicit_downloads_is_the_client_s(raw_server: Any) -> None:
    server = raw_server(http(frame(X)))
    with ss.Client(server.url, max_implicit_bytes=47) as client:
        with pytest.raises(ss.TooLarge, match="at most 47 B"):
            np.asarray(handle(client.with_options(timeout=5)))
        assert server.requests == []
        np.testing.assert_array_equal(handle(client).numpy(), X)
    with pytest.raises(ss.InvalidRequest, match="max_implicit_bytes is a number of bytes"):
        ss.Client(NOWHERE, max_implicit_bytes=-1)


# --- in calls --------------------------------------------------------------------------------------------------------


def test_calls_with_other_handles_have_equal_headers(raw_server: Any) -> None:
    server = raw_server(kept((4, 4)))
    with ss.Client(server.url) as client:
        for number in (1, 2):
            h = handle(client, key=bytes([number]) * 16)
            client.matmul(h, X.T)
            client.run(lambda a, b: a @ b, h, X.T)
    calls = [request for request in server.requests if b"/v1/call" in request[:20]]
    first, second = calls[:2], calls[2:]
    assert [header_of(request) for request in first] == [header_of(request) for request in second]
    assert ids_of(first[0])[0] == "01" * 16
    assert ids_of(second[0])[0] == "02" * 16
    made = {ids_of(request)[1] for request in calls}
    assert len(made) == 4, "each result has a fresh id"


def test_headers_of_equal_calls_are_made_once(client: ss.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def encode(header: Any) -> bytes:
        made.append(header)
        return b"header"

    monkeypatch.setattr("shardserve._requests.encode_header", encode)
    for number in range(3):
        h = handle(client, (5, 4, 7), key=bytes([number]) * 16)
        client._outgoing_kernel("exp", (h,), {}, {})
        client._outgoing_kernel("exp", (h,), {}, {"keep": False})
    assert len(made) == 2


def test_the_ids_are_the_first_segment_and_arrays_follow(raw_server: Any) -> None:
    server = raw_server(kept((4, 4)))
    with ss.Client(server.url) as client:
        client.matmul(X, handle(client, (3, 4)))
    header = header_of(server.requests[0])
    assert header["arguments"] == ({"segment": 1}, {"array": 0})
    assert header["results"] == ({"array": 1},)
    assert [segment["shape"] for segment in header["segments"]] == [(2, 16), (4, 3)]


def test_results_follow_the_arguments_unless_keep_says_otherwise(raw_server: Any) -> None:
    server = raw_server(kept((4, 3)), http(frame(X)), http(frame(X)), kept((4, 3)), kept((4, 3)), http(frame(X)))
    with ss.Client(server.url) as client:
        h = handle(client)
        assert isinstance(client.exp(h), ss.RemoteArray)
        assert isinstance(client.exp(X), np.ndarray)
        assert isinstance(client.exp(h, keep=False), np.ndarray)
        assert isinstance(client.run(lambda x: -x, X, keep=True), ss.RemoteArray)
        keeping = client.with_options(keep=True)
        assert isinstance(keeping.exp(X), ss.RemoteArray)
        assert isinstance(keeping.call("exp", X, keep=False).value, np.ndarray)


def test_keep_is_true_false_or_none(client: ss.Client) -> None:
    with pytest.raises(ss.InvalidRequest, match="keep is True, False"):
        client.exp(X, keep="yes")  # type: ignore[arg-type]


def test_trees_of_handles_go_in_and_come_out(raw_server: Any) -> None:
    server = raw_server(kept((4, 3), (), (3, 4)))
    with ss.Client(server.url) as client:
        found = client.run(
            lambda p, x: {"y": p["w"] * x, "parts": (np.sum(p["b"]), x.T)}, {"w": handle(client), "b": X[0]}, X
        )
    assert found["y"].shape == (4, 3)
    assert [part.shape for part in found["parts"]] == [(), (3, 4)]
    assert [found["y"].id, *(part.id for part in found["parts"])] == ids_of(server.requests[0])[1:]


def test_a_captured_handle_is_refused(client: ss.Client) -> None:
    h = handle(client)
    for function in (lambda x: x + h, lambda x: h + x, lambda x: np.add(h, x), lambda x: np.matmul(x, h)):
        with pytest.raises(ss.UntraceableFunction, match="captures a resident array; pass it as an argument"):
            client.run(function, X)


@pytest.mark.parametrize("other", ["http://127.0.0.1:10", NOWHERE])
def test_a_handle_of_another_server_or_key_is_refused_before_anything_is_sent(client: ss.Client, other: str) -> None:
    with ss.Client(other, api_key="k" * 20) as stranger:
        h = handle(stranger)
        whose = "another key" if other == NOWHERE else "the server at http://127.0.0.1:10"
        uses: list[Callable[[], Any]] = [
            lambda: client.exp(h),
            lambda: client.run(lambda x: x, [h]),
            lambda: client.get(h[:2]),
        ]
        for use in uses:
            with pytest.raises(ss.InvalidRequest, match=f"belongs to {whose}"):
                use()
        with pytest.raises(ss.InvalidRequest, match="belongs to"):
            client.delete(h)


def test_a_deleted_handle_is_refused_before_anything_is_sent(raw_server: Any) -> None:
    server = raw_server(answer({"released": 1}))
    with ss.Client(server.url) as client:
        with handle(client) as h:
            pass
        h.delete()  # harmless
        uses: list[Callable[[], Any]] = [
            lambda: client.exp(h),
            lambda: client.put([h]),
            lambda: h.lease,
            h.numpy,
            h[:2].keep,
        ]
        for use in uses:
            with pytest.raises(ss.InvalidRequest, match="was deleted; put it again"):
                use()
    assert len(server.requests) == 1
    assert b"/v1/arrays/release" in server.requests[0]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (kept((4, 2)), "result 0 of the server is float32"),
        (kept((4, 3), dtype="float64"), "result 0 of the server is float64"),
        (kept(), "kept 0 results"),
        (kept((4, 3), (4, 3)), "kept 2 results"),
        (http(frame(X)), "answers with 1 arrays"),
    ],
)
def test_a_server_that_keeps_something_else_is_not_believed(raw_server: Any, reply: bytes, message: str) -> None:
    with ss.Client(raw_server(reply).url) as client, pytest.raises(ss.BadReply, match=message):
        client.exp(handle(client))


def test_the_report_tells_what_was_moved() -> None:
    from shardserve._repr import describe_report

    from .replies import report

    moved = PlacementReport(dtype="int8", shape=(2,), spec=None, padded_shape=(2,), shard_shape=(2,), moved=True)
    text = describe_report(report().model_copy(update={"arguments": (moved,)}))
    assert "moved here for this call" in text[2]


def test_what_an_engine_lost_is_told_and_not_asked_again(raw_server: Any) -> None:
    from .replies import refusal

    gone = ss.Expired("array 01: it was lost when the engine died; put it again, or pin it with pinned=True")
    server = raw_server(refusal(gone))
    with ss.Client(server.url) as client, pytest.raises(ss.Expired, match="lost when the engine died; put it again"):
        client.exp(handle(client))
    server = raw_server(refusal(ss.EngineLost("the engine died during the call", retry_after_s=0.01)))
    with ss.Client(server.url) as client, pytest.raises(ss.EngineLost):
        client.exp(handle(client))
    assert len(server.requests) == 1
