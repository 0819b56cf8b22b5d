"""The command `shardserve`: info, call, demo, settings. `cli_serve.py` and `cli_arrays.py` have the others."""

from __future__ import annotations

import dataclasses
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
from .cli_serve import register as register_serving

app = typer.Typer(
    name="shardserve",
    help="A mesh of accelerators behind one HTTP endpoint.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, keys among them
)


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


register_serving(app)
register_arrays(app)


def main() -> None:
    """The entry point of the command."""
    app()
