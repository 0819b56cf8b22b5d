"""The other routes: what they tell, their one form of error, and a server that bad bytes do not disturb."""

from __future__ import annotations

import socket

import pytest

from shardserve_proto.errors import BY_CODE
from shardserve_proto.limits import LIMITS
from shardserve_server.settings import Settings

from .serving import KERNELS, Served, post_head, read_answer, serving


def test_the_kernels_are_listed_and_described(front: Served) -> None:
    assert [kernel["name"] for kernel in front.request("GET", "/v1/kernels").json] == list(KERNELS)
    one = front.request("GET", "/v1/kernels/identity").json
    assert one["signature"] == "identity(x)"


def test_info_tells_versions_limits_and_notes(front: Served) -> None:
    info = front.request("GET", "/v1/info").json
    assert set(info["versions"]) == {"shardserve", "fake"}
    assert set(LIMITS.as_dict()) < set(info["limits"])
    assert info["limits"]["body_bytes"] == front.settings.body_bytes
    assert info["notes"] == ["a note"]
    assert (info["device_kind"], info["device_count"]) == ("cpu", 1)


def test_info_shows_the_limits_that_the_settings_lowered() -> None:
    with serving(settings=Settings(port=0, body_bytes=12345, json_bytes=6789, stop_grace_s=1)) as front:
        limits = front.request("GET", "/v1/info").json["limits"]
        assert (limits["body_bytes"], limits["json_bytes"]) == (12345, 6789)
        assert front.json("/v1/kernels/identity", b"[" + b" " * 6789).status == 413
        assert front.json("/v1/kernels/identity", b"[" + b" " * 6788).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/unknown", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/redoc", 404, "not_found"),
        ("GET", "/v1/kernels/identify", 404, "not_found"),
        ("GET", "/v1/kernels/" + "x" * 5000, 404, "not_found"),
        ("GET", "/v1/kernels/%ed%a0%80", 404, "not_found"),
        ("GET", "/v1/call", 405, "method_not_allowed"),
        ("PUT", "/v1/call", 405, "method_not_allowed"),
        ("DELETE", "/v1/kernels", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/info", 405, "method_not_allowed"),
        ("BREW", "/v1/info", 400, "bad_request"),
    ],
)
def test_what_is_not_there_is_an_error_like_any_other(
    front: Served, method: str, path: str, status: int, code: str
) -> None:
    answer = front.request(method, path)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["content-type"].startswith("application/json")
    assert len(answer.body) < 1000


def test_head_is_answered_without_a_body(front: Served) -> None:
    assert front.request("HEAD", "/unknown").body == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n X: folded\r\nbad header\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_are_400_and_disturb_nobody(front: Served, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(data)
        answer = read_answer(stream)
        assert (answer.status, answer.code) == (400, "bad_request")
        assert stream.recv(1) == b""
    assert front.request("GET", "/livez").status == 200


def test_an_upgrade_to_a_websocket_is_not_offered(front: Served) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "eA==",
    }
    assert front.request("GET", "/v1/info", headers=headers).status in (200, 400, 404)
    assert front.request("GET", "/livez").status == 200


def test_the_openapi_document_describes_every_route_and_one_error(front: Served) -> None:
    document = front.request("GET", "/openapi.json").json
    assert set(document["paths"]) == {
        "/livez", "/readyz", "/v1/info", "/v1/devices", "/v1/kernels", "/v1/kernels/{name}", "/v1/call",
        "/v1/arrays", "/v1/arrays/{array}", "/v1/arrays/{array}/info", "/v1/arrays/{array}/lease", "/v1/arrays/release",
        "/v1/memory",
    }  # fmt: skip
    assert set(document["paths"]["/v1/kernels/{name}"]) == {"get", "post"}
    call = document["paths"]["/v1/call"]["post"]
    assert set(call["requestBody"]["content"]) == {"application/vnd.shardserve.frame"}
    for path in document["paths"].values():
        for operation in path.values():
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Error"}
            assert "422" not in operation["responses"]
    codes = document["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"]
    assert set(codes) == {code for code, cls in BY_CODE.items() if cls.status is not None}


def test_no_page_of_the_server_loads_anything_from_elsewhere(front: Served) -> None:
    for path in ("/docs", "/redoc", "/openapi.json", "/v1/info"):
        body = front.request("GET", path).body
        assert b"<script" not in body
        assert b"cdn" not in body


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_may_ask_for_the_head_alone(front: Served, path: str) -> None:
    answer = front.request("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")


def test_a_slash_too_many_is_no_route_and_no_redirect(front: Served) -> None:
    answer = front.request("POST", "/v1/call/", body=b"", headers={"Host": "127.0.0.1"})
    assert (answer.status, answer.code) == (404, "not_found")


def test_the_methods_of_a_route_are_told(front: Served) -> None:
    """Of all routes that match the path, not of the first one alone."""
    for method, path, allowed in (
        ("DELETE", "/v1/kernels", "GET"),
        ("PATCH", "/v1/arrays/a", "DELETE, GET"),
        ("PUT", "/v1/arrays", "GET, POST"),
        ("GET", "/v1/arrays/a/lease", "POST, PUT"),
        ("PUT", "/v1/arrays/release", "DELETE, GET, POST"),
        ("PUT", "/livez", "GET, HEAD"),
        ("GET", "/v1/call", "POST"),
    ):
        answer = front.request(method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        error = answer.json["error"]
        assert error["details"] == {"allowed": allowed}
        assert error["message"].endswith(f"has no method {method}; it has {allowed}")


def test_a_refusal_by_the_router_does_not_take_the_next_request_for_its_body(front: Served) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
        stream.sendall(post_head("/nope", 60, Expect="100-continue"))
        answer = read_answer(stream)
        assert (answer.status, answer.headers["connection"]) == (404, "close")
