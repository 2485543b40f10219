"""What a program may choose about the library as a whole: threads, how tensors are printed, and one
object that shows all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback.core.avals import default_device
from pullback.core.dtypes import default_float
from pullback.core.errors import WHOLE, DTypeError, ShapeError, briefly
from pullback.core.precision import get_matmul_precision
from pullback.display.units import bytes_text
from pullback.ir.array import mode

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "config",
    "get_num_threads",
    "get_printoptions",
    "printed",
    "printoptions",
    "set_num_threads",
    "set_printoptions",
]

MOST_THREADS = 1024  # that the native core has places for

# -- threads ---------------------------------------------------------------------------------------


def _native() -> Any:
    return import_module("pullback.runtime.cpu.native")


def _code_cache() -> Any:
    return import_module("pullback.runtime.code_cache")


@briefly
def set_num_threads(n: int) -> None:
    """Let the CPU runtime use `n` threads, the calling one included. It changes no bit of a result.

    >>> before = pb.get_num_threads()
    >>> pb.set_num_threads(1)
    >>> pb.get_num_threads()
    1
    >>> pb.set_num_threads(before)
    """
    _native().set_threads(_whole("set_num_threads", "n", n, 1, MOST_THREADS))


def get_num_threads() -> int:
    """How many threads the CPU runtime uses: at first the processors that this process may use."""
    return _native().get_threads()


def _whole(name: str, what: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise DTypeError(f"{name}: {what} must be an integer, got {value!r}.")
    if not least <= value <= most:
        raise ShapeError(f"{name}: {what} must be between {least} and {most}, got {value}.")
    return int(value)


# -- printing --------------------------------------------------------------------------------------

_COUNTS = ("precision", "threshold", "edgeitems", "linewidth")
_MOST = 2**31 - 1
_chosen: dict[str, Any] = {}  # where it says nothing, NumPy's own options hold


@briefly
def set_printoptions(
    *,
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    suppress: bool | None = None,
) -> None:
    """Choose how tensors are printed, in NumPy's words. What is left out stays as it is.

    `precision`: digits after the point. `threshold`: from how many elements on only the first and
    last `edgeitems` of an axis are shown. `linewidth`: characters of a line. `suppress`: no powers
    of ten. What was never chosen follows `np.set_printoptions`.

    >>> with pb.printoptions():  # after the block all is as before
    ...     pb.set_printoptions(precision=2)
    ...     print(pb.tensor([1.23456]))
    tensor([1.23], float32, cpu)
    """
    given = {
        "precision": precision, "threshold": threshold, "edgeitems": edgeitems,
        "linewidth": linewidth, "suppress": suppress,
    }  # fmt: skip
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _COUNTS:
            checked[name] = _whole("set_printoptions", name, value, 0, _MOST)
        elif isinstance(value, (bool, np.bool_)):
            checked[name] = bool(value)
        else:
            raise DTypeError(f"set_printoptions: {name} must be True or False, got {value!r}.")
    _chosen.update(checked)


def get_printoptions() -> dict[str, Any]:
    """The options that tensors are printed with, as `set_printoptions` takes them.

    >>> sorted(pb.get_printoptions())
    ['edgeitems', 'linewidth', 'precision', 'suppress', 'threshold']
    """
    general = {**np.get_printoptions(), **_chosen}
    return {name: general[name] for name in (*_COUNTS, "suppress")}


@contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """Other options of `set_printoptions` inside a `with` block.

    >>> with pb.printoptions(precision=1):
    ...     print(pb.tensor([0.123]))
    tensor([0.1], float32, cpu)
    """
    before = dict(_chosen)
    set_printoptions(**options)
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)


def printed(array: np.ndarray, prefix: str) -> str:
    """The elements of an array as text; `prefix` is what stands before them on the line."""
    with np.printoptions(**_chosen):
        return np.array2string(array, separator=", ", prefix=prefix)


# -- all of it -------------------------------------------------------------------------------------


class Config:
    """The settings of this process, and the cache of compiled code. Printed, it is a table of them.

    >>> pb.config.num_threads == pb.get_num_threads()
    True
    """

    @property
    def num_threads(self) -> int:
        """`pb.get_num_threads()`."""
        return get_num_threads()

    @property
    def cache_folder(self) -> Path | None:
        """Where compiled code is kept, in a folder for each runtime and user; None if nowhere."""
        return _code_cache().cache_directory()

    @property
    def cache_limit(self) -> int:
        """Bytes that a runtime may keep there before what was unused for longest is removed."""
        return _code_cache().LIMIT

    @property
    def cache_size(self) -> int:
        """Bytes that this user's compiled code takes there."""
        return _code_cache().usage()[1]

    def clear_cache(self) -> int:
        """Remove this user's compiled code; the number of bytes that were freed.

        What this process has compiled stays in memory; the next one compiles anew.
        """
        return _code_cache().clear()

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in get_printoptions().items())
        entries, nbytes = _code_cache().usage()
        folder = self.cache_folder
        kept = f"{bytes_text(nbytes)} in {entries} entries, at most {bytes_text(self.cache_limit)}"
        rows = [
            ("threads", str(self.num_threads), "pb.set_num_threads(n), PULLBACK_NUM_THREADS"),
            ("default float", default_float().name, "pb.set_default_float(dtype)"),
            ("default device", str(default_device()), "pb.set_default_device(device)"),
            ("products", get_matmul_precision(), "pb.set_matmul_precision(name)"),
            ("recording", "on" if mode.recording else "off", "with pb.no_grad():"),
            ("tracebacks", "full" if WHOLE else "short", "PULLBACK_TRACEBACK=full"),
            ("printing", options, "pb.set_printoptions(...)"),
            ("cache folder", "none" if folder is None else os.fspath(folder), "PULLBACK_CACHE_DIR"),
            ("cache size", kept, "pb.config.clear_cache()"),
        ]
        return "\n".join(f"{name:<14}  {value}  [{how}]" for name, value, how in rows)


config = Config()
