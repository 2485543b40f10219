"""Attention of bfloat16 on a CUDA device beside PyTorch's kernels: errors, times, the same bits.

    python tools/cuda_attention.py [--heads 16] [--batch 8] [--rows 2048 512] [--widths 64 128]

Times are milliseconds of the result, and of result and gradients for a given cotangent, the fastest
of several rows of calls: ours by `pb.jit`, PyTorch's by its flash attention and by cuDNN, in one
CUDA graph. Errors are those of two
heads of 1000 rows against float64: the largest of result and gradients, relative to the largest
element. The second derivative is the gradient of the squares of the gradients, which PyTorch's
kernels don't have.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import pullback as pb
from cuda_products import normal

PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
CALLS, REPEATS = 5, 15  # calls in a row, and rows
CHECKED_ROWS = 1000  # no multiple of a tile
SECOND = 2, 4  # batch and heads of the second derivative


def attend(causal: bool) -> Callable[..., Any]:
    return lambda q, k, v: pb.nn.scaled_dot_product_attention(q, k, v, is_causal=causal)


def pulled(causal: bool) -> Callable[..., Any]:
    """Our result and gradients, of query, key, value and cotangent."""

    def step(q: Any, k: Any, v: Any, g: Any) -> tuple[Any, ...]:
        out, pull = pb.vjp(attend(causal), q, k, v)
        return out, *pull(g)

    return pb.jit(step)


def peer(backend: Any, causal: bool) -> Callable[..., Any]:
    """PyTorch's result."""

    def call(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def peer_pulled(backend: Any, causal: bool) -> Callable[..., Any]:
    """PyTorch's result and gradients."""

    def step(q: Any, k: Any, v: Any, g: Any) -> tuple[Any, ...]:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        out = peer(backend, causal)(*given)
        return out, *torch.autograd.grad(out, given, g)

    return step


def drawn(shape: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Query, key, value and cotangent, as arrays of ours and of PyTorch's."""
    rng = np.random.default_rng(len(shape))
    arrays = [rng.standard_normal(shape).astype("float32") for _ in range(4)]
    own = [pb.tensor(a, device="cuda").astype("bfloat16") for a in arrays]
    return own, [torch.as_tensor(a, device="cuda").bfloat16() for a in arrays]


def exact(tensors: list[Any], causal: bool) -> list[np.ndarray]:
    """Result and gradients in float64."""
    q, k, v, g = (x.double() for x in tensors)
    given = [x.requires_grad_() for x in (q, k, v)]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        rows = q.shape[-2]
        seen = torch.ones(rows, rows, dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ v
    return [x.detach().cpu().numpy() for x in (out, *torch.autograd.grad(out, given, g))]


def error(found: Any, wanted: list[np.ndarray]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)


def errors(width: int, causal: bool) -> str:
    own, tensors = drawn((1, 2, CHECKED_ROWS, width))
    wanted = exact(tensors, causal)
    ours = [x.astype("float64").numpy() for x in pulled(causal)(*own)]
    found = {"ours": error(ours, wanted)}
    for name, backend in PEERS.items():
        given = peer_pulled(backend, causal)(*tensors)
        found[name] = error([x.detach().double().cpu().numpy() for x in given], wanted)
    return f"error, width {width}, {kind(causal)} | " + " | ".join(
        f"{name} {x:.1e}" for name, x in found.items()
    )


def kind(causal: bool) -> str:
    return "causal" if causal else "all keys"


def fastest(work: Callable[[], Any]) -> float:
    """Milliseconds of a call, by events of the device."""
    for _ in range(3):
        work()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return min(times)


def theirs(f: Callable[..., Any], tensors: list[Any]) -> float:
    """The time of a function of PyTorch's, as a CUDA graph."""
    for _ in range(3):
        f(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(*tensors)
    return fastest(graph.replay)


def same(f: Callable[..., Any], arrays: list[Any]) -> bool:
    """Whether two calls give the same bits."""
    one, two = ([x.astype("float32").numpy().tobytes() for x in f(*arrays)] for _ in range(2))
    return one == two


def case(shape: tuple[int, ...], causal: bool) -> str:
    own, tensors = drawn(shape)
    both = pulled(causal)
    alone = pb.jit(attend(causal))
    ours = fastest(lambda: alone(*own[:3])), fastest(lambda: both(*own))
    line = f"{shape}, {kind(causal)} | ours {ours[0]:.3f}, {ours[1]:.3f}"
    for name, backend in PEERS.items():
        times = (
            theirs(peer(backend, causal), tensors[:3]),
            theirs(peer_pulled(backend, causal), tensors),
        )
        ratios = " and ".join(f"{a / b:.2f}" for a, b in zip(ours, times, strict=True))
        line += f" | {name} {times[0]:.3f}, {times[1]:.3f}: {ratios}"
    return f"{line} | {'same bits' if same(both, own) else 'OTHER BITS'}"


def second(rows: int, width: int) -> str:
    shape = (*SECOND, rows, width)
    arrays = [pb.tensor(normal(shape, "float32"), device="cuda").astype("bfloat16")] * 3

    def squares(*results: Any) -> Any:
        return sum((x.astype("float32") ** 2).sum() for x in results)

    first = pb.grad(lambda *a: squares(attend(True)(*a)), argnums=(0, 1, 2))
    f = pb.jit(pb.grad(lambda *a: squares(*first(*a)), argnums=(0, 1, 2)))
    return f"second derivative, {shape}, causal | {fastest(lambda: f(*arrays)):.2f} ms"


def lines(options: argparse.Namespace) -> Iterator[str]:
    for width, causal in itertools.product(options.widths, (False, True)):
        yield errors(width, causal)
    for rows, width, causal in itertools.product(options.rows, options.widths, (False, True)):
        yield case((options.batch, options.heads, rows, width), causal)
    yield second(max(options.rows), min(options.widths))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="*", default=[2048, 512])
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128])
    for line in lines(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
