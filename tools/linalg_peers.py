"""Factorisations of one matrix beside PyTorch, JAX and NumPy, each in processes of its own.

python tools/linalg_peers.py --sizes 512 2048 --threads 1 2

A process may use as many cores of this one as there are threads. What is printed is the best time
of a few calls in milliseconds, and ours over the best of the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

LIBRARIES = ("pullback", "torch", "jax", "numpy")
CALLS = ("cholesky", "lu", "solve", "inv", "qr", "eigh", "svd")
SECONDS = 0.4  # that a call is repeated for


def arrays(library: str) -> tuple[Callable, dict[str, Callable], Callable]:
    """How a library makes arrays, its calls, and how to wait for a result."""
    if library == "torch":
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        xp, make, lu, wait = torch, torch.from_numpy, torch.linalg.lu_factor, lambda y: y
    elif library == "jax":
        jax = import_module("jax")
        jax.config.update("jax_enable_x64", True)
        xp, make, wait = jax.numpy, jax.numpy.asarray, jax.block_until_ready
        lu = jax.jit(jax.scipy.linalg.lu_factor)
    elif library == "numpy":
        import numpy as np
        import scipy.linalg

        xp, make, lu, wait = np, np.asarray, scipy.linalg.lu_factor, lambda y: y
    else:
        import pullback as pb

        xp, make, lu, wait = pb, pb.tensor, pb.linalg.lu_factor, lambda y: y
    found = {name: getattr(xp.linalg, name) for name in CALLS if name not in ("lu", "svd")}
    svd = xp.linalg.svd
    return make, {**found, "lu": lu, "svd": lambda x: svd(x, full_matrices=False)}, wait


def measure(library: str, n: int, dtype: str, calls: list[str]) -> dict[str, float]:
    """The best time of each call, in milliseconds."""
    import numpy as np

    rng = np.random.default_rng(0)
    make, functions, wait = arrays(library)
    x = rng.standard_normal((n, n)).astype(dtype)
    positive = make((x @ x.T / n + np.eye(n)).astype(dtype))
    sides = make(rng.standard_normal((n, 16)).astype(dtype))
    x = make(x)
    best = {}
    for name in calls:
        f: Any = functions[name]
        args = (positive,) if name in ("cholesky", "eigh") else (x,)
        args = (x, sides) if name == "solve" else args
        start, times = time.perf_counter(), []
        while not times or time.perf_counter() - start < SECONDS:
            before = time.perf_counter()
            out = wait(f(*args))
            times.append(time.perf_counter() - before)
            del out
        best[name] = 1e3 * min(times[1:] or times)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=CALLS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.sizes[0], options.dtypes[0], options.calls)))
        return 0
    there = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    print(f"| | {' | '.join(there)} | ratio |\n|{'---|' * (len(there) + 2)}")
    for n in options.sizes:
        for dtype in options.dtypes:
            for threads in options.threads:
                found = {}
                for library in there:
                    command = [sys.executable, __file__, "--one", library, "--sizes", str(n)]
                    command += ["--dtypes", dtype, "--calls", *options.calls]
                    own = sorted(os.sched_getaffinity(0))[:threads]
                    cores = ",".join(map(str, own))
                    env = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
                    env |= {"OMP_NUM_THREADS": str(threads), "PULLBACK_NUM_THREADS": str(threads)}
                    done = subprocess.run(
                        ["taskset", "-c", cores, *command], env=env, capture_output=True, check=True
                    )
                    found[library] = json.loads(done.stdout)
                for call in options.calls:
                    times = [found[library][call] for library in there]
                    ratio = times[0] / min(times[1:])
                    shown = " | ".join(f"{t:.3g}" for t in times)
                    print(f"| {call} {n} {dtype}, {threads} | {shown} | {ratio:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
