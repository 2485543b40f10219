"""`pullback bench memory`: deep networks within budgets of memory, beside checkpoints of the peers.

Each library and plan has a process of its own: it compiles, runs once, which is when the growth of
its memory is read, and then runs a step whenever it is asked to. So all are timed in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.memory_works import PLANS, WORKS, ready
from benchmarks.residence import forget_peak, peak, settled
from benchmarks.rivals import environment
from pullback.core.errors import MemoryBudgetError

__all__ = ["main", "run"]

Plan = tuple[str, str]  # a library, and how it is to run
SMALL = 8  # times smaller, with --quick


class _Runner:
    """A process with one library, work and plan."""

    def __init__(self, library: str, work: str, plan: str, options: Any, folder: Path):
        batch = WORKS[work].batch // (SMALL if options.quick else 1)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", library, work, plan]
        self._process = subprocess.Popen(
            [*command, str(batch), str(options.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(options.threads, folder),
            text=True,
        )
        self.found: dict[str, Any] = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended early: {self._process.args}")
        return json.loads(line)

    def step(self) -> float:
        """The seconds of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """The process: answers on standard output, first what it found, then after every step."""
    library, work, plan, batch, threads = arguments
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    one_layer = WORKS[work]._replace(layers=1)
    ready(library, one_layer, "free", 1).run()  # starts threads, loads libraries
    try:
        step = ready(library, WORKS[work], plan, int(batch))
    except MemoryBudgetError as error:
        print(json.dumps({"least": error.least_bytes}), flush=True)
        return
    before = settled()
    forget_peak()
    arena = _allocated(step.run) if library == "pullback" else None
    if arena is None:
        step.run()
    print(json.dumps({"planned": step.planned, "arena": arena, "rss": peak() - before}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        step.run()
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


def _allocated(run: Any) -> int:
    from pullback.runtime.cpu import native

    before = native.memory()["live"]
    native.reset_peak()
    result = run()
    found = native.memory()["peak"] - before
    del result
    return found


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each work, library and plan; prints them."""
    rows: list[dict[str, Any]] = []
    absent = [n for n in PLANS if n != "pullback" and find_spec(n) is None]
    wanted = {"pullback", *(options.peer or PLANS)}
    for name in absent:
        print(f"{name} is left out: it is not installed (pip install 'pullback[bench]')")
    for work in [w for w in WORKS if not options.only or w in options.only]:
        with tempfile.TemporaryDirectory() as folder:
            runners = {
                (library, plan): _Runner(library, work, plan, options, Path(folder))
                for library, plans in PLANS.items()
                if library in wanted and library not in absent
                for plan in plans
            }
            able = {k: r for k, r in runners.items() if "least" not in r.found}
            turns = [{k: r.step() for k, r in able.items()} for _ in range(options.repeat)]
            for runner in runners.values():
                runner.stop()
        rows += _rows(work, {k: r.found for k, r in runners.items()}, turns)
    return rows


def _rows(
    work: str, found: dict[Plan, dict[str, Any]], turns: Sequence[Mapping[Plan, float]]
) -> list[dict[str, Any]]:
    rows = []
    most = found["pullback", "free"]["planned"]
    print(f"\n{work}: MB planned, arena, growth of RSS; seconds; time beside the free plan")
    for (library, plan), facts in found.items():
        budget = most * int(plan[:-1]) // 100 if plan.endswith("%") else None
        row = {"work": work, "library": library, "plan": plan, "budget": budget, **facts}
        if "least" in facts:
            rows.append(row)
            print(f"{library:<9} {plan:<13}{_megabytes(budget):>9} impossible:"
                  f" {_megabytes(facts['least'])} at least")  # fmt: skip
            continue
        seconds = statistics.median(t[library, plan] for t in turns)
        # in turns, so that what else the machine does meanwhile matters less
        ratio = statistics.median(t[library, plan] / t[library, "free"] for t in turns)
        rows.append({**row, "seconds": seconds, "ratio": ratio})
        sizes = "".join(f"{_megabytes(facts[k]):>9}" for k in ("planned", "arena", "rss"))
        print(f"{library:<9} {plan:<13}{_megabytes(budget):>9}{sizes}{seconds:>9.3f}{ratio:>7.2f}")
    return rows


def _megabytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e6:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
