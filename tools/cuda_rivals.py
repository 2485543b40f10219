"""The workloads of `pullback bench jit` on an NVIDIA GPU, ours beside PyTorch's and JAX's.

    PYTHONPATH=src:. python tools/cuda_rivals.py [--only NAME ...] [--seconds 90]

Times are host and device together, a call and a wait for its result, the medians of turns; `host`
is what a call takes before it returns, many in a row. Values are compared first. Each library has a
process of its own: what one does to the device, or how it ends, is nobody else's matter. `cpu`, if
asked for, is ours on the host, from which ours on the device differs by 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

from benchmarks.libraries import Jax, Pullback, Torch, TorchCompile
from benchmarks.programs import Function, Programs
from benchmarks.turns import taking_turns
from benchmarks.workloads import WORKLOADS, Workload, leaves
from tuned import tune

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
EAGER = "eager"  # an addition of ten elements, one call at a time
# Who would unroll a loop, and who has nothing of its own for single calls.
UNABLE = {**dict.fromkeys(LOOPS, ("torch.compile",)), EAGER: ("torch.compile",)}
TURNS, LEAST, SHARE = 7, 3, 3.0  # turns, those that everyone gets, seconds from which on no more


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


class _OnCpu(_Batches, Pullback):
    """Ours on the host: what bits should be."""


CPU = "cpu"
RIVALS = {"pullback": _Ours, "torch": _OnCuda, "torch.compile": _Compiled, "jax": _Jax}
LIBRARIES = {**RIVALS, CPU: _OnCpu}


def _row(name: str, cells: dict[str, float], unit: str = "us") -> None:
    ours = cells.get("pullback")
    peers = {k: v for k, v in cells.items() if k not in ("pullback", CPU)}
    text = "".join(f"{k:>16} {v * 1e6:10.1f} {unit}" for k, v in cells.items())
    ratio = f"   ours / best {ours / min(peers.values()):.2f}" if ours and peers else ""
    print(f"{name:<18}{text}{ratio}", flush=True)


# -- in the process of a library -------------------------------------------------------------------


class _Served:
    """A library and what it was asked to prepare."""

    def __init__(self, name: str):
        self._name, self._library = name, LIBRARIES[name](1)

    def prepare(self, name: str) -> list[np.ndarray]:
        """Compile a workload and run it; its values."""
        library = self._library
        if name == EAGER:
            x = library.array(np.ones(10, np.float32))
            self._work: Work = lambda: x + x
        else:
            function = getattr(library, name)()
            given = library.prepared(name, WORKS[name].arrays(False))
            self._work = lambda: function(*given)
        result = self._work()
        for _ in range(2):
            library.wait(result)
            result = self._work()
        library.wait(result)
        return [np.asarray(library.host(x)) for x in leaves(result)]

    def turn(self) -> float:
        """The seconds of a call and of a wait for its result."""
        works, waits = {self._name: self._work}, {self._name: self._library.wait}
        return taking_turns(works, 1, waits)[self._name]

    def host(self, calls: int) -> float:
        """The seconds of a call, many in a row, before their results are there."""
        best, result = float("inf"), None
        for _ in range(5):
            self._library.wait(result if result is not None else self._work())
            began = time.perf_counter()
            for _ in range(calls):
                result = self._work()
            best = min(best, (time.perf_counter() - began) / calls)
        self._library.wait(result)
        return best


def _serve(name: str, pipe: Any) -> None:
    """Do what is asked for through a pipe, until it is closed."""
    tune()
    served = _Served(name)
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(served, method)(*args)))
        except Exception as error:  # it is told of where it was asked for
            pipe.send((False, f"{type(error).__name__} {str(error)[:300]}"))


# -- in the first process --------------------------------------------------------------------------


class Rival:
    """A library in a process of its own, which is started anew when it has failed."""

    def __init__(self, name: str, patience: float):
        self.name, self._patience, self._process = name, patience, None

    def ask(self, method: str, *args: Any) -> Any:
        """What a method of `_Served` gives there; a RuntimeError if it fails, or says nothing."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")  # a GPU's context survives no fork
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(self.name, theirs), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((method, args))
            if not self._pipe.poll(self._patience):
                raise RuntimeError(f"no answer in {self._patience:.0f} s")
            good, found = self._pipe.recv()
        except (EOFError, OSError):
            good, found = False, "the process ended"
        except RuntimeError:
            self.stop()
            raise
        if not good:
            self.stop()  # the device may be of no more use there
            raise RuntimeError(found)
        return found

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _difference(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference of two results, relative to the largest element of each array."""
    worst = 0.0
    for x, y in zip(found, wanted, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64).reshape(x.shape)
        worst = max(worst, float(np.abs(x - y).max() / max(1e-30, np.abs(y).max())))
    return worst


def _ready(name: str, rivals: list[Rival]) -> list[Rival]:
    """Those that can run a workload; their values are compared."""
    ready, first = [], None
    for rival in rivals:
        if rival.name in UNABLE.get(name, ()):
            continue
        began = time.perf_counter()
        try:
            values = rival.ask("prepare", name)
        except RuntimeError as error:
            print(f"  {name} {rival.name}: {error}", flush=True)
            continue
        text = f"ready in {time.perf_counter() - began:.1f} s"
        if first is None:
            first = rival.name, values
        else:
            text += f", {_difference(values, first[1]):.1e} from {first[0]}"
        print(f"  {name} {rival.name}: {text}", flush=True)
        ready.append(rival)
    return ready


def measure(name: str, rivals: list[Rival]) -> None:
    """A workload in all libraries: first values, then times."""
    ready = _ready(name, rivals)
    times: dict[str, list[float]] = {rival.name: [] for rival in ready}
    hosts: dict[str, float] = {}
    for _ in range(TURNS):
        for rival in [r for r in ready if len(times[r.name]) < LEAST or sum(times[r.name]) < SHARE]:
            times[rival.name].append(rival.ask("turn"))
    title = "add of 10, and wait" if name == EAGER else name
    _row(title, {rival: statistics.median(found) for rival, found in times.items()})
    for rival in ready:
        if rival.name != "jax" or name == EAGER:
            hosts[rival.name] = rival.ask("host", 200 if name == EAGER else 20)
    _row(f"{'add of 10' if name == EAGER else name}, host", hosts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[EAGER, *WORKS])
    parser.add_argument("--libraries", nargs="*", default=list(RIVALS), choices=LIBRARIES)
    parser.add_argument("--seconds", type=float, default=90.0, help="begin nothing after these")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds to wait for a library"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    rivals = [Rival(name, options.patience) for name in options.libraries]
    for name in options.only:
        if time.perf_counter() - began > options.seconds:
            print(f"{name}: not run")
            continue
        try:
            measure(name, rivals)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
    for rival in rivals:
        rival.stop()


if __name__ == "__main__":
    main()
