"""`profile`: what each kernel of a function takes, and what it would have to take at least."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval
from pullback.core.errors import DTypeError, briefly, expect_function
from pullback.ir.convert import from_numpy
from pullback.ir.lowering import View
from pullback.ir.observing import Observer, Observing
from pullback.ir.op import REGISTRY, Op
from pullback.ir.plans import Plan

if TYPE_CHECKING:
    import os

__all__ = ["Kernel", "Profile", "profile"]

COPIED = 1 << 24  # elements of 4 bytes: 128 MiB read and written, more than most caches hold
COPIES = 5  # the fastest of which counts


class Kernel(NamedTuple):
    """One run of a kernel, `began` seconds after the call; `program` is the jitted function it is
    of, or "eager". `nbytes` is what it reads and writes if it touches everything once.
    """

    name: str
    program: str
    began: float
    seconds: float
    nbytes: int


class Row(NamedTuple):
    """All runs of a kernel; `share` is the time that moving its bytes takes, of its own."""

    name: str
    program: str
    calls: int
    seconds: float
    nbytes: int
    share: float


class Profile:
    """What a call took, kernel by kernel: print it, or look at it in a notebook.

    `bandwidth` is what copying large arrays reaches on this machine, in bytes per second, read and
    written. A share of it near 1 leaves nothing to gain; above 1 the data were in a cache; products
    and functions that compute much stay below.
    """

    def __init__(
        self, name: str, result: Any, kernels: Sequence[Kernel], seconds: float, bandwidth: float
    ):
        self.name = name
        self.result = result
        self.kernels = list(kernels)
        self.seconds = seconds
        self.bandwidth = bandwidth

    @property
    def rows(self) -> list[Row]:
        """The kernels by name, those that took longest first."""
        found: dict[tuple[str, str], list[Kernel]] = {}
        for k in self.kernels:
            found.setdefault((k.program, k.name), []).append(k)
        rows = []
        for (program, name), runs in found.items():
            seconds, nbytes = sum(k.seconds for k in runs), sum(k.nbytes for k in runs)
            share = nbytes / self.bandwidth / seconds if seconds else 0.0
            rows.append(Row(name, program, len(runs), seconds, nbytes, share))
        return sorted(rows, key=lambda r: -r.seconds)

    @property
    def outside(self) -> float:
        """Seconds of the call that were spent in no kernel: Python, allocation."""
        return max(self.seconds - sum(k.seconds for k in self.kernels), 0.0)

    def __repr__(self) -> str:
        units = import_module("pullback.display.units")
        lines = [f"{'time':>10} {'calls':>6} {'bytes':>11} {'of floor':>9}  kernel"]
        for r in self.rows:
            lines.append(
                f"{units.seconds_text(r.seconds):>10} {r.calls:>6} {units.bytes_text(r.nbytes):>11}"
                f" {r.share:>9.0%}  {r.program}: {r.name}"
            )
        lines.append(f"{units.seconds_text(self.outside):>10} {'':>28}  outside of kernels")
        lines.append(f"{units.seconds_text(self.seconds):>10} {'':>28}  {self.name} in all")
        return "\n".join(lines)

    def html(self) -> str:
        """A page that needs nothing else."""
        return import_module("pullback.display.profile").page(self)

    _repr_html_ = html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html())


class _Clock(Observer):
    """Times each operation that runs on its own, and each kernel of compiled programs."""

    def __init__(self):
        self.kernels: list[Kernel] = []

    def operation(self, op: Op, plan: Plan, avals: Sequence[Aval], bufs: Sequence[Any]) -> Any:
        began = time.perf_counter()
        result = plan.run(*bufs)
        seconds = time.perf_counter() - began
        moved = 0
        origin = plan.aval.device.runtime.origin
        if not isinstance(op.lowering, View) or origin(result) not in map(origin, bufs):
            operands = dict(zip(map(id, bufs), avals, strict=True)).values()
            moved = plan.aval.nbytes + sum(a.nbytes for a in operands)
        self.kernels.append(Kernel(op.name, "eager", began, seconds, moved))
        return result

    def program(self, program: Any, bufs: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        results, timings = program.executable.timed(bufs, avals)
        name = program.graph.name
        self.kernels += [Kernel(t.name, name, t.began, t.seconds, t.nbytes) for t in timings]
        return results


@briefly
def profile(f: Callable[..., Any], *, repeats: int = 3) -> Callable[..., Profile]:
    """The function whose call gives the `Profile` of a call of `f`: time, bytes and share of the
    memory floor for each kernel, of operations and of jitted functions, as a table and as a page.

    `f` is called once to compile what it needs, then `repeats` times, of which the quickest counts.

    >>> report = pb.profile(lambda x: pb.exp(x).sum())(pb.zeros(1000))
    >>> sorted(row.name for row in report.rows), report.result
    (['exp', 'sum'], tensor(1000., float32, cpu))
    """
    expect_function("profile", f)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise DTypeError(f"profile: repeats must be an int from 1 on, got {repeats!r}.")
    name = getattr(f, "__name__", type(f).__name__)

    @briefly
    @wraps(f)
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        copied = _bandwidth()
        clock = _Clock()
        with Observing(lambda: clock):
            f(*args, **kwargs)
            runs = [_run(clock, f, args, kwargs) for _ in range(repeats)]
        seconds, kernels, result = min(runs, key=lambda r: r[0])
        return Profile(name, result, kernels, seconds, copied)

    return profiled


def _run(
    clock: _Clock, f: Callable[..., Any], args: tuple, kwargs: dict
) -> tuple[float, list[Kernel], Any]:
    clock.kernels = []
    began = time.perf_counter()
    result = f(*args, **kwargs)
    seconds = time.perf_counter() - began
    return seconds, [k._replace(began=k.began - began) for k in clock.kernels], result


@cache
def _bandwidth() -> float:
    """Bytes per second, read and written, of the library's own copy on all its threads."""
    x = from_numpy(np.ones(COPIED, np.float32), copy=False)
    negative = REGISTRY["negative"].function
    taken = []
    for _ in range(COPIES):
        began = time.perf_counter()
        negative(x)
        taken.append(time.perf_counter() - began)
    return 2 * 4 * COPIED / min(taken)
