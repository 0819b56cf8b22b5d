"""Who may call: every route against keys, the rules of a server without keys, and how keys are compared and stored."""

from __future__ import annotations

import ast
import hmac
import inspect
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardserve_server.front import auth
from shardserve_server.front.auth import Keys, load_keys, read_key_file
from shardserve_server.settings import BadSetting, Settings

from .serving import Served, post_head, read_answer, serving

KEY = "correct-horse-battery-staple-42"
OTHER = "another-key-of-another-owner-43"
EVERYWHERE = "0.0.0.0"  # noqa: S104
BEARER = {"Authorization": f"Bearer {KEY}"}
PATHS = (
    "/", "/v1/call", "/v1/kernels", "/v1/kernels/dot", "/v1/kernels/", "/v1/devices", "/v1/info", "/openapi.json",
    "/docs", "/redoc", "/metrics", "/unknown", "/v1//info", "/V1/INFO", "/livez/", "/livez/..", "/livez/../v1/info",
    "//livez", "/livez%2f", "/%6civez/", "/livez%00", "/readyz/x", "/v1/./info",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """A front with two keys."""
    with serving(keys=Keys([("ana", KEY), ("ben", OTHER)])) as served:
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_every_route_and_method_needs_a_key(guarded: Served, path: str) -> None:
    texts = set()
    for method in METHODS:
        answer = guarded.request(method, path)
        assert answer.status == 401, (method, path)
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert answer.code == "unauthenticated"
            texts.add(answer.body)
    assert len(texts) == 1


def test_the_two_probes_need_none(guarded: Served) -> None:
    for path in ("/livez", "/readyz"):
        assert guarded.request("GET", path).status == 200
        assert guarded.request("POST", path, body=b"").status == 405


def test_a_key_opens_every_route_and_its_label_is_the_owner(guarded: Served) -> None:
    for path in ("/v1/kernels", "/v1/kernels/identity", "/v1/devices", "/v1/info", "/openapi.json"):
        assert guarded.request("GET", path, headers=BEARER).status == 200
    for key, owner in ((KEY, "ana"), (OTHER, "ben")):
        headers = {"Authorization": f"Bearer {key}"}
        assert guarded.call("identity", [1.0], headers=headers).status == 200
        assert guarded.json("/v1/kernels/identity", {"arguments": [[1]]}, **headers).status == 200
        assert guarded.engine.owners[-2:] == [owner, owner]


@pytest.mark.parametrize(
    "value",
    [
        "", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Bearer {KEY.upper()}",
        f"Bearer x{KEY}", "Bearer ana", f"Bearer ana {KEY}", "Bearer \xff\xfe", f"Bearer{KEY}",
        f"Bearer {KEY}, Bearer {OTHER}",
    ],
)  # fmt: skip
def test_anything_but_a_known_key_is_401_with_the_same_text(guarded: Served, value: str) -> None:
    answer = guarded.request("GET", "/v1/info", headers={"Authorization": value})
    assert answer.status == 401
    assert answer.body == guarded.request("GET", "/v1/info").body


def test_two_authorization_headers_are_none(guarded: Served) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as stream:
        stream.sendall(f"GET /v1/info HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n".encode() * 1)
        stream.sendall(f"Authorization: Bearer {KEY}\r\n\r\n".encode())
        assert read_answer(stream).status == 401


def test_no_body_is_read_before_the_key(guarded: Served) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as stream:
        stream.sendall(post_head("/v1/call", 2**30, Expect="100-continue"))
        answer = read_answer(stream)
        assert (answer.status, answer.headers["connection"]) == (401, "close")


def test_a_server_with_keys_answers_any_host_and_origin(guarded: Served) -> None:
    headers = {**BEARER, "Host": "tpu.example", "Origin": "https://app.example"}
    answer = guarded.request("GET", "/v1/info", headers=headers)
    assert answer.status == 200
    assert not any(name.startswith("access-control") for name in answer.headers), "there is no CORS"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8000", 200), ("127.0.0.1", 200), ("127.0.0.1:1", 200), ("[::1]", 200),
        ("[::1]:8000", 200), ("LOCALHOST", 200), ("evil.example", 403), ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403), ("evil.example:80", 403), ("localhost:80:80", 403), ("localhost:x", 403),
        ("127.0.0.2", 403), ("", 403), ("localhost@evil.example", 403), ("[::1", 403), ("0.0.0.1", 403),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/info", "/livez", "/unknown"])
def test_without_a_key_only_this_hosts_own_names_are_answered(front: Served, host: str, status: int, path: str) -> None:
    answer = front.request("GET", path, headers={"Host": host})
    if status == 403:
        assert (answer.status, answer.code) == (403, "forbidden")
    else:
        assert answer.status == (404 if path == "/unknown" else 200)


def test_without_a_key_a_request_names_one_host(front: Served) -> None:
    for hosts in (b"Host: localhost\r\nHost: evil.example\r\n", b""):
        with socket.create_connection(("127.0.0.1", front.port), timeout=10) as stream:
            stream.sendall(b"GET /livez HTTP/1.1\r\n" + hosts + b"\r\n")
            assert read_answer(stream).status in (400, 403)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", ""])
def test_without_a_key_a_web_page_is_refused(front: Served, origin: str) -> None:
    for method, path in (("GET", "/v1/info"), ("POST", "/v1/call"), ("OPTIONS", "/v1/call"), ("GET", "/livez")):
        answer = front.request(method, path, headers={"Origin": origin})
        assert (answer.status, answer.code) == (403, "forbidden")
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_without_a_key_the_owner_is_the_default_one(front: Served) -> None:
    assert front.call("identity", [1.0]).status == 200
    assert front.engine.owners[-1] == "default"


def test_keys_are_compared_as_digests_all_of_them_and_in_constant_time() -> None:
    """Promise C3a: in the source, a key only ever meets sha256 and `hmac.compare_digest`, in a loop without an exit."""
    tree = ast.parse(inspect.getsource(auth))
    keys = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Keys")
    owner_of = next(node for node in keys.body if isinstance(node, ast.FunctionDef) and node.name == "owner_of")
    (loop,) = [node for node in ast.walk(owner_of) if isinstance(node, ast.For)]
    assert not [node for node in ast.walk(loop) if isinstance(node, ast.Break | ast.Return | ast.Continue)]
    calls = [ast.unparse(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)]
    assert calls == ["hmac.compare_digest"]
    assert not [node for node in ast.walk(owner_of) if isinstance(node, ast.Compare)]


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = Keys([("a", KEY), ("b", OTHER), ("c", KEY * 3)])
    for given, owner in ((KEY, "a"), (KEY * 3, "c"), ("x", None)):
        compared.clear()
        assert keys.owner_of(given.encode()) == owner
        assert compared == [(32, 32)] * 3


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_holds_labels_and_keys(tmp_path: Path) -> None:
    path = key_file(tmp_path, f"# who\n\nana {KEY}\n  ben\t{OTHER}  \nana {KEY}2\n")
    assert read_key_file(path, setting="key_file") == [("ana", KEY), ("ben", OTHER), ("ana", KEY + "2")]


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (None, 0, "cannot be read"),
        ("", 0o600, "holds no key"),
        ("# nothing\n\n", 0o600, "holds no key"),
        (f"ana {KEY}\n", 0o604, "chmod 600"),
        (f"ana {KEY}\n", 0o602, "chmod 600"),
        (f"ana {KEY}\n", 0o644, "chmod 600"),
        (f"{KEY}\n", 0o600, "line 1"),
        (f"ana {KEY}\nben {OTHER} more\n", 0o600, "line 2"),
        ("ana short\n", 0o600, "128 bits"),
        ("ana 0123456789abcdef0123456789abcde\n", 0o600, "128 bits"),
        ("ana aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", 0o600, "128 bits"),
        ("ana schlüssel-mit-umlauten-und-länge\n", 0o600, "ASCII"),
    ],
)
def test_a_key_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, text: str | None, mode: int, reason: str
) -> None:
    """Promise C2: missing, unreadable, empty, open to everybody, or too short."""
    path = tmp_path / "missing" if text is None else key_file(tmp_path, text, mode)
    for host in ("127.0.0.1", EVERYWHERE):
        with pytest.raises(BadSetting, match=reason) as caught:
            load_keys(Settings(host=host, key_file=path, state_dir=tmp_path / "state"))
        assert caught.value.name == "key_file"
        assert KEY not in str(caught.value)
    assert not (tmp_path / "state").exists(), "it never falls back to another key"


@pytest.mark.parametrize("content", ["directory", "binary", "no permission"])
def test_an_unreadable_key_file_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    if content == "directory":
        path.mkdir()
    elif content == "binary":
        path.write_bytes(b"ana \xff\xfe\n")
        path.chmod(0o600)
    else:
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        key_file(tmp_path, f"ana {KEY}", 0)
    with pytest.raises(BadSetting, match="cannot be read"):
        load_keys(Settings(key_file=path))


@pytest.mark.parametrize("key", ["shorty", "", "with space " + KEY, "x" * 40, "ä" + KEY])
def test_a_weak_key_of_the_environment_stops_the_start(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadSetting, match="api_key") as caught:
        load_keys(Settings(api_key=key, state_dir=tmp_path))
    assert not key or key not in str(caught.value)


def test_a_server_that_others_reach_makes_its_first_key_and_keeps_it(tmp_path: Path) -> None:
    settings = Settings(host=EVERYWHERE, state_dir=tmp_path / "new" / "state")
    first = load_keys(settings)
    assert first.made is not None
    assert first.path is not None
    assert first.path.read_text() == f"default {first.made}\n"
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.path.parent.stat().st_mode) == 0o700
    second = load_keys(settings)
    assert (second.made, second.path) == (None, first.path), "shown only once"
    assert second.keys is not None
    assert second.keys.owner_of(first.made.encode()) == "default"


def test_a_stored_key_that_was_opened_to_everybody_stops_the_start(tmp_path: Path) -> None:
    settings = Settings(host=EVERYWHERE, state_dir=tmp_path)
    path = load_keys(settings).path
    assert path is not None
    path.chmod(0o644)
    with pytest.raises(BadSetting, match="chmod 600"):
        load_keys(settings)


def test_a_state_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="state_dir"):
        load_keys(Settings(host=EVERYWHERE, state_dir=tmp_path / "file" / "state"))


def test_loopback_needs_no_key_and_takes_one(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"):
        assert load_keys(Settings(host=host, state_dir=tmp_path)).keys is None
    ring = load_keys(Settings(api_key=KEY, state_dir=tmp_path))
    assert ring.keys is not None
    assert ring.keys.owner_of(KEY.encode()) == "default"
    assert list(tmp_path.iterdir()) == []
