"""Finding the devices at the start, and saying what is wrong where there are none, so that a person can act on it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import jax

from shardserve_proto.errors import InvalidRequest

Accelerator: TypeAlias = Literal["gpu", "tpu"]

#: Files of the devices themselves, by which a process that has them open is known.
DEVICE_FILES: dict[Accelerator, tuple[str, ...]] = {
    "gpu": ("/dev/nvidia[0-9]*", "/dev/dxg"),
    "tpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}
PLUGINS: dict[Accelerator, tuple[str, ...]] = {
    "gpu": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "tpu": ("libtpu",),
}
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_OLD_DRIVER = re.compile(
    r"driver version is insufficient|unsupported display driver|SYSTEM_DRIVER_MISMATCH|UNSUPPORTED_PTX|"
    r"PTX .*unsupported toolchain|driver .*too old|cuDriverGetVersion",
    re.IGNORECASE,
)
_BUSY = re.compile(
    r"already in use|lockfile|resource busy|busy or unavailable|DEVICE_UNAVAILABLE|OUT_OF_MEMORY|out of memory",
    re.IGNORECASE,
)
#: Of the text that JAX gives as the reason, so much is passed on.
_REASON_CHARS = 300


@dataclass(frozen=True)
class Host:
    """What a host says of one kind of accelerator.

    Attributes:
        has_plugin: JAX's packages for it are installed.
        device_files: those that are there.
        driver: version of NVIDIA's driver, if it tells.
        holders: processes that have a device open, as far as this one may see them.
    """

    has_plugin: bool
    device_files: tuple[str, ...]
    driver: str = ""
    holders: tuple[str, ...] = ()


def find_devices(platform: str | None, *, count: int | None = None) -> Sequence[jax.Device]:
    """The devices to run on.

    Arguments:
        platform: "cpu", "gpu" or "tpu": nothing else will do; None takes what JAX finds.
        count: the first so many.

    Raises:
        InvalidRequest: there are none; the text names the setting, what is wrong, and what would help.
    """
    try:
        found = jax.devices()
    except Exception as error:  # JAX raises whatever a plugin raises, an AssertionError without text among it
        if platform in DEVICE_FILES:
            raise InvalidRequest(f"{_SETTING}: {explain(platform, str(error), look(platform))}") from error
        raise
    if platform is not None and found[0].platform != platform:
        accelerator: Accelerator = "tpu" if platform == "tpu" else "gpu"
        raise InvalidRequest(f"{_SETTING}: {explain(accelerator, f'it found {found[0].platform}', look(accelerator))}")
    if count is not None and len(found) < count:
        raise InvalidRequest(
            f"setting devices (SHARDSERVE_DEVICES): {count} devices were asked for, but JAX has {len(found)}"
        )
    return found[:count]


_SETTING = "setting platform (SHARDSERVE_PLATFORM)"


def look(accelerator: Accelerator) -> Host:
    """What this host says."""
    files = tuple(sorted(str(path) for pattern in DEVICE_FILES[accelerator] for path in Path("/").glob(pattern[1:])))
    return Host(
        has_plugin=any(importlib.util.find_spec(name) is not None for name in PLUGINS[accelerator]),
        device_files=files,
        driver=_driver() if accelerator == "gpu" else "",
        holders=holders(files),
    )


def explain(accelerator: Accelerator, reason: str, host: Host) -> str:
    """Why there is no such device, in a sentence that says what would help.

    Arguments:
        reason: what JAX says.
    """
    if not host.has_plugin:
        return (
            f"JAX's packages for {accelerator.upper()}s are not installed; "
            f"pip install 'shardserve[{accelerator}]' brings them"
        )
    if not host.device_files:
        return f"no {accelerator.upper()} was found: {_MISSING[accelerator]}"
    if accelerator == "gpu" and _OLD_DRIVER.search(reason):
        return (
            f"NVIDIA's driver is too old for this CUDA (installed: {host.driver or 'not known'}); "
            f"install a newer driver on the host (`nvidia-smi` shows the version){_quoted(reason)}"
        )
    if _BUSY.search(reason):
        return f"the {accelerator.upper()} is held by another process: {_who(host, reason)}{_quoted(reason)}"
    return f"JAX cannot use the {accelerator.upper()} of this host{_quoted(reason)}"


_MISSING: dict[Accelerator, str] = {
    "gpu": (
        "there is no /dev/nvidia*; in a container ask for it (`docker run --gpus all`, the profile gpu of "
        "docker-compose.yml, the resource nvidia.com/gpu), on the host install NVIDIA's driver (`nvidia-smi` tells); "
        "without one, run with the platform cpu"
    ),
    "tpu": (
        "there is no /dev/accel* and no /dev/vfio/*; this is no TPU VM, or the container was not given its devices "
        "(the profile tpu of docker-compose.yml does, and the resource google.com/tpu); without one, run with the "
        "platform cpu"
    ),
}


def _who(host: Host, reason: str) -> str:
    named = re.search(r"process with pid (\d+)", reason)
    if host.holders:
        return f"{', '.join(host.holders)}; one process at a time can have it: end that one first (`kill PID`)"
    if named:
        return f"pid {named[1]}; one process at a time can have it: end that one first (`sudo kill {named[1]}`)"
    files = " ".join(host.device_files)
    return f"one that this process may not see; on the host `sudo fuser -v {files}` names it: end that one first"


def _quoted(reason: str) -> str:
    text = " ".join(reason.split())
    return f". JAX says: {text[:_REASON_CHARS]}" if text else ""


def _driver() -> str:
    try:
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", _DRIVER_VERSION.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def holders(files: Iterable[str]) -> tuple[str, ...]:
    """The other processes that have one of these files open, as "pid N (name)"."""
    wanted = set(files)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if wanted and int(folder.name) != os.getpid() and wanted & _open_files(folder):
            found.append(f"pid {folder.name} ({_name(folder)})")
    return tuple(found)


def _open_files(process: Path) -> set[str]:
    found = set()
    with suppress(OSError):  # another user's, or gone
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(os.readlink(link))
    return found


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
