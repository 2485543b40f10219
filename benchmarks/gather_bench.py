"""`pullback bench gather`: the gradient of `x[indices]`, its time, its accuracy and its bits."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.gather_cases import CASES, Case, Inputs, errors_of
from benchmarks.gather_page import Row, Stability, page, summary, tables
from benchmarks.gather_rivals import OURS, READING, Contender, contenders
from benchmarks.turns import taking_turns
from pullback.display.progress import Progress

__all__ = ["run"]

THREADS = (1, 2, 4)  # of the runs that must agree to the bit


def run(options: argparse.Namespace, write: Callable[[Any, str], None]) -> int:
    """Measure what was asked for, print tables and `write` the files."""
    chosen = [c for n, c in CASES.items() if not options.only or n in options.only]
    if not chosen:
        print(f"gather has none of these cases; it has {', '.join(CASES)}")
        return 2
    taking_part = contenders(options.device, options.threads)
    bandwidth = _bandwidth(options)
    rows = []
    with Progress(len(chosen) * len(taking_part), "gather") as progress:
        for case in chosen:
            inputs = case.inputs(options.device, options.quick)
            rows.append(_measured(case, inputs, taking_part, options, bandwidth, progress))
            print(summary(rows[-1]), flush=True)
    stable = _stability(chosen, options) if options.stability else []
    facts = {**_versions(taking_part), **_machine_facts(options, bandwidth)}
    print("", ", ".join(f"{k} {v}" for k, v in facts.items()), tables(rows, stable), sep="\n\n")
    record = {"facts": facts, "rows": [r.record() for r in rows], "stability": stable}
    write(options.json, json.dumps(record, indent=1))
    write(options.html, page(rows, stable, facts))
    failed = any("error" in r.cells[OURS[0]] for r in rows) or any(not s.single for s in stable)
    return int(failed)


def _bandwidth(options: argparse.Namespace) -> float:
    """Bytes per second that a copy reads and writes."""
    if options.device == "cpu":
        return machine.measured(options.threads).bandwidth
    torch = import_module("torch")
    source = torch.zeros(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    found = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return 2 * source.numel() * 4 / min(found)


def _machine_facts(options: argparse.Namespace, bandwidth: float) -> dict[str, str]:
    facts = {"machine": platform.machine(), "python": platform.python_version()}
    if options.device == "cuda":
        facts["device"] = import_module("torch").cuda.get_device_name()
    else:
        facts["threads"] = str(options.threads)
    return {**facts, "copying": f"{bandwidth / 1e9:.1f} GB/s"}


def _versions(taking_part: Sequence[Contender]) -> dict[str, str]:
    names = ["pullback", "numpy"]
    names += [n for n in ("torch", "jax", "cupy") if n in sys.modules]
    return {n: import_module(n).__version__ for n in names}


# -- time and accuracy -----------------------------------------------------------------------------


def _measured(
    case: Case,
    inputs: Inputs,
    taking_part: Sequence[Contender],
    options: argparse.Namespace,
    bandwidth: float,
    progress: Progress,
) -> Row:
    works, results, cells = {}, {}, {}
    for contender in taking_part:
        try:
            work = contender.prepared(inputs)
            result = work()
            contender.wait(result)
            if contender.name != READING:
                results[contender.name] = contender.host(result)
            works[contender.name] = work
        except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            cells[contender.name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        progress.advance(f"{case.name}: {contender.name}")
    waits = {c.name: c.wait for c in taking_part}
    for name, seconds in taking_turns(works, options.repeat, waits).items():
        cells[name] = {"seconds": seconds}
    for name, error in errors_of(inputs, results).items():
        cells[name] |= {"ulp": error.ulp, "relative": error.relative}
    ordered = {c.name: cells[c.name] for c in taking_part}
    bar = case.bar if options.device == "cpu" else case.cuda_bar
    floor = inputs.nbytes() / bandwidth
    return Row(case.name, case.title, len(inputs.indices), ordered, floor, bar)


# -- bits ------------------------------------------------------------------------------------------


def _stability(chosen: Sequence[Case], options: argparse.Namespace) -> list[Stability]:
    """Whether each of ours gives one bit pattern, over and over, under load, with any threads."""
    native = import_module("pullback.runtime.cpu.native")
    ours = [c for c in contenders(options.device, options.threads) if c.name in OURS]
    counts = THREADS if options.device == "cpu" else (options.threads,)
    found = []
    total = len(chosen) * len(ours) * len(counts) * options.stability
    with loaded(options.threads), Progress(total, "same bits") as progress:
        for case in chosen:
            inputs = case.inputs(options.device, options.quick)
            for contender in ours:
                work = contender.prepared(inputs)
                first = contender.kept(work())
                digests = {digest(contender.host(first))}
                for threads in counts:
                    native.set_threads(threads)
                    work = contender.prepared(inputs)
                    for _ in range(options.stability):
                        result = work()
                        if not contender.same_bits(first, result):
                            digests.add(digest(contender.host(result)))
                        progress.advance(f"{case.name}: {contender.name}")
                runs = len(counts) * options.stability
                found.append(Stability(case.name, contender.name, runs, sorted(digests)))
    native.set_threads(options.threads)
    return found


def digest(array: np.ndarray) -> str:
    """A short name of the bits of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keep the processor busy meanwhile, so that threads run in ever new orders."""
    busy = "while True: sum(range(100000))"
    running = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
