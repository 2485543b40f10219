"""`python -m fuzz --seconds 120 --seed 1 --workers 2`: random programs until the time is over."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.processes import ROOT, Worker

__all__ = ["Run", "main"]

# How often each kind of case is drawn.
KINDS = ("operations",) * 6 + ("indexing",) * 2 + ("handles", "loops", "loops")
SHRINKING = 60.0  # seconds for making one finding smaller
PROGRESS = 10.0  # seconds between lines


class Run:
    """Cases of successive seeds, what they came to, and the findings written as scripts."""

    def __init__(self, seed: int, limit: float, folder: Path, kinds: tuple[str, ...] = KINDS):
        self.next_seed = seed * 10_000_000
        self.limit, self.folder, self.kinds = limit, folder, kinds
        self.counts: Counter[str] = Counter()
        self.sorts: Counter[str] = Counter()
        self.shrinking = SHRINKING
        self.began = time.monotonic()

    def task(self) -> dict[str, Any]:
        seed = self.next_seed
        self.next_seed += 1
        return {"kind": self.kinds[seed % len(self.kinds)], "seed": seed}

    def go(
        self, seconds: float, workers: int, most: float = math.inf, programs: float = math.inf
    ) -> int:
        """Run cases for so long, or until there are so many findings, or so many cases; the number
        of findings.
        """
        pool = [Worker(self.limit) for _ in range(workers)]
        end, shown, given = self.began + seconds, self.began, 0
        try:
            while time.monotonic() < end and self.findings < most:
                for w in pool:
                    if w.task is None:
                        if given >= programs:
                            continue
                        w.give(self.task())
                        given += 1
                    task = w.task
                    found = w.answer(0.02 / workers)
                    if found is not None:
                        assert task is not None
                        self.take(w, task, found)
                if given >= programs and all(w.task is None for w in pool):
                    break
                if time.monotonic() - shown > PROGRESS:
                    shown = time.monotonic()
                    print(self.line(), flush=True)
        finally:
            for w in pool:
                w.close()
        print(self.line(), flush=True)
        return self.findings

    @property
    def findings(self) -> int:
        return self.counts["failures"] + self.counts["crashes"] + self.counts["hangs"]

    def take(self, worker: Worker, task: dict[str, Any], found: dict[str, Any]) -> None:
        """Count an answer; make a finding smaller and write it down."""
        self.counts["programs"] += 1
        self.counts["operations"] += found["steps"]
        self.counts["comparisons"] += found["checks"]
        if "sort" not in found:
            return
        gone = found.get("gone", "")
        self.counts[{"crash": "crashes", "hang": "hangs"}.get(gone, "failures")] += 1
        self.sorts[found["sort"]] += 1
        if self.sorts[found["sort"]] <= 3:  # the rest is likely to be the same
            if gone != "hang":
                found = self.smaller(worker, task, found)
            self.write(task, found)

    def smaller(
        self, worker: Worker, task: dict[str, Any], found: dict[str, Any]
    ) -> dict[str, Any]:
        """The finding with every step left out without which the same is found."""
        until = time.monotonic() + self.shrinking
        kept = found["kept"]
        changed = found["check"] != "draw"
        while changed and time.monotonic() < until:
            changed = False
            for i in reversed(kept):
                fewer = [k for k in kept if k != i]
                task_of_fewer = {**task, "kept": fewer, "check": found["check"]}
                other = worker.run(task_of_fewer)
                if other.get("sort") == found["sort"]:
                    found, kept, changed = other, fewer, True
                if time.monotonic() > until:
                    break
        return found

    def write(self, task: dict[str, Any], found: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{task['kind']}_{task['seed']}.py"
        said = found["said"].replace("\\", "/").replace('"""', "'''")
        redo = f"kind {task['kind']}, seed {task['seed']}"
        path.write_text(found["script"] or f'"""{redo}: {found["sort"]}\n\n{said}\n"""\n')
        lines = [f"\n{found['sort']} ({redo}); {path}", found["source"], found["said"].strip()]
        print("\n".join(lines)[:3000], flush=True)

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        counts = self.counts
        return (
            f"{seconds:6.0f} s: {counts['programs']} programs ({counts['programs'] / seconds:.1f}"
            f" per second), {counts['operations']} operations, {counts['comparisons']} comparisons,"
            f" {counts['crashes']} crashes, {counts['hangs']} hangs, {counts['failures']} failures"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--programs", type=int, default=0, help="at most so many (0: any number)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=90, help="seconds after which a case hangs")
    parser.add_argument("--kinds", nargs="*", choices=sorted(set(KINDS)), default=KINDS)
    parser.add_argument("--report", type=Path, default=ROOT / "report" / "fuzz")
    given = parser.parse_args(arguments)
    run = Run(given.seed, given.limit, given.report, tuple(given.kinds))
    findings = run.go(given.seconds, given.workers, programs=given.programs or math.inf)
    for sort, count in run.sorts.most_common():
        print(f"{count:4} times {sort}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
