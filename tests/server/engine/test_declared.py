"""Declared arrays: an operator's files on the devices, each shard from the file, and a table that is read strictly."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardserve_proto.dtypes import DTYPES, name_of
from shardserve_proto.errors import InvalidRequest
from shardserve_proto.messages import ArrayInfo
from shardserve_server.engine.engine import Engine, EngineSettings
from shardserve_server.engine.safetensors import open_tensor
from tests.calls import Array
from tests.residents import Handle, get

X = np.arange(77, dtype=np.float32).reshape(11, 7)
#: Names of the format's dtypes, by ours.
FORMAT = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float16": "F16",
          "int8": "I8", "int64": "I64", "uint16": "U16", "bool": "BOOL", "complex64": "C64"}  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Array], **entries: Any) -> None:
    """A safetensors file; `entries` take the place of what would be said of a tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": FORMAT[name_of(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header | entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@contextmanager
def started(root: Path, table: str, **settings: Any) -> Iterator[Engine]:
    """An engine that has read the table."""
    (root / "arrays.toml").write_text(table)
    engine = Engine(
        EngineSettings(
            devices=8,
            meshes={"grid": (("x", 4), ("y", 2))},
            arrays_file=str(root / "arrays.toml"),
            arrays_root=str(root),
            **settings,
        )
    )
    try:
        yield engine
    finally:
        engine.close()


def fetched(engine: Engine, info: ArrayInfo) -> Array:
    """A declared array, as any owner gets it."""
    return get(engine, Handle(bytes.fromhex(info.id)), owner="anybody")


@pytest.mark.parametrize(
    ("line", "spec", "mesh"),
    [
        ("", None, ()),
        ('spec = "auto"', None, ()),
        ("spec = []", None, (("devices", 8),)),
        ('spec = ["devices"]', ("devices",), (("devices", 8),)),
        ('spec = ["", "devices"]', (None, "devices"), (("devices", 8),)),
        ('spec = [[], "y"]\nmesh = "grid"', (None, "y"), (("x", 4), ("y", 2))),
        ('spec = [["x", "y"]]\nmesh = "grid"', (("x", "y"),), (("x", 4), ("y", 2))),
        ('spec = ["a"]\nmesh = { a = 5 }', ("a",), (("a", 5),)),
    ],
)
def test_a_file_lies_where_the_table_says(tmp_path: Path, line: str, spec: Any, mesh: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    with started(tmp_path, f'[x]\nfile = "x.npy"\n{line}') as engine:
        (info,) = engine.info().declared
        assert (info.name, info.spec, info.mesh, info.is_declared) == ("x", spec, mesh, True)
        np.testing.assert_array_equal(fetched(engine, info), X)
        assert engine.memory()["resident_bytes"] == info.device_bytes


def test_a_large_array_is_spread_when_the_table_leaves_it_open(tmp_path: Path) -> None:
    x = np.arange(3 * 2**20, dtype=np.float32).reshape(-1, 3)
    np.save(tmp_path / "x.npy", x)
    with started(tmp_path, '[x]\nfile = "x.npy"') as engine:
        (info,) = engine.info().declared
        assert info.spec == ("devices",)
        np.testing.assert_array_equal(fetched(engine, info), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype(">f8"),
        np.asfortranarray,
        lambda x: x.astype(np.float16),
        lambda x: x > 5,
        lambda x: x[:0],
        lambda x: x[3, 4],
        lambda x: x + 1j,
    ],
)
def test_whatever_numpy_saves_of_numbers_is_read(tmp_path: Path, make: Callable[[Array], Any]) -> None:
    x = np.asarray(make(X))
    np.save(tmp_path / "x.npy", x)
    with started(tmp_path, '[x]\nfile = "x.npy"\nspec = []') as engine:
        (info,) = engine.info().declared
        found = fetched(engine, info)
        assert (found.dtype, found.shape) == (x.dtype.newbyteorder("="), x.shape)
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("dtype", FORMAT)
def test_a_tensor_of_a_safetensors_file_is_read_exactly(tmp_path: Path, dtype: str) -> None:
    x = (X % 9).astype(DTYPES[dtype])
    other = np.zeros(3, np.int8)  # what follows it is not aligned
    write_tensors(tmp_path / "m.safetensors", {"other": other, "layer.0.w": x})
    table = '[w]\nfile = "m.safetensors"\ntensor = "layer.0.w"\nspec = ["devices"]'
    with started(tmp_path, table) as engine:
        (info,) = engine.info().declared
        assert fetched(engine, info).tobytes() == x.tobytes()


def test_an_array_stays_as_it_was_read_when_its_file_is_written_to(tmp_path: Path) -> None:
    """D4: each shard is a copy; on CPU JAX would share the mapping of an aligned file."""
    x = np.arange(2**18, dtype=np.float64).reshape(-1, 8)
    np.save(tmp_path / "x.npy", x)
    write_tensors(tmp_path / "m.safetensors", {"w": x.astype(ml_dtypes.bfloat16)})
    table = '[x]\nfile="x.npy"\nspec=["devices"]\n[w]\nfile="m.safetensors"\ntensor="w"\n[one]\nfile="x.npy"\nspec=[]'
    with started(tmp_path, table) as engine:
        before = [fetched(engine, info).tobytes() for info in engine.info().declared]
        for name in ("x.npy", "m.safetensors"):
            size = (tmp_path / name).stat().st_size
            with (tmp_path / name).open("r+b") as file:
                file.seek(size // 4)
                file.write(bytes(size // 2))
        assert [fetched(engine, info).tobytes() for info in engine.info().declared] == before


def test_the_same_file_has_the_same_handle_at_every_start_and_another_file_another(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    seen = []
    for table in ('[x]\nfile = "x.npy"', '[x]\nfile = "x.npy"\nspec = ["devices"]', '[y]\nfile = "x.npy"'):
        with started(tmp_path, table) as engine:
            seen.append(engine.info().declared[0].id)
    np.save(tmp_path / "x.npy", X + 1)
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    with started(tmp_path, '[x]\nfile = "x.npy"') as engine:
        seen.append(engine.info().declared[0].id)
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_nobody_deletes_a_declared_array_from_the_engine(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with started(tmp_path, '[x]\nfile = "x.npy"') as engine:
        (info,) = engine.info().declared
        engine.delete("anybody", [bytes.fromhex(info.id)])
        np.testing.assert_array_equal(fetched(engine, info), X)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[x", "cannot be read .TOMLDecodeError"),
        ("x = 5", r"\[x\]: an entry is a table"),
        ("[x]", r"\[x\]: file: Field required"),
        ('["no spaces"]\nfile = "x.npy"', r"\[no spaces\]: a name is"),
        ('["' + "a" * 32 + '"]\nfile = "x.npy"', "a name is"),
        ('[x]\nfile = "x.npy"\nfiel = 1', r"\[x\]: fiel"),
        ('[x]\nfile = "missing.npy"', "'missing.npy' is not in arrays_root"),
        ('[x]\nfile = "../secret.npy"', "not a file in arrays_root"),
        ('[x]\nfile = "/etc/passwd"', "not a file in arrays_root"),
        ('[x]\nfile = "folder"', "not a file in arrays_root"),
        ('[x]\nfile = "pipe.npy"', "not a file in arrays_root"),
        ('[x]\nfile = "link.npy"', "links may not lead out"),
        ('[x]\nfile = "linked/secret.npy"', "links may not lead out"),
        ('[x]\nfile = "loop.npy"', "not in arrays_root"),
        ('[x]\nfile = "nul\\u0000.npy"', "not in arrays_root"),
        ('[x]\nfile = "text.txt"', "is a .npy file"),
        ('[x]\nfile = "x.npy"\ntensor = "w"', "is a .npy file"),
        ('[x]\nfile = "m.safetensors"', "tensor = "),
        ('[x]\nfile = "m.safetensors"\ntensor = "v"', "no tensor 'v'"),
        ('[x]\nfile = "objects.npy"', "cannot be read .ValueError"),
        ('[x]\nfile = "texts.npy"', "no numbers"),
        ('[x]\nfile = "cut.npy"', "cannot be read"),
        ('[x]\nfile = "archive.npy"', "archive"),
        ('[x]\nfile = "x.npy"\nspec = ["nowhere"]', "axis 'nowhere'"),
        ('[x]\nfile = "x.npy"\nspec = "devices"', 'spec is a list, or "auto"'),
        ('[x]\nfile = "x.npy"\nspec = ["devices", "", ""]', "3 entries, but the array has rank 2"),
        ('[x]\nfile = "x.npy"\nmesh = "gird"', "did you mean 'grid'"),
        ('[x]\nfile = "x.npy"\nmesh = { a = 9 }', "needs 9 devices"),
    ],
)  # fmt: skip
def test_a_table_that_is_wrong_stops_the_start_by_setting_and_entry(tmp_path: Path, table: str, says: str) -> None:
    """F6."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").mkdir()
    np.save(tmp_path / "secret.npy", X)
    np.save(root / "x.npy", X)
    np.save(root / "texts.npy", np.array(["a"]))
    np.save(root / "objects.npy", np.array([{}], dtype=object))
    (root / "cut.npy").write_bytes((root / "x.npy").read_bytes()[:-1])
    with (root / "archive.npy").open("wb") as file:
        np.savez(file, x=X)
    write_tensors(root / "m.safetensors", {"w": X})
    (root / "text.txt").write_text("text")
    (root / "link.npy").symlink_to(tmp_path / "secret.npy")
    (root / "linked").symlink_to(tmp_path)
    (root / "loop.npy").symlink_to(root / "loop.npy")
    os.mkfifo(root / "pipe.npy")
    with pytest.raises(InvalidRequest, match=says) as caught, started(root, table):
        pass
    assert caught.value.message.startswith("setting arrays_file (SHARDSERVE_ARRAYS_FILE): ")
    assert str(tmp_path) not in caught.value.message


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    np.save(tmp_path / "v1.npy", X)
    (tmp_path / "current.npy").symlink_to("v1.npy")
    with started(tmp_path, '[x]\nfile = "current.npy"') as engine:
        np.testing.assert_array_equal(fetched(engine, engine.info().declared[0]), X)


def test_arrays_that_do_not_fit_stop_the_start(tmp_path: Path) -> None:
    """D1."""
    np.save(tmp_path / "x.npy", np.zeros(2**17))
    with (
        pytest.raises(InvalidRequest, match=r"\[y\].*1048576 bytes"),
        started(tmp_path, '[x]\nfile = "x.npy"\n[y]\nfile = "x.npy"', memory_bytes=2**20 + 2**19),
    ):
        pass


@pytest.mark.parametrize(
    ("file", "root", "setting"),
    [("t.toml", None, "root"), ("t.toml", "no", "root"), ("no.toml", ".", "file"), ("t.toml", "t.toml", "root")],
)
def test_a_table_or_a_root_that_is_not_there_is_named(
    tmp_path: Path, file: str, root: str | None, setting: str
) -> None:
    (tmp_path / "t.toml").write_text("")
    where = None if root is None else str(tmp_path / root)
    with pytest.raises(InvalidRequest, match=f"setting arrays_{setting}"):
        Engine(EngineSettings(devices=8, arrays_file=str(tmp_path / file), arrays_root=where))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [11, 7], "data_offsets": [0, 400]},
        {"dtype": "F32", "shape": [11, 7], "data_offsets": [1, 309]},
        {"dtype": "F32", "shape": [11, 7], "data_offsets": [-4, 304]},
        {"dtype": "F32", "shape": [11, 7], "data_offsets": [308, 0]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 308]},
        {"dtype": "F32", "shape": [-11, -7], "data_offsets": [0, 308]},
        {"dtype": "F32", "shape": [True, 77], "data_offsets": [0, 308]},
        {"dtype": "F32", "shape": 77, "data_offsets": [0, 308]},
        {"dtype": "I4", "shape": [77], "data_offsets": [0, 308]},
        {"dtype": "F32", "shape": [77]},
        [],
    ],
)  # fmt: skip
def test_an_entry_of_a_safetensors_file_that_does_not_add_up_is_refused(tmp_path: Path, entry: Any) -> None:
    write_tensors(tmp_path / "m.safetensors", {"w": X}, w=entry)
    with pytest.raises((InvalidRequest, ValueError)) as caught:
        open_tensor(tmp_path / "m.safetensors", "w")
    assert "tensor 'w'" in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 8,
        struct.pack("<Q", 100),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 16) + b'{"a": 1, "a": 2}',
        struct.pack("<Q", 3) + b"{x}",
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(raw)
    with pytest.raises(InvalidRequest, match="no safetensors file"):
        open_tensor(tmp_path / "m.safetensors", "w")


def test_what_went_wrong_with_a_file_takes_no_other_array_down_at_a_restart(tmp_path: Path) -> None:
    """At the first start a fault stops it; later the operator's other arrays, and all pinned ones, are needed."""
    np.save(tmp_path / "a.npy", np.arange(3.0))
    table = '[gone]\nfile = "gone.npy"\n[there]\nfile = "a.npy"\n'
    with started(tmp_path, table, is_restart=True) as engine:
        (info,) = engine.info().declared
        assert info.name == "there"
        assert fetched(engine, info).tolist() == [0, 1, 2]
    with started(tmp_path, "no table", is_restart=True) as engine:
        assert engine.info().declared == ()
