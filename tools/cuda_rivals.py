"""The workloads of `pullback bench jit` on an NVIDIA GPU, ours beside PyTorch's and JAX's.

    PYTHONPATH=src:. python tools/cuda_rivals.py [--only NAME ...] [--seconds 90]

Times are host and device together, a call and a wait for its result, the medians of turns; `host`
is what a call takes before it returns, many in a row. Values are compared first.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

from benchmarks.libraries import Jax, Pullback, Torch, TorchCompile
from benchmarks.programs import Function, Programs
from benchmarks.turns import taking_turns
from benchmarks.workloads import WORKLOADS, Workload, leaves

Work = Callable[[], Any]


def _lstm(rng: np.random.Generator, s: dict[str, int]) -> tuple:
    w, batch = s["width"], s["batch"]
    weights = {
        "w": (rng.standard_normal((2 * w, 3 * w)) * w**-0.5).astype(np.float32),
        "b": (rng.standard_normal(3 * w) * 0.1).astype(np.float32),
    }
    xs = rng.standard_normal((s["steps"], batch, w)).astype(np.float32)
    return weights, xs, np.zeros((batch, w), np.float32)


def _turned(rng: np.random.Generator, s: dict[str, int]) -> tuple:
    w = s["width"]
    turn = (rng.standard_normal((w, w)) * w**-0.5).astype(np.float32)
    return turn, np.ones(w, np.float32), np.zeros(s["steps"], np.float32)


def _sized(name: str, **sizes: int) -> Workload:
    return replace(WORKLOADS[name], sizes=sizes)


WORKS = {
    "small_mlp": _sized("small_mlp", layers=8, width=256, batch=64),
    "hvp": _sized("hvp", layers=8, width=256, batch=64),
    "pinn": _sized("pinn", width=64, points=1 << 16),
    "lstm": replace(_sized("lstm", steps=512, width=64, batch=32), inputs=_lstm),
    "three_body": WORKLOADS["three_body"],
    "tanh_scan": replace(_sized("three_body", width=16, steps=400), inputs=_turned),
}
LOOPS = ("lstm", "three_body", "tanh_scan")
UNROLLED = dict.fromkeys(LOOPS, ("torch.compile",))  # who would unroll the loop


class _Batches(Programs):
    """The scan's step on rows of a batch."""

    def lstm_step(self, weights: Any, carry: Any, x: Any) -> Any:
        hidden, cell = carry
        n = hidden.shape[1]
        gates = self.xp.concat([x, hidden], axis=1) @ weights["w"] + weights["b"]
        forget, out = self.sigmoid_of(gates[:, :n]), self.sigmoid_of(gates[:, n : 2 * n])
        cell = forget * cell + (1 - forget) * self.xp.tanh(gates[:, 2 * n :])
        hidden = out * self.xp.tanh(cell)
        return (hidden, cell), hidden

    def tanh_scan(self) -> Function:
        return self.value_and_grad(self.tanh_scan_loss, loop=True)

    def tanh_scan_loss(self, turn: Any, start: Any, steps: Any) -> Any:
        """Steps of tanh(A x), one after the other: nothing but how long a step takes."""
        last, _ = self.scan(self.tanh_scan_step, turn, start, steps)
        return self.xp.sum(last * last)

    def tanh_scan_step(self, turn: Any, carry: Any, _: Any) -> Any:
        carry = self.xp.tanh(turn @ carry)
        return carry, carry[0]


class _Ours(_Batches, Pullback):
    def array(self, x: np.ndarray) -> Any:
        return self.pb.tensor(x, device="cuda")

    def host(self, x: Any) -> np.ndarray:
        return np.asarray(x.to_device("cpu"))

    def wait(self, result: Any) -> None:
        from pullback.runtime.cuda.gpu import cupy_module

        cupy_module().cuda.runtime.deviceSynchronize()

    def warm_up(self) -> None:
        """Nothing."""


class _OnCuda(_Batches, Torch):
    def array(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(x.copy()).cuda()

    def host(self, x: Any) -> np.ndarray:
        return x.detach().cpu().numpy()

    def wait(self, result: Any) -> None:
        self.torch.cuda.synchronize()

    def warm_up(self) -> None:
        """Nothing."""


class _Compiled(_OnCuda, TorchCompile):
    def jit(self, f: Function) -> Function:
        return self.torch.compile(f, dynamic=False, mode="reduce-overhead")


class _Jax(_Batches, Jax):
    """As it comes, in float32."""

    def __init__(self, threads: int):
        super().__init__(threads)
        self.jax.config.update("jax_default_matmul_precision", "highest")


LIBRARIES = {"pullback": _Ours, "torch": _OnCuda, "torch.compile": _Compiled, "jax": _Jax}


def _row(name: str, cells: dict[str, float], unit: str = "us") -> None:
    ours = cells.get("pullback")
    peers = {k: v for k, v in cells.items() if k != "pullback"}
    text = "".join(f"{k:>16} {v * 1e6:10.1f} {unit}" for k, v in cells.items())
    ratio = f"   ours / best {ours / min(peers.values()):.2f}" if ours and peers else ""
    print(f"{name:<18}{text}{ratio}", flush=True)


def _host(work: Work, wait: Callable[[Any], None], calls: int = 200) -> float:
    """The seconds of a call, many in a row, before their results are there."""
    best = float("inf")
    for _ in range(5):
        wait(None)
        began = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - began) / calls)
    wait(None)
    return best


def eager(libraries: dict[str, Any]) -> None:
    """Host times of an addition of ten elements."""
    cells: dict[str, dict[str, float]] = {"add of 10, host": {}, "add of 10, and wait": {}}
    for name, library in libraries.items():
        if name == "torch.compile":
            continue
        x = library.array(np.ones(10, np.float32))

        def work(x: Any = x) -> Any:
            return x + x

        wait = library.wait
        if name == "jax":
            cells["add of 10, host"][name] = _host(work, lambda _, w=work: w().block_until_ready())
        else:
            cells["add of 10, host"][name] = _host(work, wait)
        cells["add of 10, and wait"][name] = taking_turns({name: work}, 7, {name: wait})[name]
    for title, found in cells.items():
        _row(title, found)


def _difference(a: Any, b: Any, library: Any, ours: Any) -> float:
    pairs = zip(leaves(a), leaves(b), strict=True)
    worst = 0.0
    for x, y in pairs:
        left, right = ours.host(x).astype(np.float64), library.host(y).astype(np.float64)
        worst = max(worst, float(np.abs(left - right).max() / max(1e-30, np.abs(right).max())))
    return worst


def compiled(name: str, libraries: dict[str, Any]) -> None:
    """A workload in all libraries: first values, then times."""
    work, works, waits, hosts = WORKS[name], {}, {}, {}
    results = {}
    for kind, library in libraries.items():
        if kind in UNROLLED.get(name, ()):
            continue
        try:
            began = time.perf_counter()
            function = getattr(library, name)()
            given = library.prepared(name, work.arrays(False))

            def call(function: Function = function, given: tuple = given) -> Any:
                return function(*given)

            for _ in range(3):
                results[kind] = call()
            library.wait(results[kind])
            works[kind], waits[kind] = call, library.wait
            print(f"  {name} {kind}: ready in {time.perf_counter() - began:.1f} s", flush=True)
        except Exception as error:
            print(f"  {name} {kind}: {type(error).__name__} {str(error)[:300]}", flush=True)
            if kind == "pullback":
                traceback.print_exc()
    if "pullback" in results and "jax" in results:
        off = _difference(
            results["pullback"], results["jax"], libraries["jax"], libraries["pullback"]
        )
        print(f"  {name}: largest difference from jax {off:.1e}", flush=True)
    _row(name, taking_turns(works, 7, waits))
    for kind, call in works.items():
        if kind != "jax":
            hosts[kind] = _host(call, waits[kind], 20)
    _row(f"{name}, host", hosts)


def _chosen(names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, LIBRARIES[name](1)
        except Exception as error:
            print(f"{name}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["eager", *WORKS])
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--seconds", type=float, default=90.0, help="begin nothing after these")
    options = parser.parse_args()
    began = time.perf_counter()
    libraries = dict(_chosen(options.libraries))
    for name in options.only:
        if time.perf_counter() - began > options.seconds:
            print(f"{name}: no time left")
            continue
        try:
            eager(libraries) if name == "eager" else compiled(name, libraries)
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    main()
