"""Works of one process, timed in turns, and the peers that can be imported."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

import pullback as pb

__all__ = ["Wait", "Work", "found_peers", "taking_turns", "versions"]

Work = Callable[[], Any]
Wait = Callable[[Any], None]

LEAST = 3  # turns that everyone gets
PATIENCE = 3.0  # seconds that one work may take beyond that
SHORT = 0.01  # seconds that a turn lasts at least


def taking_turns(
    works: Mapping[str, Work], repeat: int, waits: Mapping[str, Wait] | None = None
) -> dict[str, float]:
    """The median seconds of a call of each work, the works taking turns.

    A turn starts with a call that does not count: it wakes threads, and drives out what others
    left in the caches. Slow ones drop out when they have had their share of time. Where there are
    `waits`, a call lasts until its result is there.
    """
    waits = waits or {}
    counts = {name: _calls_of_a_turn(work, waits.get(name)) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeat):
        for name, work in works.items():
            if turn >= LEAST and sum(times[name]) * counts[name] > PATIENCE:
                continue
            _timed(work, waits.get(name), 1)
            times[name].append(_timed(work, waits.get(name), counts[name]) / counts[name])
    return {name: statistics.median(t) for name, t in times.items()}


def _calls_of_a_turn(work: Work, wait: Wait | None) -> int:
    """How many calls it takes to fill a turn, by powers of two."""
    _timed(work, wait, 1)
    count = 1
    while _timed(work, wait, count) < SHORT:
        count *= 2
    return count


def _timed(work: Work, wait: Wait | None, calls: int) -> float:
    begin = time.perf_counter()
    if wait is None:
        for _ in range(calls):
            work()
    else:
        for _ in range(calls):
            wait(work())
    return time.perf_counter() - begin


def found_peers(threads: int) -> dict[str, Any]:
    """The modules of the peers that are installed; says who is left out."""
    found: dict[str, Any] = {"numpy": np}
    for name in ("torch", "jax"):
        try:
            found[name] = import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed (pip install 'pullback[bench]')")
    if "torch" in found:
        found["torch"].set_num_threads(threads)
    return found


def versions(peers: Mapping[str, Any]) -> dict[str, str]:
    """The versions of what is compared."""
    return {"pullback": pb.__version__, **{n: m.__version__ for n, m in peers.items()}}
