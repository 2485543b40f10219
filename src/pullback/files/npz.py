"""NumPy's npz format: a zip archive of one npy file for each array."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from pullback.core.dtypes import bfloat16
from pullback.core.errors import FileFormatError

__all__ = ["read", "write"]


def write(file: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    """What `np.savez` writes, for names of any kind."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def read(source: Path) -> dict[str, np.ndarray]:
    try:
        with open(source, "rb") as file, zipfile.ZipFile(file) as archive:
            found = {n.removesuffix(".npy"): _read_npy(archive, n) for n in archive.namelist()}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"is no sound npz file: {error}.") from None
    return found


def _read_npy(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array; bfloat16 is written as two bytes of no known kind, as NumPy does."""
    with archive.open(name) as entry:
        array = np.lib.format.read_array(entry, allow_pickle=False)
    return array.view(bfloat16.numpy) if array.dtype == "V2" else array
