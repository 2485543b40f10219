"""Trees of arrays in files: `save` and `load`, as safetensors (or as NumPy's npz by that suffix).

A file is data only. Nothing in it is run or imported: containers other than dicts, lists and tuples
are loaded into an object that the caller gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pullback.core.errors import briefly

__all__ = ["load", "save"]

Names = Mapping[str, str] | Callable[[str], str] | None


def _trees() -> Any:
    """The module that does it, with what few programs need: JSON, zip archives, paths."""
    return import_module("pullback.files.trees")


@briefly
def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree of arrays, numbers and strings to `path`, whole or not at all.

    The suffix chooses the format: `.npz` for NumPy's, which holds a flat dict of arrays, and
    safetensors for any other. A file of that name is replaced only when the new one is complete.

    >>> pb.save("/tmp/model.safetensors", {"w": pb.ones(2), "step": 3})
    >>> pb.load("/tmp/model.safetensors")
    {'w': tensor([1., 1.], float32, cpu), 'step': 3}
    """
    _trees().save(path, tree)


@briefly
def load(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    names: Names = None,
    mmap: bool = False,
    device: Any = None,
) -> Any:
    """The tree that `save` wrote to `path`; of another library's file, a dict of its arrays.

    `like` is a tree whose leaves are replaced: each takes the array of its own name in the file,
    and must have its shape and dtype. It is how models, named tuples and dataclasses are loaded,
    and files of other libraries; `names` then tells what a leaf is called there, as a dict or a
    function (leaves that a dict leaves out keep their names). With `mmap` the arrays read the file
    when they are used; it must not be written to meanwhile.
    """
    return _trees().load(path, like, names=names, mmap=mmap, device=device)
