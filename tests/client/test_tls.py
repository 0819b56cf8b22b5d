"""TLS and proxies: whom a client trusts, and whom it asks."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardserve as ss
from shardserve._config import check_address, has_proxy

from .conftest import RawServer
from .replies import frame, http
from .scripted import CONTINUE, GOOD, LARGE, X, read_body, read_head_or_end


def test_a_proxy_of_the_environment_is_asked_for_other_hosts(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy: RawServer = raw_server(GOOD)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ss.Client("http://mesh.example") as client:
        np.testing.assert_array_equal(client.identity(X), X)
    assert proxy.requests[0].startswith(b"POST http://mesh.example/v1/call HTTP/1.1\r\n")
    monkeypatch.setenv("no_proxy", "mesh.example")
    assert not has_proxy(check_address("http://mesh.example", None, allow_insecure=False))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by the openssl command")
def test_https_is_checked_against_the_certificates_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = [str(shutil.which("openssl")), *words.split(), *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                while head := read_head_or_end(secured):
                    if b"expect" in head.lower():
                        secured.sendall(CONTINUE)
                    body = read_body(secured, head)
                    secured.sendall(http(frame(LARGE if len(body) > LARGE.nbytes else X)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr("shardserve._patience.CONNECT_ATTEMPTS", 1)
        with ss.Client(url) as stranger, pytest.raises(ss.ConnectFailed, match="certificate verify failed"):
            stranger.identity(X)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with ss.Client(url, timeout=20) as client:
            for array in (X, LARGE, X):
                np.testing.assert_array_equal(client.identity(array), array)
            assert len(client._connections.here()._pool._idle) == 1
        thread.join(10)
        assert not thread.is_alive()


def test_http_on_loopback_loads_no_certificates(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", lambda: pytest.fail("certificates were loaded"))
    with ss.Client(raw_server(GOOD).url) as client:
        client.identity(X)
