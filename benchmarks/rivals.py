"""Libraries side by side: a process each, results compared, then timed in turns."""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks
import pullback
from benchmarks.libraries import LIBRARIES
from benchmarks.workloads import Workload
from pullback.display.progress import Progress

__all__ = ["compared", "deviations", "environment"]

PAUSE = 0.1  # seconds: a library's threads may look out for more work for some 30 ms


class Gone(Exception):
    """A process that gave no answer."""


class Process:
    """A worker: started, asked for turns, stopped."""

    def __init__(self, library: str, workload: Workload, options: Any, folder: Path):
        self.results = folder / library
        self.results.mkdir()
        self._log = folder / f"{library}.log"
        flags = ["--quick"] if options.quick else []
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.worker"]
        command += [library, workload.name, "--threads", str(options.threads)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--results", str(self.results), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # so that closing a pipe to a dead process has nothing left to write
                env=environment(options.threads, folder),
                start_new_session=True,  # so that what it starts can be stopped with it
            )

    def turn(self, limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"turn\n")
        except OSError:
            raise Gone(self._last_words()) from None
        return self.answer(limit)

    def answer(self, limit: float) -> dict[str, Any]:
        """The next answer, or what kept it from coming."""
        out = self._process.stdout
        assert out is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            end = time.monotonic() + limit
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Gone(f"no result within {limit:.0f} s")
                piece = os.read(out.fileno(), 1 << 16)
                if not piece:
                    raise Gone(self._last_words())
                line += piece
        found = json.loads(line)
        if "error" in found:
            raise Gone(found["error"])
        return found

    def _last_words(self) -> str:
        status = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        said = f": {lines[-1][:200]}" if lines else ""
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"ended with {how}{said}"

    def stop(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def environment(threads: int, folder: Path) -> dict[str, str]:
    """As many threads for everyone, and no compiled code of earlier runs for anyone."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
    sources = {str(Path(m.__file__).parents[1]): None for m in (benchmarks, pullback) if m.__file__}
    paths = [*sources, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **{f"{n}_NUM_THREADS": str(threads) for n in names},
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


# -- one workload ----------------------------------------------------------------------------------


def compared(
    workload: Workload, names: Sequence[str], options: Any, progress: Progress
) -> dict[str, dict[str, Any]]:
    """What came of a workload in each library: numbers, or the `error` that came instead."""
    cells: dict[str, dict[str, Any]] = {}
    applicable = [n for n in names if LIBRARIES[n].runs(workload.name)]
    with tempfile.TemporaryDirectory(prefix="pullback-bench-") as name, ExitStack() as stack:
        folder, running = Path(name), {}
        for library in names:
            if library in applicable:
                process = stack.enter_context(_started(library, workload, options, folder))
                try:
                    cells[library] = process.answer(options.limit)
                    running[library] = process
                except Gone as error:
                    cells[library] = {"error": str(error)}
            progress.advance(f"{workload.name}: {library}")
        _check(workload, cells, running)
        _take_turns(workload, cells, running, options, progress)
    return cells


@contextmanager
def _started(library: str, workload: Workload, options: Any, folder: Path) -> Iterator[Process]:
    process = Process(library, workload, options, folder)
    try:
        yield process
    finally:
        process.stop()


def _check(workload: Workload, cells: dict[str, Any], running: dict[str, Process]) -> None:
    """Compare the results; a library that deviates is told so and not timed."""
    results = {n: _load(p.results, cells[n]["results"]) for n, p in running.items()}
    for name, deviation in deviations(results).items():
        cells[name]["deviation"] = deviation
        if not deviation <= workload.tolerance:
            cells[name]["error"] = f"wrong result: off by {deviation:.1e} of the largest element"
            del running[name]


def _load(folder: Path, count: int) -> list[np.ndarray]:
    return [np.load(folder / f"{i}.npy") for i in range(count)]


def deviations(results: dict[str, list[np.ndarray]]) -> dict[str, float]:
    """How far each library is from the median of all, relative to the largest element.

    >>> one, other = [np.array([1.0, 2.0])], [np.array([1.0, 2.5])]
    >>> deviations({"a": one, "b": one, "c": other})
    {'a': 0.0, 'b': 0.0, 'c': 0.25}
    """
    shapes = {n: tuple(x.shape for x in outputs) for n, outputs in results.items()}
    usual = statistics.mode(shapes.values()) if shapes else ()
    finite = {n: all(np.isfinite(x).all() for x in xs) for n, xs in results.items()}
    sound = {n: xs for n, xs in results.items() if finite[n] and shapes[n] == usual}
    worst = {n: 0.0 if n in sound else math.inf for n in results}
    for outputs in zip(*sound.values(), strict=True):
        middle = np.median(np.stack(outputs), axis=0)
        scale = float(np.abs(middle).max(initial=0.0)) or 1.0
        for name, x in zip(sound, outputs, strict=True):
            worst[name] = max(worst[name], float(np.abs(x - middle).max(initial=0.0)) / scale)
    return worst


def _take_turns(
    workload: Workload,
    cells: dict[str, Any],
    running: dict[str, Process],
    options: Any,
    progress: Progress,
) -> None:
    times: dict[str, list[float]] = {n: [] for n in running}
    for _ in range(options.repeat):
        for name in list(running):
            time.sleep(PAUSE)  # else they would take a core from the next library
            try:
                times[name].append(running[name].turn(options.limit)["seconds"])
            except Gone as error:
                cells[name]["error"] = str(error)
                del running[name]
        progress.advance(workload.name)
    for name in running:
        cells[name]["seconds"] = statistics.median(times[name])
        cells[name]["spread"] = [min(times[name]), max(times[name])]
