"""Forward and backward through an embedding of `pullback.torch`, beside PyTorch's own.

    PYTHONPATH=src python tools/cuda_torch_times.py

`device` is the time between events around calls in a row, `host` what a call takes before it
returns; both in milliseconds, the medians of turns. The gradients are compared first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import pullback.torch as pbt

CASES = (  # rows, width, indices, exponent of Zipf's law (0: uniform)
    (100, 16, 512, 0.0),
    (50_000, 768, 32_768, 1.2),
    (130_000, 1024, 65_536, 0.0),
)
TURNS, CALLS = 7, 20
Step = Callable[[], torch.Tensor]


def steps(rows: int, width: int, n: int, exponent: float) -> dict[str, Step]:
    """A forward and backward pass in each way."""
    rng = np.random.default_rng(0)
    drawn = rng.zipf(exponent, n) - 1 if exponent else rng.integers(0, rows, n)
    index = torch.from_numpy(np.minimum(drawn, rows - 1)).cuda()
    weight = torch.randn(rows, width, device="cuda", requires_grad=True)
    g = torch.randn(n, width, device="cuda")
    grad = torch.autograd.grad
    return {
        "pullback.torch": lambda: grad(pbt.embedding(index, weight), weight, g)[0],
        "F.embedding": lambda: grad(torch.nn.functional.embedding(index, weight), weight, g)[0],
        "index_select": lambda: grad(torch.index_select(weight, 0, index), weight, g)[0],
    }


def device_ms(step: Step) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(CALLS):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS


def host_ms(step: Step) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        step()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / CALLS * 1e3


def main() -> None:
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


if __name__ == "__main__":
    main()
