"""`pullback bench`: workloads side by side with the peers that are installed, interleaved, as
ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.cli import gather_bench, machine, transform_bench
from pullback.cli.fft_workloads import FFT_LIBRARIES, FFT_WORKLOADS
from pullback.cli.gather_cases import CASES
from pullback.cli.libraries import LIBRARIES
from pullback.cli.linalg_workloads import LINALG_WORKLOADS
from pullback.cli.nn_programs import NN_LIBRARIES, is_there
from pullback.cli.nn_workloads import ALL_WORKLOADS, NN_WORKLOADS
from pullback.cli.rivals import compared
from pullback.cli.scores import OURS, Row, page, summary, tables
from pullback.cli.workloads import WORKLOADS, Workload
from pullback.display.progress import Progress

__all__ = ["arguments", "run"]

Work = Callable[[], Any]
LIMIT = 45.0  # with it the whole suite takes minutes, whatever a compiler makes of a workload


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite",
        nargs="?",
        default="eager",
        choices=sorted(SUITES),
        help="what to measure: the cost of single operations, whole compiled functions, layers,"
        " Fourier transforms, factorisations of matrices, or the gradient of indexing",
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--html", type=Path, help="jit, gather: also write a page")
    parser.add_argument(
        "--repeat", type=_count, default=15, help="interleaved repetitions (default 15)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted([*ALL_WORKLOADS, *CASES]),
        metavar="NAME",
        help=f"jit: this workload (may be repeated): {', '.join(WORKLOADS)};"
        f" nn: {', '.join(NN_WORKLOADS)}; fft: {', '.join(FFT_WORKLOADS)};"
        f" linalg: {', '.join(LINALG_WORKLOADS)};"
        f" gather: {', '.join(CASES)}",
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=[n for n in LIBRARIES if n != OURS],
        help="jit: compare with this library alone (may be repeated)",
    )
    parser.add_argument("--quick", action="store_true", help="jit, gather: small sizes")
    parser.add_argument("--threads", type=_count, default=2, help="jit, gather: of everyone (2)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="gather: where")
    parser.add_argument(
        "--stability",
        type=int,
        default=0,
        metavar="N",
        help="gather: repeat each case N times under load and compare the bits",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help="jit: seconds that a library may take to get a workload going, and for a turn"
        f" (default {LIMIT:.0f}); one that takes longer is shown as failed",
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def run(options: argparse.Namespace) -> int:
    return SUITES[options.suite](options)


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


def _facts(versions: dict[str, str]) -> dict[str, str]:
    return {"machine": platform.machine(), "python": platform.python_version(), **versions}


# -- whole functions -------------------------------------------------------------------------------


def compiled_functions(options: argparse.Namespace) -> int:
    """Whole functions, compiled, side by side with every peer that is installed."""
    able = [n for n, library in LIBRARIES.items() if any(map(library.runs, WORKLOADS))]
    return _compared_all(options, WORKLOADS, able)


def layers(options: argparse.Namespace) -> int:
    """Layers with their first and second derivatives, side by side with PyTorch's."""
    table = {n: w for n, w in NN_WORKLOADS.items() if is_there(n)}
    return _compared_all(options, table, list(NN_LIBRARIES))


def factorisations(options: argparse.Namespace) -> int:
    """Linear algebra with its gradients, side by side with every peer that is installed."""
    return _compared_all(options, LINALG_WORKLOADS, ["pullback", "torch", "jax", "numpy"])


def transforms(options: argparse.Namespace) -> int:
    """Fourier transforms, side by side with those of every peer."""
    return _compared_all(options, FFT_WORKLOADS, list(FFT_LIBRARIES))


def _compared_all(
    options: argparse.Namespace, table: dict[str, Workload], libraries: list[str]
) -> int:
    wanted = [n for n in libraries if n == OURS or not options.peer or n in options.peer]
    absent = {n: reason for n in wanted if (reason := LIBRARIES[n].lacks())}
    names = [n for n in wanted if n not in absent]
    for name, reason in absent.items():
        print(f"{name} is left out: {reason}")
    chosen = [w for n, w in table.items() if not options.only or n in options.only]
    capacity = machine.measured(options.threads)
    rows, needs = [], {}
    with Progress(len(chosen) * (len(names) + options.repeat), "bench") as progress:
        for workload in chosen:
            cells = compared(workload, names, options, progress)
            nbytes = max((c.get("bytes", 0) for c in cells.values()), default=0)
            flops = workload.flops(workload.chosen(options.quick))
            needs[workload.name] = nbytes, flops
            rows.append(Row(workload.name, cells, capacity.floor(nbytes, flops)))
            print(summary(rows[-1]), flush=True)
    capacity = capacity.best(machine.measured(options.threads))  # it may have been busy before
    rows = [r._replace(floor=capacity.floor(*needs[r.workload])) for r in rows]
    versions = {n: c["version"] for r in rows for n, c in r.cells.items() if "version" in c}
    facts = {
        **_facts(versions),
        "threads": str(options.threads),
        "copying": f"{capacity.bandwidth / 1e9:.1f} GB/s",
        "products": f"{capacity.flops / 1e9:.0f} GFLOP/s",
    }
    print("", ", ".join(f"{k} {v}" for k, v in facts.items()), tables(rows, names), sep="\n\n")
    numbers = {"facts": facts, "left_out": absent, "rows": [_record(r) for r in rows]}
    _write(options.json, json.dumps(numbers, indent=1))
    _write(options.html, page(rows, names, facts, absent))
    return int(any("error" in r.cells[OURS] for r in rows))


def _record(row: Row) -> dict[str, Any]:
    fields = ("seconds", "compile_seconds", "peak_bytes")
    ratios = {f: row.ratio(f) for f in fields}
    return {**row._asdict(), "bar": row.bar("seconds"), "ratios": ratios}


# -- single operations -----------------------------------------------------------------------------


def _peers() -> dict[str, Any]:
    found: dict[str, Any] = {"numpy": np}
    for name in ("torch", "jax"):
        try:
            found[name] = import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed (pip install 'pullback[bench]')")
    if "torch" in found:
        found["torch"].set_num_threads(1)
    return found


def _versions(peers: dict[str, Any]) -> dict[str, str]:
    return {"pullback": pb.__version__, **{n: m.__version__ for n, m in peers.items()}}


def interleaved(works: dict[str, Work], repeat: int, seconds: float = 0.01) -> dict[str, float]:
    """The median time of one call of each work, in seconds, the works taking turns."""
    counts = {}
    for name, work in works.items():
        work()
        start = time.perf_counter()
        n = 0
        while time.perf_counter() - start < seconds:
            work()
            n += 1
        counts[name] = max(1, n)
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            n = counts[name]
            start = time.perf_counter()
            for _ in range(n):
                work()
            times[name].append((time.perf_counter() - start) / n)
    return {name: statistics.median(t) for name, t in times.items()}


def _show(rows: list[dict[str, Any]], peers: dict[str, Any]) -> None:
    names = ["pullback", *peers]
    width = max(len(r["work"]) for r in rows)
    print(", ".join(f"{n} {v}" for n, v in _versions(peers).items()))
    print(f"{'us per op':<{width}}  " + "".join(f"{n:>10}" for n in names) + "   ours / torch")
    for r in rows:
        cells = "".join(f"{r[n] * 1e6:>10.2f}" if n in r else f"{'':>10}" for n in names)
        ratio = f"{r['pullback'] / r['torch']:>8.2f}" if "torch" in r else ""
        print(f"{r['work']:<{width}}  {cells}{ratio}")


# -- suites ----------------------------------------------------------------------------------------

SMALL = 10  # elements
CHAIN = 100  # operations in the backward chains


def single_operations(options: argparse.Namespace) -> int:
    """The cost of one operation on ten elements: without recording, with it, and backward."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peers = _peers()
    rows = eager_overhead(peers, options.repeat)
    _show(rows, peers)
    _write(options.json, json.dumps({"facts": _facts(_versions(peers)), "rows": rows}, indent=1))
    return 0


def eager_overhead(peers: dict[str, Any], repeat: int) -> list[dict[str, Any]]:
    """The rows of single operations, in seconds."""
    data = np.linspace(0.5, 1.5, SMALL).astype(np.float32)
    libraries = {"pullback": _Pullback(data), "numpy": _NumPy(data)}
    if "torch" in peers:
        libraries["torch"] = _Torch(data, peers["torch"])
    if "jax" in peers:
        libraries["jax"] = _Jax(data, peers["jax"])
    rows = []
    for work in ("add", "multiply by a number", "exp", "sum", "reshape", "slice", "matmul 3x3"):
        rows.append(_row(work, {n: lib.plain(work) for n, lib in libraries.items()}, repeat))
    tracked = {n: lib for n, lib in libraries.items() if n in ("pullback", "torch")}
    for work in ("add", "multiply by a number", "exp", "sum"):
        rows.append(
            _row(f"{work}, recorded", {n: lib.recorded(work) for n, lib in tracked.items()}, repeat)
        )
    for work in ("multiply", "exp"):
        rows.append(
            _row(
                f"{work}, forward + backward",
                {n: lib.chain(work) for n, lib in tracked.items()},
                repeat,
                CHAIN,
            )
        )
    return rows


def _row(work: str, works: dict[str, Work], repeat: int, operations: int = 1) -> dict[str, Any]:
    times = interleaved(works, repeat)
    return {"work": work, **{n: t / operations for n, t in times.items()}}


class _Library:
    """Small operations in one library's own words."""

    def __init__(self, x: Any, tracked: Any, square: Any, exp: Callable[[Any], Any]):
        self.x = x
        self.tracked = tracked
        self.square = square
        self.exp = exp

    def _work(self, name: str, x: Any) -> Work:
        y, m = self.x, self.square
        return {
            "add": lambda: x + y,
            "multiply by a number": lambda: x * 2.0,
            "exp": lambda: self.exp(x),
            "sum": lambda: x.sum(),
            "reshape": lambda: x.reshape((2, 5)),
            "slice": lambda: x[2:7],
            "matmul 3x3": lambda: m @ m,
        }[name]

    def plain(self, name: str) -> Work:
        return self._work(name, self.x)

    def recorded(self, name: str) -> Work:
        return self._work(name, self.tracked)

    def chain(self, name: str) -> Work:
        step = {"multiply": lambda h: h * self.x, "exp": lambda h: self.exp(h * 0.1)}[name]

        def work() -> None:
            h = self.tracked
            for _ in range(CHAIN if name == "multiply" else CHAIN // 2):
                h = step(h)
            h.backward(self.x)
            self.tracked.grad = None

        return work


class _Pullback(_Library):
    def __init__(self, data: np.ndarray):
        m = pb.tensor(data[:9].reshape(3, 3))
        super().__init__(pb.tensor(data), pb.tensor(data, requires_grad=True), m, pb.exp)


class _NumPy(_Library):
    def __init__(self, data: np.ndarray):
        super().__init__(data, None, data[:9].reshape(3, 3), np.exp)


class _Torch(_Library):
    def __init__(self, data: np.ndarray, torch: Any):
        x = torch.tensor(data)
        super().__init__(x, x.clone().requires_grad_(), x[:9].reshape(3, 3), torch.exp)


class _Jax(_Library):
    def __init__(self, data: np.ndarray, jax: Any):
        x = jax.numpy.asarray(data)
        super().__init__(x, None, x[:9].reshape(3, 3), jax.numpy.exp)

    def plain(self, name: str) -> Work:
        work = super().plain(name)
        return lambda: work().block_until_ready()


def derivatives(options: argparse.Namespace) -> int:
    """Batches, Jacobians and Hessians, compiled, beside jax.jit and torch.func."""
    peers = _peers()
    if "torch" in peers:
        peers["torch"].set_num_threads(options.threads)
    names = [n for n in ("pullback", *peers) if n != "numpy"]
    print(", ".join(f"{k} {v}" for k, v in _versions(peers).items() if k != "numpy"))
    rows = []
    for work in transform_bench.WORKS:
        times = interleaved(transform_bench.works_of(work, peers), options.repeat)
        rows.append({"work": work.name, **times})
        least = min([t for n, t in times.items() if n != "pullback"], default=float("nan"))
        cells = "".join(f"{times[n] * 1e3:>11.2f}" for n in names)
        print(f"{work.name:<54}{cells} ms {times['pullback'] / least:>8.2f}", flush=True)
    _write(options.json, json.dumps({"facts": _facts(_versions(peers)), "rows": rows}, indent=1))
    return 0


def gathering(options: argparse.Namespace) -> int:
    """The gradient of indexing: time, accuracy and bits, beside the peers."""
    return gather_bench.run(options, _write)


SUITES = {
    "eager": single_operations,
    "jit": compiled_functions,
    "gather": gathering,
    "transforms": derivatives,
    "nn": layers,
    "linalg": factorisations,
    "fft": transforms,
}
