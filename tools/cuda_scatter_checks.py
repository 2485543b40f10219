"""Checks of gather and scatter on a GPU: every strategy, against NumPy and against the CPU."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cupy as cp
import numpy as np

import pullback as pb
from cuda_scatter_data import (
    COMPLEX,
    INTEGERS,
    MEGA,
    PATTERNS,
    TIMED,
    attempt,
    draw,
    inputs_of,
    is_usable,
    on_device,
    on_host,
    sample,
    watched,
    write,
)
from pullback.compile.kernel.fixed_point import exact_scatter_add_reference
from pullback.compile.kernel.scatter_order import scattered_by_pieces, scattered_in_streams
from pullback.runtime.cuda import scatter as sc
from pullback.runtime.cuda.gpu import gpu_of
from pullback.runtime.cuda.scatter import executor

REALS = ("float32", "float64", "float16", "bfloat16")
INDEX_DTYPES = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")


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
        "buckets": ((5000, 1), (3000, 2), (4000, 3), (2000, 4), (300_000, 1)),
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
            for pattern in PATTERNS:
                for rows, width in own:
                    yield Check(strategy, "float32", "int64", pattern, rows, width, n, planned=True)
        if strategy == "buckets":
            for dtype in ("float16", "bfloat16", "complex64"):
                yield Check(strategy, dtype, "int32", "zipf", 5000, 1, 300_007, planned=True)
            yield Check(strategy, "float32", "int64", "equal", 5000, 1, 300_007, planned=True)
            yield Check(strategy, "float32", "int64", "random", *own[0], n, "add", True, 1)
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


def in_order(check: Check, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result of real sums and products, bit for bit, for the strategies that have an order."""
    if check.strategy not in ("few", "ordered") or check.fold not in ("add", "mul"):
        return None
    if check.dtype not in ("float16", "float32", "float64", *COMPLEX):
        return None
    indices, values, out = arrays
    part = {"complex64": np.float32, "complex128": np.float64}.get(check.dtype, out.dtype)
    places = indices.astype(np.int64) % len(out)
    x, updates = out.reshape(len(out), -1).view(part), values.reshape(len(values), -1).view(part)
    if check.strategy == "few":
        found = scattered_in_streams(x, places, updates, check.index, check.fold)
    else:
        found = scattered_by_pieces(x, places, updates, check.fold)
    return found.view(out.dtype).reshape(out.shape)


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
    order = in_order(check, arrays)
    if order is not None and got.tobytes() != np.ascontiguousarray(order).tobytes():
        return "bits are not those of the order"
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

    gpu_of(0).modules.load(found)
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


def check_processor() -> list[str]:
    """Exact sums of the CPU runtime and of the device, bit for bit."""
    failed, rng = [], np.random.default_rng(11)
    for dtype, rows, n in (("float32", 9000, 400_000), ("complex64", 700, 50_000)):
        for spread in (3, 60):
            i = rng.integers(-rows, rows, n)
            v = (sample(rng, dtype, (n,)) * 2.0 ** rng.integers(-spread, spread, n)).astype(dtype)
            x = sample(rng, dtype, (rows,))
            want = np.asarray(pb.scatter_add(x, i, v, exact=True))
            for strategy in ("buckets", "atomic"):
                for plan in (None, sc.make_plan(cp.asarray(i), rows)):
                    got = cp.asarray(x)
                    sc.scatter_add(cp.asarray(i), cp.asarray(v), got, plan, strategy)
                    if got.get().tobytes() != want.tobytes():
                        failed.append(f"CPU and CUDA differ: {dtype}, {spread}, {strategy}, {plan}")
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
    for part in (check_errors, check_gather, check_processor, lambda: repeat_bits(quick)):
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
