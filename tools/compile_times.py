"""How long large functions take to compile, in processes of their own that take turns.

    python tools/compile_times.py                        # this tree
    python tools/compile_times.py --against OTHER/src    # and another one, in turns

CPU seconds from the first call of a jitted value and gradient to its result, medians: "cold" with
an empty cache folder; "code" where the machine code is there, and the compiled function is not;
"warm" where both are. Byte code is there always.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
SIZES = (("dense", 100), ("dense", 300), ("dense", 1000), ("residual", 100), ("residual", 300),
         ("chain", 2000))  # fmt: skip
STATES = ("cold", "code", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", type=Path, help="the folder of another version of the package")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="such as dense-300")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(seconds(options.one[0], int(options.one[1])))
        return
    trees = {"this": SOURCE} | ({"other": options.against} if options.against else {})
    print("| function | tree |", " | ".join(STATES), "| warm / cold |")
    for name, size in SIZES:
        if options.only and f"{name}-{size}" not in options.only:
            continue
        found = {tree: {state: [] for state in STATES} for tree in trees}
        for _ in range(options.repeat):
            for tree, source in trees.items():
                turn(source, name, size, found[tree])
        for tree, times in found.items():
            medians = [statistics.median(times[state]) for state in STATES]
            shown = [f"{name} {size}", tree, *[f"{m:.3f}" for m in medians]]
            print("|", " | ".join(shown), f"| {medians[2] / medians[0]:.2f} |", flush=True)


def turn(source: Path, name: str, size: int, times: dict[str, list[float]]) -> None:
    """Add a measurement of each state."""
    with tempfile.TemporaryDirectory(prefix="compile-") as folder:
        for state in STATES:
            if state == "code":
                for programs in Path(folder).glob("cpu-programs-*"):
                    shutil.rmtree(programs)
            environment = {**os.environ, "PULLBACK_CACHE_DIR": folder, "PYTHONPATH": str(source)}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            command = [sys.executable, __file__, "--one", name, str(size)]
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            times[state].append(float(done.stdout))


def seconds(name: str, size: int) -> float:
    """CPU seconds of the first call in this process."""
    import time

    import pullback as pb

    f, args = {"dense": dense, "residual": residual, "chain": chain}[name](size)
    _ = pb.ones(3) + 1  # the native core is loaded
    began = time.process_time()
    pb.jit(pb.value_and_grad(f))(*args)
    return time.process_time() - began


Work = tuple[Callable[..., Any], tuple[Any, ...]]


def dense(layers: int) -> Work:
    """Layers of tanh(x @ w + b), of width 64."""
    import pullback as pb

    x, *ws = _arrays((32, 64), *[(64, 64)] * layers)
    bs = [pb.tensor(pb.zeros(64).numpy()) for _ in range(layers)]

    def loss(weights: Any, x: Any) -> Any:
        for w, b in weights:
            x = pb.tanh(x @ w + b)
        return (x * x).sum()

    return loss, (list(zip(ws, bs, strict=True)), x)


def residual(layers: int) -> Work:
    """Blocks of layer_norm, a product and gelu, of width 32."""
    import pullback as pb

    x, *arrays = _arrays((16, 32), *[(32, 32), (32,), (32,)] * layers)

    def loss(weights: Any, x: Any) -> Any:
        for w, g, b in weights:
            x = x + pb.nn.gelu(pb.nn.layer_norm(x, (32,), g, b) @ w)
        return (x * x).mean()

    return loss, ([arrays[3 * k : 3 * k + 3] for k in range(layers)], x)


def chain(equations: int) -> Work:
    """An unrolled loop of six operations, of so many of them in all."""
    import pullback as pb

    def f(x: Any) -> Any:
        for _ in range(equations // 6):
            x = pb.sin(x * 1.01 + 0.1) - x.mean(0)
        return x.sum()

    return f, tuple(_arrays((64, 64)))


def _arrays(*shapes: tuple[int, ...]) -> list[Any]:
    import numpy as np

    import pullback as pb

    rng = np.random.default_rng(0)
    return [pb.tensor(rng.standard_normal(s).astype(np.float32) / 8) for s in shapes]


if __name__ == "__main__":
    main()
