"""Programs on the emulated driver: launched from their tables, and replayed as graphs."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from pullback.compile.program.stages import Loop, Program, Stage
from pullback.core import pytrees
from pullback.core.avals import aval
from pullback.core.dtypes import float32, int64
from pullback.runtime.cuda import (
    driver,
    graphs,
    launcher,
    memory,
    modules,
    programs,
    transfers,
)
from pullback.runtime.cuda.stages import At, StageCode, Step, TensorMap
from pullback.runtime.cuda.table import copy_step

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loss(w: Any, x: Any) -> Any:
    h = pb.tanh(x @ w)
    return ((h - h.sum(axis=1, keepdims=True)) ** 2).sum()


def loop(w: Any, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = pb.tanh(carry @ w + row)
        return carry, carry.sum()

    return pb.scan(step, x[0], x)[1].sum()


def last(w: Any, x: Any) -> Any:
    return pb.scan(lambda c, row: (pb.sin(c + row) @ w, None), x[0], x)[0]


def network(w: Any, x: Any) -> Any:
    """Gradients of weights need nothing of those of other layers."""
    for k in range(3):
        x = pb.tanh(x @ (w + float(k)))
    return pb.sort(x).sum() + (x * x).sum()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gradient": pb.grad(loss, argnums=(0, 1)),
    "network": pb.value_and_grad(network, argnums=(0, 1)),
    "loop": pb.value_and_grad(loop),
    "odd number of rounds": last,
}


def check_calls(f: Callable[..., Any], cuda: Any, calls: int = 5) -> None:
    """The bits of the CPU on every call, with other arrays in other places each time."""
    compiled, kept = (pb.jit(f), pb.jit(f)), []
    for k in range(calls):
        arrays = draw(8, 8, seed=k), draw(7, 8, seed=k + 100)
        both = [
            g(*[pb.tensor(a, device=d) for a in arrays])
            for g, d in zip(compiled, (cuda, "cpu"), strict=True)
        ]
        kept.append([pytrees.leaves(tree) for tree in both])
        for pair in kept:  # those of earlier calls have kept theirs
            for x, y in zip(*pair, strict=True):
                np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_have_the_bits_of_the_cpu(name: str, cuda: Any):
    library = driver.library()
    before, forks = (library.replays, library.updates), library.forks
    check_calls(FUNCTIONS[name], cuda)  # nodes are run in a random order that edges allow
    assert library.forks > forks + 3 or name != "network"
    assert library.replays == before[0] + 4  # all calls but the first
    assert library.updates > before[1]


def test_a_group_without_launches_makes_nobody_wait_for_less(cuda: Any):
    """Of the groups 0 to 3, 2 has none and waits for 0; 3 waits for 1."""
    runtime = cuda.runtime
    steps = [[copy_step(2, 1, 40)], [copy_step(3, 1, 40)], [], [copy_step(0, 3, 40)]]
    stages = [Stage(StageCode(own), 1, 1, ()) if own else Loop([], 0, (), ()) for own in steps]
    waits = [(1, ()), (1, ()), (1, (0,)), (1, (1,))]
    program = Program(1, 40, (40, 40), (), stages, waits=waits)
    run, av = programs.encode(runtime._gpu, program), aval((10,), float32, cuda)
    for k in range(20):  # in as many random orders
        found = run(runtime.from_numpy(draw(10, seed=k), True))
        np.testing.assert_array_equal(runtime.to_numpy(found, av), draw(10, seed=k))


def test_a_map_begins_with_the_address_of_its_array(cuda: Any):
    """Launched, added to a graph, and replayed from there for arrays elsewhere."""
    source = """
struct Map { unsigned long long words[16]; };
extern "C" __global__ void shown(unsigned long long* out, const Map map, long long place) {
  for (int i = 0; i < 16; ++i) out[place * 16 + i] = map.words[i];
}"""
    rest = bytes(range(120))
    steps = [
        Step(source, "shown", (1, 1), 1, (At(0), TensorMap(At(1, 32 * k), rest), k))
        for k in range(3)
    ]
    program = Program(1, 3 * 128, (), (), [Stage(StageCode(steps), 1, 1, ())])
    runtime, kept = cuda.runtime, []
    run, av = programs.encode(runtime._gpu, program), aval((3, 16), int64, cuda)
    for k in range(4):
        kept.append(runtime.from_numpy(draw(40, seed=k), True))
        found = runtime.to_numpy(run(kept[-1]), av)
        assert found[:, 0].tolist() == [kept[-1].address + 32 * i for i in range(3)]
        assert all(row[1:].tobytes() == rest for row in found)


def test_a_graph_whose_arrays_stay_is_launched_as_it_is(cuda: Any):
    f = pb.jit(pb.grad(loss))
    w, x = (pb.tensor(draw(n, 8), device=cuda) for n in (8, 5))
    for _ in range(3):
        f(w, x).numpy()
    before = driver.library().updates
    for _ in range(3):
        f(w, x).numpy()
    assert driver.library().updates == before


def test_arrays_of_a_graph_start_anywhere(cuda: Any):
    """A kernel that reads several elements at a time gives way to another one, and comes back."""
    f, g = pb.jit(lambda x: pb.sin(x).sum() + (x * 2.0)), pb.jit(lambda x: pb.sin(x).sum() + x * 2)
    whole = draw(8200)
    x = pb.tensor(whole, device=cuda)
    for start in (0, 0, 1, 0, 4, 3, 0):
        found = f(x[start : start + 8000])
        expected = g(pb.tensor(whole)[start : start + 8000])
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_a_thread_without_a_context_makes_graphs(cuda: Any):
    w, x = pb.tensor(draw(5, 5), device=cuda), pb.tensor(draw(7, 5, seed=1), device=cuda)
    f = pb.jit(loss)
    with ThreadPoolExecutor(1) as pool:
        found = [pool.submit(f, w, x).result().item() for _ in range(3)]
    assert found == [f(w, x).item()] * 3


def test_threads_that_ask_for_the_first_launcher_share_it(monkeypatch: pytest.MonkeyPatch):
    made = []

    def make() -> Any:
        if not made:
            time.sleep(0.05)
            made.append(object())
            return lambda table: made[0], None
        raise AssertionError("made twice")

    monkeypatch.setattr(launcher, "_made", cache(make))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(launcher.launcher, range(4)))
    assert found == made * 4


def decay(h: Any) -> Any:
    return pb.while_loop(lambda h: (pb.abs(h) > 0.1).any(), lambda h: pb.sin(h) * 0.5, h)


def newton(w: Any, x: Any) -> Any:
    """Loops in loops: their numbers of rounds depend on the arrays, and may be 0."""

    def step(carry: Any) -> Any:
        k, h = carry
        inner = pb.while_loop(lambda v: (v * v).sum() > k, lambda v: v * 0.7, h)
        return k + 1.0, pb.tanh(inner @ w)

    first = (pb.abs(x).max() - 1.0), x
    return pb.while_loop(lambda c: (c[0] < 4.0) & (pb.abs(c[1]).max() > 0.01), step, first)


def choices(w: Any, x: Any) -> Any:
    """Choices in a loop of a known number of rounds, one of them without anything to do."""

    def step(carry: Any, row: Any) -> Any:
        turned = pb.cond(row.sum() > 0, lambda c: c @ w, lambda c: pb.sin(c + row), carry)
        kept = pb.cond(row[0] > 0, lambda c: c, lambda c: decay(c * 2.0), turned)
        return kept, kept.sum()

    return pb.scan(step, x[0], x)


def one_choice(w: Any, x: Any) -> Any:
    h = pb.cond(x.sum() > 0, lambda h: h @ w, lambda h: pb.sin(h), x)
    return decay(h), h.sum()


CONTROLLED = {"choice": one_choice, "loops": newton, "choices": choices}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", CONTROLLED)
def test_loops_and_choices_are_drawn(
    name: str, kernels: bool, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    """Whether loops are one kernel or nodes of a graph."""
    if not kernels:
        monkeypatch.setattr(programs, "with_loop_kernels", lambda gpu, program: program)
    library = driver.library()
    replays, rounds = library.replays, library.rounds
    check_calls(lambda w, x: CONTROLLED[name](w, x), cuda, 8)
    assert library.replays == replays + 7
    assert kernels or library.rounds > rounds + 5


@pytest.mark.parametrize("name", CONTROLLED)
def test_the_host_decides_where_a_driver_has_no_conditions(
    name: str, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(programs, "with_loop_kernels", lambda gpu, program: program)
    monkeypatch.setitem(cuda.runtime._gpu.__dict__, "has_conditions", False)
    before = driver.library().replays
    check_calls(lambda w, x: CONTROLLED[name](w, x), cuda, 4)
    assert driver.library().replays == before


def test_the_host_decides_where_a_graph_is_refused(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "with_loop_kernels", lambda gpu, program: program)
    made = launcher.addresses("refuse", "define i32 @refuse() { ret i32 1 }", ["refuse"])
    entries = cuda.runtime._gpu.driver._entries
    at = len(driver.ENTRIES) + driver.CONDITIONS.index("cuGraphAddNode_v2")
    kept, entries[at] = entries[at], made["refuse"]
    before = driver.library().replays
    try:
        check_calls(lambda w, x: newton(w, x), cuda, 4)
    finally:
        entries[at] = kept
    assert driver.library().replays == before


def test_a_loop_of_a_graph_can_be_ended(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    """By a signal while its result is waited for: the next call is whole again."""

    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    monkeypatch.setattr(programs, "with_loop_kernels", lambda gpu, program: program)
    f = pb.jit(lambda x: pb.while_loop(lambda v: (v > 0.001).all(), lambda v: v * 0.9, x) + 1.0)
    x, gpu = pb.tensor(draw(3) ** 2 + 1.0, device=cuda), cuda.runtime._gpu
    expected = [f(x).numpy() for _ in range(3)][-1]
    stop = gpu.stop_of(0)

    def interrupted() -> None:
        raise Alarm

    with pytest.raises(Alarm):
        stop.wait(interrupted)
    assert list(stop._words) == [0, 0]
    stop._words[0] = 1  # as another thread does, whose wait was interrupted
    join, seen = gpu.join, driver.library().rounds
    monkeypatch.setattr(gpu, "join", lambda stream: stop.wait(interrupted))
    with pytest.raises(Alarm):
        f(x)
    monkeypatch.setattr(gpu, "join", join)
    assert driver.library().rounds == seen and list(stop._words) == [0, 0]
    np.testing.assert_array_equal(f(x).numpy(), expected)

    def other_thread() -> None:
        stop._ended += 1

    with pytest.raises(pb.DeviceError, match="interrupted, in another thread"):
        stop.wait(other_thread)


def test_errors_in_a_graph(cuda: Any):
    @pb.jit
    def f(x: Any, i: Any) -> Any:
        return pb.sort(pb.take(x * 2.0, i, axis=0)) + pb.sin(x).sum()

    x = pb.tensor(draw(9), device=cuda)
    good, bad = (pb.tensor(np.array(i), device=cuda) for i in ([1, 2], [3, 11]))
    for _ in range(3):
        f(x, good)
        f(x, bad)
        with pytest.raises(IndexError, match="index 11 is out of range"):
            f(x, good).numpy()
        f(x, good).numpy()


def test_the_first_of_several_errors_is_raised_and_the_others_go(cuda: Any):
    x = pb.tensor(draw(9), device=cuda)
    for index in (20, 30):
        pb.take(x, pb.tensor(np.array([index]), device=cuda).reshape((index // 10, -1)[::-1][:1]))
    with pytest.raises(IndexError, match="index 20"):
        x.numpy()
    np.testing.assert_array_equal(x.numpy(), draw(9))


def test_an_exception_of_the_host_comes_through(cuda: Any):
    def refuse(x: np.ndarray) -> np.ndarray:
        raise KeyError("no")

    f = pb.jit(lambda x: pb.pure_callback(refuse, x, x) * 2.0)
    with pytest.raises(KeyError, match="no"):
        f(pb.tensor(draw(3), device=cuda))


def test_graphs_make_room_for_others(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "MOST_BYTES", 1)
    library = driver.library()
    check_calls(lambda w, x: FUNCTIONS["gradient"](w, x), cuda)
    gc.collect()
    known = len(library.graphs)
    fs = [pb.jit(lambda w, x, k=k: FUNCTIONS["gradient"](w, x * float(k))) for k in range(4)]
    w, x = (pb.tensor(draw(n, 8), device=cuda) for n in (8, 7))
    for _ in range(3):
        pytrees.map_tree(lambda f: f(w, x), fs)
    assert len(library.graphs) <= known + 4  # two graphs of two handles each
    del fs
    gc.collect()
    assert len(library.graphs) <= known


def test_blocks_are_used_again_on_their_stream():
    asked: list[int] = []

    class Memory:
        def __init__(self, nbytes: int, stream: int):
            asked.append(nbytes)
            self.ptr = len(asked) << 20

    pool = memory.Pool(Memory)
    first = pool.empty(100, 0)
    address = first.address
    del first
    other = pool.empty(100, 1)
    assert other.address != address
    assert pool.empty(90, 0).address == address
    large = pool.empty(memory.LARGE + 1, 0)
    assert asked == [512, 512, memory.LARGE + 1] and large.nbytes == memory.LARGE + 1
    assert pool.empty(0, 0).address == 0


@pytest.mark.parametrize("nbytes", [1, 512, 513, 4096, 4097, 10_000, 1 << 20])
def test_blocks_are_little_larger_than_what_was_asked_for(nbytes: int):
    size = memory.block_bytes(nbytes)
    assert nbytes <= size <= max(nbytes + 512, nbytes * 1.25) and size % 512 == 0


def test_large_arrays_go_through_page_locked_memory(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfers, "SMALL", 100)
    monkeypatch.setattr(transfers, "MOST", 10_000)
    sent = cuda.runtime._gpu._transfers._sent
    for size in (20, 30, 2000, 2001, 5000):  # small, locked twice, too large
        array = draw(size)
        x = pb.tensor(array, device=cuda)
        array[:] = 0  # it may change as soon as it was given
        np.testing.assert_array_equal(x.numpy(), draw(size))
        assert len(sent) == (0 if size < 25 else 1)


def test_each_gpu_has_its_own_memory_and_launches(cuda: Any):
    library, second = driver.library(), pb.device("cuda:1")
    library.devices.clear()
    x = pb.tensor(draw(40), device=second)
    f = pb.jit(pb.grad(lambda x: (pb.sort(x) * x).sum()))
    y = [f(x) for _ in range(3)][-1]
    np.testing.assert_array_equal(y.numpy(), f(x.cpu()).numpy())
    assert library.devices == {1} and cuda_fake.devices_of[y._buf.address] == 1
    pb.take(x, pb.tensor(np.array([40]), device=second))
    cuda_fake.synchronized.clear()
    pb.sin(pb.tensor(draw(3), device=cuda)).numpy()  # it is not about this GPU
    assert {device for device, _ in cuda_fake.synchronized} == {0}
    with pytest.raises(IndexError, match="index 40"):
        x.numpy()
    assert cuda_fake.current() == 0


ENDLESS = """
define i32 @done() { ret i32 0 }
define i32 @set(ptr %to) {
  store i8 1, ptr %to
  ret i32 0
}"""


def test_a_loop_that_goes_on_for_ever_can_be_interrupted(
    cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    """One that the host walks, flag after flag."""
    monkeypatch.setitem(cuda.runtime._gpu.__dict__, "has_conditions", False)

    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    f = pb.jit(lambda x: pb.while_loop(lambda x: (x > 0.1).all(), pb.sin, x))
    x = pb.tensor(np.ones(3, np.float32), device=cuda)
    f(x)
    # Functions of the driver in machine code: no launch takes time, and every flag is set.
    made = launcher.addresses("driver", ENDLESS, ["done", "set"])
    entries = cuda.runtime._gpu.driver._entries
    kept = list(entries)
    entries[driver.ENTRIES.index("cuLaunchKernel")] = made["done"]
    entries[driver.ENTRIES.index("cuMemcpyDtoHAsync_v2")] = made["set"]
    entries[driver.ENTRIES.index("cuStreamQuery")] = made["done"]
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Alarm):
            f(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        entries[:] = kept
    np.testing.assert_array_equal((x + x).numpy(), [2, 2, 2])


def test_a_thread_has_its_own_context_again(cuda: Any):
    """None, that of another GPU, or the same: as it was before."""
    gpu, own = cuda.runtime._gpu, cuda_fake.contexts

    def seen(before: int | None) -> tuple[int, int | None]:
        own.own = before
        with gpu.current():
            inside = cuda_fake.current()
        pb.tensor(draw(600_000), device=cuda).numpy()
        return inside, own.own

    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(seen, k).result() for k in (None, 0, 1)] == [(0, None), (0, 0), (0, 1)]


def kernel(name: str) -> str:
    return f'extern "C" __global__ void {name}(float* out, const float* x) {{ out[0] = x[0] + 1; }}'


def test_threads_that_need_a_kernel_first_share_it(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    """A second module in place of the first would end the handles that the others have."""
    runtime, name = cuda.runtime, "needed_first"
    compiled, code = [], modules.machine_code

    def slow(source: str, target: str) -> Any:
        compiled.append(source)
        time.sleep(0.05)
        return code(source, target)

    monkeypatch.setattr(modules, "machine_code", slow)
    step = Step(kernel(name), name, (1, 1), 1, (At(0), At(1)))
    program = Program(1, 4, (), (), [Stage(StageCode([step]), 1, 1, ())])

    def call(k: int) -> float:
        run = programs.encode(runtime._gpu, program)
        time.sleep(0.01 * (k % 3))
        gc.collect()
        found = run(runtime.from_numpy(np.array([k], np.float32), True))
        return float(runtime.to_numpy(found, aval((1,), float32, cuda))[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(16))) == [k + 1.0 for k in range(16)]
    assert len(compiled) == 1 and kernel(name) not in cuda_fake.unloaded


def test_kernels_that_no_program_has_are_unloaded(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(modules, "SPARE_BYTES", 1000)
    gpu = cuda.runtime._gpu
    kept = gpu.modules.load([kernel("kept_by_a_program")])
    for k in range(30):
        gpu.modules.load([kernel(f"dropped_{k}")])
    spare = [s for s in gpu.modules._loaded if "dropped_" in s]
    assert len(spare) < 20 and kernel("dropped_0") in cuda_fake.unloaded
    assert cuda_fake.Entry.of(kept[kernel("kept_by_a_program")].function("kept_by_a_program"))
    assert kernel("kept_by_a_program") not in cuda_fake.unloaded


def test_memory_that_is_not_there_is_an_error_that_leaves_the_rest(
    cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    x = pb.tensor(draw(3), device=cuda)
    f = pb.jit(pb.grad(loss))
    w, y = (pb.tensor(draw(n, 8), device=cuda) for n in (8, 5))
    expected = [f(w, y).numpy() for _ in range(3)][-1]
    monkeypatch.setattr(cuda_fake, "limit", [4 << 20])
    with pytest.raises(MemoryError, match=r"cuda: out of memory, got a request for 1\d{8} bytes"):
        (pb.ones((1 << 25,), device=cuda) + 1.0).numpy()
    monkeypatch.setattr(cuda_fake, "limit", [])
    np.testing.assert_array_equal((x + 1.0).numpy(), draw(3) + np.float32(1))
    for _ in range(3):  # its graph has made room
        np.testing.assert_array_equal(f(w, y).numpy(), expected)


def test_waiting_can_be_interrupted_and_memory_stays_until_it_is_written(cuda: Any):
    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    gpu, x = cuda.runtime._gpu, pb.tensor(draw(3), device=cuda)
    made = launcher.addresses("busy", "define i32 @busy() { ret i32 600 }", ["busy"])
    entries = gpu.driver._entries
    kept = list(entries)
    entries[driver.ENTRIES.index("cuStreamQuery")] = made["busy"]
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Alarm):
            x.numpy()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        entries[:] = kept
    assert isinstance(gpu._transfers._sent[-1][1], np.ndarray)
    np.testing.assert_array_equal(x.numpy(), draw(3))


def test_an_error_of_the_driver_says_what_to_do(cuda: Any):
    check = cuda.runtime._gpu.driver.check
    with pytest.raises(pb.DeviceError, match="CUDA does not survive a fork"):
        check(3, "a launch")
    with pytest.raises(pb.DeviceError, match="can't be used by this process any more"):
        check(700, "the work of a stream")
    with pytest.raises(MemoryError, match="cuda: a launch failed"):
        check(2, "a launch")
