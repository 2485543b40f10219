"""`pullback bench eager`: the cost of one operation on ten elements, in microseconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from benchmarks.turns import Work, found_peers, taking_turns, versions

__all__ = ["run", "show"]

SMALL = 10  # elements
CHAIN = 100  # operations in the backward chains


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of everyone, and a row of seconds for each kind of work; prints them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peers = found_peers(1)
    rows = eager_overhead(peers, options.repeat)
    show(rows, peers)
    return versions(peers), rows


def eager_overhead(peers: dict[str, Any], repeat: int) -> list[dict[str, Any]]:
    """The rows of single operations, in seconds."""
    data = np.linspace(0.5, 1.5, SMALL).astype(np.float32)
    libraries = {"pullback": _Pullback(data), "numpy": _NumPy(data)}
    if "torch" in peers:
        libraries["torch"] = _Torch(data, peers["torch"])
    if "jax" in peers:
        libraries["jax"] = _Jax(data, peers["jax"])
    rows = []
    for work in ("add", "multiply by a number", "exp", "sum", "reshape", "slice", "matmul 3x3"):
        rows.append(_row(work, {n: lib.plain(work) for n, lib in libraries.items()}, repeat))
    tracked = {n: lib for n, lib in libraries.items() if n in ("pullback", "torch")}
    for work in ("add", "multiply by a number", "exp", "sum"):
        rows.append(
            _row(f"{work}, recorded", {n: lib.recorded(work) for n, lib in tracked.items()}, repeat)
        )
    for work in ("multiply", "exp"):
        rows.append(
            _row(
                f"{work}, forward + backward",
                {n: lib.chain(work) for n, lib in tracked.items()},
                repeat,
                CHAIN,
            )
        )
    return rows


def _row(work: str, works: dict[str, Work], repeat: int, operations: int = 1) -> dict[str, Any]:
    times = taking_turns(works, repeat)
    return {"work": work, **{n: t / operations for n, t in times.items()}}


class _Library:
    """Small operations in one library's own words."""

    def __init__(self, x: Any, tracked: Any, square: Any, exp: Callable[[Any], Any]):
        self.x = x
        self.tracked = tracked
        self.square = square
        self.exp = exp

    def _work(self, name: str, x: Any) -> Work:
        y, m = self.x, self.square
        return {
            "add": lambda: x + y,
            "multiply by a number": lambda: x * 2.0,
            "exp": lambda: self.exp(x),
            "sum": lambda: x.sum(),
            "reshape": lambda: x.reshape((2, 5)),
            "slice": lambda: x[2:7],
            "matmul 3x3": lambda: m @ m,
        }[name]

    def plain(self, name: str) -> Work:
        return self._work(name, self.x)

    def recorded(self, name: str) -> Work:
        return self._work(name, self.tracked)

    def chain(self, name: str) -> Work:
        step = {"multiply": lambda h: h * self.x, "exp": lambda h: self.exp(h * 0.1)}[name]

        def work() -> None:
            h = self.tracked
            for _ in range(CHAIN if name == "multiply" else CHAIN // 2):
                h = step(h)
            h.backward(self.x)
            self.tracked.grad = None

        return work


class _Pullback(_Library):
    def __init__(self, data: np.ndarray):
        m = pb.tensor(data[:9].reshape(3, 3))
        super().__init__(pb.tensor(data), pb.tensor(data, requires_grad=True), m, pb.exp)


class _NumPy(_Library):
    def __init__(self, data: np.ndarray):
        super().__init__(data, None, data[:9].reshape(3, 3), np.exp)


class _Torch(_Library):
    def __init__(self, data: np.ndarray, torch: Any):
        x = torch.tensor(data)
        super().__init__(x, x.clone().requires_grad_(), x[:9].reshape(3, 3), torch.exp)


class _Jax(_Library):
    def __init__(self, data: np.ndarray, jax: Any):
        x = jax.numpy.asarray(data)
        super().__init__(x, None, x[:9].reshape(3, 3), jax.numpy.exp)

    def plain(self, name: str) -> Work:
        work = super().plain(name)
        return lambda: work().block_until_ready()


def show(rows: list[dict[str, Any]], peers: dict[str, Any]) -> None:
    names = ["pullback", *peers]
    width = max(len(r["work"]) for r in rows)
    print(", ".join(f"{n} {v}" for n, v in versions(peers).items()))
    print(f"{'us per op':<{width}}  " + "".join(f"{n:>10}" for n in names) + "   ours / torch")
    for r in rows:
        cells = "".join(f"{r[n] * 1e6:>10.2f}" if n in r else f"{'':>10}" for n in names)
        ratio = f"{r['pullback'] / r['torch']:>8.2f}" if "torch" in r else ""
        print(f"{r['work']:<{width}}  {cells}{ratio}")
