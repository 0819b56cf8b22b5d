"""Compiled programs that outlive the engine, in a folder of JAX's own compilation cache.

What lies there is loaded and run: who can write to the folder can run code as the engine's user. So it must be that
user's own, and nobody else's to write to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import jax

from shardserve_proto.errors import InvalidRequest

#: Quicker compiles are not worth a file.
LEAST_COMPILE_S = 0.1
#: Folders of other versions and machines are removed when nothing was added to them for so long.
KEPT_S = 30 * 24 * 3600.0
_VALUE, _STAMP = "-cache", "-atime"  # JAX writes the stamp once the value is whole
_LOCK = ".lockfile"
_NAME = re.compile("[0-9a-f]{16}")


def use_disk_cache(folder: Path, *, most_bytes: int) -> None:
    """Have JAX keep what it compiles in a folder, and take it from there; call it before anything is compiled.

    Arguments:
        folder: made when it is missing; each version of JAX and each kind of machine has a folder of its own in it.
        most_bytes: what was not used for longest goes first.

    Raises:
        InvalidRequest: the folder cannot be written to, or others can write to it; the text names the setting.
    """
    own = folder / fingerprint()
    try:
        _make(folder)
        _make(own)
        _check_writable(own)
        remove_unfit(own)
        remove_old(folder, keep=own)
    except OSError as error:
        raise _refused(f"it cannot be written to ({error.strerror or type(error).__name__})") from None
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_compilation_cache_max_size", most_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_S)


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"setting cache_dir (SHARDSERVE_CACHE_DIR): {reason}; name a folder of the user that runs the engine, "
        "or leave it empty to keep compiled programs in memory only"
    )


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise _refused("it belongs to another user, who could put code there")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise _refused("others can write to it, and could put code there (chmod 700 helps)")


def _check_writable(folder: Path) -> None:
    probe = folder / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


def fingerprint() -> str:
    """The versions and the machine that programs were compiled with and for.

    Programs for CPUs hold instructions that another CPU may not have.
    """
    facts = [jax.__version__, version("jaxlib"), platform.machine(), _cpu_flags(), os.environ.get("XLA_FLAGS", "")]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def remove_unfit(folder: Path) -> None:
    """Remove what others put there, and what a killed process left half written: JAX would never write it again."""
    for value in folder.glob(f"*{_VALUE}"):
        is_whole = value.with_name(value.name.removesuffix(_VALUE) + _STAMP).exists()
        with suppress(FileNotFoundError):  # another engine cleans up, too
            if not is_whole or value.lstat().st_uid != os.geteuid() or value.is_symlink():
                value.unlink()


def remove_old(folder: Path, *, keep: Path) -> None:
    """Remove what other versions and machines left, if nobody seems to use it any more, and nothing but that."""
    for other in folder.iterdir():
        if other == keep or not _NAME.fullmatch(other.name) or other.is_symlink() or not other.is_dir():
            continue
        with suppress(OSError):  # another engine cleans up, too, or begins to use it
            _remove_if_old(other)


def _remove_if_old(folder: Path) -> None:
    files = list(folder.iterdir())
    is_ours = all(file.name.endswith((_VALUE, _STAMP)) or file.name == _LOCK for file in files)
    if is_ours and time.time() - folder.stat().st_mtime > KEPT_S:
        for file in files:
            file.unlink(missing_ok=True)
        folder.rmdir()
