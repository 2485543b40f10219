"""Trees of arrays written to files and read from them: see `pullback.files`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from pathlib import Path
from typing import IO, Any

import numpy as np

from pullback.core import pytrees
from pullback.core.dtypes import as_dtype
from pullback.core.errors import DTypeError, FileFormatError
from pullback.files import npz, safetensors, structures
from pullback.ir.array import Array
from pullback.ir.convert import from_numpy

__all__ = ["load", "save"]

MOST_WORDS = 400  # characters of what is said about a file that can't be read

Names = Mapping[str, str] | Callable[[str], str] | None


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree to `path`, whole or not at all."""
    target = _path("save", path)
    if not target.parent.is_dir():
        raise FileNotFoundError(ENOENT, "save: there is no such folder", str(target.parent))
    if target.suffix == ".npz":
        arrays = _flat_arrays(tree)
        with _replacing(target) as file:
            npz.write(file, arrays)
        return
    arrays, described = structures.described(tree)
    with _replacing(target) as file:
        safetensors.write(file, arrays, {structures.KEY: described})


def load(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    names: Names = None,
    mmap: bool = False,
    device: Any = None,
) -> Any:
    """The tree that `save` wrote to `path`, or the arrays of another library's file."""
    source = _path("load", path)

    def tensor(array: np.ndarray) -> Any:
        x = from_numpy(array, copy=not mmap)
        return x if device is None else x.to_device(device)

    if like is None and names is not None:
        raise TypeError("load: names renames the leaves of a tree. Give the tree as like=...")
    try:
        arrays, described = _read(source, mmap)
        if like is not None:
            return _filled(like, arrays, described, names, tensor)
        if described is not None:
            return structures.rebuilt(described, arrays, tensor)
        return {name: tensor(array) for name, array in arrays.items()}
    except FileFormatError as error:
        raise FileFormatError(f"load: {source.name} {_clipped(str(error))}") from None


def _path(name: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise DTypeError(
            f"{name}: the first argument is the path of a file, got {type(path).__name__}."
        )
    return Path(path)


def _clipped(text: str) -> str:
    """A message that holds no more of a hostile file than helps."""
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}..."


def _read(source: Path, mmap: bool) -> tuple[Mapping[str, np.ndarray], str | None]:
    """The arrays of a file by name, and how the tree is described that they belong to."""
    if source.suffix == ".npz":
        return npz.read(source), None
    arrays, metadata = safetensors.read(source, mmap)
    return arrays, metadata.get(structures.KEY)


def _filled(
    like: Any,
    arrays: Mapping[str, np.ndarray],
    described: str | None,
    names: Names,
    tensor: Callable[[np.ndarray], Any],
) -> Any:
    """`like` with the file's arrays, numbers and strings in place of its leaves."""
    values = arrays if described is None else structures.leaf_values(described, arrays)
    leaves, structure = pytrees.flatten(like)
    wanted = [_renamed(name, names) for name in structures.unique_names(like)]
    missing = [name for name in wanted if name not in values]
    if missing:
        unused = [name for name in values if name not in wanted]
        raise FileFormatError(
            f"lacks {_listed(missing)}. It has {_listed(unused)} besides. Map names by names=..."
        )
    filled = []
    for name, leaf in zip(wanted, leaves, strict=True):
        value = values[name]
        if isinstance(leaf, (Array, np.ndarray)):
            _check_fits(name, leaf, value)
        filled.append(tensor(value) if isinstance(value, np.ndarray) else value)
    return pytrees.unflatten(structure, filled)


def _renamed(name: str, names: Names) -> str:
    if names is None:
        return name
    return names(name) if callable(names) else names.get(name, name)


def _listed(found: Iterable[str]) -> str:
    found = list(found)
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (", ".join(repr(n) for n in found[:4]) or "nothing") + more


def _check_fits(name: str, leaf: Any, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise FileFormatError(f"holds {value!r} as {name!r}, expected an array.")
    shape, dtype = tuple(leaf.shape), as_dtype(leaf.dtype)
    if shape != value.shape or dtype is not as_dtype(value.dtype):
        raise FileFormatError(
            f"holds {name!r} as {as_dtype(value.dtype).name} of shape {value.shape},"
            f" expected {dtype.name} of shape {shape}."
        )


def _flat_arrays(tree: Any) -> dict[str, np.ndarray]:
    if not isinstance(tree, dict) or not all(
        isinstance(k, str) and isinstance(v, (Array, np.ndarray)) for k, v in tree.items()
    ):
        raise DTypeError(
            "save: an npz file holds a flat dict of names and arrays. Use the suffix"
            " .safetensors for other trees."
        )
    return {name: structures.contents(name, x) for name, x in tree.items()}


# -- whole files -----------------------------------------------------------------------------------


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `target` when the block ends well, and is gone otherwise."""
    unfinished = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
