"""What the CUDA runtime promises, tried on a GPU: threads, streams, memory, exchange, errors.

    PYTHONPATH=src:tests:. python tools/cuda_runtime.py [--like REGEX] [--workers 4]

One line for each check: ok or FAIL, what was seen, and the seconds it took. Each has a process of
its own; `waiting`, `uploads` and `loops` measure times.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.core import pytrees

CHECKS: dict[str, Callable[[], Any]] = {}
RNG = np.random.default_rng(3)
START = "import numpy as np, pullback as pb\n"


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS[function.__name__] = function
    return function


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def on_gpu(array: Any, device: str = "cuda") -> Any:
    return pb.tensor(array, device=device)


def script(text: str, seconds: float = 60.0, **environment: str) -> str:
    """What a process of its own prints, and its exit status."""
    found = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(text)],
        capture_output=True, text=True, timeout=seconds, env={**os.environ, **environment},
    )  # fmt: skip
    assert found.returncode == 0, f"{found.returncode}: {found.stdout[-300:]} {found.stderr[-900:]}"
    return found.stdout.strip()


def raised(kind: type[Exception], words: str, function: Callable[[], Any]) -> str:
    try:
        function()
    except kind as error:
        assert re.search(words, str(error)), str(error)
        return str(error)[:110]
    raise AssertionError(f"no {kind.__name__}")


# -- threads and streams ---------------------------------------------------------------------------


@check
def threads() -> str:
    """New functions, compiled at the same time by several threads, dropped and collected."""
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    def work(k: int) -> bool:
        n = 20 + k % 5
        x, i = draw(n, n), RNG.integers(0, n, 7)
        f = pb.jit(lambda a: pb.linalg.slogdet(a @ a)[1] + pb.sort(a).sum() * float(k % 7))
        found = [f(on_gpu(x)).numpy() for _ in range(3)][-1]
        if k % 4 == 0:
            with suppress(IndexError):
                pb.take(on_gpu(x), on_gpu(np.array([n + 3]))).numpy()
        taken = pb.take(on_gpu(x), on_gpu(i), axis=0).numpy()
        return bool(np.array_equal(taken, x[i])) and bool(
            np.array_equal(found, pb.jit(lambda a: f(a))(pb.tensor(x)).numpy())
        )

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(work, k) for k in range(96)]
            errors = [repr(j.exception()) for j in as_completed(jobs) if j.exception()]
            wrong = sum(not j.exception() and not j.result() for j in jobs)
    finally:
        stop.set()
        collector.join()
    others = [e for e in errors if "IndexError" not in e]  # threads share a stream, and its errors
    assert not others and not wrong, (len(others), wrong, others[:3])
    return f"96 calls of 12 threads, {len(errors)} index errors of others"


@check
def streams_of_threads() -> str:
    import cupy

    def work(k: int) -> bool:
        with cupy.cuda.Stream(non_blocking=True):
            x = draw(300, 300)
            f = pb.jit(lambda a: (a @ a).sum() + pb.sin(a).sum())
            values = {float(f(on_gpu(x)).numpy()) for _ in range(20)}
            return len(values) == 1 and values == {float(f(pb.tensor(x)).numpy())}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(24)))
    return "24 calls on 8 streams"


@check
def other_gpus() -> str:
    return raised(pb.DeviceError, "looked for GPU 7, got", lambda: pb.ones(3, device="cuda:7"))


@check
def index_errors() -> str:
    x = on_gpu(draw(9))
    y = pb.take(x, on_gpu(np.array([3, 12]))) * 2.0
    said = raised(IndexError, "index 12", lambda: y.numpy())
    assert np.isfinite((x + 1.0).numpy()).all()
    return said


@check
def loops_of_graphs() -> str:
    """Loops and choices whose bodies are too large for one kernel: the CPU's bits, and times beside
    those where the host decides.
    """
    from pullback.runtime.cuda import gpu

    own = gpu.gpu_of(0)
    assert own.has_conditions, "the driver has no conditions"

    def smooth(v: Any) -> Any:
        return (v + pb.roll(v, 1, axis=0) + pb.roll(v, 1, axis=1)) * 0.33

    def relax(x: Any) -> Any:
        def step(c: Any) -> Any:
            return c[0] + 1.0, smooth(c[1])

        def goes_on(c: Any) -> Any:
            return (c[0] < 301.0) & (pb.abs(c[1]).max() > 1e-30)

        return pb.while_loop(goes_on, step, (pb.zeros_like(x[0, 0]), x))

    def nested(x: Any) -> Any:
        def inner(v: Any) -> Any:
            return pb.while_loop(lambda u: (u * u).mean() > 0.05, lambda u: u * 0.6, v)

        def step(c: Any) -> Any:
            return c[0] + 1.0, pb.sin(inner(c[1]) * 3.0)

        return pb.while_loop(lambda c: c[0] < 20.0, step, (pb.zeros_like(x[0, 0]), x))

    def choices(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            c = pb.cond((c.sum() + k) > 0, lambda c: pb.sin(c) - 0.2, lambda c: c * 0.9 + 0.01, c)
            return c, c.max()

        return pb.scan(step, x, pb.arange(8, dtype="float32", device=x.device) - 4.0)

    said = []
    for size in (64, 1024):
        x = draw(size, size)
        for f in (relax, nested, choices):
            times = []
            wanted = [a.numpy() for a in pytrees.leaves(pb.jit(f)(pb.tensor(x)))]
            for has in (True, False):
                own.__dict__["has_conditions"] = has
                g, given = pb.jit(f), [on_gpu(x), on_gpu(x)]
                for k in range(5):
                    found = [a.numpy() for a in pytrees.leaves(g(given[k % 2]))]
                    assert all(map(np.array_equal, found, wanted)), (f.__name__, size, has, k)
                times.append(best_of(lambda g=g, x=given[0]: pytrees.leaves(g(x))[-1].numpy()))
            own.__dict__["has_conditions"] = True
            said.append(f"{f.__name__} {size}: {times[0]:.0f} us for {times[1]:.0f}")
    return ", ".join(said)


def best_of(f: Callable[[], Any], repeats: int = 7) -> float:
    """Microseconds of the fastest call."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        f()
        found.append(time.perf_counter() - started)
    return min(found) * 1e6


# -- copies ----------------------------------------------------------------------------------------


@check
def uploads_overlap() -> str:
    a, host = on_gpu(draw(8192, 8192)), draw(4 << 20)  # 16 MB
    (a @ a).numpy()
    on_gpu(host).numpy()

    def timed(*jobs: Callable[[], Any]) -> tuple[float, float]:
        pb.ones(1, device="cuda").numpy()
        started = time.perf_counter()
        kept = [job() for job in jobs]
        returned = time.perf_counter() - started
        pb.ones(1, device="cuda").numpy()
        del kept
        return returned * 1e3, (time.perf_counter() - started) * 1e3

    _, product = timed(lambda: a @ a)
    returned, both = timed(lambda: a @ a, lambda: on_gpu(host))
    assert returned < product * 0.9, (returned, product)
    return (
        f"product {product:.1f} ms; with a copy of 16 MB: back after {returned:.1f}, all {both:.1f}"
    )


@check
def exchange_with_torch() -> str:
    import torch

    x = draw(1000, 1000)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        t = torch.tensor(x, device="cuda")
        for _ in range(50):
            t = (t @ t).clamp(-1, 1)  # it is still under way when the memory is taken
        u = pb.from_dlpack(t)
    own = u.numpy()
    side.synchronize()
    assert np.array_equal(own, t.cpu().numpy())
    y = on_gpu(x)
    for _ in range(50):
        y = pb.clip(y @ y, -1.0, 1.0)
    with torch.cuda.stream(side):
        back = (torch.from_dlpack(y) * 1.0).cpu().numpy()
    assert np.array_equal(back, y.numpy())
    half = torch.from_dlpack(y.astype("bfloat16"))
    assert half.dtype == torch.bfloat16
    return "both ways on a side stream; bfloat16"


@check
def exchange_with_cupy() -> str:
    import cupy

    x = draw(500, 300)
    y = on_gpu(x).T * 2.0
    assert np.array_equal(cupy.from_dlpack(y).get(), y.numpy())
    assert np.array_equal(cupy.asarray(y.T).get(), y.numpy().T)  # by __cuda_array_interface__
    with cupy.cuda.Stream(non_blocking=True):
        c = cupy.asarray(x)
        for _ in range(50):
            c = cupy.clip(c @ c.T @ c, -1, 1)
        z = pb.from_dlpack(c)
        assert np.array_equal(z.numpy(), c.get())
    return "both ways, views too"


@check
def exchange_with_jax() -> str:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    x = draw(400, 400)
    j = jax.numpy.asarray(x)
    for _ in range(30):
        j = jax.numpy.clip(j @ j, -1, 1)
    assert "cuda" in str(j.device).lower() or "gpu" in str(j.device).lower(), j.device
    assert np.array_equal(pb.from_dlpack(j).numpy(), np.asarray(j))
    y = on_gpu(x)
    for _ in range(30):
        y = pb.clip(y @ y, -1.0, 1.0)
    assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(y)), y.numpy())
    return "both ways"


# -- what is missing, or damaged -------------------------------------------------------------------


@check
def without_a_gpu() -> str:
    text = """
    try: pb.ones(3, device="cuda")
    except pb.DeviceError as e: print(e)
    print(pb.ones(3).sum().item())
    """
    said = script(text, CUDA_VISIBLE_DEVICES="")
    assert "looked for" in said and said.endswith("3.0"), said
    return said.splitlines()[0][:140]


@check
def without_cupy() -> str:
    text = """
    import sys; sys.modules["cupy"] = None
    try: pb.ones(3, device="cuda")
    except pb.DeviceError as e: print(e)
    """
    said = script(text)
    assert "CuPy was not found" in said, said
    return said


@check
def cache_on_disk() -> str:
    """Entries that are cut off, changed, or can't be written are compiled anew."""
    text = """
    import time
    s = time.perf_counter()
    f = pb.jit(lambda x: pb.sin(x) * 1.25 + pb.tanh(x).sum())
    found = f(pb.tensor(np.arange(4.0), device="cuda")).numpy()
    print(found.tobytes().hex(), time.perf_counter() - s)
    """
    said = []
    with tempfile.TemporaryDirectory() as folder:

        def run(what: str) -> None:
            bits, seconds = script(text, PULLBACK_CACHE_DIR=folder).split()
            said.append((what, bits, float(seconds)))

        def entries() -> list[Path]:
            return [p for p in Path(folder).glob("cuda-*/*") if p.is_file()]

        run("new")
        assert entries()
        run("kept")
        for path in entries():
            path.write_bytes(path.read_bytes()[:1000])
        run("cut off")
        for path in entries():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 255
            path.write_bytes(bytes(data))
        run("changed")
        run("mended")
    with tempfile.TemporaryDirectory() as folder:
        full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        bits, seconds = script(full + textwrap.dedent(text), PULLBACK_CACHE_DIR=folder).split()
        said.append(("full disk", bits, float(seconds)))
        assert not [p for p in Path(folder).glob("cuda-*/*") if p.is_file()]
    assert len({bits for _, bits, _ in said}) == 1, said
    return ", ".join(f"{what} {seconds:.2f} s" for what, _, seconds in said)


# -- memory and errors -----------------------------------------------------------------------------


@check
def out_of_memory() -> str:
    x = on_gpu(draw(1000))
    f = pb.jit(pb.grad(lambda a: (pb.sin(a) * a).sum()))
    expected = [f(x).numpy() for _ in range(3)][-1]
    said = raised(
        MemoryError, "cuda: out of memory", lambda: pb.ones((1 << 42,), device="cuda") + 1.0
    )
    kept, blocks = [], 0
    try:
        while True:
            kept.append(pb.ones((1 << 31,), device="cuda") * 1.0)  # 8 GB
            blocks += 1
    except MemoryError:
        pass
    small = (x + 1.0).numpy()
    kept.clear()
    again = pb.ones((1 << 31,), device="cuda") * 1.0
    assert again[-1].item() == 1.0 and np.array_equal(small, x.numpy() + 1)
    assert all(np.array_equal(f(x).numpy(), expected) for _ in range(3))
    return f"{said}; {blocks} blocks of 8 GB fitted"


def used() -> tuple[int, int]:
    """Bytes of the device and of the process, when everything that is free was given back."""
    import cupy

    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    free, total = cupy.cuda.runtime.memGetInfo()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total - free, resident


@check
def retraces() -> str:
    """400 functions that are compiled, called as graphs and dropped."""
    x = on_gpu(draw(300, 300))
    seen = []
    for k in range(401):
        f = pb.jit(pb.grad(lambda a, k=k: (pb.tanh(a @ a) * float(k)).sum() + pb.sort(a).sum()))
        for _ in range(3):
            f(x)
        del f
        if k in (20, 200, 400):
            seen.append(used())
    device = [(b[0] - seen[0][0]) / 2**20 for b in seen]
    host = [(b[1] - seen[0][1]) / 2**20 for b in seen]
    assert device[2] < 64 and host[2] - host[1] < 16, (device, host)
    return f"MB after 20, 200, 400: device {device}, host {[round(h, 1) for h in host]}"


@check
def sources() -> str:
    """Kernels that no program has any more are unloaded."""
    from pullback.runtime.cuda import gpu, modules

    own = gpu.gpu_of(0).modules
    before, modules.SPARE_BYTES = modules.SPARE_BYTES, 1 << 18
    text = 'extern "C" __global__ void k{0}(float* x) {{ x[0] = {0}.0f; }}'
    try:
        first = used()[0]
        counts = []
        for k in range(5):
            own.load([text.format(100 * k + j) for j in range(60)])
            counts.append(len(own._loaded))
        last = used()[0]
    finally:
        modules.SPARE_BYTES = before
    assert counts[-1] < counts[0] + 60, counts
    return f"loaded after each 60 new ones: {counts}; device {(last - first) / 2**20:.1f} MB more"


@check
def interrupts() -> str:
    """Ctrl-C while the GPU is busy: KeyboardInterrupt soon, and everything works afterwards."""
    text = """
    import os, signal, threading, time
    x = pb.tensor(np.ones({size}, np.float32), device="cuda")
    def go():
        {work}
    def ring():
        times.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer({after}, ring).start()
    times = []
    try:
        go()
        print("ended by itself")
    except KeyboardInterrupt:
        late = time.perf_counter() - times[0]
        s = time.perf_counter()
        assert (x + 1.0).numpy()[0] == 2.0
        more = time.perf_counter() - s
        print(f"{{late * 1e3:.0f}} ms, next result after {{more * 1e3:.0f}} ms")
    """
    endless = (
        "step = lambda v: pb.sin(v) * 0.5 + 1.0\n"
        "        pb.jit(lambda a: pb.while_loop(lambda v: (v > 0).any(), step, a))(x).numpy()"
    )
    queue = (
        "a = pb.ones((8192, 8192), device='cuda')\n        [a @ a for _ in range(200)][-1].numpy()"
    )
    said = []
    for what, size, work, after in (
        ("small loop", 10, endless, 6.0), ("large loop", 1 << 22, endless, 6.0),
        ("queue of products", 10, queue, 3.0),
    ):  # fmt: skip
        found = script(text.format(size=size, work=work, after=after), 90)
        assert "ended" not in found and int(found.partition(" ms")[0]) < 500, found
        said.append(f"{what}: {found}")
    return "; ".join(said)


@check
def forks() -> str:
    text = """
    import os
    x = pb.tensor(np.ones(3, np.float32), device="cuda")
    f = pb.jit(pb.grad(lambda a: (pb.sin(a) * a).sum()))
    [f(x).numpy() for _ in range(3)]
    pid = os.fork()
    if pid == 0:
        large = np.ones(1 << 20)
        for g in (lambda: x + 1.0, lambda: x.numpy(), lambda: f(x),
                  lambda: pb.zeros(9, device="cuda"), lambda: pb.tensor(large, device="cuda")):
            try: print("done", g())
            except Exception as e: print(type(e).__name__, str(e)[:150], flush=True)
        import gc
        del f, x
        gc.collect()
        assert pb.ones(3).sum().item() == 3.0
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x + 1.0).numpy()[0] == 2.0 and f(x).numpy().shape == (3,)
    print("the parent goes on")
    """
    said = script(text)
    assert said.endswith("the parent goes on") and "done" not in said, said
    assert all("DeviceError" in s and "fork" in s for s in said.splitlines()[:-1]), said
    return said.splitlines()[0]


@check
def lost_context() -> str:
    """A kernel of somebody else's that writes anywhere: errors say so, the process ends well."""
    text = """
    import cupy
    x = pb.tensor(np.ones(3, np.float32), device="cuda")
    (x + 1.0).numpy()
    k = cupy.RawKernel('extern "C" __global__ void k(float* p) { p[0] = 1; }', "k")
    k((1,), (1,), (np.uint64(8),))
    large = np.ones(1 << 20)
    for g in (lambda: x.numpy(), lambda: x + 1.0, lambda: pb.jit(pb.sin)(x),
              lambda: pb.tensor(large, device="cuda")):
        try: print("done", g())
        except Exception as e: print(type(e).__name__, str(e)[:200], flush=True)
    print(pb.ones(3).sum().item())
    """
    said = script(text)
    assert said.endswith("3.0") and "done" not in said, said
    assert all(line.startswith("DeviceError cuda") for line in said.splitlines()[:-1]), said
    return said.splitlines()[0]


@check
def waiting() -> str:
    """Microseconds until a small result is there."""
    import cupy

    x, a = on_gpu(draw(10)), on_gpu(draw(2048, 2048))

    def best(f: Callable[[], Any], n: int) -> float:
        f()
        times = []
        for _ in range(7):
            started = time.perf_counter()
            for _ in range(n):
                f()
            times.append((time.perf_counter() - started) / n)
        return min(times) * 1e6

    stream = cupy.cuda.get_current_stream()
    from pullback.runtime.cuda import gpu

    wait, launch = gpu.gpu_of(0).join, lambda: a @ a
    found = [
        ("add and read", best(lambda: (x + x).numpy(), 300)),
        ("idle join", best(lambda: wait(0), 300)),
        ("idle CuPy", best(stream.synchronize, 300)),
        ("add, join", best(lambda: (x + x, wait(0)), 300)),
        ("add, CuPy", best(lambda: (x + x, stream.synchronize()), 300)),
        ("product, join", best(lambda: (launch(), wait(0)), 30)),
        ("product, CuPy", best(lambda: (launch(), stream.synchronize()), 30)),
    ]
    return ", ".join(f"{what} {us:.1f} us" for what, us in found)


def run(name: str) -> int:
    """Run a check in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.perf_counter()
    try:
        text = f"ok    {name}: {CHECKS[name]()}"
    except Exception as error:  # it is to be told like a result
        text = f"FAIL  {name}: {type(error).__name__}: {str(error)[:1500]}"
    print(f"{text} ({time.perf_counter() - started:.1f} s)", flush=True)
    return text.startswith("FAIL")


def apart(name: str, seconds: float = 120.0) -> bool:
    """Run a check in a process of its own, which may die; whether it went well."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--only", name]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"FAIL  {name}: not done after {seconds:.0f} s", flush=True)
        return False
    told = found.stdout.strip()
    if found.returncode and not told:
        told = f"FAIL  {name}: ended with {found.returncode}: {found.stderr[-3000:]}"
    print(told, flush=True)
    return found.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--like", default="", help="checks whose names have this")
    parser.add_argument("--only", help="this one, in this process")
    parser.add_argument("--workers", type=int, default=1, help="checks at a time")
    options = parser.parse_args()
    if options.only:
        return run(options.only)
    names = [name for name in CHECKS if re.search(options.like, name)]
    with ThreadPoolExecutor(options.workers) as pool:
        return sum(not good for good in pool.map(apart, names))


if __name__ == "__main__":
    sys.exit(main())
