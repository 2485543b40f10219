"""Runs printed kernels on an NVIDIA GPU and compares them with the CPU of the same machine.

    PYTHONPATH=src python tools/cuda_sample.py RESULT.json [--seconds 200] [--limit N] [--host]

Every Map, Reduce and Accumulate kernel of the registry's samples, on ordinary and awkward values:
equal bits, or how far apart (any NaN equals any NaN). Then the bandwidth of a few against a copy.
Needs CuPy and NVRTC. `--host` runs the same sources on the CPU instead, compiled by g++ as C++.
The exit status is 1 if a case failed or differed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

import pullback as pb  # noqa: E402
from kernel_walk import FLOATING, Use, kernel_uses  # noqa: E402
from pullback.compile.kernel.forms import Accumulate, Map, Reduce  # noqa: E402
from pullback.core import dtypes as dt  # noqa: E402
from pullback.core.dtypes import DType  # noqa: E402
from pullback.ir.op import bind  # noqa: E402
from pullback.runtime.cuda import launch, nvrtc  # noqa: E402
from pullback.runtime.cuda.folds import fold_code  # noqa: E402
from pullback.runtime.cuda.kernels import name_of  # noqa: E402
from pullback.runtime.cuda.map_walks import map_walk  # noqa: E402
from pullback.runtime.cuda.printer import Source  # noqa: E402
from pullback.runtime.cuda.scan_plans import scan_plan  # noqa: E402

# The order in which dtypes are tried: what matters most first, in case time runs out.
ORDER = (
    dt.float32,
    dt.float64,
    *(d for d in FLOATING if d not in (dt.float32, dt.float64)),
    dt.int32,
)
BATCH = 12  # kernels of one source
BANDWIDTH_ELEMENTS = 1 << 26
TIMED = ("add", "exp", "sin", "sum", "max", "argmax", "logsumexp")
EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0, 3.0, 10.0, 88.7, -87.4, 103.9, 709.7,
    -745.1, 1e-3, 65519.0, 65520.0, 6e-8, 1e10, -1e19, 1e30, 1e-41, 5e-324, 1e308, 3.4e38, 1.2e-38,
    2.3e-308, math.pi, math.pi / 2, -math.pi, 2.0**31, 2.0**63, -(2.0**63), 2.0**64,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
# Shapes and the axes that are reduced; lengths around the places where the tree changes.
REDUCTIONS = (
    ((1,), (0,)), ((0,), (0,)), ((31,), (0,)), ((32,), (0,)), ((1000,), (0,)), ((1025,), (0,)),
    ((100_003,), (0,)), ((3_000_001,), (0,)), ((300, 7), (1,)), ((37, 1000), (1,)),
    ((5, 20_000), (1,)), ((1000, 37), (0,)), ((3, 2000, 5), (1,)), ((6, 50, 70), (0, 2)),
    ((40, 30, 20), (0, 1, 2)), ((70_000, 20), (0,)), ((3000, 500), (0,)),
)  # fmt: skip
LONG = ((10_000_001,), (0,))  # partial results are merged twice
SCANS = (((1000,), 0), ((7, 300), 1), ((300, 40), 0))


class Case(NamedTuple):
    """A kernel on arrays: what to launch, and how the CPU computes the same."""

    name: str
    use: Use
    arrays: list[np.ndarray]
    static: dict[str, Any]


class Result(NamedTuple):
    """What a case came to; `ulps` is None where the dtype has none."""

    name: str
    status: str  # "equal", "differs" or "failed"
    elements: int = 0
    different: int = 0
    ulps: float | None = None
    note: str = ""


def values(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> np.ndarray:
    """Ordinary numbers, edge values and random bits of a dtype."""
    n = math.prod(shape)
    if dtype.is_complex:
        parts = np.stack([values(rng, dtype.real, (n,)) for _ in range(2)], axis=-1)
        return np.ascontiguousarray(parts).view(dtype.numpy).reshape(shape)
    if dtype is dt.bool_:
        return rng.integers(0, 2, n).astype(bool).reshape(shape)
    bits = rng.integers(0, 256, (n, dtype.itemsize), dtype=np.uint8).view(dtype.numpy)[:, 0]
    with np.errstate(all="ignore"):
        if dtype.is_integer:
            usual = rng.integers(-5 if dtype.kind == "i" else 0, 40, n).astype(dtype.numpy)
            edges = np.array(
                [np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, 0, 1], dtype.numpy
            )
        else:
            usual = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)
            edges = np.array(EDGES).astype(dtype.numpy)
        usual = usual.astype(dtype.numpy)
    chance = rng.random(n)
    picked = edges[rng.integers(0, len(edges), n)]
    mixed = np.where(chance < 0.1, picked, np.where(chance < 0.3, bits, usual))
    return mixed.astype(dtype.numpy).reshape(shape)


def tame(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> np.ndarray:
    """Numbers whose sums and products stay finite, so that the order of a fold shows."""
    if not dtype.is_inexact:
        return values(rng, dtype, shape)
    with np.errstate(all="ignore"):
        a = 1.0 + 0.01 * rng.standard_normal(shape)
        if dtype.is_complex:
            a = a + 0.01j * rng.standard_normal(shape)
        return np.asarray(a).astype(dtype.numpy)


def cases(uses: Sequence[Use], elements: int) -> Iterator[Case]:
    """Every kernel on one or more sets of arrays."""
    rng = np.random.default_rng(20)
    for use in uses:
        kinds = ",".join(d.name for d in use.kernel.inputs)
        name = f"{use.op.name}({kinds})->{use.kernel.output.name}"
        if isinstance(use.kernel, Map):
            yield from _map_cases(rng, name, use, elements)
        elif isinstance(use.kernel, Accumulate):
            for shape, axis in SCANS:
                arrays = [tame(rng, use.kernel.inputs[0], shape)]
                yield Case(f"{name} {shape}/{axis}", use, arrays, {**use.static, "axis": axis})
        else:
            plain = use.op.name == "sum" and elements >= 100_000
            for shape, axes in (*REDUCTIONS, LONG) if plain else REDUCTIONS:
                if math.prod(shape) > 200 * elements or (0 in shape and "arg" in use.op.name):
                    continue
                draw = values if "arg" in use.op.name else tame
                arrays = [draw(rng, use.kernel.inputs[0], shape)]
                yield Case(f"{name} {shape}/{axes}", use, arrays, {**use.static, "axes": axes})


def _map_cases(rng: np.random.Generator, name: str, use: Use, elements: int) -> Iterator[Case]:
    dtypes = use.kernel.inputs
    if {"shape", "size"} & use.static.keys():  # then operands are single numbers
        yield Case(name, use, [values(rng, d, ()) for d in dtypes], use.static)
        return
    yield Case(name, use, [values(rng, d, (elements,)) for d in dtypes], use.static)
    if len(dtypes) > 1:
        rows, columns = 150, elements // 1500
        shapes = [(rows, 1), (columns,), (rows, columns)]
        arrays = [values(rng, d, shapes[k % 3]) for k, d in enumerate(dtypes)]
        yield Case(f"{name} broadcast", use, arrays, use.static)


def steps(a: np.ndarray) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(s // a.itemsize for s in a.strides)


def plan_of(case: Case, shape: tuple[int, ...]) -> launch.Launches:
    """The launches of a case whose result has `shape`."""
    kernel = case.use.kernel
    if isinstance(kernel, Map):
        return launch.map_plan(
            kernel, shape, [steps(np.broadcast_to(a, shape)) for a in case.arrays]
        )
    (x,) = case.arrays
    own = steps(x)
    if isinstance(kernel, Accumulate):
        axis = case.static["axis"]
        order = [*(d for d in range(x.ndim) if d != axis), axis]
        kept, strides = tuple(x.shape[d] for d in order[:-1]), tuple(own[d] for d in order)
        return scan_plan(kernel, kept, x.shape[axis], [strides], strides, case.static["reverse"])
    axes = case.static["axes"]
    kept = [d for d in range(x.ndim) if d not in axes]
    sizes = tuple(x.shape[d] for d in kept), tuple(x.shape[d] for d in axes)
    return launch.reduce_plan(kernel, *sizes, [tuple(own[d] for d in (*kept, *axes))])


def compare(name: str, got: np.ndarray, want: np.ndarray) -> Result:
    """Bit for bit; any NaN equals any NaN."""
    if want.dtype.kind == "c":
        got, want = (a.reshape(-1).view(f"f{a.itemsize // 2}") for a in (got, want))
    got, want = got.reshape(-1), want.reshape(-1)
    bits = f"i{want.itemsize}"
    different = got.view(bits) != want.view(bits)
    floating = want.dtype.kind in "fV"
    if floating:
        with np.errstate(invalid="ignore"):
            different &= ~(np.isnan(got.astype("f8")) & np.isnan(want.astype("f8")))
    count = int(different.sum())
    if not count:
        return Result(name, "equal", want.size, 0, 0.0 if floating else None)
    a, b = got[different], want[different]
    ulps = None
    if floating:
        one, other = (_ordered(v.view(bits)) for v in (a, b))
        ulps = float(np.abs(one - other).max())
    return Result(name, "differs", want.size, count, ulps, f"got {a[:3]}, CPU {b[:3]}")


def _ordered(bits: np.ndarray) -> np.ndarray:
    """The bits of floats as numbers that count the floats from zero, in float64."""
    wide = bits.astype(np.int64)
    lowest = int(np.iinfo(bits.dtype).min)
    return np.where(wide < 0, lowest - wide, wide).astype(np.float64)


class Gpu:
    """Compiles with NVRTC, loads and launches through the driver; CuPy holds the memory."""

    def __init__(self):
        import cupy

        self.cupy = cupy
        cupy.zeros(1)  # makes a context, which the driver's functions then use
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.target = f"sm_{cupy.cuda.Device(0).compute_capability}"
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()
        self.functions: dict[str, ctypes.c_void_p] = {}

    def compile(self, source: str) -> bytes:
        return nvrtc.compile_source(source, self.target)

    def load(self, image: Any, names: Sequence[str]) -> None:
        module = ctypes.c_void_p()
        self._check(self.driver.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
        for name in names:
            f = ctypes.c_void_p()
            found = self.driver.cuModuleGetFunction(ctypes.byref(f), module, name.encode())
            if found == 0:
                self.functions[name] = f

    def run(self, plan: launch.Launches, out: np.ndarray, ins: Sequence[np.ndarray]) -> np.ndarray:
        arrays = [self.cupy.asarray(_raw(a)) for a in ins]
        result = self.cupy.zeros(max(1, out.nbytes), "u1")
        self.enqueue(plan, result, arrays)
        self.cupy.cuda.Device(0).synchronize()
        return result.get()[: out.nbytes].view(out.dtype).reshape(out.shape)

    def enqueue(self, plan: launch.Launches, out: Any, ins: Sequence[Any]) -> list[Any]:
        """Launch, and return the scratch arrays, which have to live until the launches have run."""
        buffers = {"out0": out.data.ptr, **{f"in{k}": a.data.ptr for k, a in enumerate(ins)}}
        scratch = [self.cupy.empty(n, "u1") for n in plan.scratch]
        buffers |= {f"scratch{k}": a.data.ptr for k, a in enumerate(scratch)}
        for one in plan.launches:
            held = [_argument(buffers[a] if isinstance(a, str) else a) for a in one.arguments]
            pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
            grid, block = (one.grid, 1, 1), (one.block, 1, 1)
            function = self.functions[one.function]
            status = self.driver.cuLaunchKernel(function, *grid, *block, 0, None, pointers, None)
            self._check(status, one.function)
        return scratch

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{what}: {status} {(text.value or b'').decode()}")


def _raw(a: np.ndarray) -> np.ndarray:
    """The bytes of an array; a device needs an address also for none."""
    return np.frombuffer(a.tobytes() or b"\0", np.uint8)


def _argument(value: int | bytes) -> Any:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return ctypes.create_string_buffer(value, len(value))


class Host:
    """The same on the CPU, thread after thread."""

    name = "host"

    def __init__(self):
        from cuda_emulator import Emulator

        self.emulator = Emulator
        self.functions: dict[str, Any] = {}

    def compile(self, source: str) -> str:
        return source

    def load(self, image: Any, names: Sequence[str]) -> None:
        loaded = self.emulator(image)
        self.functions.update(dict.fromkeys(names, loaded))

    def run(self, plan: launch.Launches, out: np.ndarray, ins: Sequence[np.ndarray]) -> np.ndarray:
        if plan.launches:
            scratch = [np.empty(n, np.uint8) for n in plan.scratch]
            for one in plan.launches:
                alone = launch.Launches([one])
                self.functions[one.function].run(alone, [out], list(ins), scratch)
        return out


def printed(uses: Sequence[Use], plans: Sequence[launch.Launches]) -> tuple[str, list[str]]:
    """The source of what plans launch of several kernels, and its functions."""
    source, names = Source(), []
    wanted = [one.function for plan in plans for one in plan.launches]
    for use in uses:
        name = name_of(use.kernel)
        own = list(dict.fromkeys(f for f in wanted if f.startswith(name)))
        names += own
        for walk in (f.removeprefix(name)[1:] for f in own):
            if isinstance(use.kernel, Reduce):
                fold_code(source, use.kernel, [walk])
            else:
                map_walk(source, use.kernel, walk)
    return source.text(), names


def printed_for(uses: Sequence[Use], elements: int) -> tuple[str, list[str]]:
    """The source of what the cases of these kernels launch, and its functions."""
    return printed(uses, [plan_of(case, shape_of(case)) for case in cases(uses, elements)])


def shape_of(case: Case) -> tuple[int, ...]:
    """The shape of the result of a map."""
    static = case.static
    given = static.get("shape", static.get("size"))
    if given is not None:
        return (given,) if isinstance(given, int) else tuple(given)
    return np.broadcast_shapes(*(a.shape for a in case.arrays))


def checked(device: Gpu | Host, case: Case) -> Result:
    """Run one case on the device and on the CPU."""
    try:
        tensors = [pb.tensor(a) for a in case.arrays]
        want = np.asarray(bind(case.use.op, *tensors, **case.static).numpy())
        out = np.zeros(want.shape, want.dtype)
        got = device.run(plan_of(case, want.shape), out, case.arrays)
        return compare(case.name, got, want)
    except Exception:  # a report of all cases is worth more than the first failure
        return Result(case.name, "failed", note=traceback.format_exc(limit=-2))


def check_all(
    device: Gpu | Host, uses: Sequence[Use], elements: int, deadline: float
) -> list[Result]:
    """Compile in parallel and check batch after batch until all are done or time is up."""
    batches = [uses[i : i + BATCH] for i in range(0, len(uses), BATCH)]
    results: list[Result] = []
    with ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
        images = [
            pool.submit(lambda b=b: device.compile(printed_for(b, elements)[0])) for b in batches
        ]
        for batch, image in zip(batches, images, strict=True):
            if time.monotonic() > deadline:
                image.cancel()
                results += [Result(u.op.name, "not run") for u in batch]
                continue
            try:
                device.load(image.result(), printed_for(batch, elements)[1])
            except Exception:
                note = traceback.format_exc(limit=-2)
                results += [Result(u.op.name, "failed", note=note) for u in batch]
                continue
            results += [checked(device, c) for c in cases(batch, elements)]
    return results


def seconds_of(gpu: Gpu, work: Callable[[], Any], repeats: int = 20) -> float:
    """The median time of `work` on the device."""
    events = gpu.cupy.cuda.Event
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = events(), events()
        start.record()
        held = work()
        end.record()
        end.synchronize()
        del held
        times.append(gpu.cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return statistics.median(times)


def _shapes(use: Use, n: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shapes and strides of n elements that are timed."""
    folded = [
        ((n,), (1,)),
        ((1 << 16, n >> 16), (n >> 16, 1)),
        ((1 << 10, n >> 10), (1, 1 << 10)),
    ]
    return folded[:1] if isinstance(use.kernel, Map) else folded


def _timed_plan(use: Use, shape: tuple[int, ...], strides: tuple[int, ...]) -> launch.Launches:
    if isinstance(use.kernel, Map):
        return launch.map_plan(use.kernel, shape, [(1,)] * len(use.kernel.inputs))
    return launch.reduce_plan(use.kernel, shape[:-1], shape[-1:], [strides])


def bandwidth(gpu: Gpu, uses: Sequence[Use]) -> list[dict[str, Any]]:
    """GB/s of a few float32 kernels beside a copy of the same array."""
    cp, n = gpu.cupy, BANDWIDTH_ELEMENTS
    x, y = (cp.random.random(n, dtype=cp.float32) for _ in range(2))
    out = cp.empty_like(x)
    rows = [
        {"name": "copy", "GB": 8 * n / 1e9, "seconds": seconds_of(gpu, lambda: cp.copyto(out, x))}
    ]
    timed = [u for u in uses if u.op.name in TIMED and set(u.kernel.inputs) == {dt.float32}]
    plans = [
        (use, shape, _timed_plan(use, shape, own))
        for use in timed
        for shape, own in _shapes(use, n)
    ]
    source, names = printed(timed, [plan for _, _, plan in plans])
    gpu.load(gpu.compile(source), names)
    for use, shape, plan in plans:
        inputs = [x, y][: len(use.kernel.inputs)]
        moved = n * 4 * (len(inputs) + isinstance(use.kernel, Map))
        taken = seconds_of(gpu, lambda p=plan, i=inputs: gpu.enqueue(p, out, i))
        rows.append({"name": f"{use.op.name} {shape}", "GB": moved / 1e9, "seconds": taken})
    for row in rows:
        row["GB/s"] = row["GB"] / row["seconds"]
        row["of copy"] = row["GB/s"] / rows[0]["GB/s"]
    return rows


def report(
    device: Gpu | Host, results: Sequence[Result], speeds: Sequence[dict], taken: float
) -> None:
    for r in [r for r in results if r.status in ("differs", "failed")][:30]:
        print(f"{r.status}: {r.name}: {r.different} of {r.elements}, ulps {r.ulps}\n  {r.note}")
    print(f"\n{'kernel':34} {'GB/s':>8} {'of copy':>8}")
    for row in speeds:
        print(f"{row['name']:34} {row['GB/s']:8.0f} {row['of copy']:8.2f}")
    counts = Counter(r.status for r in results)
    elements = sum(r.elements for r in results)
    print(f"\n{device.name}: {dict(counts)}, {elements:,} elements, {taken:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0, help="when to stop starting cases")
    parser.add_argument("--limit", type=int, default=None, help="kernels at most, evenly chosen")
    parser.add_argument("--host", action="store_true", help="run on the CPU, compiled by g++")
    options = parser.parse_args()
    start = time.monotonic()
    device = Host() if options.host else Gpu()
    uses: dict[tuple[str, str], Use] = {}
    for dtype in ORDER:
        uses = {**uses, **{k: u for k, u in kernel_uses([dtype]).items() if k not in uses}}
    chosen = list(uses.values())
    if options.limit is not None:
        chosen = chosen[:: max(1, len(chosen) // options.limit)]
    print(f"{len(chosen)} kernels on {device.name}", flush=True)
    elements = 3000 if options.host else 100_000
    results = check_all(device, chosen, elements, start + options.seconds)
    speeds = []
    if isinstance(device, Gpu):
        try:
            speeds = bandwidth(device, list(uses.values()))
        except Exception:
            results.append(Result("bandwidth", "failed", note=traceback.format_exc()))
    taken = time.monotonic() - start
    content = {
        "device": device.name,
        "nvrtc": None if options.host else nvrtc.version(),
        "seconds": taken,
        "counts": Counter(r.status for r in results),
        "bandwidth": speeds,
        "cases": [r._asdict() for r in results],
    }
    options.result.write_text(json.dumps(content, indent=1, default=str))
    report(device, results, speeds, taken)
    return int(any(r.status in ("differs", "failed") for r in results))


if __name__ == "__main__":
    sys.exit(main())
