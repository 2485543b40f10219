"""Times of gather and scatter on a GPU, beside those of PyTorch and JAX, and the floor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp

from cuda_scatter_data import MEGA, Inputs, Setup, inputs_of
from pullback.runtime.cuda import scatter as sc
from pullback.runtime.cuda.scatter import executor

BATCH = 8  # calls in a row, of which none is waited for


def median_ms(work: Callable[[int], Any], repeats: int, batch: int = BATCH) -> float:
    """The time of one call on the device, of several in a row; `work` gets a counter."""
    for k in range(3):
        work(k)
    cp.cuda.Device().synchronize()
    times, calls = [], 0
    for _ in range(repeats):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(batch):
            work(calls)
            calls += 1
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) / batch)
    return statistics.median(times)


def wall_us(work: Callable[[int], Any], repeats: int = 300) -> float:
    """The time that the caller spends on one call, the device not being waited for."""
    for k in range(20):
        work(k)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for k in range(repeats):
        work(k)
    taken = time.perf_counter() - start
    cp.cuda.Device().synchronize()
    return taken / repeats * 1e6


def peers_of(setup: Setup, inputs: Inputs, repeats: int) -> dict[str, float]:
    """Times of what PyTorch and JAX offer for the same."""
    found: dict[str, float] = {}
    count = len(inputs.indices)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        ti, tv, to = ([torch.from_dlpack(a) for a in s] for s in inputs[:3])
        found["index_add_"] = median_ms(
            lambda k: to[k % count].index_add_(0, ti[k % count], tv[k % count]), repeats
        )
        if setup.dtype == "float32":
            te = [i if setup.width == 1 else i[:, None].expand(setup.n, setup.width) for i in ti]
            found["scatter_add_"] = median_ms(
                lambda k: to[k % count].scatter_add_(0, te[k % count], tv[k % count]), repeats
            )
        if setup.n * setup.width <= 16 * MEGA or setup.n <= MEGA:
            found["index_put_"] = median_ms(
                lambda k: to[k % count].index_put_(
                    (ti[k % count],), tv[k % count], accumulate=True
                ),
                3,
                1,
            )
    found |= jax_times(inputs, repeats)
    return found


def jax_times(inputs: Inputs, repeats: int) -> dict[str, float]:
    try:
        import jax
    except ImportError:
        return {}
    add = jax.jit(lambda x, i, v: x.at[i].add(v), donate_argnums=0)
    index = jax.dlpack.from_dlpack(inputs.indices[0].astype(cp.int32))
    value = jax.dlpack.from_dlpack(inputs.values[0])
    x = add(jax.numpy.zeros(inputs.outs[0].shape, inputs.outs[0].dtype), index, value)
    x.block_until_ready()
    times = []
    for _ in range(max(3, repeats // 3)):
        start = time.perf_counter()
        for _ in range(BATCH):
            x = add(x, index, value)
        x.block_until_ready()
        times.append((time.perf_counter() - start) / BATCH * 1e3)
    return {"jax .at.add": statistics.median(times)}


def step_times(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of every launch of a call."""
    found: dict[str, list[float]] = {}
    original = executor.LoadedRecipe.run

    def timed(self: Any, buffers: dict[str, int], pool: Any, stream: int) -> None:
        events = []

        def wrap(launch: executor.PreparedLaunch) -> executor.PreparedLaunch:
            def inner(*args: Any) -> None:
                start, end = cp.cuda.Event(), cp.cuda.Event()
                start.record()
                launch.enqueue(*args)
                end.record()
                events.append((launch.name, start, end))

            return launch._replace(enqueue=inner)

        kept = self.launches
        self.launches = [wrap(launch) for launch in kept]
        original(self, buffers, pool, stream)
        self.launches = kept
        cp.cuda.Device().synchronize()
        for name, start, end in events:
            found.setdefault(name, []).append(cp.cuda.get_elapsed_time(start, end))

    executor.LoadedRecipe.run = timed
    try:
        for _ in range(7):
            call()
    finally:
        executor.LoadedRecipe.run = original
    return {name: statistics.median(times) for name, times in found.items()}


def time_case(setup: Setup, bandwidth: float, quick: bool, steps: bool) -> dict[str, Any]:
    inputs = inputs_of(setup)
    count, repeats = len(inputs.indices), 9 if quick else 15
    repeats *= 5 if setup.n <= MEGA else 1  # the caller's time counts there, and varies more
    i, v, o = inputs[:3]
    plans = [sc.make_plan(own, setup.rows) for own in i]

    def plain(k: int) -> Any:
        return sc.scatter_add(i[k % count], v[k % count], o[k % count])

    def planned(k: int) -> Any:
        k %= count
        return sc.scatter_add(i[k], v[k], o[k], plans[k])

    for k in range(count):
        planned(k)
    row: dict[str, Any] = {
        "case": setup.name,
        "floor": inputs.floor_bytes / bandwidth * 1e3,
        "ours": median_ms(plain, repeats),
        "planned": median_ms(planned, repeats),
        "alone": median_ms(plain, repeats, 1),
        "alone planned": median_ms(planned, repeats, 1),
        "wall us": wall_us(plain, 200 if setup.n <= MEGA else 20),
        "plan MB": plans[0].nbytes / 1e6,
    }
    if steps:
        row["steps"] = step_times(lambda: plain(0))
        row["steps planned"] = step_times(lambda: planned(0))
    row["peers"] = peers_of(setup, inputs, 5 if quick else 9)
    row["best"], row["best peer"] = min((t, name) for name, t in row["peers"].items())
    return row


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy."""
    x, y = cp.ones(256 * MEGA, "f4"), cp.empty(256 * MEGA, "f4")
    return 2 * x.nbytes / median_ms(lambda k: cp.copyto(y, x), 10) * 1e3


def report(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        for key in ("steps", "steps planned"):
            if key in row:
                parts = ", ".join(f"{name} {ms:.4f}" for name, ms in row[key].items())
                print(f"{row['case']:20} {key}: {parts}")
    for row in rows:
        peers = ", ".join(f"{name} {ms:.4f}" for name, ms in row["peers"].items())
        print(f"{row['case']:20} {peers}")
    heads = ("floor", "ours", "planned", "alone", "al.plan", "best", "/peer", "pl/peer")
    heads = (*heads, "/floor", "pl/fl", "wall us")
    print(f"\n{'ms':20}" + "".join(f"{head:>9}" for head in heads))
    for row in rows:
        best, floor = row["best"], row["floor"]
        times = [row[k] for k in ("floor", "ours", "planned", "alone", "alone planned", "best")]
        ratios = [row["ours"] / best, row["planned"] / best]
        ratios += [row["ours"] / floor, row["planned"] / floor]
        print(
            f"{row['case']:20}"
            + "".join(f"{t:9.4f}" for t in times)
            + "".join(f"{r:9.3f}" for r in ratios)
            + f"{row['wall us']:9.1f}"
        )
