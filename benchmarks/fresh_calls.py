"""`pullback bench fresh`: the cost of calls that never repeat exactly, in microseconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

import pullback as pb
from benchmarks.eager import show
from benchmarks.turns import found_peers, taking_turns, versions

__all__ = ["run"]

ROWS, COLUMNS = 5000, 64
SMALL = 10  # elements
PART = 64  # rows of a slice

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


def _common(xp: Any) -> Calls:
    """What all libraries write alike."""
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
        "stack of two": lambda k: xp.stack([z, z]),
        "zeros(10)": lambda k: xp.zeros((SMALL,)),
    }


def _pullback() -> Calls:
    key, z = pb.random.key(0), pb.zeros((SMALL,))
    return {
        **_common(pb),
        "concat of two": lambda k: pb.concat([z, z]),
        "an array of three numbers": lambda k: pb.tensor([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: pb.random.normal(pb.random.fold_in(key, k), (SMALL,)),
        "split(key)": lambda k: pb.random.split(key),
    }


def _numpy() -> Calls:
    z, generator = np.zeros(SMALL), np.random.default_rng(0)
    return {
        **_common(np),
        "concat of two": lambda k: np.concatenate([z, z]),
        "an array of three numbers": lambda k: np.array([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: generator.normal(size=SMALL),
    }


def _torch(torch: Any) -> Calls:
    z = torch.zeros(SMALL)
    return {
        **_common(torch),
        "concat of two": lambda k: torch.cat([z, z]),
        "an array of three numbers": lambda k: torch.tensor([1.0, 2.0, 3.0]),
        "ten normal numbers": lambda k: torch.randn(SMALL),
    }
