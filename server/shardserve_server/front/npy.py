"""The `.npy` format, for `curl` and `np.load`: its header is read by a grammar of our own, and nothing in it runs.

A file is a magic, a version, the length of the header, the header (a Python dict of three entries, as text), and the
array's bytes. NumPy's own reader parses the dict as Python and makes a dtype of its text; this one knows the few texts
that a plain array can have.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shardserve_proto.dtypes import DTYPES
from shardserve_proto.errors import DTypeError, InvalidRequest, ShapeError, TooLarge, UnsupportedMediaType
from shardserve_proto.frames import MEDIA_TYPE, align
from shardserve_proto.messages import Segment, segment_bytes
from shardserve_proto.specs import check_shape

NPY_TYPE = "application/x-npy"
MAGIC = b"\x93NUMPY"
#: NumPy's own header of an array of rank 32 takes some 700 bytes.
MOST_HEADER_BYTES = 64 * 1024

#: The text that a header has for each dtype, and back. The dtypes of ml_dtypes have none that tells them apart.
_DESCR = {dtype.str: name for name, dtype in DTYPES.items() if dtype.isbuiltin == 1}
_NAMES = {name: text for text, name in _DESCR.items()}

_KEY = re.compile(r"[ \n]*['\"]([a-z_]{1,20})['\"] ?: ?")
_VALUE = re.compile(r"('[^']*'|\"[^\"]*\"|True|False|\([0-9, ]*\))[ \n]*(,|(?=\}))")
_SIZES = re.compile(r"\( *\)|\((?: *[0-9]{1,19} *,)+(?: *[0-9]{1,19})? *\)")
_KEYS = frozenset({"descr", "fortran_order", "shape"})


@dataclass(frozen=True)
class NpyHeader:
    """What a header says.

    Attributes:
        dtype: its wire name.
        header_bytes: where the array's bytes begin.
    """

    dtype: str
    shape: tuple[int, ...]
    header_bytes: int

    @property
    def segment(self) -> Segment:
        """The array as a segment of a call."""
        itemsize = DTYPES[self.dtype].itemsize
        nbytes = itemsize
        for size in self.shape:
            nbytes *= size
        return Segment(dtype=self.dtype, shape=self.shape, nbytes=nbytes)


async def read_header(read: Callable[[int], Awaitable[bytes]], *, length: int) -> NpyHeader:
    """Read the header of a file of known length, and hold the length against the array that it describes.

    Arguments:
        read: gives the next so many bytes.

    Raises:
        InvalidRequest: it is no `.npy` file, is cut off, or holds more than one array.
        DTypeError: big-endian, or a dtype that cannot be carried.
        ShapeError: Fortran order, or a shape that no array can have.
        TooLarge: the header has more than 64 KiB.
    """
    if length < len(MAGIC) + 4 or not (start := await read(len(MAGIC) + 2)).startswith(MAGIC):
        raise InvalidRequest("the body is no .npy file, which begins with \\x93NUMPY; np.save(file, array) writes one")
    major = start[len(MAGIC)]
    if major not in (1, 2, 3):
        raise InvalidRequest(f"the .npy file has version {major}; versions 1 to 3 are read")
    digits = 2 if major == 1 else 4
    text_bytes = int.from_bytes(await read(digits), "little")
    header_bytes = len(start) + digits + text_bytes
    if text_bytes > MOST_HEADER_BYTES:
        raise TooLarge(
            f"the header of the .npy file has {text_bytes} bytes, at most {MOST_HEADER_BYTES} are read",
            details={"needed_bytes": text_bytes, "limit_bytes": MOST_HEADER_BYTES},
        )
    if length < header_bytes:
        raise InvalidRequest(f"the .npy file is cut off: its header ends at byte {header_bytes} of {length}")
    dtype, shape = parse_header(await read(text_bytes))
    header = NpyHeader(dtype, shape, header_bytes)
    _check_length(header, length)
    return header


def _check_length(header: NpyHeader, length: int) -> None:
    needed = header.header_bytes + segment_bytes(header.segment, 0)
    if length < needed:
        raise InvalidRequest(f"the .npy file is cut off: it takes {needed} bytes, the body has {length}")
    if length > needed:
        raise InvalidRequest(f"{length - needed} bytes follow the array; a .npy file holds one array")


def parse_header(text: bytes) -> tuple[str, tuple[int, ...]]:
    """The wire name of the dtype, and the shape, of a header's text; raises as `read_header` does."""
    entries = _entries(text)
    if entries.keys() != _KEYS:
        raise _unread()
    dtype = _dtype(entries["descr"])
    if not _SIZES.fullmatch(entries["shape"]):
        raise InvalidRequest("the shape in the .npy header is no tuple of sizes")
    shape = tuple(map(int, re.findall(r"[0-9]+", entries["shape"])))
    check_shape(shape, what="the array of the .npy file")
    if entries["fortran_order"] not in ("True", "False"):
        raise InvalidRequest("fortran_order in the .npy header is neither True nor False")
    if entries["fortran_order"] == "True" and sum(size != 1 for size in shape) > 1:
        raise ShapeError(
            "the array of the .npy file is in Fortran order; np.save(file, np.ascontiguousarray(array)) writes it in C "
            "order"
        )
    return dtype, shape


def _entries(text: bytes) -> dict[str, str]:
    """The entries of the dict, each once, as texts."""
    header = text.decode("latin-1").rstrip(" \n")
    if not header.startswith("{"):
        raise _unread()
    found: dict[str, str] = {}
    position = 1
    while key := _KEY.match(header, position):
        name = key.group(1)
        if name == "descr" and header[key.end() : key.end() + 1] in ("[", "("):
            raise DTypeError("a structured array cannot be stored; send each field as an array of its own")
        value = _VALUE.match(header, key.end())
        if value is None or name in found:
            raise _unread()
        found[name] = value.group(1)
        position = value.end()
    if header[position:].strip(" \n") != "}":
        raise _unread()
    return found


def _unread() -> InvalidRequest:
    return InvalidRequest(
        "the .npy header is not read; it is of the form {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
    )


def _dtype(text: str) -> str:
    descr = text[1:-1]
    if descr in _DESCR:
        return _DESCR[descr]
    if descr[:1] == ">" and ("<" + descr[1:]) in _DESCR:
        raise DTypeError(
            f"the array of the .npy file is big-endian ({descr}); array.astype(array.dtype.newbyteorder('<')) is not"
        )
    if descr.lstrip("|<>=")[:1] in ("O", "S", "U", "V"):
        hint = " (bfloat16 and the float8 kinds have no .npy form: send a frame, POST /v1/call)" if "V" in descr else ""
        raise DTypeError(f"arrays of dtype {descr[:20]!r} cannot be stored{hint}; send numbers, such as '<f4'")
    raise DTypeError(f"the dtype {descr[:20]!r} of the .npy file is not read; these are: {', '.join(_DESCR)}")


def encode_header(dtype: str, shape: Sequence[int]) -> bytes:
    """The beginning of a file, as NumPy writes it; the array's bytes follow on a 64-byte boundary.

    Raises:
        UnsupportedMediaType: a dtype that has no `.npy` form.
    """
    check_form(dtype)
    sizes = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    text = f"{{'descr': '{_NAMES[dtype]}', 'fortran_order': False, 'shape': {sizes}, }}".encode()
    total = align(len(MAGIC) + 4 + len(text) + 1)
    text = text.ljust(total - len(MAGIC) - 5) + b"\n"
    return MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text


def check_form(dtype: str) -> None:
    """Refuse a dtype that has no `.npy` form.

    Raises:
        UnsupportedMediaType: with what does work.
    """
    if dtype not in _NAMES:
        raise UnsupportedMediaType(
            f"{dtype} has no .npy form; ask for a frame (Accept: {MEDIA_TYPE}), or cast the array first with "
            'POST /v1/kernels/astype and {"params": {"dtype": "float32"}}'
        )
