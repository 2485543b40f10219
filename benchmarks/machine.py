"""What the machine can do: bytes copied and flops of a matrix product, per second.

`python -m benchmarks.machine` measures in a process of its own, with a given number of threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np

from benchmarks.rivals import environment

__all__ = ["Machine", "measured"]

COPIED = 1 << 26  # elements
PRODUCT = 1536  # rows of the matrices
REPEAT = 7


class Machine(NamedTuple):
    """Bytes copied, counting both reading and writing, and flops, per second."""

    bandwidth: float
    flops: float

    def floor(self, nbytes: float, flops: float) -> float:
        """The least seconds for moving so much and multiplying so much."""
        return max(nbytes / self.bandwidth, flops / self.flops)

    def best(self, other: Machine) -> Machine:
        """The better of two measurements."""
        return Machine(*map(max, self, other))


def measured(threads: int) -> Machine:
    """The machine with that many threads."""
    command = [sys.executable, "-m", "benchmarks.machine", str(threads)]
    with tempfile.TemporaryDirectory() as folder:
        env = environment(threads, Path(folder))
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    return Machine(*json.loads(done.stdout))


def _bandwidth(threads: int) -> float:
    source, target = np.ones(COPIED, np.float32), np.zeros(COPIED, np.float32)
    parts = [slice(i * COPIED // threads, (i + 1) * COPIED // threads) for i in range(threads)]

    def copy() -> None:
        workers = [Thread(target=np.copyto, args=(target[p], source[p])) for p in parts]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    return 2 * source.nbytes / _best(copy)


def _flops() -> float:
    square = np.ones((PRODUCT, PRODUCT), np.float32)
    return 2 * PRODUCT**3 / _best(lambda: square @ square)


def _best(work: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


if __name__ == "__main__":
    print(json.dumps([_bandwidth(int(sys.argv[1])), _flops()]))
