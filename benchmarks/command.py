"""`pullback bench`: workloads side by side with the peers that are installed, interleaved, as
ratios.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

from benchmarks import cores, eager, fresh_calls, gather_bench, machine, memory, transforms
from benchmarks.core_workloads import CORE_WORKLOADS
from benchmarks.fft_workloads import FFT_LIBRARIES, FFT_WORKLOADS
from benchmarks.gather_cases import CASES
from benchmarks.libraries import LIBRARIES
from benchmarks.linalg_workloads import LINALG_WORKLOADS
from benchmarks.memory_works import WORKS
from benchmarks.nn_programs import NN_LIBRARIES, is_there
from benchmarks.nn_workloads import NN_WORKLOADS
from benchmarks.rivals import compared
from benchmarks.scores import OURS, Row, page, summary, tables
from benchmarks.suites import ALL_WORKLOADS
from benchmarks.workloads import WORKLOADS, Workload
from pullback.display.progress import Progress

__all__ = ["arguments", "run"]

LIMIT = 45.0  # with it the whole suite takes minutes, whatever a compiler makes of a workload


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite",
        nargs="?",
        default="eager",
        choices=sorted(SUITES),
        help="what to measure: the cost of single operations, of calls that never repeat, whole"
        " compiled functions, the same at several numbers of threads, layers, Fourier transforms,"
        " factorisations of matrices, or the gradient of indexing",
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--html", type=Path, help="jit, gather: also write a page")
    parser.add_argument(
        "--repeat", type=_count, default=15, help="interleaved repetitions (default 15)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted({*ALL_WORKLOADS, *CASES, *WORKS, *CORE_WORKLOADS}),
        metavar="NAME",
        help=f"jit: this workload (may be repeated): {', '.join(WORKLOADS)};"
        f" nn: {', '.join(NN_WORKLOADS)}; fft: {', '.join(FFT_WORKLOADS)};"
        f" linalg: {', '.join(LINALG_WORKLOADS)};"
        f" cores: {', '.join(CORE_WORKLOADS)}, and those of the suites above;"
        f" gather: {', '.join(CASES)}; memory: {', '.join(WORKS)}",
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=[n for n in LIBRARIES if n != OURS],
        help="jit: compare with this library alone (may be repeated)",
    )
    parser.add_argument("--quick", action="store_true", help="jit, gather: small sizes")
    parser.add_argument("--threads", type=_count, default=2, help="jit, gather: of everyone (2)")
    parser.add_argument("--counts", type=_count, nargs="+", help="cores: numbers of threads")
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


def fourier_transforms(options: argparse.Namespace) -> int:
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


# -- suites that compare within this process ------------------------------------------------------


def single_operations(options: argparse.Namespace) -> int:
    """The cost of one operation on ten elements: without recording, with it, and backward."""
    versions, rows = eager.run(options)
    _write(options.json, json.dumps({"facts": _facts(versions), "rows": rows}, indent=1))
    return 0


def ever_new_calls(options: argparse.Namespace) -> int:
    """The cost of calls whose places, numbers and shapes are new each time."""
    versions, rows = fresh_calls.run(options)
    _write(options.json, json.dumps({"facts": _facts(versions), "rows": rows}, indent=1))
    return 0


def numbers_of_threads(options: argparse.Namespace) -> int:
    """Products and what is made of them at 1, 2, 4, 8 and 16 threads."""
    versions, rows = cores.run(options)
    _write(options.json, json.dumps({"facts": _facts(versions), "rows": rows}, indent=1))
    return 0


def derivatives(options: argparse.Namespace) -> int:
    """Batches, Jacobians and Hessians, compiled, beside jax.jit and torch.func."""
    versions, rows = transforms.run(options)
    _write(options.json, json.dumps({"facts": _facts(versions), "rows": rows}, indent=1))
    return 0


def budgets(options: argparse.Namespace) -> int:
    """Deep networks within budgets of memory, beside checkpoints of the peers."""
    rows = memory.run(options)
    _write(options.json, json.dumps({"rows": rows}, indent=1))
    over = [r for r in rows if r["budget"] is not None and r.get("arena", 0) > r["budget"]]
    return int(bool(over))


def gathering(options: argparse.Namespace) -> int:
    """The gradient of indexing: time, accuracy and bits, beside the peers."""
    return gather_bench.run(options, _write)


SUITES = {
    "cores": numbers_of_threads,
    "eager": single_operations,
    "fresh": ever_new_calls,
    "jit": compiled_functions,
    "gather": gathering,
    "transforms": derivatives,
    "nn": layers,
    "linalg": factorisations,
    "memory": budgets,
    "fft": fourier_transforms,
}
