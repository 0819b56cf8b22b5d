"""The commands for resident arrays: arrays, put, get, rm, top. They speak to a server through the SDK."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .cli_client import InsecureOption, JsonOption, UrlOption, connected
from .cli_files import arriving, check_file, load

KeyArgument = Annotated[str, typer.Argument(metavar="NAME|ID", help="An array, by its name or its id.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (arrays, put, get, rm, top):
        app.command()(command)


def arrays(url: UrlOption = None, allow_insecure: InsecureOption = False, as_json: JsonOption = False) -> None:
    """List the arrays of this key, newest first."""
    with connected(url, allow_insecure=allow_insecure) as client:
        found = client.arrays()
    if as_json:
        typer.echo(json.dumps([info.model_dump(mode="json") for info in found]))
    else:
        typer.echo(str(found))  # whole lines, however narrow the terminal: ids are copied from here


def put(
    file: Annotated[Path, typer.Argument(help="An array, as a .npy file.", exists=True, dir_okay=False)],
    name: Annotated[str | None, typer.Option(help="A label to find it by.")] = None,
    spec: Annotated[
        str, typer.Option(help="How it is split: devices,- or x+y,- or auto or replicated; - is a whole dimension.")
    ] = "auto",
    mesh: Annotated[str | None, typer.Option(help="A mesh's name, or its axes and sizes as x=4,y=2.")] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds that it stays after each use.")] = None,
    pin: Annotated[bool, typer.Option("--pin", help="It stays until it is deleted, and outlives the engine.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Move the name from the array that has it.")] = False,
    url: UrlOption = None,
    allow_insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put an array of a file on the devices, and print its id. It stays when this command has ended."""
    array = load(file)
    with connected(url, allow_insecure=allow_insecure) as client, _progress(as_json) as progress:
        handle = client.put(
            array, read_spec(spec), mesh=read_mesh(mesh), name=name, ttl=ttl, pinned=pin, replace=replace,
            progress=progress,
        ).detach()  # fmt: skip
    if as_json:
        facts = {"id": handle.id, "name": name, "dtype": str(handle.dtype), "shape": handle.shape, "mesh": handle.mesh}
        typer.echo(json.dumps(facts))
    else:
        typer.echo(handle.id)


def get(
    array: KeyArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write it here, as .npy.", dir_okay=False)],
    url: UrlOption = None,
    allow_insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Download an array into a .npy file, however large it is: its bytes go straight to the file's pages."""
    check_file(output)
    with connected(url, allow_insecure=allow_insecure) as client, _progress(as_json) as progress:
        handle = client.attach(array)
        with arriving(output, handle.dtype, handle.shape) as target:
            client.get(handle, out=target, progress=progress)
    if as_json:
        typer.echo(json.dumps({"id": handle.id, "dtype": str(handle.dtype), "shape": handle.shape}))
    else:
        typer.echo(f"{output}: {handle.dtype}{list(handle.shape)}")


def rm(
    several: Annotated[list[str], typer.Argument(metavar="NAME|ID...", help="Arrays, by their names or ids.")],
    url: UrlOption = None,
    allow_insecure: InsecureOption = False,
) -> None:
    """Delete arrays. Calls that run with them end well."""
    with connected(url, allow_insecure=allow_insecure) as client:
        client.delete(*several)


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    interval_s: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    url: UrlOption = None,
    allow_insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the server's ledger live: who holds how many bytes. Ctrl-C ends it."""
    with connected(url, allow_insecure=allow_insecure) as client:
        if as_json:
            _print_ledgers(client, once=once, interval_s=interval_s)
        elif once:
            Console().print(ledger(client.memory()))
        else:
            _show_ledger(client, interval_s)


def _print_ledgers(client: Any, *, once: bool, interval_s: float) -> None:
    """A line of JSON for each look."""
    while True:
        typer.echo(client.memory().model_dump_json())
        sys.stdout.flush()
        if once:
            return
        time.sleep(interval_s)


def _show_ledger(client: Any, interval_s: float) -> None:
    try:
        with Live(ledger(client.memory()), auto_refresh=False, screen=False) as live:
            while True:
                time.sleep(interval_s)
                live.update(ledger(client.memory()), refresh=True)
    except KeyboardInterrupt:
        return


def ledger(memory: Any) -> Group:
    """The ledger as a picture: totals as bars, then the largest holders."""
    from shardserve._listing import HOLDER_HEADINGS, holder_row

    used = memory.resident_bytes + memory.reserved_bytes
    totals = Table("", "", "", box=None, show_header=False)
    totals.add_row("devices", _bar(used, memory.device_limit_bytes), _of(used, memory.device_limit_bytes))
    resident = f"{_size(memory.resident_bytes)} ({_size(memory.own_resident_bytes)} in {memory.arrays} of yours)"
    totals.add_row("  resident arrays", "", resident)
    totals.add_row("  running calls", "", _size(memory.reserved_bytes))
    transit, limit = memory.transit_bytes, memory.transit_limit_bytes
    totals.add_row("shared buffers", _bar(transit, limit), _of(transit, limit))
    totals.add_row("  spare", "", _size(memory.spare_bytes))
    totals.add_row("pinned host copies", "", _size(memory.pinned_bytes))
    holders = Table(*HOLDER_HEADINGS, box=None)
    for holder in memory.holders:
        holders.add_row(*map(Text, holder_row(holder)))
    return Group(totals, Text(), holders if memory.holders else Text("nothing is held"))


def _bar(part: int, whole: int, width: int = 20) -> Text:
    filled = 0 if whole <= 0 else min(width, -(-part * width // whole))
    return Text("█" * filled + "░" * (width - filled))


def _of(part: int, whole: int) -> str:
    return f"{_size(part)} of {_size(whole)}"


def _size(nbytes: int) -> str:
    from shardserve._repr import size

    return size(nbytes)


def read_spec(text: str) -> Any:
    """A spec as it is typed: `devices,-`, `x+y,-`, `auto`, `replicated`."""
    from shardserve import AUTO, P

    if text == "auto":
        return AUTO
    if text == "replicated":
        return P()
    return P(*(_dimension(entry.strip()) for entry in text.split(",")))


def _dimension(entry: str) -> Any:
    if entry in ("-", "None", ""):
        return None
    axes = tuple(axis.strip() for axis in entry.split("+"))
    return axes if len(axes) > 1 else axes[0]


def read_mesh(text: str | None) -> Any:
    """A mesh as it is typed: a name, or `x=4,y=2`."""
    if text is None or "=" not in text:
        return text
    pairs = [entry.partition("=") for entry in text.split(",")]
    try:
        return {axis.strip(): int(size) for axis, _, size in pairs}
    except ValueError:
        raise typer.BadParameter(f"a mesh is a name, or its axes and sizes as x=4,y=2, not {text!r}") from None


@contextmanager
def _progress(as_json: bool) -> Iterator[Any]:
    """A bar for long transfers, where somebody watches."""
    import shardserve

    if as_json or not sys.stderr.isatty():
        yield None
        return
    with shardserve.progress_bar() as bar:
        yield bar
