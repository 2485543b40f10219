"""The cases of `cuda_scatter.py`, and the arrays they are about."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cupy as cp
import ml_dtypes
import numpy as np

MEGA = 1 << 20
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
PATTERNS = ("random", "sorted", "equal", "zipf")


class Setup(NamedTuple):
    """A timed case."""

    name: str
    rows: int
    width: int
    n: int
    dtype: str = "float32"
    pattern: str = "random"


TIMED = (
    Setup("20x1 64M random", 20, 1, 64 * MEGA),
    Setup("20x1 64M sorted", 20, 1, 64 * MEGA, pattern="sorted"),
    Setup("20x1 64M equal", 20, 1, 64 * MEGA, pattern="equal"),
    Setup("20x1 1M random", 20, 1, MEGA),
    Setup("200x1 16M random", 200, 1, 16 * MEGA),
    Setup("2000x1 16M random", 2000, 1, 16 * MEGA),
    Setup("100kx64 1M random", 100_000, 64, MEGA),
    Setup("1Mx1 16M random", MEGA, 1, 16 * MEGA),
    Setup("1Mx1 16M sorted", MEGA, 1, 16 * MEGA, pattern="sorted"),
    Setup("1Mx1 16M zipf", MEGA, 1, 16 * MEGA, pattern="zipf"),
    Setup("50kx768 32k zipf", 50_000, 768, 32_768, pattern="zipf"),
    Setup("c64 1.2M 8M random", 1_200_000, 1, 8 * MEGA, dtype="complex64"),
)


def draw(pattern: str, n: int, rows: int, xp: Any = np) -> Any:
    """Indices in range, from the start of the axis."""
    if pattern == "equal":
        return xp.full(n, rows - 1)
    if pattern == "zipf":
        weights = xp.cumsum(1.0 / xp.arange(1, rows + 1))
        ranks = xp.searchsorted(weights, xp.random.random(n) * weights[-1])
        return xp.random.permutation(rows)[ranks]
    found = xp.random.randint(0, rows, n)
    return xp.sort(found) if pattern == "sorted" else found


def sample(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Numbers of about one, with smaller and larger ones among them."""
    if dtype in INTEGERS:
        return rng.integers(0, 100, shape).astype(dtype)
    a = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)
    if dtype in COMPLEX:
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def on_device(a: np.ndarray) -> Any:
    """A copy on the device; bfloat16 as uint16."""
    return cp.asarray(a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a)


def on_host(a: Any, dtype: str) -> np.ndarray:
    return a.get().view(ml_dtypes.bfloat16) if dtype == "bfloat16" else a.get()


class Inputs(NamedTuple):
    """Several sets of arrays, so that they do not stay in the cache, and the bytes to move."""

    indices: list[Any]
    values: list[Any]
    outs: list[Any]
    floor_bytes: int


def inputs_of(setup: Setup) -> Inputs:
    cp.random.seed(5)
    item = np.dtype(setup.dtype).itemsize
    once = setup.n * (8 + item * setup.width)
    drawn = draw(setup.pattern, setup.n, setup.rows, cp).astype(cp.int64)
    touched = int((cp.bincount(drawn, minlength=setup.rows) > 0).sum()) * setup.width * item
    copies = max(1, min(16, 200 * MEGA // once))
    shape = () if setup.width == 1 else (setup.width,)
    indices, values, outs = [], [], []
    for k in range(copies):
        indices.append(cp.roll(drawn, k * 1001))
        v = cp.random.standard_normal((setup.n, *shape), dtype=cp.float32)
        values.append(v if setup.dtype == "float32" else (v + 1j * v[::-1]).astype(setup.dtype))
        outs.append(cp.zeros((setup.rows, *shape), setup.dtype))
    return Inputs(indices, values, outs, once + 2 * touched)


def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns, or the text of what it raised, so that the report goes on."""
    try:
        return work(*arguments)
    except Exception:
        return traceback.format_exc(limit=-3)


@contextmanager
def watched(name: str, seconds: float = 30.0) -> Iterator[None]:
    """End the process, with a word of what it was at, if something takes far too long."""

    def give_up() -> None:
        print(f"HANGS: {name}", flush=True)
        os._exit(3)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_usable() -> bool:
    """Whether the device still answers: after some errors it does not, until the process ends."""
    try:
        cp.cuda.Device().synchronize()
    except cp.cuda.runtime.CUDARuntimeError:
        return False
    return True


def write(name: str, content: Any) -> None:
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], name).write_text(json.dumps(content, indent=1))
