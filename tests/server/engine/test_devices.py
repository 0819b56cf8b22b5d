"""Devices that are not there, or not to be had: what a person is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shardserve_proto.errors import InvalidRequest
from shardserve_server.engine import devices
from shardserve_server.engine.devices import Accelerator, Host, explain, find_devices, holders

HERE = Host(has_plugin=True, device_files=("/dev/accel0", "/dev/accel1"), driver="470.82.01")


@pytest.mark.parametrize(
    ("accelerator", "reason", "host", "told"),
    [
        ("gpu", "", Host(has_plugin=False, device_files=()), r"pip install 'shardserve\[gpu\]'"),
        ("tpu", "", Host(has_plugin=False, device_files=("/dev/accel0",)), r"pip install 'shardserve\[tpu\]'"),
        ("gpu", "no devices", Host(has_plugin=True, device_files=()), r"no GPU was found.*--gpus all.*nvidia-smi"),
        ("tpu", "no devices", Host(has_plugin=True, device_files=()), r"no TPU was found.*/dev/accel"),
        (
            "gpu",
            "INTERNAL: CUDA driver version is insufficient for CUDA runtime version",
            HERE,
            r"driver is too old.*installed: 470\.82\.01",
        ),
        (
            "tpu",
            "ABORTED: The TPU is already in use by process with pid 4711. Not attempting to load libtpu.so.",
            HERE,
            r"held by another process: pid 4711;.*kill 4711",
        ),
        (
            "tpu",
            "ABORTED: Internal error when accessing libtpu multi-process lockfile. Run \"$ sudo rm /tmp/lockfile\"",
            Host(has_plugin=True, device_files=("/dev/vfio/0",), holders=("pid 12 (python3)",)),
            r"held by another process: pid 12 \(python3\);.*end that one first",
        ),
        (
            "gpu",
            "CUDA_ERROR_DEVICE_UNAVAILABLE: all CUDA-capable devices are busy or unavailable",
            Host(has_plugin=True, device_files=("/dev/nvidia0",)),
            r"may not see; on the host `sudo fuser -v /dev/nvidia0` names it",
        ),
        ("gpu", "something\n  new", HERE, r"cannot use the GPU of this host\. JAX says: something new$"),
    ],
)  # fmt: skip
def test_each_reason_comes_with_what_would_help(accelerator: Accelerator, reason: str, host: Host, told: str) -> None:
    assert re.search(told, explain(accelerator, reason, host))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_an_accelerator_that_was_asked_for_is_never_replaced_by_the_cpu(platform: str) -> None:
    with pytest.raises(InvalidRequest, match=r"setting platform \(SHARDSERVE_PLATFORM\)"):
        find_devices(platform)


def test_the_cpu_will_do_where_it_was_asked_for() -> None:
    assert list(find_devices("cpu")) == jax.devices()
    assert list(find_devices(None, count=3)) == jax.devices()[:3]
    with pytest.raises(InvalidRequest, match=r"setting devices .*: 9 devices were asked for, but JAX has 8"):
        find_devices(None, count=9)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_backend_that_fails_in_any_way_becomes_the_sentence(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX 0.12 raises an AssertionError without a text for "cuda" on a host without a GPU."""

    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(devices, "look", lambda _: Host(has_plugin=True, device_files=()))
    with pytest.raises(InvalidRequest, match=f"no {platform.upper()} was found"):
        find_devices(platform)


@pytest.mark.parametrize("closed", ["none", "0"])
def test_who_holds_a_device_is_found_by_its_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """Also when another of its files is closed while they are looked at."""
    real = os.readlink

    def readlink(link: Path) -> str:
        if link.name == closed:
            raise FileNotFoundError(link)
        return real(link)

    monkeypatch.setattr(os, "readlink", readlink)
    device = tmp_path / "accel0"
    device.touch()
    program = f"import sys; held = open({str(device)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with device.open():
            (found,) = holders([str(device)])
        assert found.startswith(f"pid {holder.pid} (python")
        assert str(os.getpid()) not in found
        assert holder.stdin is not None
        holder.stdin.close()
    assert holders([str(device)]) == ()
