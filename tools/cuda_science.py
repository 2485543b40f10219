"""Fourier transforms and linear algebra on an NVIDIA GPU: bits of the CPU, times beside CuPy.

    PYTHONPATH=src:tests:. python tools/cuda_science.py [--seconds 80] [bits times registry]

`bits` runs lengths and sizes of all kinds; what the CPU leaves to LAPACK is compared by distance,
relative to the largest element. `times` are medians with the device, in microseconds. `registry`
runs the samples of the operations that need these kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import pullback as pb
from cuda_registry import WAYS, same_bits
from generated.matrix import Case, arrays_of, cases
from pullback.core import pytrees

RNG = np.random.default_rng(7)
LENGTHS = [
    1, 2, 3, 5, 8, 12, 17, 31, 32, 37, 100, 256, 1000, 1009, 1024, 2310, 4096, 4099, 8192, 30030,
    32768, 32769, 65536, 65537, 105001, 1 << 20, 1 << 22,
]  # fmt: skip
SIZES = [1, 2, 3, 4, 7, 16, 17, 32, 33, 64, 100, 129, 300, 700, 1100]
WORDS = ("fft", "linalg", "det", "inv", "spect", "dct", "idct", "stft", "signal", "hilbert")


def draw(*shape: int, dtype: str) -> np.ndarray:
    x = RNG.standard_normal(shape)
    if dtype.startswith("c"):
        x = x + 1j * RNG.standard_normal(shape)
    return x.astype(dtype)


def results(f: Callable[..., Any], *arrays: np.ndarray, device: str) -> list[np.ndarray]:
    made = f(*(pb.tensor(a, device=device) for a in arrays))
    return [leaf.numpy() for leaf in pytrees.leaves(made)]


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference relative to the largest element."""
    return float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-300)) if x.size else 0.0


def compare(what: str, f: Callable[..., Any], *arrays: np.ndarray, equal: bool = True) -> bool:
    try:
        found = results(f, *arrays, device="cuda")
        wanted = results(f, *arrays, device="cpu")
    except Exception as error:  # whatever it is, the next one is to be tried
        print(f"  {what}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return False
    if equal:
        same = all(same_bits(x, y) for x, y in zip(found, wanted, strict=True))
        if not same:
            apart = max(distance(x, y) for x, y in zip(found, wanted, strict=True))
            print(f"  {what}: other bits, {apart:.1e} apart", flush=True)
        return same
    apart = max(distance(x, y) for x, y in zip(found, wanted, strict=True))
    fine = apart < 3e4 * np.finfo(arrays[0].dtype).eps
    if not fine:
        print(f"  {what}: {apart:.1e} apart", flush=True)
    return fine


def transforms() -> Iterator[tuple[str, Callable[..., Any], np.ndarray]]:
    for n in LENGTHS:
        rows = 3 if n < 5000 else 1
        for real, whole in (("float32", "complex64"), ("float64", "complex128")):
            yield f"fft {n}", pb.fft.fft, draw(rows, n, dtype=whole)
            yield f"ifft axis 0 {n}", lambda x: pb.fft.ifft(x, axis=0), draw(n, rows, dtype=whole)
            yield f"rfft {n}", pb.fft.rfft, draw(rows, n, dtype=real)
            half = draw(rows, n // 2 + 1, dtype=whole)
            yield f"irfft {n}", lambda x, n=n: pb.fft.irfft(x, n=n), half
    for shape in ((512, 512), (64, 64, 64), (1000, 360)):
        yield f"fftn {shape}", pb.fft.fftn, draw(*shape, dtype="complex64")
        yield f"rfftn {shape}", pb.fft.rfftn, draw(*shape, dtype="float32")


def factorisations(dtype: str, equal: bool) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    for n in SIZES if equal else [2, 5, 17, 33, 70, 300]:
        rows = 40 if n <= 4 else 3 if n < 200 else 1
        x = draw(rows, n, n, dtype=dtype)
        positive = (x @ np.swapaxes(x.conj(), -1, -2) + n * np.eye(n)).astype(dtype)
        right = draw(rows, n, 5, dtype=dtype)
        yield f"cholesky {n}", pb.linalg.cholesky, [positive]
        yield f"lu {n}", lambda a: pb.linalg.lu(a), [x]
        yield f"qr {n}", pb.linalg.qr, [x]
        yield f"qr complete {n}", lambda a: pb.linalg.qr(a, mode="complete"), [x[..., : n // 2 + 1]]
        yield f"solve {n}", pb.linalg.solve, [x, right]
        yield f"inv {n}", pb.linalg.inv, [x]
        yield f"det {n}", pb.linalg.slogdet, [x]
        if n <= 4 and equal:
            yield f"eigh {n}", pb.linalg.eigh, [positive]
            yield f"svd {n}", pb.linalg.svd, [x]


def unlike(dtype: str) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """What has other bits: compared by what does not depend on phases and signs."""
    for n in (5, 24, 65, 130):
        x = draw(4, n, n, dtype=dtype)
        h = (x + np.swapaxes(x.conj(), -1, -2)) / 2
        yield f"eigvalsh {n}", pb.linalg.eigvalsh, [h]
        yield f"svdvals {n}", pb.linalg.svdvals, [x[:, :, : n - 2]]
        yield f"eigh {n}", _from_eigh, [h]
        yield f"svd {n}", _from_svd, [x]


def _from_eigh(a: Any) -> Any:
    values, vectors = pb.linalg.eigh(a)
    return (vectors * values[:, None, :]) @ pb.conj(vectors).mT


def _from_svd(a: Any) -> Any:
    u, s, vh = pb.linalg.svd(a, full_matrices=False)
    return (u * s[:, None, :]) @ vh


def bits(until: float, workers: int) -> None:
    for label, dtypes, equal in (
        ("transforms", [""], True), ("factorisations", ["float32", "float64"], True),
        ("complex factorisations", ["complex64", "complex128"], False),
        ("eigenvalues", ["float32", "float64", "complex64", "complex128"], False),
    ):  # fmt: skip
        started, done, rest, good = time.perf_counter(), 0, 0, 0
        for dtype in dtypes:
            if label == "transforms":
                todo: Any = ((w, f, [x]) for w, f, x in transforms())
            else:
                todo = unlike(dtype) if label == "eigenvalues" else factorisations(dtype, equal)

            def one(job: Any, equal: bool = equal) -> bool | None:
                what, f, arrays = job
                if time.perf_counter() > until:
                    return None
                return compare(f"{what} {arrays[0].dtype}", f, *arrays, equal=equal)

            # Most of the time goes into the compilation of kernels: several at a time.
            with ThreadPoolExecutor(workers) as pool:
                found = list(pool.map(one, todo))
            late = found.count(None)
            done, rest, good = done + len(found) - late, rest + late, good + found.count(True)
        spent = time.perf_counter() - started
        text = f"{good} of {done} {'equal' if equal else 'close'}, {rest} not run, {spent:.1f} s"
        print(f"{label}: {text}", flush=True)


# -- times -----------------------------------------------------------------------------------------


def median(f: Callable[[], Any], wait: Callable[[], Any]) -> float:
    f()
    wait()
    samples = []
    began = time.perf_counter()
    while len(samples) < 3 or (len(samples) < 9 and time.perf_counter() - began < 0.15):
        started = time.perf_counter()
        f()
        wait()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples) * 1e6


def jobs_of_times() -> Iterator[tuple[str, Any, str, np.ndarray, bool]]:
    """What is timed, CuPy's name of it, an operand, and whether the bits are the CPU's."""
    for shape in ((4096, 256), (1024, 1024), (16, 1 << 16), (1, 1 << 22), (64, 10007)):
        yield "fft", pb.fft.fft, "fft.fft", draw(*shape, dtype="complex64"), True
    yield "fft2", pb.fft.fft2, "fft.fft2", draw(2048, 2048, dtype="complex64"), True
    yield "rfft", pb.fft.rfft, "fft.rfft", draw(1024, 4096, dtype="float32"), True
    yield "fft", pb.fft.fft, "fft.fft", draw(1024, 1024, dtype="complex128"), True
    for rows, n, names in (
        (10000, 3, ("cholesky", "inv", "eigh")), (10000, 8, ("cholesky", "inv")),
        (1000, 32, ("cholesky", "inv", "qr", "eigh", "svd")), (1, 512, ("eigh", "svd")),
        (1, 2048, ("cholesky", "inv", "qr")),
    ):  # fmt: skip
        x = draw(rows, n, n, dtype="float32")
        positive = (x @ np.swapaxes(x, -1, -2) / n + np.eye(n)).astype(x.dtype)
        for name in names:
            a = x if name in ("inv", "qr", "svd") else positive
            own = name in ("cholesky", "inv", "qr") or n <= 4
            yield name, getattr(pb.linalg, name), f"linalg.{name}", a, own


def times(until: float, workers: int) -> None:
    import cupy

    wait = cupy.cuda.get_current_stream().synchronize
    jobs = [*jobs_of_times()]

    def warm(job: Any) -> str:
        _, ours, _, x, own = job
        try:
            found = results(ours, x, device="cuda")
            if not own:
                return "other order"
            pairs = zip(found, results(ours, x, device="cpu"), strict=True)
            return "equal" if all(same_bits(a, b) for a, b in pairs) else "OTHER BITS"
        except Exception as error:  # the next one is to be tried
            return f"{type(error).__name__}: {str(error)[:100]}"

    with ThreadPoolExecutor(workers) as pool:
        said = list(pool.map(warm, jobs))
    print(f"{'what':40} {'ours':>9} {'CuPy':>9}  ratio  bits", flush=True)
    for (name, ours, theirs, x, _), kind in zip(jobs, said, strict=True):
        if time.perf_counter() > until:
            print("the rest was not run")
            return
        found = []
        given = (ours, pb.tensor(x, device="cuda")), (attrgetter(theirs)(cupy), cupy.asarray(x))
        for f, a in given:
            try:
                found.append(median(lambda f=f, a=a: f(a), wait))
            except Exception as error:  # the next one is to be tried
                print(f"  {name}: {type(error).__name__}: {str(error)[:200]}")
                found.append(float("nan"))
        what = f"{name} {x.dtype} {x.shape}"
        ratio = found[0] / found[1]
        print(f"{what:40} {found[0]:9.1f} {found[1]:9.1f} {ratio:6.2f}  {kind}", flush=True)


# -- the registry ----------------------------------------------------------------------------------


def outcome(case: Case, way: str) -> str:
    def values() -> list[np.ndarray]:
        return [x.numpy() for x in arrays_of(WAYS[way](case))]

    try:
        wanted = values()
    except Exception as error:  # the CPU refuses too
        return f"cpu: {type(error).__name__}"
    try:
        with pb.device("cuda"):
            found = values()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:90]}"
    if all(same_bits(x, y) for x, y in zip(found, wanted, strict=True)):
        return "equal"
    apart = max(distance(x, y) for x, y in zip(found, wanted, strict=True) if x.size)
    return "close" if apart < 1e-3 else f"apart {case.key}"


def registry(until: float) -> None:
    for way, dtype in (("eager", pb.float32), ("first", pb.float64), ("jit", pb.complex128)):
        count: Counter[str] = Counter()
        for case in cases((dtype,), compiled=way != "eager"):
            if not any(w in case.key for w in WORDS):
                continue
            if time.perf_counter() > until:
                count["not run"] += 1
                continue
            count[outcome(case, way)] += 1
        print(way, dtype.name, dict(count.most_common()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["bits", "times", "registry"])
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--workers", type=int, default=8, help="threads that compile kernels")
    options = parser.parse_args()
    kinds = {
        "bits": partial(bits, workers=options.workers),
        "times": partial(times, workers=options.workers),
        "registry": registry,
    }
    started = time.perf_counter()
    for k, part in enumerate(options.parts, 1):
        kinds[part](started + options.seconds * k / len(options.parts))


if __name__ == "__main__":
    main()
