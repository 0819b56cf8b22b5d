"""The commands' arrays in .npy files: read, written, and written while they come."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer


def load(path: Path) -> Any:
    """The array of a file, mapped.

    Raises:
        typer.BadParameter: it holds no single array of numbers.
    """
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise typer.BadParameter(f"{path} is no array file: {error}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise typer.BadParameter(f"{path} holds several arrays; save the one that is meant, as .npy")
    if array.dtype.kind == "V":
        raise typer.BadParameter(
            f"{path} holds {array.dtype.str}, as which NumPy saves bfloat16 and the like; save it as float32"
        )
    return array


def check_folder(output: Path) -> None:
    """Known before anything is computed or sent.

    Raises:
        typer.BadParameter: the file's folder is not there.
    """
    if not output.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.parent} to write {output.name} to")


def check_file(output: Path) -> None:
    """Known before a file is put in the place of what has that name.

    Raises:
        typer.BadParameter: its folder is not there, or a device or a pipe has the name, which would be gone.
    """
    check_folder(output)
    if output.exists() and not output.is_file():
        raise typer.BadParameter(f"{output} is no regular file")


def save(path: Path, value: Any) -> None:
    """Write an array; one that cannot be written is a line of text and status 1."""
    import numpy as np

    _check_dtype(path, value.dtype)
    with _failures_told(path), path.open("wb") as file:  # np.save would add a suffix of its own
        np.save(file, value, allow_pickle=False)


@contextmanager
def arriving(output: Path, dtype: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """An array in the pages of a new file, which takes its name only once it is whole."""
    import numpy as np

    _check_dtype(output, dtype)
    place = output.resolve()
    part = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    with _ended_by_exit():
        try:
            with _failures_told(output):
                target = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=shape)
                _reserve(part)
            yield target
            with _failures_told(output):
                target.flush()
                os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _ended_by_exit() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that nothing is left behind."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reserve(path: Path) -> None:
    """Take the disk's blocks now: a full disk under a mapped page would end the process by a signal."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _check_dtype(path: Path, dtype: Any) -> None:
    import numpy as np

    if np.dtype(dtype.str) != dtype:
        typer.echo(
            f"shardserve: {path} is not written: .npy files cannot say {dtype}; cast it to float32 "
            "(kernel astype), or use the Python client",
            err=True,
        )
        raise typer.Exit(1)


@contextmanager
def _failures_told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        typer.echo(f"shardserve: {path} is not written: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
