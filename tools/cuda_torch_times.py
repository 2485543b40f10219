"""Forward and backward through an embedding of `pullback.torch`, beside PyTorch's own.

    PYTHONPATH=src python tools/cuda_torch_times.py [table] [parts]

The table has, for three sizes, `device`: the time between events around calls in a row, and `host`:
what a call takes before it returns, both in milliseconds, the medians of turns; the gradients are
compared first. The parts, in microseconds of the host, say where the time of the smallest one goes:
steps by `backward()` in a row, what a `torch.autograd.Function` takes that does nothing or launches
our kernels alone, forward and backward passes by themselves, and each part of ours in a loop of its
own and within a step. Beside each way stands its ratio to F.embedding.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import pullback.torch as pbt
from pullback.interop import torch_faults, torch_rows

CASES = (  # rows, width, indices, exponent of Zipf's law (0: uniform)
    (100, 16, 512, 0.0),
    (50_000, 768, 32_768, 1.2),
    (130_000, 1024, 65_536, 0.0),
)
TURNS, CALLS = 7, 20
PART_TURNS, PART_CALLS = 15, 200
Step = Callable[[], Any]


def tensors(rows: int, width: int, n: int, exponent: float) -> tuple[torch.Tensor, ...]:
    """Indices, a table, and a gradient of what is read."""
    rng = np.random.default_rng(0)
    drawn = rng.zipf(exponent, n) - 1 if exponent else rng.integers(0, rows, n)
    index = torch.from_numpy(np.minimum(drawn, rows - 1)).cuda()
    weight = torch.randn(rows, width, device="cuda", requires_grad=True)
    return index, weight, torch.randn(n, width, device="cuda")


def steps(rows: int, width: int, n: int, exponent: float) -> dict[str, Step]:
    """A forward and backward pass in each way."""
    index, weight, g = tensors(rows, width, n, exponent)
    grad = torch.autograd.grad
    return {
        "pullback.torch": lambda: grad(pbt.embedding(index, weight), weight, g)[0],
        "F.embedding": lambda: grad(torch.nn.functional.embedding(index, weight), weight, g)[0],
        "index_select": lambda: grad(torch.index_select(weight, 0, index), weight, g)[0],
    }


def device_ms(step: Step, calls: int = CALLS) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def host_ms(step: Step, calls: int = CALLS) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / calls * 1e3


def table() -> None:
    for case in CASES:
        works = steps(*case)
        ours, theirs = (works[name]() for name in ("pullback.torch", "F.embedding"))
        off = float((ours - theirs).abs().max() / theirs.abs().max())
        assert off < 1e-4, off
        assert torch.equal(ours, works["pullback.torch"]())
        cells = []
        for measure in (device_ms, host_ms):
            found: dict[str, list[float]] = {name: [] for name in works}
            for _ in range(TURNS):
                for name, step in works.items():
                    step()
                    found[name].append(measure(step))
            times = [f"{name} {statistics.median(t):.3f}" for name, t in found.items()]
            cells.append(f"{measure.__name__[:-3]}: {' / '.join(times)}")
        print(*case, "|", "   ".join(cells), flush=True)


# -- where the time of a small call goes -----------------------------------------------------------


class Bare(torch.autograd.Function):
    """What any Function in Python takes: it allocates results, and launches what it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: tuple) -> torch.Tensor:
        index, like, ctx.like_table, read, ctx.add = call
        ctx.save_for_backward(index)
        out = torch.empty_like(like)
        if read is not None:
            read(x, index, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        (index,) = ctx.saved_tensors
        out = torch.empty_like(ctx.like_table)
        if ctx.add is not None:
            ctx.add(grads[0], index, out)
        return out, None


bare = super(torch.autograd.Function, Bare).apply


def parts() -> None:
    """Print host times of the smallest case, and of what it is made of."""
    index, weight, g = tensors(*CASES[0])
    pbt.embedding(index, weight).backward(g)
    (work,) = torch_rows._known.values()
    line = torch_faults.launching(work.device)
    read, add, stream = work._reads(16), work._adds(True), line.stream
    values, places, out = weight.data_ptr(), index.data_ptr(), torch.empty_like(weight)
    result, gradient = torch.empty_like(g).data_ptr(), g.data_ptr()

    def launch_read(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> None:
        read((i.data_ptr(), x.data_ptr(), y.data_ptr(), 0, line.own_slot()), stream)

    def launch_add(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> None:
        add((i.data_ptr(), x.data_ptr(), y.data_ptr(), 3, line.own_slot()), stream)

    likes = work._like_result, work._like_table
    nothing, launches = (index, *likes, None, None), (index, *likes, launch_read, launch_add)
    embedding = torch.nn.functional.embedding
    ways = {
        "F.embedding": lambda: embedding(index, weight),
        "pullback.torch": lambda: pbt.embedding(index, weight),
        "a Function that allocates": lambda: bare(weight, nothing),
        "and launches our kernels": lambda: bare(weight, launches),
        "index_select": lambda: torch.index_select(weight, 0, index),
    }
    several_turns("steps, device", {k: _step(f, g) for k, f in ways.items()}, device_ms)
    several_turns("steps, host", {k: _step(f, g) for k, f in ways.items()}, host_ms)
    several_turns("forward alone, host", ways, host_ms)
    several_turns(
        "in loops of their own, host",
        {
            "launch of the read": lambda: read(
                (places, values, result, 0, line.own_slot()), stream
            ),
            "launch of the sum": lambda: add(
                (places, gradient, out.data_ptr(), 3, line.own_slot()), stream
            ),
            "checks, and the read without a graph": lambda: pbt.embedding(index, weight.detach()),
            "the read": lambda: work.read(values, places, index),
            "the sum": lambda: work.add(g, index),
            "memory like the result": lambda: torch.empty_like(work._like_result),
            "memory of a shape": lambda: g.new_empty((512, 16)),
            "before a launch": lambda: torch_faults.launching(work.device),
            "words of a call": lambda: line.slot("embedding", (index,), work.sizes),
            "whether a stream has ended": line.has_ended,
            "an event": lambda: line.gpu.mark(stream, None),
            "a kernel of PyTorch's": lambda: out.detach().zero_(),
        },
        host_ms,
    )
    within_steps(_step(ways["pullback.torch"], g))


def _step(forward: Step, g: torch.Tensor) -> Step:
    return lambda: forward().backward(g)


def several_turns(title: str, works: dict[str, Step], measure: Callable[..., float]) -> None:
    """Print the best and the median of turns; the first is what the others are compared with."""
    found: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    for _ in range(PART_TURNS):
        for name, work in works.items():
            work()
            found[name].append(1e3 * measure(work, PART_CALLS))
    print(f"{title}: best, median in us; ratio of bests to the first", flush=True)
    first = min(next(iter(found.values())))
    for name, times in found.items():
        best, median = min(times), statistics.median(times)
        print(f"  {best:8.2f} {median:8.2f} {best / first:6.2f}  {name}", flush=True)


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Note how long each call of a function takes."""
    inner = getattr(owner, name)

    def outer(*args: Any) -> Any:
        began = time.perf_counter()
        value = inner(*args)
        spent.append((time.perf_counter() - began) * 1e6)
        return value

    setattr(owner, name, outer)
    try:
        yield
    finally:
        setattr(owner, name, inner)


def within_steps(step: Step) -> None:
    """Print what parts take within steps, where the backward pass runs in another thread."""
    rows, calls = torch_rows._ReadAndAdd, torch_faults.PendingCalls
    places = {
        "the backward pass of ours": (torch_rows._TorchRows._backward_cls, "apply"),
        "the sum": (rows, "add"),
        "the read": (rows, "read"),
        "before a launch (both)": (torch_faults, "launching"),
        "whether a stream has ended": (calls, "has_ended"),
        "words of a call": (calls, "slot"),
    }
    print("within a step, one part timed at a time: median in us", flush=True)
    for name, place in places.items():
        spent: list[float] = []
        with timed(*place, spent):
            for _ in range(5 * PART_CALLS):
                step()
        print(f"  {statistics.median(spent):8.2f} {'':15}  {name}", flush=True)


def main() -> None:
    asked = sys.argv[1:] or ["table", "parts"]
    if "parts" in asked:
        parts()
    if "table" in asked:
        table()


if __name__ == "__main__":
    main()
