"""Products, convolutions, attention on a CUDA device: bits against the CPU, times beside PyTorch.

    python tools/cuda_products.py [--seconds 300] [--only float32 thin conv rows attention bits ..]

PyTorch runs without TF32. Small products are made 20 at a time, by ours in one compiled function
and by PyTorch in one CUDA graph, so that both are times of the device.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

import pullback as pb
from pullback.runtime.cuda.gemm import shapes, steps

SIDES = (
    (64, 256, 256), (128, 512, 512), (512, 512, 512), (256, 1024, 1024), (32, 4096, 1024),
    (1024, 1024, 1024), (1024, 512, 2048), (1536, 1536, 1536), (2048, 2048, 2048),
    (3000, 3000, 3000), (4096, 4096, 4096),
)  # fmt: skip
THIN = (
    ((65536, 64, 64), "nn"), ((65536, 64, 64), "nt"), ((65536, 64, 2), "nn"),
    ((2, 64, 65536), "tn"), ((64, 64, 65536), "tn"), ((8, 4096, 4096), "nn"),
)  # fmt: skip
TRIED = 5  # tiles of a product with a short side
LAYOUTS = "nn", "nt", "tn"  # which operands are transposed
TOGETHER = 20  # products in one graph
LARGE = 1 << 31  # multiply-adds from which on two are enough
REPEATS = 7
CONVOLUTIONS = {
    "conv1d 32x128x4096, 9": ((32, 128, 4096), (128, 128, 9), 4),
    "conv2d 64x64x56x56, 3x3": ((64, 64, 56, 56), (64, 64, 3, 3), 1),
    "conv2d 64x128x28x28, 3x3": ((64, 128, 28, 28), (128, 128, 3, 3), 1),
    "conv2d 64x256x14x14, 3x3": ((64, 256, 14, 14), (256, 256, 3, 3), 1),
}
ROWS = (1024, 1024), (4096, 4096), (16384, 4096)
CHECKED = (
    ((131, 1037), (1037, 67)), ((512, 2048), (2048, 512)), ((1023, 511), (511, 1025)),
    ((33, 9000), (9000, 17)), ((40, 64, 32), (40, 32, 64)), ((1000, 4096), (4096,)),
    ((5000,), (5000, 9)),
)  # fmt: skip


@cache
def normal(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        return (x + 1j * rng.standard_normal(shape)).astype(dtype)
    return x.astype("float32" if dtype.endswith("16") else dtype)


def milliseconds(work: Callable[[], Any], wait: Callable[[], Any], calls: int) -> float:
    """Of one call, the median of several rows of calls; the clock is the host's."""
    for _ in range(3):
        work()
    wait()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times) * 1e3


def ours(compiled: Callable[..., Any], arrays: list[Any], calls: int) -> float:
    """The time of a compiled function; what it gives last is waited for."""
    kept: list[Any] = [None]

    def work() -> None:
        kept[0] = compiled(*arrays)

    def wait() -> None:
        found: Any = kept[0]
        while isinstance(found, (list, tuple)):
            found = found[-1]
        found[(0,) * found.ndim].item()

    return milliseconds(work, wait, calls)


def theirs(f: Callable[..., Any], tensors: list[Any], calls: int) -> float:
    """The time of a function of PyTorch's, as a CUDA graph."""
    import torch

    for _ in range(3):
        f(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(*tensors)
    return milliseconds(graph.replay, torch.cuda.synchronize, calls)


def both(arrays: list[np.ndarray], dtype: str) -> tuple[list[Any], list[Any]]:
    """Arrays as tensors of ours and of PyTorch's."""
    import torch

    made = [pb.tensor(a, device="cuda").astype(dtype) for a in arrays]
    return made, [torch.as_tensor(a, device="cuda").to(getattr(torch, dtype)) for a in arrays]


def multiplied(layout: str, count: int) -> Callable[[Any, Any], list[Any]]:
    """So many products with one right operand."""

    def multiply(x: Any, y: Any) -> list[Any]:
        right = y if layout[1] == "n" else y.T
        return [(x[i] if layout[0] == "n" else x[i].T) @ right for i in range(count)]

    return multiply


def products(dtype: str, precision: str = "default") -> Iterator[str]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    pb.set_matmul_precision(precision)
    name = dtype if precision == "default" else precision
    for (m, n, k), layout in itertools.product(SIDES, LAYOUTS):
        count = TOGETHER if m * n * k < LARGE else 2
        a = (count, m, k) if layout[0] == "n" else (count, k, m)
        b = (k, n) if layout[1] == "n" else (n, k)
        f = multiplied(layout, count)
        tensors, peers = both([normal(a, dtype), normal(b, dtype)], dtype)
        calls = max(10, min(20, int(4e11 / (m * n * k * count))))
        own = ours(pb.jit(f), tensors, calls) / count
        peer = theirs(f, peers, calls) / count
        rate = 2e-9 * m * n * k / own
        yield (
            f"{name} {m}x{n}x{k} {layout} | {own * 1e3:.1f} us, {rate:.1f} TF | torch"
            f" {peer * 1e3:.1f} us | {own / peer:.2f}"
        )


def thin() -> Iterator[str]:
    """Float32 products with a short side by tiles that may make them, the best estimates first.

    Each has another number of products, so that no program of another tile is found in a cache.
    """
    kept = steps.choice_of
    for (m, n, k), layout in THIN:
        every = sorted(
            shapes.choices("floats", 1, m, n, k), key=lambda c: shapes.cycles(c, 1, m, n, k)
        )[:TRIED]
        x = normal((m, k) if layout[0] == "n" else (k, m), "float32")
        y = normal((k, n) if layout[1] == "n" else (n, k), "float32")
        most = TOGETHER + len(every)
        tensors = [pb.stack([pb.tensor(x, device="cuda")] * most), pb.tensor(y, device="cuda")]
        wanted = None
        for number, choice in enumerate(every):
            count = TOGETHER + number
            steps.choice_of = lambda *_, found=choice: found
            try:
                f = pb.jit(multiplied(layout, count))
                found = f(*tensors)[0].numpy()
                wanted = found if wanted is None else wanted
                same = "equal" if found.tobytes() == wanted.tobytes() else "DIFFERS"
                own = ours(f, tensors, 10) / count
            finally:
                steps.choice_of = kept
            tile = choice.tile
            yield (
                f"thin {m}x{n}x{k} {layout} | {tile.bm}x{tile.bn}x{tile.bk} {tile.tm}x{tile.tn}"
                f" resident {tile.resident[0]} merge {choice.merge} | {own * 1e3:.1f} us {same}"
            )


def rows(dtype: str) -> Iterator[str]:
    for (k, n), by_row in itertools.product(ROWS, (True, False)):
        f = row_products(by_row)
        shape = (k, n) if by_row else (n, k)
        tensors, peers = both([normal((TOGETHER, k), dtype), normal(shape, dtype)], dtype)
        own, peer = ours(pb.jit(f), tensors, 5), theirs(f, peers, 5)
        name = "row @ matrix" if by_row else "matrix @ column"
        yield (
            f"{dtype} {name}, {k} x {n} | {own / TOGETHER * 1e3:.1f} us | torch"
            f" {peer / TOGETHER * 1e3:.1f} us | {own / peer:.2f}"
        )


def row_products(by_row: bool) -> Callable[[Any, Any], list[Any]]:
    return lambda x, y: [x[i] @ y if by_row else y @ x[i] for i in range(TOGETHER)]


def convolution_loss(namespace: Any, dimensions: int, padding: int) -> Callable[[Any, Any], Any]:
    convolve = getattr(namespace, f"conv{dimensions}d")
    return lambda a, b: (convolve(a, b, padding=padding) ** 2).sum()


def pulled(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a function of PyTorch's."""
    import torch

    def step(*given: Any) -> Any:
        return torch.autograd.grad(loss(*[x.requires_grad_() for x in given]), given)

    return step


def convolutions() -> Iterator[str]:
    """The value and the gradients of convolutions."""
    import torch

    for name, (x, w, padding) in CONVOLUTIONS.items():
        loss = convolution_loss(pb.nn, len(x) - 2, padding)
        peer_loss = convolution_loss(torch.nn.functional, len(x) - 2, padding)
        tensors, peers = both([normal(x, "float32"), normal(w, "float32")], "float32")
        own = ours(pb.jit(pb.value_and_grad(loss, argnums=(0, 1))), tensors, 10)
        peer = theirs(pulled(peer_loss), peers, 10)
        yield f"{name}, value and gradient | {own:.3f} ms | torch {peer:.3f} ms | {own / peer:.2f}"


def attention() -> Iterator[str]:
    import torch

    shape = 8, 16, 2048, 64
    attend, peer = (
        (lambda *a, of=n: of.scaled_dot_product_attention(*a).sum())
        for n in (pb.nn, torch.nn.functional)
    )
    for dtype in ("float32", "bfloat16"):
        tensors, peers = both([normal(shape, "float32")] * 3, dtype)
        own = ours(pb.jit(pb.value_and_grad(attend, argnums=(0, 1, 2))), tensors, 2)
        other = theirs(pulled(peer), peers, 2)
        yield (
            f"attention {dtype} {shape}, value and gradient | {own:.2f} ms | torch {other:.2f} ms"
            f" | {own / other:.1f}"
        )


def differs(case: tuple[str, tuple[tuple[int, ...], ...]]) -> bool:
    """Whether a product has other bits than on the CPU."""
    dtype, shapes = case
    arrays = [normal(s, dtype) for s in shapes]
    found, expected = (
        pb.matmul(*[pb.tensor(a, device=d).astype(dtype) for a in arrays]).numpy()
        for d in ("cuda", "cpu")
    )
    return found.tobytes() != expected.tobytes()


PRECISIONS = (
    ("bfloat16", "default", 2.0**-8),
    ("float16", "default", 2.0**-10),
    ("float32", "tf32", 2.0**-9),
    ("float32", "bfloat16", 2.0**-7),
)  # dtype, precision, the relative error of a product that rounding may make
CORES = (
    ((200, 264), (264, 136)), ((131, 1037), (1037, 67)), ((33, 9000), (9000, 17)),
    ((8, 64, 96), (96, 40)), ((4, 3, 128, 64), (4, 1, 64, 128)), ((2, 16), (16, 2)),
    ((1000, 520), (520, 1000)), ((5, 7), (7, 3)),
)  # fmt: skip


def cores() -> Iterator[str]:
    """Products by tensor cores: errors, and whether bits repeat in any layout, compiled or not."""
    for (dtype, precision, rounding), (x, y) in itertools.product(PRECISIONS, CORES):
        wrong, worst = 0, 0.0
        a, b = (pb.tensor(normal(s, "float32"), device="cuda").astype(dtype) for s in (x, y))
        wide = [np.asarray(v.astype("float64").cpu()) for v in (a, b)]
        exact, size = np.matmul(*wide), np.matmul(*map(np.abs, wide))
        with pb.matmul_precision(precision):
            compiled, first = pb.jit(pb.matmul), None
            for left, right in itertools.product(layouts(a), layouts(b)):
                for f in (pb.matmul, compiled, compiled, compiled):
                    found = np.asarray(f(left, right).astype("float64").cpu())
                    worst = max(worst, float((np.abs(found - exact) / size).max()))
                    first = found if first is None else first
                    wrong += found.tobytes() != first.tobytes()
            repeated = {(a @ b).numpy().tobytes() for _ in range(100)}
        good = worst <= rounding and not wrong and len(repeated) == 1
        yield (
            f"{dtype} at {precision} {x} @ {y} | error {worst:.1e} | {wrong} other bits"
            f" | {len(repeated)} of 100 runs | {'good' if good else 'WRONG'}"
        )


def layouts(x: Any) -> list[Any]:
    """The same matrices as they lie, transposed in memory, and away from multiples of 16 bytes."""
    flat = pb.concat([x.reshape(-1)[:1], x.reshape(-1)])
    return [x, pb.matrix_transpose(x).copy().mT, flat[1:].reshape(x.shape)]


def differ(case: tuple[tuple[int, ...], tuple[int, ...], int]) -> int:
    """How many of value and gradients of a convolution have other bits than on the CPU."""
    x, w, padding = case
    f = pb.jit(pb.value_and_grad(convolution_loss(pb.nn, len(x) - 2, padding), argnums=(0, 1)))
    arrays = [normal((4, *x[1:]), "float32"), normal(w, "float32")]
    results = [f(*[pb.tensor(a, device=d) for a in arrays]) for d in ("cuda", "cpu")]
    pairs = zip(*[(r[0], *r[1]) for r in results], strict=True)
    return sum(a.numpy().tobytes() != b.numpy().tobytes() for a, b in pairs)


def bits() -> Iterator[str]:
    """Elements that differ from the CPU's."""
    dtypes = "float32", "float64", "complex64", "bfloat16"
    pb.set_matmul_precision("highest")
    cases = list(itertools.product(dtypes, CHECKED))
    wrong = {case: differs(case) for case in cases}
    for dtype in dtypes:
        found = [shapes for (d, shapes), other in wrong.items() if d == dtype and other]
        yield f"{dtype}: {len(found)} of {len(CHECKED)} products differ from the CPU's {found}"
    for name, case in CONVOLUTIONS.items():
        yield f"{name}: {differ(case)} of 3 arrays differ from the CPU's"
    pb.set_matmul_precision("default")


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "bits": bits,
    "conv": convolutions,
    "float32": lambda: products("float32"),
    "float64": lambda: products("float64"),
    "cores": cores,
    "bfloat16": lambda: products("bfloat16"),
    "tf32": lambda: products("float32", "tf32"),
    "rows": lambda: rows("float32"),
    "thin": thin,
    "attention": attention,
}


def main() -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    given = parser.parse_args()
    end = time.time() + given.seconds
    for name in given.only:
        lines = PARTS[name]()
        while time.time() < end:
            try:
                line = next(lines, None)
            except (pb.PullbackError, RuntimeError) as error:
                print(f"{name}: {error}", flush=True)
                break
            if line is None:
                break
            print(line, flush=True)


if __name__ == "__main__":
    main()
