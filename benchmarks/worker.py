"""`python -m benchmarks.worker`: one library at one workload, in a process of its own.

It answers on standard output, one JSON object per line: first what it found out by itself, then,
for every line it reads, the seconds of one call. `rivals` starts it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.libraries import LIBRARIES
from benchmarks.residence import forget_peak, peak, settled
from benchmarks.suites import ALL_WORKLOADS, function_of
from benchmarks.workloads import leaves

__all__ = ["main"]

TURN = 0.02  # seconds that one turn lasts at least
LONG = 1.0  # seconds of a call that is not repeated without need


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("workload", choices=ALL_WORKLOADS)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True, help="folder for the results")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    answers = _private_output()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    try:
        work, found = _prepared(options)
    except Exception as error:  # any failure of a library is a result to show
        _say(answers, {"error": _described(error)})
        return
    _say(answers, found)
    calls = max(1, round(TURN / found["seconds"]))
    for _ in sys.stdin:
        _say(answers, {"seconds": _timed(work, calls)})


def _private_output() -> TextIO:
    """Standard output for our answers alone: what libraries print goes to standard error."""
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


def _say(stream: TextIO, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _described(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text.strip()[:300]}"


def _timed(work: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def _prepared(options: argparse.Namespace) -> tuple[Callable[[], Any], dict[str, Any]]:
    """The call to time, and what came of compiling and running it."""
    workload = ALL_WORKLOADS[options.workload]
    library = LIBRARIES[options.library](options.threads)
    library.warm_up()
    arguments = library.prepared(workload.name, workload.arrays(options.quick))
    before = settled()
    function = function_of(library, workload.name)

    def work() -> None:
        library.wait(function(*arguments))

    first = _timed(work, 1)
    compile_peak = peak() - before
    calls = 1 if _timed(work, 1) > LONG else 3
    seconds = statistics.median(_timed(work, 1) for _ in range(calls))
    library.release()
    between = settled()
    forget_peak()
    _timed(work, calls)
    # Beyond what was there before it was compiled, so that what it keeps counts; but memory that
    # an earlier compilation left behind may be used again, and must not hide what a call takes.
    beyond = max(peak() - before, peak() - between)
    found = {
        "version": library.version(),
        "seconds": seconds,
        "compile_seconds": max(first - seconds, 0.0) if library.compiles else None,
        "compile_peak_bytes": compile_peak,
        "peak_bytes": beyond,
        **library.extra(),
    }
    outputs = [library.host(x) for x in leaves(function(*arguments))]
    for i, x in enumerate(outputs):
        np.save(options.results / f"{i}.npy", x)
    found["results"] = len(outputs)
    inputs = leaves(arguments)
    found["bytes"] = sum(x.nbytes for x in outputs) + sum(library.host(x).nbytes for x in inputs)
    return work, found


if __name__ == "__main__":
    main()
