"""`pullback bench cores`: products, networks and loops at several numbers of threads.

Every library runs in a process of its own for each number of threads, bound to as many cores; all
of them prepare all workloads at once, and then take turns. `python -m benchmarks.cores` is such a
process: it answers on standard output, one JSON object per line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core_workloads import CORE_WORKLOADS, core_function
from benchmarks.libraries import LIBRARIES
from benchmarks.nn_programs import NN_LIBRARIES
from benchmarks.rivals import environment
from benchmarks.suites import ALL_WORKLOADS
from benchmarks.workloads import Workload, leaves

__all__ = ["run"]

COUNTS = (1, 2, 4, 8, 16)  # of threads, as far as there are processors
KNOWN: dict[str, Workload] = {**ALL_WORKLOADS, **CORE_WORKLOADS}
PEERS = ("torch", "jax")
OURS = "pullback"
TURN = 0.01  # seconds that a turn lasts at least
LONG = 0.2  # seconds of a call that has one turn
READY = 120.0  # seconds after which a library prepares no other workload: the rest are left out
PAUSE = 0.01  # seconds: threads that look out for more work would take a core from the next


def processors() -> list[int]:
    """Where this process may run: one processor of each core first."""
    cores: dict[str, int] = {}
    order = []
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = path.read_text() if path.exists() else str(cpu)
        cores[core] = cores.get(core, -1) + 1
        order.append((cores[core], cpu))
    return [cpu for _, cpu in sorted(order)]


# -- the side that asks ----------------------------------------------------------------------------


class _Process:
    """A library at a number of threads."""

    def __init__(self, library: str, threads: int, names: Sequence[str], folder: Path, quick: bool):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cores", library]
        command += [str(threads), ",".join(names), *(["--quick"] if quick else [])]
        with (folder / f"{library}{threads}.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(threads, folder),
            )

    def ask(self, name: str) -> dict[str, Any]:
        """What came of a workload's turn."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
        except OSError:
            return {"error": "the process has ended"}
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process has ended"}

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of everyone, and a row for each workload and number of threads; prints them."""
    names = [n for n in KNOWN if n in (options.only or CORE_WORKLOADS)]
    there = len(os.sched_getaffinity(0))
    counts = [c for c in options.counts or COUNTS if c <= there]
    peers = [n for n in PEERS if not options.peer or n in options.peer]
    absent = {n: reason for n in peers if (reason := LIBRARIES[n].lacks())}
    for name, reason in absent.items():
        print(f"{name} is left out: {reason}")
    libraries = [OURS, *(n for n in peers if n not in absent)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="pullback-cores-") as name, ExitStack() as stack:
        processes = {}
        for library in libraries:
            for count in counts:
                made = _Process(library, count, names, Path(name), options.quick)
                processes[library, count] = made
                stack.callback(made.stop)
        versions = {library: p.answer().get("version", "") for (library, _), p in processes.items()}
        for workload in names:
            for count in counts:
                own = {n: processes[n, count] for n in libraries if _has(n, workload)}
                row = _turns(own, workload, options.repeat)
                rows.append({"workload": workload, "threads": count, **row})
            print(_line(workload, rows[-len(counts) :]), flush=True)
    return versions, rows


def _has(library: str, workload: str) -> bool:
    """Whether a library has such layers."""
    return library in NN_LIBRARIES or not workload.startswith("nn.")


def _turns(processes: dict[str, _Process], workload: str, repeat: int) -> dict[str, Any]:
    """The median seconds of everyone; the digest of our results."""
    times: dict[str, list[float]] = {n: [] for n in processes}
    row: dict[str, Any] = {}
    for turn in range(repeat):
        for name, process in processes.items():
            spent = times[name]
            if f"{name} error" in row or (turn and spent[-1] > LONG):
                continue
            time.sleep(PAUSE)
            found = process.ask(workload)
            if "error" in found:
                row[f"{name} error"] = found["error"]
                continue
            spent.append(found["seconds"])
    row.update({n: statistics.median(spent) for n, spent in times.items() if spent})
    best = min((row[n] for n in processes if n != OURS and n in row), default=None)
    row["ratio"] = row[OURS] / best if best and OURS in row else None
    results = {n: p.ask(f"results {workload}") for n, p in processes.items() if n in row}
    scale = results.get(OURS, {}).get("scale")
    row["bits"] = results.get(OURS, {}).get("bits")
    for name, found in results.items():
        if scale and not np.allclose(found["scale"], scale, rtol=1e-2):
            row[f"{name} error"] = f"other results: {found['scale']} beside {scale}"
    return row


def _line(workload: str, rows: Sequence[dict[str, Any]]) -> str:
    """A row of the table: our milliseconds and the ratio, for each number of threads."""
    cells = []
    for row in rows:
        errors = [f"{k}: {v}" for k, v in row.items() if k.endswith(" error")]
        if OURS not in row or errors:
            cells.append("; ".join(errors)[:200])
            continue
        others = {n: row[n] for n in PEERS if n in row}
        best = min(others, key=lambda n: others[n], default="")
        ratio = f" {row['ratio']:.2f} {best}" if row["ratio"] else ""
        cells.append(f"{1e3 * row[OURS]:.4g}{ratio}")
    bits = "same" if len({row.get("bits") for row in rows}) == 1 else "OTHER"
    return f"| {KNOWN[workload].title} | {' | '.join(cells)} | {bits} bits |"


# -- the side that answers -------------------------------------------------------------------------


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("threads", type=int)
    parser.add_argument("names")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    every = os.sched_getaffinity(0)
    own = processors()[: options.threads]
    os.sched_setaffinity(0, own)  # so that pools of threads are made for so many
    library = LIBRARIES[options.library](options.threads)
    library.wait(library.array(np.ones(3, np.float32)))
    _bind(every)
    works: dict[str, Any] = {}
    begin = time.monotonic()
    for name in options.names.split(","):
        if time.monotonic() - begin > READY:
            works[name] = f"the ones before took {READY:.0f} s to prepare"
            continue
        try:
            works[name] = _prepared(library, name, options.quick)
        except Exception as error:  # any failure of a library is a result to show
            works[name] = f"{type(error).__name__}: {str(error)[:200]}"
    _bind(own)
    _say(answers, {"version": library.version()})
    for line in sys.stdin:
        *kind, name = line.split()
        work = works[name]
        if isinstance(work, str):
            _say(answers, {"error": work})
        else:
            _say(answers, _results(library, work) if kind else {"seconds": _seconds(work)})


def _say(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _bind(cpus: Sequence[int] | set[int]) -> None:
    """Lets all threads of this process run on these processors alone."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)


def _prepared(library: Any, name: str, quick: bool) -> Callable[[], Any]:
    workload = KNOWN[name]
    arguments = library.prepared(name, workload.arrays(quick))
    function = core_function(library, name)

    def work() -> Any:
        result = function(*arguments)
        library.wait(result)
        return result

    work()
    return work


def _seconds(work: Callable[[], Any]) -> float:
    """Of a call, after one that wakes threads and drives out what others left in the caches."""
    begin = time.perf_counter()
    work()
    first = time.perf_counter() - begin
    if first > LONG:
        return first
    begin, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - begin < TURN:
        work()
        calls += 1
    return (time.perf_counter() - begin) / calls


def _results(library: Any, work: Callable[[], Any]) -> dict[str, Any]:
    """A digest of the results, and how large they are."""
    outputs = [np.ascontiguousarray(library.host(x)) for x in leaves(work())]
    digest = hashlib.sha256(b"".join(x.tobytes() for x in outputs))
    scale = [float(np.abs(x).mean(dtype=np.float64)) for x in outputs]
    return {"bits": digest.hexdigest()[:12], "scale": scale}


if __name__ == "__main__":
    _main()
