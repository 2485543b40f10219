"""Runs the registry's samples on an NVIDIA GPU and on the CPU, and writes what it found into the
CUDA section of docs/conformance.md.

    PYTHONPATH=src:tests:. python tools/cuda_conformance.py run RESULT.json [--seconds 200]
        [--workers 8] [--cells float32:0 float64:1] [--like REGEX] [--samples 100]
    PYTHONPATH=src:tests:. python tools/cuda_conformance.py write RESULT.json ..

RESULT.json has a row of JSON for each sample on a line of its own: first all of them as not run,
then what became of them, as it is known, so that a run that is ended early loses nothing.

A cell is an operation, a dtype and an order of derivative (order 2 compiled): it is equal if all
its samples have the CPU's bits, near if some differ by rounding, as where the CPU calls LAPACK.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sections

ROOT = Path(__file__).resolve().parents[1]
TITLE = "## On CUDA"
EQUAL, NEAR, FAIL, REFUSED, NONE, LATE = "equal", "near", "FAIL", "refused", "none", "not run"
DTYPES = "float32", "float64", "complex64", "complex128", "float16", "bfloat16"
CELLS = [f"{d}:{k}" for k in (0, 1, 2) for d in DTYPES]
GRACE = 30.0  # seconds that the last samples may take when the time is over
NEAR_EPS = 1e4  # differences in units of eps: derivatives of decompositions magnify rounding
Row = Sequence[Any]  # of a sample: operation, position, dtype, order, what became of it, a text
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "generated")]


def outcome(case: Any, order: int) -> tuple[str, str]:
    """What became of a sample, and what to say about it."""
    import pullback as pb
    from cuda_registry import distance, same_bits
    from generated import matrix

    def results() -> list[np.ndarray]:
        if order:
            made = matrix.directional(case, order, order == 2)
        else:
            made = matrix.arrays_of(matrix.call(case.entry, case.sample))
            made = matrix.determined(case.entry, pb, made)
        return [x.numpy() for x in matrix.arrays_of(made)]

    try:
        wanted = results()
    except (pb.DTypeError, pb.GradientError) as error:
        return REFUSED, str(error)
    except Exception as error:  # a library that the CPU needs may be missing: it is to be listed
        return FAIL, f"on the CPU, {type(error).__name__}: {error}"[:300]
    if not wanted:
        return NONE, ""
    try:
        with pb.device("cuda"), pb.matmul_precision("highest"):
            found = results()
    except Exception as error:  # whatever it is, it is to be listed
        return FAIL, f"{type(error).__name__}: {error}"[:300]
    if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in wanted]:
        return FAIL, "another shape or dtype"
    if all(same_bits(x, y) for x, y in zip(found, wanted, strict=True)):
        return EQUAL, ""
    apart = max(distance(x, y) for x, y in zip(found, wanted, strict=True))
    return NEAR if apart <= NEAR_EPS * _eps(case.dtype) else FAIL, f"{apart:.1e} apart"


def _eps(dtype: Any) -> float:
    return {"float16": 1e-3, "bfloat16": 8e-3}.get(
        dtype.name, 1.2e-7 if dtype.real.itemsize == 4 else 2.3e-16
    )


def job(given: tuple[str, int, str, int, float]) -> tuple[str, int, str, int, str, str]:
    """A sample, in a process of its own workers."""
    import pullback as pb
    from generated.matrix import Case

    key, position, dtype, order, until = given
    if time.time() > until:
        return key, position, dtype, order, LATE, ""
    pb.set_num_threads(1)  # the other processes have the other cores
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, what = outcome(Case(key, position, getattr(pb, dtype)), order)
        except Exception as error:  # of the comparison itself: the other samples are to be run
            found, what = FAIL, f"{type(error).__name__}: {error}"[:300]
    return key, position, dtype, order, found, what


def run(options: argparse.Namespace) -> int:
    """Run all samples, and write what became of them."""
    os.environ["PULLBACK_FULL"] = "1"
    import pullback as pb
    from generated import matrix

    until = time.time() + options.seconds
    jobs = [
        (case.key, case.position, dtype, int(order), until)
        for dtype, order in (cell.split(":") for cell in options.cells)
        for case in matrix.cases((getattr(pb, dtype),), derivative=order != "0")
        if case.position < options.samples and re.search(options.like, case.key)
    ]
    jobs.sort(key=lambda j: j[1])  # a sample of each operation first
    context = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
    path = options.result[0]
    with path.open("w", encoding="utf-8") as file, context.Pool(options.workers) as pool:
        for *given, _ in jobs:
            print(json.dumps([*given, LATE, ""]), file=file)
        found = pool.imap_unordered(job, jobs)  # one by one: only that can be waited for
        for _ in jobs:
            try:
                row = found.next(max(1.0, until + GRACE - time.time()))
            except multiprocessing.TimeoutError:  # of a process that ended, or hangs
                print("some samples did not come back")
                break
            if row[4] != LATE:
                print(json.dumps(row), file=file, flush=True)
    rows = rows_of([path])
    print(*table(rows), *failures(rows), sep="\n")
    return 0


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """The samples of results; what a later line says of a sample counts, if it was run there."""
    found: dict[tuple[Any, ...], Row] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            sample = tuple(row[:4])
            if sample not in found or row[4] != LATE:
                found[sample] = row
    return list(found.values())


def cells(rows: Sequence[Row]) -> dict[tuple[str, str, int], str]:
    """What to say of an operation, a dtype and an order: the worst of its samples."""
    worst = (NONE, REFUSED, EQUAL, NEAR, LATE, FAIL)
    found: dict[tuple[str, str, int], str] = {}
    for key, _, dtype, order, what, _ in rows:
        cell = key, dtype, order
        found[cell] = max(found.get(cell, NONE), what, key=worst.index)
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """Numbers of cells by dtype and order."""
    count = Counter((d, order, what) for (_, d, order), what in cells(rows).items())
    lines = ["| dtype | order | equal bits | near | fail | not run |", "|---" * 6 + "|"]
    for dtype, order in sorted({(d, o) for d, o, _ in count}, key=lambda x: (x[1], x[0])):
        numbers = [count[dtype, order, w] for w in (EQUAL, NEAR, FAIL, LATE)]
        lines.append(f"| {dtype} | {order} | " + " | ".join(map(str, numbers)) + " |")
    return lines


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each sample that failed."""
    return [
        f"- `{key}` {position} {dtype}, order {order}: {text}"
        for key, position, dtype, order, what, text in sorted(map(tuple, rows))
        if what == FAIL
    ]


def section(rows: Sequence[Row]) -> str:
    """The text of the section."""
    near = sorted({key for (key, _, _), what in cells(rows).items() if what == NEAR})
    lines = [
        TITLE,
        "",
        'The same samples with `device="cuda"` on an H200, against the CPU: cells with equal bits,'
        " and cells whose results are near, all of operations that the CPU leaves to LAPACK."
        " Attention of float16 and bfloat16, which goes to matrix units, is"
        " [near](cuda.md#attention) too.",
        "",
        *table(rows),
        "",
        f"Near: {', '.join(f'`{k}`' for k in near) or 'none'}. The farthest are {farthest(rows)}.",
        "",
        "To make this section anew, on a machine with a GPU:"
        " `python tools/cuda_conformance.py run out.json`, then `write out.json`.",
    ]  # fmt: skip
    bad = failures(rows)
    if bad:
        lines += ["", "Failures:", "", *bad]
    return "\n".join(lines) + "\n"


def farthest(rows: Sequence[Row]) -> str:
    """How far apart results are that are near, relative to the largest element."""
    found: dict[str, float] = {}
    for _, _, dtype, _, what, text in rows:
        if what == NEAR:
            found[dtype] = max(found.get(dtype, 0.0), float(text.split()[0]))
    return ", ".join(f"{apart:.0e} apart in {dtype}" for dtype, apart in found.items()) or "equal"


def write(options: argparse.Namespace) -> int:
    """Put results into the page."""
    sections.put(TITLE, section(rows_of(options.result)))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["run", "write"])
    parser.add_argument("result", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="dtypes and orders")
    parser.add_argument("--like", default="", help="operations whose names have this")
    parser.add_argument("--samples", type=int, default=100, help="of an operation, at most")
    options = parser.parse_args()
    return {"run": run, "write": write}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
