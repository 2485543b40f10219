"""NumPy's npz: a zip archive of arrays, each with a header that says its dtype and shape.

As in `safetensors`, a reader trusts nothing: what a header claims is compared with the size of its
entry before any array is made.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from pullback.core.dtypes import as_dtype, bfloat16
from pullback.core.errors import DTypeError, FileFormatError

__all__ = ["read", "write"]

# NumPy writes bfloat16 as two bytes of no known kind.
UNKNOWN = np.dtype("V2")
SUFFIX = ".npy"
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What the standard library raises for archives and headers that are not sound.
UNSOUND = (
    ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, TokenError, RuntimeError,
    NotImplementedError, OverflowError, SyntaxError, struct.error,
)  # fmt: skip


def write(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """What `np.savez` writes, for names of any kind."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}{SUFFIX}", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive; errors say what is wrong, without the file's name."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _arrays(archive, path.stat().st_size)
        except FileFormatError:
            raise
        except UNSOUND as error:
            raise FileFormatError(f"is no sound npz file: {_words(error)}.") from None


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _arrays(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    entries = archive.infolist()
    # Entries that share bytes would give more than they take.
    if sum(entry.compress_size for entry in entries) > size:
        raise FileFormatError("is no sound npz file: its entries overlap.")
    found: dict[str, np.ndarray] = {}
    for entry in entries:
        name = entry.filename.removesuffix(SUFFIX)
        if not 0 <= entry.header_offset < size:
            raise FileFormatError(f"is no sound npz file: {name!r} lies outside of it.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(f"is no sound npz file: {name!r} is packed in an unknown way.")
        if name in found:
            raise FileFormatError(f"is no sound npz file: {name!r} stands there twice.")
        found[name] = _array(archive, entry, name)
    return found


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> np.ndarray:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise FileFormatError(f"is no sound npz file: {name!r} has version {version}.")
        shape, by_columns, dtype = HEADERS[version](stream)
        wanted = _dtype(name, dtype)
        nbytes = prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or nbytes != entry.file_size - stream.tell():
            raise FileFormatError(
                f"is no sound npz file: {name!r} has shape {shape} in"
                f" {entry.file_size - stream.tell()} bytes."
            )
        data = stream.read(nbytes)
        if len(data) != nbytes or stream.read(1):  # reading on to the end checks the sum of digits
            raise FileFormatError(f"is no sound npz file: {name!r} is cut off.")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")
    return array.view(wanted) if dtype == UNKNOWN else array.astype(wanted, copy=False)


def _dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype of ours that a header means."""
    if dtype == UNKNOWN:
        return bfloat16.numpy
    if dtype.hasobject:
        raise FileFormatError(f"is no sound npz file: {name!r} holds Python objects.")
    try:
        return as_dtype(dtype.newbyteorder("=")).numpy
    except DTypeError:
        raise FileFormatError(f"holds {name!r} as {dtype}, which pullback lacks.") from None
