"""`pullback bench memory`: deep networks within budgets of memory, beside checkpoints of the peers.

Each library and plan has a process of its own: it compiles, runs once, which is when the growth of
its memory is read, and then runs a step whenever it is asked to. So all are timed in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.memory_works import PLANS, WORKS, ready
from benchmarks.residence import forget_peak, peak, settled
from benchmarks.rivals import environment
from benchmarks.turns import taking_turns
from pullback.core.errors import MemoryBudgetError

__all__ = ["main", "run"]

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

    def step(self) -> None:
        """One step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        self._answer()

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
        step.run()
        print("{}", flush=True)


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
    for name in absent:
        print(f"{name} is left out: it is not installed (pip install 'pullback[bench]')")
    for work in [w for w in WORKS if not options.only or w in options.only]:
        with tempfile.TemporaryDirectory() as folder:
            runners = {
                (library, plan): _Runner(library, work, plan, options, Path(folder))
                for library, plans in PLANS.items()
                if library not in absent
                for plan in plans
            }
            able = {" ".join(k): r.step for k, r in runners.items() if "least" not in r.found}
            times = taking_turns(able, options.repeat)
            for runner in runners.values():
                runner.stop()
        rows += _rows(work, {k: r.found for k, r in runners.items()}, times)
    return rows


def _rows(
    work: str, found: dict[tuple[str, str], dict[str, Any]], times: dict[str, float]
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
        seconds = times[f"{library} {plan}"]
        ratio = seconds / times[f"{library} free"]
        rows.append({**row, "seconds": seconds, "ratio": ratio})
        sizes = "".join(f"{_megabytes(facts[k]):>9}" for k in ("planned", "arena", "rss"))
        print(f"{library:<9} {plan:<13}{_megabytes(budget):>9}{sizes}{seconds:>9.3f}{ratio:>7.2f}")
    return rows


def _megabytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e6:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
