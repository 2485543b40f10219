"""`pullback bench fresh`: the cost of calls that never repeat exactly, in microseconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import count
from math import prod
from typing import Any

import numpy as np

import pullback as pb
from benchmarks.eager import show
from benchmarks.turns import found_peers, taking_turns, versions

__all__ = ["run"]

ROWS, COLUMNS = 5000, 64
SMALL = 10  # elements
PART = 64  # rows of a slice
VIEWS = 20_000  # arrays of different shapes, made before
PAIRS = 8_051  # of matrices

Calls = dict[str, Callable[[int], Any]]


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of everyone, and a row of seconds for each kind of work; prints them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peers = {n: p for n, p in found_peers(1).items() if n in ("numpy", "torch")}
    calls = {"pullback": _pullback(), "numpy": _numpy()}
    if "torch" in peers:
        calls["torch"] = _torch(peers["torch"])
    rows = []
    for work in calls["pullback"]:
        works = {n: _ever_new(own[work]) for n, own in calls.items() if work in own}
        rows.append({"work": work, **taking_turns(works, options.repeat)})
    show(rows, peers)
    return versions(peers), rows


def _ever_new(call: Callable[[int], Any]) -> Callable[[], Any]:
    numbers = count(1)
    return lambda: call(next(numbers))


def _shape(k: int) -> tuple[int, ...]:
    """One of 27,000 shapes of at most 27,000 elements."""
    return k % 30 + 1, k // 30 % 30 + 1, k // 900 % 30 + 1


def _sides(k: int) -> tuple[int, int]:
    """One of 8,051 pairs of sides of matrices, as long as 99."""
    return k % 97 + 3, k // 97 % 83 + 3


def _views(xp: Any) -> list[Any]:
    """Arrays of different shapes, which share their memory."""
    buffer = xp.ones((27_000,))
    return [buffer[: prod(s)].reshape(s) for s in map(_shape, range(VIEWS))]


def _common(xp: Any) -> Calls:
    """What all libraries write alike."""
    views, buffer = _views(xp), xp.ones((99 * 85,))
    sides = [(buffer[: m * n].reshape((m, n)), buffer[: m * n].reshape((n, m)))
             for m, n in map(_sides, range(PAIRS))]  # fmt: skip

    def view(k: int) -> Any:
        return views[k % VIEWS]

    def product(k: int) -> Any:
        x, y = sides[k % PAIRS]
        return x @ y

    table, z, line = xp.zeros((ROWS, COLUMNS)), xp.zeros((SMALL,)), xp.zeros((ROWS,))

    def write(k: int) -> None:
        line[k % ROWS] = float(k)

    return {
        "x[k]": lambda k: table[k % ROWS],
        "x[k:k+64]": lambda k: table[k % (ROWS - PART) : k % (ROWS - PART) + PART],
        "x[i, j]": lambda k: table[k % ROWS, k % COLUMNS],
        "z * float(k)": lambda k: z * float(k),
        "a[k] = float(k)": write,
        "ones(shape)": lambda k: xp.ones(_shape(k)),
        "ones(shape) + 1": lambda k: xp.ones(_shape(k)) + 1,
        "x.reshape(-1)": lambda k: view(k).reshape(-1),
        "x.mT": lambda k: view(k).mT,
        "x.mT.reshape(-1)": lambda k: view(k).mT.reshape(-1),
        "x + x[0]": lambda k: (x := view(k)) + x[0],
        "x.sum()": lambda k: view(k).sum(),
        "x.sum(-1)": lambda k: view(k).sum(-1),
        "x.sum(0)": lambda k: view(k).sum(0),
        "x.mean(-1)": lambda k: view(k).mean(-1),
        "x.argmax(-1)": lambda k: view(k).argmax(-1),
        "x @ y": product,
        "stack of two": lambda k: xp.stack([z, z]),
        "zeros(10)": lambda k: xp.zeros((SMALL,)),
    }


def _pullback() -> Calls:
    key, z, views = pb.random.key(0), pb.zeros((SMALL,)), _views(pb)
    return {
        **_common(pb),
        "concat of two": lambda k: pb.concat([z, z]),
        "concat of new sizes": lambda k: pb.concat([views[k % VIEWS], views[k % VIEWS]]),
        "softmax of new sizes": lambda k: pb.nn.softmax(views[k % VIEWS], -1),
        "an array of three numbers": lambda k: pb.tensor([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: pb.random.normal(pb.random.fold_in(key, k), (SMALL,)),
        "split(key)": lambda k: pb.random.split(key),
    }


def _numpy() -> Calls:
    z, generator, views = np.zeros(SMALL), np.random.default_rng(0), _views(np)
    return {
        **_common(np),
        "concat of two": lambda k: np.concatenate([z, z]),
        "concat of new sizes": lambda k: np.concatenate([views[k % VIEWS], views[k % VIEWS]]),
        "an array of three numbers": lambda k: np.array([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: generator.normal(size=SMALL),
    }


def _torch(torch: Any) -> Calls:
    z, views = torch.zeros(SMALL), _views(torch)
    return {
        **_common(torch),
        "concat of two": lambda k: torch.cat([z, z]),
        "concat of new sizes": lambda k: torch.cat([views[k % VIEWS], views[k % VIEWS]]),
        "softmax of new sizes": lambda k: torch.softmax(views[k % VIEWS], -1),
        "an array of three numbers": lambda k: torch.tensor([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: torch.randn(SMALL),
    }
