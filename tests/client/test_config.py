"""Addresses and keys: from arguments or the environment, and never in the clear to another host."""

from __future__ import annotations

from typing import Any

import pytest

import shardserve as ss
from shardserve._config import DEFAULT_URL, resolve_address

KEY = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDSERVE_URL", raising=False)
    monkeypatch.delenv("SHARDSERVE_API_KEY", raising=False)


def test_the_default_is_a_server_on_this_host() -> None:
    address = resolve_address(None, None, allow_insecure=False)
    assert (address.url, address.api_key, address.is_loopback) == (DEFAULT_URL, None, True)


def test_the_environment_gives_address_and_key_and_arguments_go_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSERVE_URL", "https://tpu-host/prefix/")
    monkeypatch.setenv("SHARDSERVE_API_KEY", KEY)
    address = resolve_address(None, None, allow_insecure=False)
    assert (address.url, address.api_key, address.is_loopback) == ("https://tpu-host/prefix", KEY, False)
    address = resolve_address("http://[::1]:9000", "other", allow_insecure=False)
    assert (address.url, address.api_key, address.is_loopback) == ("http://[::1]:9000", "other", True)


@pytest.mark.parametrize("url", ["http://localhost:8000", "http://127.0.0.1", "http://127.8.8.8:1", "http://[::1]:2"])
def test_a_key_may_go_over_plain_http_on_this_host(url: str) -> None:
    assert resolve_address(url, KEY, allow_insecure=False).is_loopback


@pytest.mark.parametrize("url", ["http://tpu-host:8000", "http://10.0.0.3", "http://localhost.evil.example"])
def test_a_key_does_not_cross_the_network_in_the_clear(url: str) -> None:
    with pytest.raises(ss.InvalidRequest, match="in the clear.*allow_insecure=True"):
        ss.Client(url, KEY)
    assert resolve_address(url, KEY, allow_insecure=True).api_key == KEY
    assert resolve_address(url, None, allow_insecure=False).api_key is None


@pytest.mark.parametrize(
    "url",
    ["tpu-host:8000", "ftp://host", "http://", "http://host:port", "http://host:99999", "grpc://x", "http://[::1"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ss.InvalidRequest, match="no address of a server"):
        resolve_address(url, None, allow_insecure=False)


@pytest.mark.parametrize("url", ["http://user:secret@host", "http://host/?key=secret", "http://host/#secret"])
def test_an_address_holds_no_secrets(url: str) -> None:
    with pytest.raises(ss.InvalidRequest, match="holds no user") as caught:
        resolve_address(url, None, allow_insecure=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "ümlaut", "tab\t"])
def test_a_key_that_no_header_carries_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ss.InvalidRequest, match="no HTTP header carries") as caught:
        resolve_address(None, key, allow_insecure=False)
    assert key not in str(caught.value)


def test_a_key_shows_in_no_repr() -> None:
    assert KEY not in repr(resolve_address(None, KEY, allow_insecure=False))


@pytest.mark.parametrize(
    "arguments", [(8765,), (b"http://h",), ("http://127.0.0.1:1", b"abc"), ("http://127.0.0.1:1", 7)]
)
def test_what_is_no_text_is_refused_by_name_and_without_showing_a_key(arguments: Any) -> None:
    with pytest.raises(ss.InvalidRequest, match="is a text, not a (int|bytes)$"):
        ss.Client(*arguments)
