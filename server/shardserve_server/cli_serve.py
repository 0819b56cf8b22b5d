"""The commands that serve: `serve`, `engine` for an engine by itself, and `ready`, which probes ask."""

from __future__ import annotations

import functools
import http.client
import json
import os
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .cli_client import JsonOption

if TYPE_CHECKING:
    from shardserve_proto.messages import EngineInfo

BAD_SETTING_STATUS = 2
NOT_READY_STATUS = 1
#: A service asks its front to end first, and waits a little longer than that may take.
SERVICE_MARGIN_S = 5.0
LOOK_AGAIN_S = 0.5
PROBE_TIMEOUT_S = 3.0

DevicesOption = Annotated[int | None, typer.Option(help="Run on so many virtual CPU devices.")]
PlatformOption = Annotated[str | None, typer.Option(help="cpu, gpu or tpu: nothing else will do.")]
MeshOption = Annotated[
    list[str] | None, typer.Option(help="Add a named mesh, as NAME:x=4,y=2; repeatable.", metavar="MESH")
]
MemoryOption = Annotated[str | None, typer.Option(help="Device memory that calls may plan with.")]
CacheOption = Annotated[Path | None, typer.Option(help="Folder for compiled programs that outlive the engine.")]
ArraysFileOption = Annotated[Path | None, typer.Option(help="TOML table of arrays to read at every start.")]
ArraysRootOption = Annotated[Path | None, typer.Option(help="Folder that holds the files of --arrays-file.")]
QueueOption = Annotated[int | None, typer.Option(help="Calls that may wait for the engine.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(serve)
    app.command()(engine)
    app.command()(ready)


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; one that is not loopback needs a key.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    devices: DevicesOption = None,
    platform: PlatformOption = None,
    mesh: MeshOption = None,
    key_file: Annotated[Path | None, typer.Option(help="File of keys: a label and a key on each line.")] = None,
    body_bytes: Annotated[str | None, typer.Option(help="Largest frame, for example 4GiB.")] = None,
    buffer_bytes: Annotated[str | None, typer.Option(help="Shared buffers, all together.")] = None,
    memory_bytes: MemoryOption = None,
    cache_dir: CacheOption = None,
    arrays_file: ArraysFileOption = None,
    arrays_root: ArraysRootOption = None,
    queue_depth: QueueOption = None,
    timeout_s: Annotated[float | None, typer.Option(help="Deadline of a call that names none, in seconds.")] = None,
    engine_socket: Annotated[
        Path | None, typer.Option(help="Use the engine that runs by itself behind this socket.")
    ] = None,
    exit_after_idle: Annotated[
        float | None, typer.Option(help="Stop with status 4 after so many seconds without a request.")
    ] = None,
    stop_at_eof: Annotated[
        bool, typer.Option(help="Stop when standard input ends: with the program that started it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve until a signal. Every setting is also read from SHARDSERVE_<NAME>; see `shardserve settings`.

    SIGTERM drains: calls that were accepted finish, new ones are refused. Ctrl-C finishes what runs; again, it ends at
    once. Exit status: 0 stopped as asked, 2 a bad setting, 3 something accepted was given up, 4 idle, 1 a fault.
    """
    given = {
        "host": host,
        "port": port,
        "devices": devices,
        "platform": platform,
        "meshes": ";".join(mesh) if mesh else None,
        "key_file": key_file,
        "body_bytes": body_bytes,
        "buffer_bytes": buffer_bytes,
        "memory_bytes": memory_bytes,
        "cache_dir": cache_dir,
        "arrays_file": arrays_file,
        "arrays_root": arrays_root,
        "queue_depth": queue_depth,
        "timeout_s": timeout_s,
        "engine_socket": engine_socket,
        "exit_after_idle_s": exit_after_idle,
    }
    from .front.server import run
    from .settings import BadSetting, StartRefused, load_settings

    try:
        settings = load_settings({name: value for name, value in given.items() if value is not None})
        announce = _announce_json if as_json else functools.partial(_announce, settings.host)
        is_chosen = settings.platform is not None or settings.devices is not None or settings.engine_socket is not None
        announce_ready = _announce_ready_json if as_json else functools.partial(_announce_ready, is_chosen)
        status = run(settings, announce=announce, announce_ready=announce_ready, stop_at_eof=stop_at_eof)
    except (BadSetting, StartRefused) as error:
        _refuse(error)
    raise typer.Exit(status)


def engine(
    socket: Annotated[Path, typer.Option(help="Make a unix socket here, for the front that has --engine-socket.")],
    devices: DevicesOption = None,
    platform: PlatformOption = None,
    mesh: MeshOption = None,
    memory_bytes: MemoryOption = None,
    cache_dir: CacheOption = None,
    arrays_file: ArraysFileOption = None,
    arrays_root: ArraysRootOption = None,
    queue_depth: QueueOption = None,
) -> None:
    """Run an engine by itself, without a port, for a front in another container or of another user.

    The owner and the group of the socket may connect. SIGTERM waits until the front has left.
    """
    given = {
        "devices": devices,
        "platform": platform,
        "meshes": ";".join(mesh) if mesh else None,
        "memory_bytes": memory_bytes,
        "cache_dir": cache_dir,
        "arrays_file": arrays_file,
        "arrays_root": arrays_root,
        "queue_depth": queue_depth,
    }
    from .link.engine_service import EngineService, SocketInUse
    from .link.log import configure_logging
    from .settings import BadSetting, load_settings

    configure_logging()
    own = {"engine_socket": None}  # an environment that is shared with the front may have it
    try:
        settings = load_settings({name: value for name, value in given.items() if value is not None} | own)
        service = EngineService(
            settings.engine_command(),
            socket,
            stop_grace_s=settings.stop_grace_s + SERVICE_MARGIN_S,
            on_listening=lambda: _say(f"shardserve engine waits for its front at {socket} (pid {os.getpid()})"),
        )
        status = service.run()
    except BadSetting as error:
        _refuse(error)
    except SocketInUse as error:
        _refuse(f"--socket {socket}: {error}")
    raise typer.Exit(status)


def ready(
    url: Annotated[
        str | None, typer.Option(help="The server; without it, the one of SHARDSERVE_HOST and _PORT.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Ask again for so many seconds until it is ready.")] = 0.0,
) -> None:
    """Tell whether a server takes calls: status 0, or 1 with the reason. It needs no key."""
    address = url or _own_address(os.environ)
    until = time.monotonic() + wait
    while (reason := _why_not_ready(address)) is not None:
        if time.monotonic() >= until:
            typer.echo(f"not ready: {reason}", err=True)
            raise typer.Exit(NOT_READY_STATUS)
        time.sleep(min(LOOK_AGAIN_S, max(0.0, until - time.monotonic())))
    typer.echo("ready")


def _own_address(environment: Mapping[str, str]) -> str:
    """Where a server with these settings answers on this host."""
    from .front.address import url_at

    return url_at(environment.get("SHARDSERVE_HOST") or "127.0.0.1", environment.get("SHARDSERVE_PORT") or "8000")


def _why_not_ready(url: str) -> str | None:
    """None for a server that takes calls. Python's own client, since a probe should start quickly."""
    connection = _connection(url)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return f"nobody answers at {url} ({error})"
    finally:
        connection.close()
    if response.status == 200:
        return None
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answers with HTTP {response.status}"


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host:
        raise typer.BadParameter(f"an address is like http://host:8000, not {url!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=PROBE_TIMEOUT_S)


def _refuse(reason: object) -> NoReturn:
    typer.echo(f"shardserve: {reason}", err=True)
    raise typer.Exit(BAD_SETTING_STATUS) from None


def _announce_json(facts: dict[str, Any]) -> None:
    made = facts.pop("made_key", None)
    _say(json.dumps(facts))
    if made is not None:
        _announce_key(made, facts["key_file"])


def _announce(host: str, facts: dict[str, Any]) -> None:
    from .settings import is_loopback

    where = facts["url"] if is_loopback(host) else f"{host}, port {facts['url'].rpartition(':')[2]}"
    _say(f"shardserve {facts['version']} listens on {where} (pid {facts['pid']}); the engine is loading")
    if not is_loopback(host):
        _say(
            "it speaks plain HTTP: put TLS in front, or on a network that you trust let clients say allow_insecure=True"
        )
    if not facts["needs_key"]:
        _say("open to this host alone, without a key")
    elif facts.get("key_file") is not None:
        _say(f"clients need a key of {facts['key_file']}")
    if facts.get("made_key") is not None:
        _announce_key(facts["made_key"], facts["key_file"])


def _announce_key(key: str, path: str) -> None:
    """Shown once, at the start that made it, and never on stdout, which is piped and kept."""
    _say(f"a key was made and stored in {path}; it is shown only now. Clients need:", err=True)
    _say(f"    export SHARDSERVE_API_KEY={key}", err=True)


def _announce_ready_json(info: EngineInfo, seconds: float) -> None:
    _say(json.dumps({"ready_s": round(seconds, 3), "devices": len(info.devices), "meshes": info.meshes}))


def _announce_ready(is_chosen: bool, info: EngineInfo, seconds: float) -> None:
    kinds = ", ".join(sorted({device.kind for device in info.devices}))
    meshes = "; ".join(
        f"{name} ({', '.join(f'{axis}={size}' for axis, size in axes)})" for name, axes in info.meshes.items()
    )
    _say(f"ready after {seconds:.1f} s: {_counted(len(info.devices), 'device')} ({kinds}), JAX {info.versions['jax']}")
    if not is_chosen and info.devices[0].platform == "cpu":
        _say(
            "no accelerator was found: this is the CPU. --platform gpu or tpu says why; --devices 8 makes virtual ones"
        )
    _say(f"meshes: {meshes}")
    _say(
        f"limits: {info.memory_bytes / 2**30:.1f} GiB of device memory, {_counted(info.queue_depth, 'waiting call')}, "
        f"{_counted(info.compile_cache_entries, 'compiled program')}; /v1/info tells all"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _say(text: str, *, err: bool = False) -> None:
    """To stdout or stderr, which whoever reads it may have closed; it is then nobody's any more, also at the end."""
    try:
        typer.echo(text, err=err)
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2 if err else 1)
        os.close(nowhere)
