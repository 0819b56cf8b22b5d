"""The server's settings: one table of name, unit, default and meaning.

Each setting is read from the command line or from `SHARDSERVE_<NAME>`. A bad one stops the start.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shardserve_proto.errors import ShardserveError, nearest
from shardserve_proto.limits import LIMITS
from shardserve_proto.specs import MeshShape, check_name, resolve_mesh

from .link.engine_command import EngineCommand, engine_environment
from .link.host import memory_bytes
from .link.regions import BufferKind, default_kind

PREFIX = "SHARDSERVE_"
#: Variables of the same prefix that belong to the client; they may be set where a server starts.
CLIENT_VARIABLES = frozenset({"SHARDSERVE_URL", "SHARDSERVE_API_KEY"})
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, Field(ge=1)]
Platform = Literal["cpu", "gpu", "tpu"]
MOST_SOCKET_BYTES = 107
#: JAX's own words for them.
JAX_PLATFORMS: dict[Platform, str] = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
#: What the engine is started with, and the front only passes on.
ENGINE_SETTINGS = frozenset(
    {
        "devices", "platform", "meshes", "memory_bytes", "arrays_file", "arrays_root", "cache_dir", "cache_bytes",
        "compile_cache_entries", "queue_depth",
    }
)  # fmt: skip


class BadSetting(ValueError):
    """A setting that stops the start.

    Arguments:
        name: of the setting, as in the table.
        reason: what is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"setting {name} ({PREFIX}{name.upper()}): {reason}")
        self.name = name
        self.reason = reason


class StartRefused(Exception):
    """The engine cannot start with these settings; the text names the one to change where it is known."""


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "shardserve"


def _half_of_memory() -> ByteSize:
    return ByteSize(memory_bytes() // 2)


def _eighth_of_memory() -> ByteSize:
    """Fewer spare buffers than uploads are large cost each of them its pages, and the others their time."""
    return ByteSize(_half_of_memory() // 4)


def _quarter_of_memory() -> ByteSize:
    return ByteSize(_half_of_memory() // 2)


def _setting(default: Any = ..., *, unit: str = "", meaning: str, **constraints: Any) -> Any:
    extra: dict[str, Any] = {"unit": unit}
    if callable(default):
        return Field(default_factory=default, description=meaning, json_schema_extra=extra, **constraints)
    return Field(default, description=meaning, json_schema_extra=extra, **constraints)


class Settings(BaseSettings):
    """Everything that an operator can set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = _setting(
        "127.0.0.1", meaning="address to listen on; one that is not loopback needs a key", min_length=1
    )
    port: int = _setting(8000, meaning="TCP port; 0 takes a free one", ge=0, le=65535)
    devices: Count | None = _setting(
        None, unit="devices", meaning="run on so many virtual CPU devices; empty = the devices that the host has"
    )
    platform: Platform | None = _setting(
        None, meaning="cpu, gpu or tpu: nothing else will do; empty = what JAX finds, the CPU at the last"
    )
    meshes: Annotated[dict[str, MeshShape], NoDecode] = _setting(
        dict, meaning="named meshes, as NAME:x=4,y=2; several are separated by semicolons"
    )
    api_key: SecretStr | None = _setting(None, meaning="the key that clients send; its owner is 'default'")
    key_file: Path | None = _setting(None, meaning="file of keys, a label and a key on each line")
    state_dir: Path = _setting(_default_state_dir, meaning="folder for the key that is made at the first start")
    body_bytes: Bytes = _setting(ByteSize(LIMITS.body_bytes), unit="bytes", meaning="largest frame")
    json_bytes: Bytes = _setting(
        ByteSize(LIMITS.json_bytes), unit="bytes", meaning="largest JSON body, and result of a JSON call"
    )
    buffer_bytes: Bytes = _setting(
        _half_of_memory,
        unit="bytes",
        meaning="shared buffers for uploads and results, all together; the memory is that of the host or container",
    )
    spare_buffer_bytes: ByteSize = _setting(
        _eighth_of_memory, unit="bytes", meaning="shared buffers that stay mapped for reuse"
    )
    buffer_kind: BufferKind = _setting(default_kind, meaning="memfd, or file (an unlinked mapped file)")
    memory_bytes: Bytes | None = _setting(
        None, unit="bytes", meaning="device memory that calls may plan with; empty = most of what there is"
    )
    array_ttl_s: Seconds = _setting(
        3600.0, unit="s", meaning="lease of a resident array that names none; each use renews it"
    )
    arrays_per_owner: Count = _setting(10_000, unit="arrays", meaning="resident arrays that one key may have")
    pinned_bytes: Bytes = _setting(
        _quarter_of_memory, unit="bytes", meaning="host copies of pinned arrays, all together"
    )
    arrays_file: Path | None = _setting(
        None, meaning="TOML table of arrays that are read at every start, and belong to everybody"
    )
    arrays_root: Path | None = _setting(None, meaning="folder that holds the files of arrays_file")
    cache_dir: Path | None = _setting(
        None, meaning="folder for compiled programs that outlive the engine; it is code: for the engine's user alone"
    )
    cache_bytes: Bytes = _setting(
        ByteSize(4 * 2**30), unit="bytes", meaning="size of cache_dir; what was not used for longest goes first"
    )
    compile_cache_entries: Count = _setting(256, unit="programs", meaning="compiled programs that are kept")
    queue_depth: Count = _setting(256, unit="calls", meaning="calls that may wait for the engine")
    timeout_s: Seconds = _setting(300.0, unit="s", meaning="deadline of a call that names none")
    engine_socket: Path | None = _setting(
        None, meaning="use the engine that runs by itself (`shardserve engine --socket`) behind this unix socket"
    )
    engine_start_timeout_s: Seconds = _setting(180.0, unit="s", meaning="an engine must be ready by then")
    drain_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _setting(
        0.0, unit="s", meaning="after SIGTERM the server refuses calls at least so long before it stops to listen"
    )
    stop_grace_s: Seconds = _setting(30.0, unit="s", meaning="accepted calls may finish so long at a stop")
    exit_after_idle_s: Seconds | None = _setting(
        None, unit="s", meaning="stop with status 4 when nobody has asked for anything but the probes for so long"
    )
    keep_alive_s: Annotated[int, Field(ge=1)] = _setting(75, unit="s", meaning="an idle connection is closed after it")
    head_bytes: Bytes = _setting(ByteSize(32 * 1024), unit="bytes", meaning="largest head of a request")
    head_fields: Count = _setting(100, unit="fields", meaning="header fields that a request may have")
    head_timeout_s: Seconds = _setting(10.0, unit="s", meaning="a request's head must be here so long after it began")
    body_grace_s: Seconds = _setting(
        30.0, unit="s", meaning="a body must be here after it and the time that body_min_rate gives"
    )
    body_min_rate: Bytes = _setting(ByteSize(256 * 1024), unit="bytes/s", meaning="slowest upload that is waited for")
    send_timeout_s: Seconds = _setting(
        60.0, unit="s", meaning="a client that takes less than send_min_rate for so long is cut off"
    )
    send_min_rate: Bytes = _setting(ByteSize(4 * 1024), unit="bytes/s", meaning="slowest download that is waited for")
    connections: Count = _setting(
        4096, unit="connections", meaning="open at once; a new one then takes the place of an idle one"
    )
    event_loop: Literal["uvloop", "asyncio"] = _setting("uvloop", meaning="the front's event loop")

    @field_validator("meshes", mode="before")
    @classmethod
    def _read_meshes(cls, value: object) -> object:
        if isinstance(value, str):
            return dict(parse_mesh(part) for part in value.split(";") if part.strip())
        return value

    @model_validator(mode="after")
    def _fit_meshes(self) -> Settings:
        for name, axes in self.meshes.items():
            if self.devices is not None:
                try:
                    resolve_mesh(axes, devices=self.devices)
                except ShardserveError as error:
                    raise ValueError(f"meshes: {name!r}: {error.message}") from None
        return self

    @model_validator(mode="after")
    def _root_of_arrays(self) -> Settings:
        if self.arrays_file is not None and self.arrays_root is None:
            raise ValueError("arrays_root: declared arrays need the folder that their files are in")
        return self

    @model_validator(mode="after")
    def _engine_by_itself(self) -> Settings:
        given = sorted(ENGINE_SETTINGS & self.model_fields_set)
        if self.engine_socket is not None and given:
            raise ValueError(f"{given[0]}: it belongs to the engine, which runs by itself; set it there")
        return self

    @model_validator(mode="after")
    def _fit_socket(self) -> Settings:
        if self.engine_socket is not None and len(os.fsencode(self.engine_socket)) > MOST_SOCKET_BYTES:
            raise ValueError(f"engine_socket: the path of a unix socket has at most {MOST_SOCKET_BYTES} bytes")
        return self

    @model_validator(mode="after")
    def _fit_drain(self) -> Settings:
        if self.drain_delay_s > self.stop_grace_s:
            raise ValueError(
                f"drain_delay_s: it is above stop_grace_s ({self.stop_grace_s:g} s), within which a stop ends"
            )
        return self

    @model_validator(mode="after")
    def _devices_of_platform(self) -> Settings:
        if self.devices is not None and self.platform not in (None, "cpu"):
            raise ValueError(f"devices: virtual devices are of the CPU, and the platform is {self.platform}")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect."""
        return is_loopback(self.host)

    def engine_command(self) -> EngineCommand:
        """How an engine with these settings is started."""
        fields = self.model_dump(include=set(ENGINE_SETTINGS))
        fields |= {name: str(value.absolute()) for name, value in fields.items() if isinstance(value, Path)}
        return EngineCommand(
            json.dumps(fields),
            environment=engine_environment(
                os.environ,
                virtual_devices=self.devices,
                jax_platforms=None if self.platform is None else JAX_PLATFORMS[self.platform],
            ),
        )


def is_loopback(host: str) -> bool:
    """Whether the address is one of this host that no other host reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_mesh(text: str) -> tuple[str, MeshShape]:
    """Read `NAME:x=4,y=2`; one size may be -1.

    Raises:
        ValueError: it has another form.
    """
    name, colon, axes = text.strip().partition(":")
    pairs = [axis.partition("=") for axis in axes.split(",")]
    try:
        sizes = tuple((check_name(axis.strip()), int(size)) for axis, _, size in pairs)
        if colon and check_name(name) and all(size >= 1 or size == -1 for _, size in sizes):
            return name, sizes
    except (ValueError, ShardserveError):
        pass
    raise ValueError(f"a mesh is given as NAME:x=4,y=2, not as {text!r}")


def load_settings(
    overrides: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings of the environment, with those of the command line over them.

    Raises:
        BadSetting: unknown, or with a value that it cannot have.
    """
    _check_names(os.environ if environment is None else environment)
    try:
        return Settings(**(overrides or {}))
    except ValidationError as error:
        raise _named(error) from None


def _check_names(environment: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for variable in environment:
        if variable.upper().startswith(PREFIX) and variable.upper() not in known | CLIENT_VARIABLES:
            name = variable[len(PREFIX) :].lower()
            raise BadSetting(name, f"there is no such setting{nearest(variable.upper(), known)}")


def _named(error: ValidationError) -> BadSetting:
    first = error.errors(include_url=False, include_input=False)[0]
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["loc"]:
        return BadSetting(str(first["loc"][0]), reason)
    name, _, rest = reason.partition(": ")  # a rule over several settings names the one to change
    return BadSetting(name, rest)


@dataclass(frozen=True)
class SettingRow:
    """One line of the table of settings."""

    name: str
    variable: str
    unit: str
    default: str
    meaning: str


def settings_table() -> list[SettingRow]:
    """The table that the documentation and `shardserve settings` print."""
    return [
        SettingRow(name, PREFIX + name.upper(), _unit(info.json_schema_extra), _default(info), info.description or "")
        for name, info in Settings.model_fields.items()
    ]


def _unit(extra: object) -> str:
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _default(info: Any) -> str:
    named = {
        _default_state_dir: "~/.local/state/shardserve",
        _half_of_memory: "half of the memory",
        dict: "",
    }
    named |= {_quarter_of_memory: "a quarter of the memory", _eighth_of_memory: "an eighth of the memory"}
    if info.default_factory is not None:
        return named.get(info.default_factory, str(info.default_factory()))
    return "" if info.default is None else str(info.default)
