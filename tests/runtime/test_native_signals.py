"""Signals while a program runs: handlers run in time, and what they raise ends the program."""

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pullback.runtime.cpu import native
from pullback.runtime.cpu.native import Stage, memory, program, stages
from runtime.native_kernels import kernel

FOREVER = 1 << 60
NAP = 2000  # microseconds


@pytest.fixture(autouse=True)
def interrupted_by_alarm() -> Iterator[None]:
    before, threads = (
        signal.signal(signal.SIGALRM, signal.default_int_handler),
        native.get_threads(),
    )
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    native.set_threads(threads)


def nap(units: int = 1, grain: int = 1) -> Stage:
    return Stage(kernel("sleep"), units, grain, (NAP,))


def step() -> Stage:
    return Stage(kernel("scale"), 1, 1, (1,))


def endless(*body: Stage) -> Stage:
    return stages.loop_stage(body, FOREVER)


def runs(body: list[Stage]) -> Callable[..., object]:
    return program(1, 8, (8,), body, heavy=True)


def delay_of_interrupt(run: Callable[..., object], after: float = 0.03) -> float:
    """Seconds from the signal until KeyboardInterrupt leaves the program."""
    source = native.empty(8)
    signal.setitimer(signal.ITIMER_REAL, after)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run(source)
    return time.perf_counter() - began - after


LOOPS: dict[str, Callable[[], list[Stage]]] = {
    "short rounds": lambda: [endless(step())],
    "long rounds": lambda: [endless(nap())],
    "many stages": lambda: [endless(*[step()] * 9)],
    "mixed rounds": lambda: [endless(nap(), stages.loop_stage([step()], 1000))],
    "nested": lambda: [endless(endless(step()))],
    "nested short": lambda: [endless(stages.loop_stage([step()], 3))],
    "tasks": lambda: [endless(nap(units=8))],
    "one stage of many tasks": lambda: [nap(units=1 << 30)],
    "many stages, no loop": lambda: [nap()] * 2000,
    "side by side": lambda: [stages.parts_stage([[endless(step())] for _ in range(3)])],
    "others are busy": lambda: [stages.parts_stage([[step()], [endless(nap())]])],
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupt_ends_the_program(loop: str, threads: int) -> None:
    native.set_threads(threads)
    run, before = runs(LOOPS[loop]()), memory()["live"]
    # several times: also where the pool was interrupted before, and on a machine that is busy
    assert min(delay_of_interrupt(run) for _ in range(3)) < 0.15
    assert memory()["live"] == before
    counted = runs([stages.loop_stage([nap(units=4)], 3)])
    assert isinstance(counted(native.empty(8)), native.Buffer)


def test_a_handler_that_returns_ends_nothing() -> None:
    hits: list[object] = []
    inner = runs([stages.loop_stage([nap(units=4)], 2)])
    signal.signal(signal.SIGALRM, lambda *_: hits.append(inner(native.empty(8))))
    run = runs([stages.loop_stage([nap(units=4)], 60)])
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    assert isinstance(run(native.empty(8)), native.Buffer)
    assert len(hits) == 1 and isinstance(hits[0], native.Buffer)


def test_other_threads_are_left_alone() -> None:
    """The signal belongs to the main thread; a program elsewhere goes on to its end."""
    results: list[object] = []
    counted = runs([stages.loop_stage([nap()], 150)])
    other = threading.Thread(target=lambda: results.append(counted(native.empty(8))))
    other.start()
    delay_of_interrupt(runs([endless(step())]))
    other.join()
    assert isinstance(results[0], native.Buffer)


def test_a_loop_of_nothing_ends() -> None:
    assert isinstance(runs([endless()])(native.empty(8)), native.Buffer)
