"""Kernels that only move memory, on a CUDA device: time, and ratios to the floor and to others.

    python tools/cuda_floor.py [--seconds 90] [--only NAME ...]

The floor is the bytes that a workload has to move, by the rate of a large copy of PyTorch's. Times
of the device are taken by events while the host is ahead; those of JAX by the clock, over a queue
of calls. Before, every workload is compared with the CPU, bit for bit. `tuned.py` sets schedules.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import pullback as pb
from tuned import tune

ROWS, COLUMNS, MANY = 8192, 4096, 1 << 26
CALLS = 12  # of which the median is taken
Function = Callable[..., Any]


class Work(NamedTuple):
    """A workload: its arguments for a number of rows, the bytes it moves, a function of arrays."""

    arguments: Callable[[float], list[np.ndarray]]
    nbytes: int
    pullback: Function
    torch: Function
    jax: Function | None
    compiled: bool = False  # torch.compile is tried too


@cache
def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _flat(scale: float) -> list[np.ndarray]:
    return [_normal(int(MANY * scale))]


def _matrix(scale: float) -> list[np.ndarray]:
    return [_normal(max(32, int(ROWS * scale)), COLUMNS)]


def _two(scale: float) -> list[np.ndarray]:
    (x,) = _matrix(scale)
    return [x, _normal(*x.shape, seed=1)]


def _normed(scale: float) -> list[np.ndarray]:
    return [*_two(scale), _normal(COLUMNS, seed=2), _normal(COLUMNS, seed=3)]


def _labelled(scale: float) -> list[np.ndarray]:
    (x,) = _matrix(scale)
    return [x, np.random.default_rng(4).integers(0, COLUMNS, len(x))]


def _taken(scale: float) -> list[np.ndarray]:
    (x,) = _matrix(scale)
    return [x, np.random.default_rng(5).integers(0, len(x), len(x))]


def _square(scale: float) -> list[np.ndarray]:
    n = max(64, int(8192 * scale) // 32 * 32)
    return [_normal(n, n), _normal(n, n, seed=1)]


def _torch_gradient(f: Function, count: int = 1) -> Function:
    import torch

    def run(*args: Any) -> Any:
        given = [a.detach().requires_grad_(k < count) for k, a in enumerate(args)]
        value = f(*given)
        return value, *torch.autograd.grad(value, given[:count])

    return run


def workloads() -> dict[str, Work]:
    import jax
    import jax.numpy as jnp
    import torch
    import torch.nn.functional as F

    nn: Any = jax.nn
    one = 4 * ROWS * COLUMNS
    square = 4 * 8192 * 8192

    def chain(xp: Any) -> Function:
        return lambda x: xp.sum(xp.sin(x) * xp.exp(-x * x) + xp.log1p(x * x))

    def softmax(f: Function) -> Function:
        return lambda x, g: (f(x) * g).sum()

    def norm(x: Any, g: Any, w: Any, b: Any) -> Any:
        centred = x - jnp.mean(x, -1, keepdims=True)
        var = jnp.mean(centred * centred, -1, keepdims=True)
        return (((centred / jnp.sqrt(var + 1e-5)) * w + b) * g).sum()

    def pb_norm(x: Any, g: Any, w: Any, b: Any) -> Any:
        return (pb.nn.layer_norm(x, (COLUMNS,), w, b) * g).sum()

    def torch_norm(x: Any, w: Any, b: Any, g: Any) -> Any:
        return (F.layer_norm(x, (COLUMNS,), w, b) * g).sum()

    def jax_loss(x: Any, t: Any) -> Any:
        rows = jnp.take_along_axis(x, t[:, None], axis=1)[:, 0]
        return (nn.logsumexp(x, axis=-1) - rows).mean()

    vg, jvg = pb.value_and_grad, jax.value_and_grad
    torch_normed = _torch_gradient(torch_norm, 3)
    return {
        "sum": Work(_flat, 4 * MANY, pb.sum, torch.sum, jnp.sum),
        "rows": Work(_matrix, one, lambda x: x.sum(axis=1), lambda x: x.sum(1), lambda x: x.sum(1)),
        "columns": Work(
            _matrix, one, lambda x: x.sum(axis=0), lambda x: x.sum(0), lambda x: x.sum(0)
        ),
        "max of columns": Work(
            _matrix, one, lambda x: x.max(axis=0), lambda x: x.amax(0), lambda x: x.max(0)
        ),
        "argmax": Work(
            _matrix, one, lambda x: pb.argmax(x, axis=1), lambda x: x.argmax(1),
            lambda x: x.argmax(1),
        ),
        "logsumexp": Work(
            _matrix, one, lambda x: pb.logsumexp(x, axis=1), lambda x: x.logsumexp(1),
            lambda x: nn.logsumexp(x, axis=1),
        ),
        "chain": Work(
            _flat, 8 * MANY, vg(chain(pb)), _torch_gradient(chain(torch)), jvg(chain(jnp)), True
        ),
        "softmax": Work(
            _two, 3 * one, vg(softmax(lambda x: pb.nn.softmax(x, axis=-1))),
            _torch_gradient(softmax(lambda x: torch.softmax(x, -1))),
            jvg(softmax(lambda x: nn.softmax(x, axis=-1))), True,
        ),
        "softmax forward": Work(
            _matrix, 2 * one, lambda x: pb.nn.softmax(x, axis=-1), lambda x: torch.softmax(x, -1),
            lambda x: nn.softmax(x, axis=-1),
        ),
        "layer_norm": Work(
            _normed, 3 * one, vg(pb_norm, argnums=(0, 2, 3)),
            lambda x, g, w, b: torch_normed(x, w, b, g), jvg(norm, argnums=(0, 2, 3)), True,
        ),
        "layer_norm forward": Work(
            _normed, 2 * one,
            lambda x, g, w, b: pb.nn.layer_norm(x, (COLUMNS,), w, b),
            lambda x, g, w, b: F.layer_norm(x, (COLUMNS,), w, b), None,
        ),
        "cross_entropy": Work(
            _labelled, 2 * one, vg(lambda x, t: pb.nn.cross_entropy(x, t)),
            _torch_gradient(F.cross_entropy), jvg(jax_loss), True,
        ),
        "add transposed": Work(
            _square, 3 * square, lambda x, y: x + y.T, lambda x, y: x + y.T, lambda x, y: x + y.T
        ),
        "add row": Work(
            _matrix, 2 * one, lambda x: x + x[0], lambda x: x + x[0], lambda x: x + x[0]
        ),
        "add column": Work(
            _matrix, 2 * one, lambda x: x + x[:, :1], lambda x: x + x[:, :1],
            lambda x: x + x[:, :1],
        ),
        "take rows": Work(
            _taken, 2 * one, lambda x, i: pb.take(x, i, axis=0), lambda x, i: x.index_select(0, i),
            lambda x, i: jnp.take(x, i, axis=0),
        ),
        "cumsum rows": Work(
            _matrix, 2 * one, lambda x: pb.cumulative_sum(x, axis=1), lambda x: x.cumsum(1),
            lambda x: jnp.cumsum(x, axis=1),
        ),
        "cumsum columns": Work(
            _matrix, 2 * one, lambda x: pb.cumulative_sum(x, axis=0), lambda x: x.cumsum(0),
            lambda x: jnp.cumsum(x, axis=0),
        ),
    }  # fmt: skip


# Numbers of rows on both sides of what kernels distinguish.
LENGTHS = (5, 33, 1000, 1024, 1500, 2048, 4096, 5000)


def _leaves(found: Any) -> Iterator[np.ndarray]:
    for x in found if isinstance(found, tuple | list) else [found]:
        if isinstance(x, tuple | list):
            yield from _leaves(x)
        else:
            yield x.numpy()


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and x.tobytes() == y.tobytes()


def check(name: str, work: Work) -> str:
    """Whether a part of the workload has the CPU's bits, compiled and not."""
    args = work.arguments(1 / 16)
    found = []
    for f in (pb.jit(work.pullback), work.pullback):
        results = [[*_leaves(f(*[pb.tensor(a, device=d) for a in args]))] for d in ("cuda", "cpu")]
        found.append(all(_same(x, y) for x, y in zip(*results, strict=True)))
    return " ".join("equal" if f else "DIFFERS" for f in found)


def device_time(f: Function, args: list[Any]) -> float:
    """Microseconds of the device for a call."""
    import torch

    for _ in range(3):
        f(*args)
    torch.cuda.synchronize()
    began = time.perf_counter()
    f(*args)
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    torch.cuda._sleep(int(2e9 * (CALLS + 2) * min(host, 2e-3)) + 2_000_000)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    kept = []
    for event in events[:-1]:
        event.record()
        kept.append(f(*args))
        if len(kept) > 2:
            kept.pop(0)
    events[-1].record()
    torch.cuda.synchronize()
    pairs = itertools.pairwise(events)
    return 1e3 * statistics.median(a.elapsed_time(b) for a, b in pairs)


def queue_time(f: Function, args: list[Any]) -> float:
    """Microseconds for a call of JAX's in a queue of them."""
    import jax

    found = []
    jax.block_until_ready(f(*args))
    for _ in range(5):
        began = time.perf_counter()
        last = [f(*args) for _ in range(4)]
        jax.block_until_ready(last)
        found.append((time.perf_counter() - began) / 4)
    return 1e6 * statistics.median(found)


def copy_rate() -> float:
    """Bytes that a copy reads and writes in a microsecond."""
    import torch

    x = torch.empty(MANY, device="cuda")
    y = torch.empty_like(x)
    return 8 * MANY / device_time(lambda a, b: a.copy_(b), [x, y])


def times(work: Work, peers: bool, compiled: bool) -> dict[str, float | str]:
    """Microseconds by library."""
    import jax
    import torch

    arrays = work.arguments(1.0)
    found: dict[str, float | str] = {}

    def attempt(name: str, run: Callable[[], float]) -> None:
        try:
            found[name] = run()
        except Exception as error:  # a peer that fails is part of the table
            found[name] = f"{type(error).__name__}: {str(error)[:60]}"

    own = [pb.tensor(a, device="cuda") for a in arrays]
    attempt("pullback", lambda: device_time(pb.jit(work.pullback), own))
    if peers:
        given = [torch.tensor(a, device="cuda") for a in arrays]
        attempt("torch", lambda: device_time(work.torch, given))
        if compiled and work.compiled:
            attempt("compile", lambda: device_time(torch.compile(work.torch), given))
        del given
        if work.jax is not None:
            placed, jitted = [jax.device_put(a) for a in arrays], jax.jit(work.jax)
            attempt("jax", lambda: queue_time(jitted, placed))
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    options = parser.parse_args()
    tune()
    end = time.monotonic() + options.seconds
    rate = copy_rate()
    print(f"copy: {rate / 1e6:.2f} TB/s, {np.__version__=}", flush=True)
    print(f"{'':20}{'bits':16}{'floor':>8}{'ours':>8}{'/floor':>8}{'/peer':>8}  peers", flush=True)
    for name, work in workloads().items():
        if options.only and name not in options.only:
            continue
        if time.monotonic() > end:
            print("out of time", flush=True)
            return
        try:
            bits = check(name, work)
        except Exception as error:
            bits = f"{type(error).__name__}: {str(error)[:200]}"
        found = times(work, not options.no_peers, options.compile)
        floor, own = work.nbytes / rate, found.pop("pullback")
        line = f"{name:20}{bits:16}{floor:8.1f}"
        if isinstance(own, float):
            known = [t for t in found.values() if isinstance(t, float)]
            best = f"{own / min(known):8.2f}" if known else ""
            line += f"{own:8.1f}{own / floor:8.2f}{best}"
        else:
            line += f" {own}"
        others = ", ".join(
            f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
        )
        print(f"{line}  {others}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
