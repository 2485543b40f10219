"""The thread pool of the native core: sharing, forking, signals and exit."""

import os
import random
import textwrap
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import copy_code
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.native import Buffer, Stage, memory, program
from runtime.native_kernels import (
    MEET,
    REVERSE,
    SCALE,
    SLEEP,
    kernel,
    loop,
    of,
    run_python,
    values,
)

pytestmark = pytest.mark.usefixtures("no_garbage")


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    threads = native.get_threads()
    yield
    native.set_threads(threads)


@pytest.fixture
def meet() -> Iterator[tuple[int, int]]:
    addresses = jit.compile_ir(MEET, ["meet", "clear"])
    yield addresses["clear"], addresses["meet"]


@pytest.mark.parametrize("threads", [2, 4])
def test_tasks_run_at_the_same_time(threads: int, meet: tuple[int, int]) -> None:
    native.set_threads(threads)
    run = program(0, 8, (), [Stage(meet[0], 1, 1, ()), Stage(meet[1], threads, 1, (threads,))])
    for pause in (0, 0, 0.001, 0.0001, 0):
        time.sleep(pause)  # awake helpers, and sleeping ones
        assert isinstance(run(), Buffer)


def test_number_of_threads_is_a_bound() -> None:
    native.set_threads(1)
    assert native.get_threads() == 1
    run = program(0, 8, (), [Stage(kernel("sleep"), 4, 1, (20_000,))])
    start = time.perf_counter()
    run()
    assert time.perf_counter() - start >= 0.08
    native.set_threads(4)
    run()
    native.set_threads(2)
    start = time.perf_counter()
    run()
    assert time.perf_counter() - start >= 0.04


def test_threads_from_the_environment() -> None:
    code = "from pullback.runtime.cpu import native; print(native.get_threads())"
    assert run_python(code, PULLBACK_NUM_THREADS="3") == "3"
    with pytest.raises(AssertionError, match=r"PULLBACK_NUM_THREADS must be .* got 'many'"):
        run_python(code, PULLBACK_NUM_THREADS="many")


def in_threads(count: int, work) -> None:
    """Runs work(number) in `count` Python threads and passes on the first failure."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except AssertionError as failure:
            failures.append(failure)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def test_python_threads_share_the_pool() -> None:
    native.set_threads(3)
    before = memory()["live"]
    n = 5000
    run = program(2, 4 * n, (), [Stage(kernel("add"), n, 100, ())])

    def work(number: int) -> None:
        a = np.full(n, number, np.float32)
        b = np.arange(n, dtype=np.float32)
        for _ in range(200):
            np.testing.assert_array_equal(values(run(of(a), of(b))), a + b)

    in_threads(4, work)
    assert memory()["live"] == before


def test_heavy_programs_release_the_gil() -> None:
    run = program(0, 8, (), [Stage(kernel("sleep"), 1, 1, (100_000,))], heavy=True)
    start = time.perf_counter()
    in_threads(5, lambda number: run())
    assert time.perf_counter() - start < 0.4


def test_no_wake_up_is_lost() -> None:
    native.set_threads(3)
    n = 64
    run = program(2, 4 * n, (), [Stage(kernel("add"), n, 16, ())])
    a = np.arange(n, dtype=np.float32)
    chooser = random.Random(0)
    for _ in range(500):
        until = time.perf_counter() + chooser.uniform(0, 400e-6)  # around the end of spinning
        while time.perf_counter() < until:
            pass
        np.testing.assert_array_equal(values(run(of(a), of(a))), 2 * a)


COUNT = loop(
    "count",
    """
  %at = getelementptr i64, ptr %p0, i64 %i
  %was = atomicrmw add ptr %at, i64 1 monotonic""",
)


def test_every_task_runs_once_whoever_comes_late() -> None:
    """Jobs of few and of many tasks follow each other, some while helpers sleep."""
    count = jit.compile_ir(COUNT, ["count"])["count"]
    chooser = random.Random(0)
    runs = []
    for tasks in (1, 2, 3, 4, 7, 30):
        stages = [copy_code.zero_stage(0, 8 * tasks), Stage(count, tasks, 1, ())]
        runs.append(program(0, 8 * tasks, (), stages))
    for _ in range(3000):
        native.set_threads(chooser.choice((2, 3, 5, 6)))
        found = np.frombuffer(chooser.choice(runs)(), np.int64)
        assert (found == 1).all()
        if chooser.random() < 0.03:
            time.sleep(chooser.uniform(0, 400e-6))


def test_a_job_of_two_tasks_wakes_one_helper() -> None:
    body = """
    def switches():
        found = {}
        for task in os.listdir("/proc/self/task"):
            status = open(f"/proc/self/task/{task}/status").read()
            found[task] = int(status.split("voluntary_ctxt_switches:")[1].split()[0])
        return found
    native.set_threads(6)
    wide = native.program(0, 8, (), [Stage(sleep, 6, 1, (20_000,))])
    narrow = native.program(0, 8, (), [Stage(sleep, 2, 1, (100,))])
    wide()
    time.sleep(0.05)
    before = switches()
    for _ in range(20):
        narrow()
        time.sleep(0.002)
    woken = [t for t, n in switches().items() if n - before.get(t, 0) >= 3]
    assert len(woken) <= 2, woken  # the caller, and one helper
    """
    if not os.path.exists("/proc/self/task"):
        pytest.skip("needs /proc")
    run_python(script(body))


def script(body: str) -> str:
    """A script with `run`, a program of parallel stages with the answer `expected`."""
    return f"""
import os, sys, threading, time
from array import array
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.native import Stage
native.set_threads(3)
n = 300
scale = jit.compile_ir({SCALE!r}, ["scale"])["scale"]
reverse = jit.compile_ir({REVERSE!r}, ["reverse"])["reverse"]
sleep = jit.compile_ir({SLEEP!r}, ["sleep"])["sleep"]
stages = [Stage(scale, n, 10, (2,)), Stage(reverse, n, 10, (n - 1,))]
program = native.program(1, 8 * n, (8 * n,), stages)
data = array("q", range(n))
source = native.wrap(data.buffer_info()[0], 8 * n, data)
expected = [2 * i for i in reversed(range(n))]
def run():
    return list(memoryview(program(source)).cast("q")) == expected
assert run()
{textwrap.dedent(body)}
"""


def test_fork_gives_the_child_a_pool_of_its_own() -> None:
    body = """
    busy = native.program(0, 8, (), [Stage(sleep, 8, 1, (50_000,))])
    other = threading.Thread(target=lambda: [busy() for _ in range(5)])
    other.start()
    time.sleep(0.03)  # the pool is taken while we fork
    children = []
    for _ in range(5):
        child = os.fork()
        if not child:
            good = all(run() for _ in range(100))
            # The lock that the other thread held is gone too: helpers work here.
            start = time.perf_counter()
            busy()
            os._exit(0 if good and time.perf_counter() - start < 0.35 else 1)
        children.append(child)
        assert run()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 5
    other.join()
    print(run())
    """
    assert run_python(script(body)) == "True"


def test_exit_with_idle_helpers() -> None:
    for pause in ("", "time.sleep(0.01)"):
        assert run_python(script(f"{pause}\nprint('out', flush=True)")) == "out"


def test_exit_while_a_program_runs() -> None:
    body = """
    long = native.program(0, 8, (), [Stage(sleep, 30, 1, (10_000,))])
    def forever():
        while True:
            long()
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.05)
    print("out", flush=True)
    """
    assert run_python(script(body)) == "out"


def test_signals_reach_python() -> None:
    body = """
    import signal
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    for _ in range(5):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        start = time.perf_counter()
        signal.pause()
    print(len(hits))
    """
    assert run_python(script(body)) == "5"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_helpers_stay_where_the_caller_may_run(meet: tuple[int, int]) -> None:
    """A helper may keep off the caller's processor, but neither leaves those that it was given."""
    native.set_threads(3)
    before = os.sched_getaffinity(0)
    run = program(0, 8, (), [Stage(meet[0], 1, 1, ()), Stage(meet[1], 3, 1, (3,))])
    for _ in range(5):
        time.sleep(0.001)  # helpers fall asleep and are woken
        assert isinstance(run(), Buffer)
    assert os.sched_getaffinity(0) == before
    for thread in os.listdir("/proc/self/task"):
        allowed = os.sched_getaffinity(int(thread))
        assert allowed and allowed <= before
