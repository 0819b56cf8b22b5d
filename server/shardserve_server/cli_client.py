"""What every command that speaks to a server shares: its options, its client, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
UrlOption = Annotated[str | None, typer.Option("--url", help="The server; else SHARDSERVE_URL.")]
InsecureOption = Annotated[
    bool, typer.Option("--allow-insecure", help="Send the key over plain HTTP, on a network that you trust.")
]


@contextmanager
def connected(url: str | None, *, allow_insecure: bool) -> Iterator[Any]:
    """A client. Errors that have a name are a line of text and status 1; others are ours and keep their traceback."""
    import shardserve
    from shardserve_proto.errors import ShardserveError

    try:
        with shardserve.Client(url, allow_insecure=allow_insecure) as client:
            yield client
    except ShardserveError as error:
        typer.echo(f"shardserve: {error.code}: {error}", err=True)
        raise typer.Exit(1) from None
