"""Times of webgpu against another device, side by side: a table in Markdown.

Both are measured in turns. On a software driver both run on the same cores, so that processor time
of all threads (CPU) says what the work costs, whatever else the machine does; wall time is the
least of some runs. With --large, for GPUs: what a call takes whose result is read, and what one of
many takes that follow each other, of which the last is read.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import files
from typing import Any

import numpy as np

import pullback as pb
import pullback.nn

RNG = np.random.default_rng(0)
SECONDS = 1.0  # for one device and workload, about
IN_A_ROW = 20  # calls


def draw(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.1).astype(np.float32)


def mlp(x: Any, *weights: Any) -> Any:
    """The loss of a perceptron of three layers, and its gradients."""

    def loss(*own: Any) -> Any:
        h = x
        for w in own[:-1]:
            h = pb.nn.relu(h @ w)
        return pb.mean((h @ own[-1]) ** 2)

    return pb.grad(loss, argnums=tuple(range(len(weights))))(*weights)


def conv(x: Any, w: Any) -> Any:
    return pb.nn.conv2d(x, w, padding=1)


WORKLOADS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "elementwise, 1M: x * 2 + 1": (lambda x: x * 2.0 + 1.0, (draw(1 << 20),)),
    "elementwise, 1M: tanh (float32)": (pb.tanh, (draw(1 << 20),)),
    "elementwise, 1M: sin (float64 inside)": (pb.sin, (draw(1 << 20),)),
    "sum of 1M": (pb.sum, (draw(1 << 20),)),
    "softmax, 1024 x 1024": (lambda x: pb.nn.softmax(x, -1), (draw(1024, 1024),)),
    "matmul, 256 x 256 x 256": (pb.matmul, (draw(256, 256), draw(256, 256))),
    "conv2d, 4 x 16 x 32 x 32, 32 x 3 x 3": (conv, (draw(4, 16, 32, 32), draw(32, 16, 3, 3))),
    "sort, 100k": (pb.sort, (draw(100_000),)),
    "gradients of an MLP, 64 x 64-64-64-8": (
        mlp,
        (draw(64, 64), draw(64, 64), draw(64, 64), draw(64, 8)),
    ),
    "qr, 128 x 128": (pb.linalg.qr, (draw(128, 128),)),
    "eigh, 1000 of 4 x 4": (lambda x: pb.linalg.eigh(x + x.mT), (draw(1000, 4, 4),)),
    "eigh, 20 of 48 x 48": (lambda x: pb.linalg.eigh(x + x.mT), (draw(20, 48, 48),)),
    "svd, 20 of 64 x 32": (pb.linalg.svd, (draw(20, 64, 32),)),
    "eig, 20 of 32 x 32": (pb.linalg.eig, (draw(20, 32, 32),)),
    "sqrtm, 20 of 32 x 32": (lambda x: pb.linalg.sqrtm(x @ x.mT), (draw(20, 32, 32),)),
}


LARGE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "x * 2 + 1, 64M": (lambda x: x * 2.0 + 1.0, ((1 << 26,),)),
    "x + y, 16M": (lambda x, y: x + y, ((1 << 24,), (1 << 24,))),
    "x / y, 16M": (lambda x, y: x / y, ((1 << 24,), (1 << 24,))),
    "tanh, 16M": (pb.tanh, ((1 << 24,),)),
    "sin, 16M (float64 inside)": (pb.sin, ((1 << 24,),)),
    "transposed copy, 4096 x 4096": (lambda x: x.mT + 1.0, ((4096, 4096),)),
    "sum of 64M": (pb.sum, ((1 << 26,),)),
    "sum of rows, 4096 x 4096": (lambda x: x.sum(axis=1), ((4096, 4096),)),
    "sum of columns, 4096 x 4096": (lambda x: x.sum(axis=0), ((4096, 4096),)),
    "softmax, 4096 x 4096": (lambda x: pb.nn.softmax(x, -1), ((4096, 4096),)),
    **{
        f"matmul, {n} x {n} x {n}": (pb.matmul, ((n, n), (n, n)))
        for n in (256, 512, 1024, 2048, 4096)
    },
    "conv2d, 16 x 64 x 56 x 56, 64 x 3 x 3": (conv, ((16, 64, 56, 56), (64, 64, 3, 3))),
    "gradients of an MLP, 64 x 64-64-64-8": (mlp, ((64, 64), (64, 64), (64, 64), (64, 8))),
    "gradients of an MLP, 256 x 1024-1024-10": (
        mlp,
        ((256, 1024), (1024, 1024), (1024, 1024), (1024, 10)),
    ),
    "sort, 4M": (pb.sort, ((1 << 22,),)),
    "rfft, 64 x 1024": (pb.fft.rfft, ((64, 1024),)),
    "cumsum, 1024 x 1024": (lambda x: pb.cumulative_sum(x, axis=1), ((1024, 1024),)),
}


def large(only: tuple[str, ...], other: str) -> None:
    """The table of large workloads."""
    print(f"| workload | webgpu, read | in a row | {other}, read | in a row | ratio in a row |")
    print("|---|---|---|---|---|---|")
    for name, (f, shapes) in LARGE.items():
        if only and not name.startswith(only):
            continue
        given = [draw(*shape) for shape in shapes]
        found = [followed(pb.jit(f), [pb.tensor(x, device=d) for x in given])
                 for d in ("webgpu", other)]  # fmt: skip
        cells = [text(s) for pair in found for s in pair]
        print(f"| {name} | {' | '.join(cells)} | {found[0][1] / found[1][1]:.1f} |", flush=True)


def followed(f: Callable[..., Any], arrays: list[Any]) -> tuple[float, float]:
    """Wall seconds of a call whose result is read, and of one that others follow."""

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count - 1):
            f(*arrays)
        read(f(*arrays))
        return time.perf_counter() - began

    run(2)
    one = min(run(1) for _ in range(4))
    return one, (min(run(1 + IN_A_ROW) for _ in range(3)) - one) / IN_A_ROW


def read(found: Any) -> None:
    """Wait for a result."""
    last = found[-1] if isinstance(found, tuple) else found
    last.reshape(-1)[:1].numpy()


def measured(f: Callable[..., Any], arrays: list[Any]) -> tuple[float, float]:
    """Wall and processor seconds of a call whose result is read."""

    def run() -> None:
        read(f(*arrays))

    run()
    run()
    best, calls, began = np.inf, 0, time.process_time()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or calls < 3:
        start = time.perf_counter()
        run()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best, (time.process_time() - began) / calls


def text(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def overhead() -> list[str]:
    """What the host does for a kernel: eagerly, replayed in a compiled function, and encoded."""
    x = pb.ones((64,), device="webgpu")

    @pb.jit
    def many(v: Any) -> Any:
        for _ in range(100):
            v = v[::-1].sum() * v[1:].sum() + v
        return v

    for _ in range(3):
        many(x).numpy()
    gpu = vars(x.device.runtime)["_gpu"]
    submit, given = gpu._submit, []
    gpu._submit = given.append
    many(x)
    gpu.flush()
    count = sum(len(c) for c in given)

    def host(f: Callable[[], Any], times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            f()
        return (time.process_time() - began) / times * 1e6

    replayed = host(lambda: many(x), 50) / count
    eager = host(lambda: x + 1.0, 1000)
    gpu._submit = submit
    gpu._commands.clear()
    send = gpu._device.queue.submit
    gpu._device.queue.submit = lambda buffers: None
    encoded = host(lambda: (many(x), gpu.flush()), 20) / count
    gpu._device.queue.submit = send
    done = host(lambda: (many(x), gpu.wait()), 5) / count
    return [
        f"- an eager operation, until it waits to be submitted: {eager:.1f} us",
        f"- a kernel of a compiled function, likewise: {replayed:.2f} us",
        f"- and in a submission: {encoded:.1f} us; with what the driver does: {done:.0f} us",
    ]


def sizes() -> list[str]:
    """Bytes that are installed, and seconds of a first import."""
    own = sum(f.size or 0 for f in files("wgpu") or ())
    lines = [f"- wgpu, installed: {own / 1e6:.1f} MB"]
    for name in ("pullback", "wgpu", "pullback; pullback.ones(1, device='webgpu').numpy()"):
        best = min(_seconds(f"import {name}") for _ in range(3))
        lines.append(f"- `import {name}`: {best:.2f} s of processor time")
    return lines


def _seconds(code: str) -> float:
    ask = f"import time; {code}; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True, text=True)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="workloads whose names begin so")
    parser.add_argument("--large", action="store_true", help="workloads for a GPU")
    parser.add_argument("--beside", default="cpu", help="the other device")
    given = parser.parse_args()
    only = tuple(given.only or ())
    info = pb.device("webgpu").runtime.capabilities()
    print(f"{info['adapter']}, wgpu {info['wgpu']}; exact by itself: {info['exact']}\n")
    if given.large:
        large(only, given.beside)
        print("\n" + "\n".join(overhead()))
        return 0
    print(f"| workload | webgpu, wall | CPU | runtime {given.beside}, wall | CPU | ratio of CPU |")
    print("|---|---|---|---|---|---|")
    for name, (f, arrays) in WORKLOADS.items():
        if only and not name.startswith(only):
            continue
        found = [
            measured(pb.jit(f), [pb.tensor(a, device=d) for a in arrays])
            for d in ("webgpu", given.beside)
        ]
        cells = [text(s) for pair in found for s in pair]
        ratio = found[0][1] / found[1][1]
        print(f"| {name} | {' | '.join(cells)} | {ratio:.0f} |", flush=True)
    if not only:
        print("\n" + "\n".join([*overhead(), *sizes()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
