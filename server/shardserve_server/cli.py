"""The command `shardserve`: serve, info, call, demo, settings; those for arrays are in `cli_arrays.py`."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .cli_arrays import register as register_arrays
from .cli_client import InsecureOption, JsonOption, UrlOption, connected
from .cli_files import check_folder, load, save

app = typer.Typer(
    name="shardserve",
    help="A mesh of accelerators behind one HTTP endpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, keys among them
)

BAD_SETTING_STATUS = 2


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardserve {version('shardserve')}")
        raise typer.Exit


@app.callback()
def _shardserve(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A mesh of accelerators behind one HTTP endpoint."""


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; one that is not loopback needs a key.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    devices: Annotated[int | None, typer.Option(help="Run on so many virtual CPU devices.")] = None,
    mesh: Annotated[list[str] | None, typer.Option(help="Add a named mesh, as NAME:x=4,y=2; repeatable.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File of keys: a label and a key on each line.")] = None,
    body_bytes: Annotated[str | None, typer.Option(help="Largest frame, for example 4GiB.")] = None,
    buffer_bytes: Annotated[str | None, typer.Option(help="Shared buffers, all together.")] = None,
    memory_bytes: Annotated[str | None, typer.Option(help="Device memory that calls may plan with.")] = None,
    arrays_file: Annotated[Path | None, typer.Option(help="TOML table of arrays to read at every start.")] = None,
    arrays_root: Annotated[Path | None, typer.Option(help="Folder that holds the files of --arrays-file.")] = None,
    queue_depth: Annotated[int | None, typer.Option(help="Calls that may wait for the engine.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Deadline of a call that names none, in seconds.")] = None,
    stop_at_eof: Annotated[
        bool, typer.Option(help="Stop when standard input ends: with the program that started it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. Every setting is also read from SHARDSERVE_<NAME>; see `shardserve settings`."""
    given = {
        "host": host,
        "port": port,
        "devices": devices,
        "meshes": ";".join(mesh) if mesh else None,
        "key_file": key_file,
        "body_bytes": body_bytes,
        "buffer_bytes": buffer_bytes,
        "memory_bytes": memory_bytes,
        "arrays_file": arrays_file,
        "arrays_root": arrays_root,
        "queue_depth": queue_depth,
        "timeout_s": timeout_s,
    }
    from .front.server import run
    from .settings import BadSetting, StartRefused, load_settings

    try:
        settings = load_settings({name: value for name, value in given.items() if value is not None})
        announce = _announce_json if as_json else functools.partial(_announce, settings.host)
        run(settings, announce=announce, stop_at_eof=stop_at_eof)
    except (BadSetting, StartRefused) as error:
        typer.echo(f"shardserve: {error}", err=True)
        raise typer.Exit(BAD_SETTING_STATUS) from None


def _announce_json(facts: dict[str, Any]) -> None:
    made = facts.pop("made_key", None)
    typer.echo(json.dumps(facts))
    if made is not None:
        _announce_key(made, facts["key_file"])


def _announce(host: str, facts: dict[str, Any]) -> None:
    from .settings import is_loopback

    where = facts["url"] if is_loopback(host) else f"{host}, port {facts['url'].rpartition(':')[2]}"
    typer.echo(f"shardserve {facts['version']} listens on {where} (pid {facts['pid']}); the engine is loading")
    if not is_loopback(host):
        typer.echo(
            "it speaks plain HTTP: put TLS in front, or let clients say allow_insecure=True on a network that you trust"
        )
    if not facts["needs_key"]:
        typer.echo("open to this host alone, without a key")
    if facts.get("made_key") is not None:
        _announce_key(facts["made_key"], facts["key_file"])


def _announce_key(key: str, path: str) -> None:
    """Shown once, at the start that made it, and never on stdout, which is piped and kept."""
    typer.echo(f"a key was made and stored in {path}; it is shown only now. Clients need:", err=True)
    typer.echo(f"    export SHARDSERVE_API_KEY={key}", err=True)


@app.command()
def info(url: UrlOption = None, allow_insecure: InsecureOption = False, as_json: JsonOption = False) -> None:
    """Show a server's versions, devices, meshes, kernels and limits."""
    with connected(url, allow_insecure=allow_insecure) as client:
        facts = _plain(client.info())
        devices = [_plain(device) for device in client.devices()]
        kernels = [kernel.name for kernel in client.kernels()]
    if as_json:
        typer.echo(json.dumps(facts | {"devices": devices, "kernels": kernels}))
        return
    table = Table("", "", show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, _shown(value))
    table.add_row("devices", ", ".join(f"{device['id']}: {device['kind']}" for device in devices))
    table.add_row("kernels", ", ".join(kernels))
    Console().print(table)


@app.command()
def call(
    kernel: Annotated[str, typer.Argument(help="Name of a kernel, for example dot.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Arrays, as .npy files.", exists=True, dir_okay=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result here, as .npy.", dir_okay=False)
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Parameter, as NAME=VALUE (JSON or text); repeatable.")
    ] = None,
    url: UrlOption = None,
    allow_insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one kernel on arrays in files."""
    import numpy as np

    params = dict(_parameter(text) for text in param or ())
    arrays = [load(path) for path in files or ()]
    if output is not None:
        check_folder(output)
    with connected(url, allow_insecure=allow_insecure) as client:
        done = client.call(kernel, *arrays, **params)
    value = np.asarray(done.value)
    if output is not None:
        save(output, value)
    if as_json:
        typer.echo(json.dumps({"dtype": str(value.dtype), "shape": value.shape, "report": _plain(done.report)}))
    elif output is None:
        typer.echo(np.array2string(value, threshold=100))
    else:
        typer.echo(f"{output}: {value.dtype}{list(value.shape)}")


@app.command()
def demo() -> None:
    """Start a server with 8 virtual devices and run the guided tour on it."""
    from .demo import main as tour

    raise typer.Exit(tour() or 0)


@app.command()
def settings(as_json: JsonOption = False) -> None:
    """Print the table of settings: name, unit, default, meaning."""
    from .settings import settings_table

    rows = settings_table()
    if as_json:
        typer.echo(json.dumps([vars(row) for row in rows]))
        return
    table = Table()
    table.add_column("variable", no_wrap=True)  # to be copied
    for title in ("unit", "default", "meaning"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.variable, row.unit, row.default, row.meaning)
    Console().print(table)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"a parameter is given as NAME=VALUE, not as {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a bare text needs no quotes


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.model_dump(mode="json")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


register_arrays(app)


def main() -> None:
    """The entry point of the command."""
    app()
