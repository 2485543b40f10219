"""Checks and times gather and scatter on an NVIDIA GPU, beside PyTorch and JAX.

    PYTHONPATH=src python tools/cuda_scatter.py [--quick] [--only CASE] [--steps] [--part times]

First every strategy on every dtype, index dtype and pattern against NumPy in float64, exact sums
bit for bit; then repeated runs, bit for bit; then errors beside those of the peers; last the times,
with the floor (bytes that have to move, at the speed of a copy). `--steps` adds the time of every
launch. Full numbers go to files in $OUT if OUT is set. The exit status is 1 if a check
failed. Needs CuPy; PyTorch and JAX are left out where they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import cupy as cp
import ml_dtypes
import numpy as np

from pullback.compile.fixed_point import exact_scatter_add_reference
from pullback.runtime.cuda import scatter as sc
from pullback.runtime.cuda.scatter import executor

MEGA = 1 << 20
REALS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
INDEX_DTYPES = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
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


class Check(NamedTuple):
    """One scatter on small arrays."""

    strategy: str
    dtype: str
    index: str
    pattern: str
    rows: int
    width: int
    n: int
    fold: str = "add"
    planned: bool = False
    offset: int = 0  # elements by which arrays start late

    @property
    def name(self) -> str:
        return "/".join(map(str, self))


def checks(quick: bool) -> Iterator[Check]:
    """Every strategy on dtypes, index dtypes, patterns and shapes that it takes."""
    shapes = {
        "few": ((20, 1), (100, 1), (7, 3), (3, 300)),
        "buckets": ((5000, 1), (3000, 2), (300_000, 1)),
        "atomic": ((5000, 1), (700, 5)),
        "ordered": ((5000, 1), (700, 5), (300, 64), (100, 200)),
    }
    n = 20_011
    for strategy, own in shapes.items():
        exact = strategy in ("buckets", "atomic")
        dtypes = ("float32", "float16", "bfloat16") if exact else (*REALS, *COMPLEX, *INTEGERS)
        for k, dtype in enumerate(dtypes):
            for rows, width in own[:2] if quick or k > 3 else own:
                wide = width // 2 if dtype in COMPLEX and width > 1 else width
                pattern = PATTERNS[k % 4]
                yield Check(strategy, dtype, "int64", pattern, rows, wide, n)
        for k, index in enumerate(INDEX_DTYPES):
            rows, width = (100, 1) if index.endswith("8") else own[k % 2]
            yield Check(strategy, "float32", index, PATTERNS[k % 4], rows, width, n)
        for pattern in PATTERNS:
            for rows, width in own:
                yield Check(strategy, "float32", "int64", pattern, rows, width, n)
        yield Check(strategy, "float32", "int32", "random", *own[0], n, offset=1)
        yield Check(strategy, "float32", "int64", "random", *own[1], 3, offset=3)
        if strategy in ("buckets", "ordered"):
            for rows, width in own:
                yield Check(strategy, "float32", "int64", "zipf", rows, width, n, planned=True)
    for fold in ("max", "min", "mul", "set"):
        for dtype in ("float32", "int32") if quick else ("float32", "float16", "int32", "uint64"):
            yield Check("ordered", dtype, "int64", "zipf", 3000, 3, 5003, fold)
            if fold != "set":
                yield Check("few", dtype, "int64", "zipf", 30, 1, 503, fold)


def late(a: Any, offset: int) -> Any:
    """The same array, starting `offset` elements after an aligned place."""
    raw = cp.empty(a.size + offset, a.dtype)
    raw[offset:] = a.reshape(-1)
    return raw[offset:].reshape(a.shape)


def arrays_of(check: Check) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(zlib.crc32(check.name.encode()))
    np.random.seed(len(check.name))
    indices = draw(check.pattern, check.n, check.rows)
    if not check.index.startswith("u"):
        indices = np.where(rng.random(check.n) < 0.5, indices, indices - check.rows)
    shape = () if check.width == 1 else (check.width,)
    values = sample(rng, check.dtype, (check.n, *shape))
    if check.fold == "mul" and check.dtype not in INTEGERS:
        values = (1 + 0.01 * rng.standard_normal(values.shape)).astype(values.dtype)
    return indices.astype(check.index), values, sample(rng, check.dtype, (check.rows, *shape))


def expected(check: Check, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result in NumPy: exact for exact strategies, else in float64 or as integers."""
    indices, values, out = arrays
    if check.strategy in ("buckets", "atomic"):
        return exact_scatter_add_reference(indices, values, out)
    wide = np.clongdouble if check.dtype in COMPLEX else np.longdouble
    work = out.copy() if check.dtype in INTEGERS or check.fold == "set" else out.astype(wide)
    places = np.where(indices.astype(np.int64) < 0, indices.astype(np.int64) + len(out), indices)
    if check.fold == "set":
        work[places.astype(np.int64)] = values  # NumPy keeps the last one
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
        with np.errstate(all="ignore"):
            ufunc[check.fold].at(work, places.astype(np.int64), values.astype(work.dtype))
    return work


def run_check(check: Check) -> str:
    """Empty if all is well, else what is not."""
    arrays = arrays_of(check)
    indices, values, out = (late(on_device(a), check.offset) for a in arrays)
    plan = sc.make_plan(indices, check.rows) if check.planned else None
    dtype = check.dtype if check.dtype == "bfloat16" else None
    results = []
    for _ in range(3):
        got = late(out, check.offset)
        call = sc.scatter(indices, values, got, check.fold, plan, check.strategy, dtype)
        call.raise_if_bad()
        results.append(got)
    if not all(bool((r.view("u1") == results[0].view("u1")).all()) for r in results[1:]):
        return "bits differ between runs"
    got, want = on_host(results[0], check.dtype), expected(check, arrays)
    if check.strategy in ("buckets", "atomic") or check.dtype in INTEGERS or check.fold == "set":
        same = got.view(np.uint8) == np.asarray(want, got.dtype).view(np.uint8)
        return "" if same.all() else f"{(~same).sum()} of {same.size} bytes differ"
    eps = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "complex64": 2**-24}
    size = np.zeros(out.shape, np.longdouble)
    np.add.at(size, arrays[0].astype(np.int64), np.abs(arrays[1].astype(want.dtype)))
    size += np.abs(arrays[2].astype(want.dtype))
    size = size if check.fold == "add" else np.abs(want)
    error = np.abs(got.astype(want.dtype) - want)
    worst = float((error / (np.maximum(size, 1e-30) * eps.get(check.dtype, 2**-53))).max())
    return "" if worst <= 4 else f"error of {worst:.1f} units"


def warm_up(setups: Sequence[Check]) -> None:
    """Compile in parallel what checks need."""
    found: dict[str, None] = {}
    limit = executor.shared_limit(0)
    for c in setups:
        value = {"complex64": "float32", "complex128": "float64"}.get(c.dtype, c.dtype)
        width = c.width * (2 if c.dtype in COMPLEX else 1)
        case = sc.Case(value, c.index, c.fold, c.n, c.rows, width, c.offset == 0, limit)
        for recipe in sc.recipes_of(case, c.strategy, c.planned):
            found |= dict.fromkeys(step.source for step in recipe.steps)

    def compile_one(source: str) -> None:
        with cp.cuda.Device(0):
            executor.compiled(0, source)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(compile_one, found))
    print(f"{len(found)} sources compiled", flush=True)


def check_errors() -> list[str]:
    """Bad indices are found at their first position, and do no harm."""
    failed = []
    for strategy in sc.STRATEGIES:
        indices = cp.zeros(10_000, "i8")
        indices[[7000, 300, 9000]] = cp.asarray([50, -51, 1 << 40])
        out, values = cp.zeros(50, "f4"), cp.ones(10_000, "f4")
        for plan in (None, sc.make_plan(indices, 50)):
            out[...] = 0
            try:
                sc.scatter_add(indices, values, out, plan, strategy).raise_if_bad()
                failed.append(f"{strategy}: no error")
            except IndexError as error:
                if "index -51 at position 300 " not in str(error):
                    failed.append(f"{strategy}: {error}")
            if float(out[0]) != 9997.0 or float(out[1:].sum()) != 0.0:
                failed.append(f"{strategy}: wrong sums beside bad indices, {float(out[0])}")
    return failed


def check_gather() -> list[str]:
    """Rows of several sizes, all bits."""
    failed, rng = [], np.random.default_rng(3)
    for dtype in ("uint8", "float16", "float32", "complex128"):
        for width in (1, 3, 4, 64, 130):
            for index in ("int64", "uint8"):
                x = sample(rng, dtype, (100, width))
                i = rng.integers(0 if index == "uint8" else -100, 100, 3001).astype(index)
                out = cp.empty((3001, width), dtype)
                sc.gather(cp.asarray(x), cp.asarray(i), out).raise_if_bad()
                if not (out.get() == x[i]).all():
                    failed.append(f"gather {dtype} {width} {index}")
    try:
        sc.gather(cp.zeros((3, 2)), cp.asarray([0, 3]), cp.empty((2, 2))).raise_if_bad()
        failed.append("gather: no error")
    except IndexError:
        pass
    return failed


def median_ms(work: Callable[[int], Any], repeats: int, batch: int = 1) -> float:
    """The time of one call on the device, launches included; `work` gets a counter."""
    for k in range(3):
        work(k)
    cp.cuda.Device().synchronize()
    times, calls = [], 0
    for _ in range(repeats):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(batch):
            work(calls)
            calls += 1
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) / batch)
    return statistics.median(times)


def wall_us(work: Callable[[int], Any], repeats: int = 300) -> float:
    """The time that the caller spends on one call, the device not being waited for."""
    for k in range(20):
        work(k)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for k in range(repeats):
        work(k)
    taken = time.perf_counter() - start
    cp.cuda.Device().synchronize()
    return taken / repeats * 1e6


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


def peers_of(setup: Setup, inputs: Inputs, repeats: int) -> dict[str, float]:
    """Times of what PyTorch and JAX offer for the same."""
    found: dict[str, float] = {}
    count = len(inputs.indices)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        ti, tv, to = ([torch.from_dlpack(a) for a in s] for s in inputs[:3])
        found["index_add_"] = median_ms(
            lambda k: to[k % count].index_add_(0, ti[k % count], tv[k % count]), repeats
        )
        if setup.dtype == "float32":
            te = [i if setup.width == 1 else i[:, None].expand(setup.n, setup.width) for i in ti]
            found["scatter_add_"] = median_ms(
                lambda k: to[k % count].scatter_add_(0, te[k % count], tv[k % count]), repeats
            )
        if setup.n * setup.width <= 16 * MEGA or setup.n <= MEGA:
            found["index_put_"] = median_ms(
                lambda k: to[k % count].index_put_(
                    (ti[k % count],), tv[k % count], accumulate=True
                ),
                3,
            )
    found |= jax_times(inputs, repeats)
    return found


def jax_times(inputs: Inputs, repeats: int) -> dict[str, float]:
    try:
        import jax
    except ImportError:
        return {}
    add = jax.jit(lambda x, i, v: x.at[i].add(v), donate_argnums=0)
    index = jax.dlpack.from_dlpack(inputs.indices[0].astype(cp.int32))
    value = jax.dlpack.from_dlpack(inputs.values[0])
    x = add(jax.numpy.zeros(inputs.outs[0].shape, inputs.outs[0].dtype), index, value)
    x.block_until_ready()
    times = []
    for _ in range(max(3, repeats // 3)):
        start = time.perf_counter()
        for _ in range(5):
            x = add(x, index, value)
        x.block_until_ready()
        times.append((time.perf_counter() - start) / 5 * 1e3)
    return {"jax .at.add": statistics.median(times)}


def step_times(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of every launch of a call."""
    found: dict[str, list[float]] = {}
    original = executor.Program.run

    def timed(self: Any, buffers: dict[str, int]) -> None:
        events = []

        def wrap(launch: Any) -> Any:
            def inner(*args: Any, **kwargs: Any) -> None:
                start, end = cp.cuda.Event(), cp.cuda.Event()
                start.record()
                launch[0](*args, **kwargs)
                end.record()
                events.append((launch[-1], start, end))

            return (inner, *launch[1:])

        kept = self._launches
        self._launches = [wrap(launch) for launch in kept]
        original(self, buffers)
        self._launches = kept
        cp.cuda.Device().synchronize()
        for name, start, end in events:
            found.setdefault(name, []).append(cp.cuda.get_elapsed_time(start, end))

    executor.Program.run = timed
    try:
        for _ in range(7):
            call()
    finally:
        executor.Program.run = original
    return {name: statistics.median(times) for name, times in found.items()}


def time_case(setup: Setup, bandwidth: float, quick: bool, steps: bool) -> dict[str, Any]:
    inputs = inputs_of(setup)
    count, repeats = len(inputs.indices), 7 if quick else 15
    i, v, o = inputs[:3]
    plans = [sc.make_plan(own, setup.rows) for own in i]

    def plain(k: int) -> Any:
        return sc.scatter_add(i[k % count], v[k % count], o[k % count])

    def planned(k: int) -> Any:
        k %= count
        return sc.scatter_add(i[k], v[k], o[k], plans[k])

    for k in range(count):
        planned(k)
    row: dict[str, Any] = {
        "case": setup.name,
        "floor": inputs.floor_bytes / bandwidth * 1e3,
        "ours": median_ms(plain, repeats),
        "planned": median_ms(planned, repeats),
        "steady": median_ms(plain, repeats, 8),
        "steady planned": median_ms(planned, repeats, 8),
        "wall us": wall_us(plain, 200 if setup.n <= MEGA else 20),
        "plan MB": plans[0].nbytes / 1e6,
    }
    if steps:
        row["steps"] = step_times(lambda: plain(0))
        row["steps planned"] = step_times(lambda: planned(0))
    row["peers"] = peers_of(setup, inputs, 5 if quick else 9)
    row["best"], row["best peer"] = min((t, name) for name, t in row["peers"].items())
    return row


def repeat_bits(quick: bool) -> list[str]:
    """The timed cases again and again, with other work on the device."""
    failed = []
    other, busy = cp.cuda.Stream(non_blocking=True), cp.ones(8 * MEGA, "f4")
    for setup in TIMED:
        small = setup._replace(n=min(setup.n, 4 * MEGA))
        inputs = inputs_of(small)
        i, v = inputs.indices[0], inputs.values[0]
        plan = sc.make_plan(i, setup.rows)
        first = None
        for k in range(20 if quick else 100):
            with other:
                busy *= 1.0
            out = cp.zeros_like(inputs.outs[0])
            sc.scatter_add(i, v, out, plan if k % 2 else None)
            if first is None:
                first = out
            elif not bool((out.view("u1") == first.view("u1")).all()):
                failed.append(f"{setup.name}: bits of run {k} differ")
                break
    return failed


def accuracy(quick: bool) -> list[dict[str, Any]]:
    """Errors in units of 2**-24 of the sum of magnitudes, the greatest over destinations."""
    n = 4 * MEGA if quick else 64 * MEGA
    cp.random.seed(8)
    setups = {
        "20 bins, all 0.1, equal": (20, "equal", lambda: cp.full(n, 0.1, "f4")),
        "20 bins, uniform": (20, "random", lambda: cp.random.random(n, dtype=cp.float32)),
        "200 bins, normal": (200, "random", lambda: cp.random.standard_normal(n, dtype="f4")),
        "1M bins, log-normal": (
            MEGA, "random", lambda: cp.exp(4 * cp.random.standard_normal(n, dtype="f4")),
        ),
    }  # fmt: skip
    rows = []
    for name, (size, pattern, make) in setups.items():
        i, v = draw(pattern, n, size, cp).astype(cp.int64), make()
        want = cp.bincount(i, v.astype("f8"), size)
        scale = cp.maximum(cp.bincount(i, cp.abs(v).astype("f8"), size), 1e-300) * 2.0**-24
        row: dict[str, Any] = {"case": name}
        for strategy in (None, "ordered"):
            out = cp.zeros(size, "f4")
            sc.scatter_add(i, v, out, strategy=strategy)
            row[strategy or "ours"] = float((cp.abs(out - want) / scale).max())
        row |= peer_errors(i, v, size, want, scale)
        rows.append(row)
    return rows


def peer_errors(i: Any, v: Any, size: int, want: Any, scale: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        import torch

        out = torch.zeros(size, device="cuda")
        out.index_add_(0, torch.from_dlpack(i), torch.from_dlpack(v))
        found["torch"] = float((cp.abs(cp.from_dlpack(out) - want) / scale).max())
    except ImportError:
        pass
    try:
        import jax

        index, value = (jax.dlpack.from_dlpack(a) for a in (i.astype("i4"), v))
        out = jax.jit(lambda i, v: jax.numpy.zeros(size, "float32").at[i].add(v))(index, value)
        found["jax"] = float((cp.abs(cp.from_dlpack(out) - want) / scale).max())
    except ImportError:
        pass
    return found


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy."""
    x, y = cp.ones(256 * MEGA, "f4"), cp.empty(256 * MEGA, "f4")
    return 2 * x.nbytes / median_ms(lambda k: cp.copyto(y, x), 10) * 1e3


def report(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        for key in ("steps", "steps planned"):
            if key in row:
                parts = ", ".join(f"{name} {ms:.4f}" for name, ms in row[key].items())
                print(f"{row['case']:20} {key}: {parts}")
    for row in rows:
        peers = ", ".join(f"{name} {ms:.4f}" for name, ms in row["peers"].items())
        print(f"{row['case']:20} {peers}")
    heads = ("floor", "ours", "planned", "steady", "st.plan", "best", "/peer", "pl/peer")
    heads = (*heads, "/floor", "pl/fl", "wall us")
    print(f"\n{'ms':20}" + "".join(f"{head:>9}" for head in heads))
    for row in rows:
        best, floor = row["best"], row["floor"]
        times = [row[k] for k in ("floor", "ours", "planned", "steady", "steady planned", "best")]
        ratios = [row["ours"] / best, row["planned"] / best]
        ratios += [row["ours"] / floor, row["planned"] / floor]
        print(
            f"{row['case']:20}"
            + "".join(f"{t:9.4f}" for t in times)
            + "".join(f"{r:9.3f}" for r in ratios)
            + f"{row['wall us']:9.1f}"
        )


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


def run_checks(quick: bool) -> list[str]:
    todo = list(checks(quick))
    warm_up(todo)
    failed: list[str] = []
    for k, check in enumerate(todo):
        with watched(check.name):
            note = attempt(run_check, check)
        if note:
            failed.append(f"{check.name}: {note}")
        if not is_usable():
            failed.append(f"the device was lost after {k + 1} of {len(todo)} checks")
            break
    for part in (check_errors, check_gather, lambda: repeat_bits(quick)):
        with watched(str(part)):
            notes = attempt(part) if is_usable() else []
        failed += [notes] if isinstance(notes, str) else notes
    print(f"{len(todo)} checks, {len(failed)} failed", flush=True)
    for note in failed[:12]:
        print("  FAILED", note)
    return failed


def checks_and_errors(quick: bool) -> int:
    """What a process of its own does, since a fault would end the times as well."""
    start = time.monotonic()
    failed = run_checks(quick)
    errors = attempt(accuracy, quick) if is_usable() else []
    if isinstance(errors, str):
        failed.append(errors)
        print(f"FAILED {errors}", flush=True)
        errors = []
    for row in errors:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    print(f"checks took {time.monotonic() - start:.0f} s", flush=True)
    write("cuda_scatter_checks.json", {"failed": failed, "accuracy": errors})
    return int(bool(failed))


def write(name: str, content: Any) -> None:
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], name).write_text(json.dumps(content, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer checks and repetitions")
    parser.add_argument("--only", default="", help="timed cases whose name contains this")
    parser.add_argument("--steps", action="store_true", help="times of single launches")
    parser.add_argument("--part", choices=("all", "checks", "times"), default="all")
    options = parser.parse_args()
    if options.part == "checks":
        return checks_and_errors(options.quick)
    start, status = time.monotonic(), 0
    if options.part == "all":
        command = [sys.executable, __file__, "--part", "checks"]
        status = subprocess.run(command + ["--quick"] * options.quick).returncode
    bandwidth = copy_bandwidth()
    print(f"copy: {bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = []
    for setup in TIMED:
        if options.only not in setup.name:
            continue
        with watched(setup.name):
            row = attempt(time_case, setup, bandwidth, options.quick, options.steps)
        if isinstance(row, str):
            status = 1
            print(f"FAILED {setup.name}: {row}", flush=True)
        else:
            rows.append(row)
    report(rows)
    print(f"{time.monotonic() - start:.0f} s")
    write("cuda_scatter.json", {"bandwidth": bandwidth, "times": rows})
    return status


if __name__ == "__main__":
    sys.exit(main())
