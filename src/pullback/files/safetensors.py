"""The safetensors format: the size of a JSON header, the header, then the arrays one after another.

A reader trusts nothing: each number of the header is checked against the size of the file before
any array is made, so that a damaged or hostile file gives an error and reads nothing beside itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from pullback.core.dtypes import DType, as_dtype
from pullback.core.errors import DTypeError, FileFormatError

__all__ = ["read", "write"]

# What the format calls our dtypes; complex numbers have no name that all readers know.
NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
DTYPES = {name: as_dtype(ours) for ours, name in NAMES.items()}
SIZE_BYTES = 8  # of the header's size, a little-endian integer
ALIGNMENT = 8  # bytes: the widest element, so that every array may be mapped
MOST_HEADER_BYTES = 100_000_000  # the limit of the reference reader
METADATA = "__metadata__"
MOST_DIMENSIONS = 64  # that NumPy's arrays may have
MOST_SIZE = 2**63 - 1  # of an axis, and of all axes but those of size 0 together


def write(file: IO[bytes], arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write C-contiguous arrays; the widest elements come first, which keeps all aligned."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: metadata}
    end = 0
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _name_of(name, as_dtype(array.dtype)),
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MOST_HEADER_BYTES:
        raise FileFormatError(
            f"save: the header would take {len(text)} bytes, more than {MOST_HEADER_BYTES}."
            " Save fewer arrays in a file."
        )
    file.write(len(text).to_bytes(SIZE_BYTES, "little"))
    file.write(text)
    for name in order:
        if arrays[name].nbytes:
            file.write(arrays[name].reshape(-1).view(np.uint8).data)


def _name_of(name: str, dtype: DType) -> str:
    if name == METADATA:
        raise DTypeError(f"save: an array can't be called {METADATA!r}. Rename it.")
    try:
        return NAMES[dtype.name]
    except KeyError:
        fact = f"save: {name!r} has dtype {dtype.name}, which the format lacks."
        raise DTypeError(fact) from None


def read(path: Path, mmap: bool) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a file, and its metadata; errors say what is wrong, without the file's name."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, start = _header(file, size)
        metadata = _metadata(header.pop(METADATA, {}))
        places = {name: _place(name, entry) for name, entry in header.items()}
        _check_places(places, size - start)
        if mmap and size > start:
            data = np.memmap(file, np.uint8, "r", start, (size - start,))
        else:
            data = np.frombuffer(file.read(size - start), np.uint8)
    if data.size != size - start:
        raise FileFormatError("became shorter while it was read.")
    return {
        name: data[begin:end].view(dtype.numpy).reshape(shape)
        for name, (dtype, shape, begin, end) in places.items()
    }, metadata


def _header(file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    """The JSON of the header, and where the data start."""
    length = int.from_bytes(file.read(SIZE_BYTES), "little")
    if size < SIZE_BYTES or length > min(size - SIZE_BYTES, MOST_HEADER_BYTES):
        raise FileFormatError(f"is no safetensors file: no header fits in its {size} bytes.")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"has a header that can't be read: {error}.") from None
    if not isinstance(header, dict):
        raise FileFormatError("has a header that is no JSON object.")
    return header, SIZE_BYTES + length


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _metadata(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
        raise FileFormatError("has metadata that are no strings.")
    return entry


Place = tuple[DType, tuple[int, ...], int, int]


def _place(name: str, entry: Any) -> Place:
    """Dtype, shape, first byte and last byte of an array, each of the right type."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FileFormatError(f"describes {name!r} by other fields than the format has.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FileFormatError(f"has {name!r} with dtype {dtype!r}, which pullback lacks.")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise FileFormatError(f"has {name!r} with a shape or place that is no list of sizes.")
    begin, end = offsets
    if len(shape) > MOST_DIMENSIONS or prod(n for n in shape if n) > MOST_SIZE:
        raise FileFormatError(f"has {name!r} of shape {shape}, which no array can have.")
    if end - begin != prod(shape) * DTYPES[dtype].itemsize:
        raise FileFormatError(f"has {name!r} of shape {shape} in {end - begin} bytes.")
    return DTYPES[dtype], tuple(shape), begin, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= MOST_SIZE for n in value)


def _check_places(places: dict[str, Place], size: int) -> None:
    """Arrays follow one another without gaps or overlaps, and fill the file."""
    end = 0
    for name, (_, _, begin, after) in sorted(places.items(), key=lambda item: item[1][2:]):
        if begin != end:
            raise FileFormatError(f"has {name!r} at byte {begin} of its data, expected {end}.")
        end = after
    if end != size:
        raise FileFormatError(f"holds {size} bytes of data, but describes {end}. Was it cut off?")
