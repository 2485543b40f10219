"""Ctrl-C at random moments: it ends what is going on, and leaves everything as it should be."""

import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core.avals import _defaults
from pullback.ir import tracing
from pullback.ir.array import mode
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm import jit

ROUNDS = 400 if os.environ.get("PULLBACK_FULL") == "1" else 12  # for each kind of work
X = np.linspace(-1.0, 1.0, 48).reshape(6, 8)
W = np.cos(np.arange(64.0)).reshape(8, 8) / 3


def layer(x: Any, w: Any) -> Any:
    return pb.sum(pb.tanh(x @ w) ** 2) + pb.mean(x[:, pb.asarray([0, 3, 3])])


def eager() -> Any:
    x, w = pb.tensor(X), pb.tensor(W)
    for _ in range(20):
        x = pb.tanh(x @ w) + 1.0
    return x


def gradients() -> Any:
    with pb.no_grad():
        x = pb.exp(pb.tensor(X)) - 1.0
    first = pb.grad(layer, (0, 1))(x, pb.tensor(W))
    return *first, pb.grad(lambda w: pb.sum(pb.grad(layer)(x, w) ** 2))(pb.tensor(W))


def backward() -> Any:
    x, w = (pb.tensor(a, requires_grad=True) for a in (X, W))
    for _ in range(3):
        layer(x, w).backward()
    with pb.no_grad(), pb.device("cpu"):
        w -= 0.1 * w.grad
    return x.grad, w.grad, w


def forward() -> Any:
    x, w = pb.tensor(X), pb.tensor(W)
    return pb.jvp(layer, (x, w), (w[:6], w)), pb.hvp(partial(layer, x), (w,), (w,))


def compiled() -> Any:
    """A new function each time, so that it is traced and compiled."""

    def f(x: Any, w: Any) -> Any:
        y = pb.cond(pb.sum(x) > 0.0, lambda v: v * 2.0, lambda v: v - 1.0, x)
        last, rows = pb.scan(lambda c, r: (c * 0.5 + r, c), y[0], y)
        return layer(rows, w) + pb.sum(last)

    step = pb.jit(pb.value_and_grad(f, (0, 1)))
    return step(pb.tensor(X), pb.tensor(W))


@pb.jit
def _looped(x: Any, n: Any) -> Any:
    start = (pb.tensor(0), x)
    count, y = pb.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5 + 1.0), start)
    inner = pb.fori_loop(0, 40, lambda i, c: pb.fori_loop(0, 40, lambda j, d: d * 0.5 + x, c), y)
    return count, inner


def loops() -> Any:
    return _looped(pb.tensor(X), pb.tensor(20_000))


def tracked() -> Any:
    x = pb.tensor(X, requires_grad=True)
    pb.sum(_tracked(x)).backward()
    return x.grad


_tracked = pb.jit(lambda x: pb.fori_loop(0, 50, lambda i, c: pb.sin(c) + x, x))
WORK: list[Callable[[], Any]] = [eager, gradients, backward, forward, compiled, loops, tracked]


@pytest.fixture(autouse=True)
def interrupted_by_alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def bits(tree: Any) -> list[bytes]:
    """The bytes of all arrays of a nested tuple."""
    if isinstance(tree, tuple):
        return [b for t in tree for b in bits(t)]
    return [tree.detach().numpy().tobytes()]


def interrupted(work: Callable[[], Any], delay: float) -> KeyboardInterrupt | None:
    """Run `work` and interrupt it, or what follows it, after so many seconds."""
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        work()
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            pass
        time.sleep(0.001)
    except KeyboardInterrupt as error:
        return error
    return None  # a finaliser swallowed it


def check_modes() -> None:
    assert mode.recording
    assert mode.scope is None and mode.binds is None
    assert tracing._open.innermost is None
    assert jit._open.batch is None
    assert not _defaults.stack


# Python ignores what is raised in a finaliser, and llvmlite has some that are written in Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", WORK, ids=lambda w: w.__name__)
def test_an_interrupt_leaves_everything_as_it_was(work: Callable[[], Any]) -> None:
    expected = bits(work())
    began = time.perf_counter()
    assert bits(work()) == expected
    usual = time.perf_counter() - began
    chooser = random.Random(work.__name__)
    kept = []  # tracebacks keep alive what was going on
    for _ in range(ROUNDS):
        kept.append(interrupted(work, chooser.uniform(1e-6, usual)))
        check_modes()
        assert bits(work()) == expected


BLOCKS = [pb.no_grad, pb.enable_grad, lambda: pb.device("cpu")]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("outer", BLOCKS)
def test_blocks_nest_in_every_way(block: Callable[[], Any], outer: Callable[[], Any]) -> None:
    def state() -> tuple[Any, ...]:
        return mode.recording, _defaults.stack

    again, seen = block(), []
    with outer():
        before = state()
        with contextlib.ExitStack() as stack:
            stack.enter_context(again)
            seen.append(state())
            with again, pytest.raises(KeyError), again:
                raise KeyError
            assert state() == seen[0]
        assert state() == before
        with again:
            seen.append(state())
        assert state() == before
    assert seen[0] == seen[1]
    check_modes()


def test_an_interrupt_at_the_end_of_a_block() -> None:
    """`__exit__` is the first that could handle the signal."""
    for block in BLOCKS:
        try:
            with block():
                chain = iter([None])
                # no call, and so no handling of signals, between this one and the end of the block
                for _ in map(signal.raise_signal, [signal.SIGALRM]):
                    break
        except KeyboardInterrupt:
            check_modes()
        else:
            raise AssertionError("not interrupted", chain)


def test_a_decorated_function_keeps_its_name_and_may_be_a_method() -> None:
    class Model:
        @pb.no_grad()
        def run(self, x: Any, *, scale: float) -> Any:
            """Scaled."""
            return x * scale

    x = pb.tensor(2.0, requires_grad=True)
    assert not Model().run(x, scale=3.0).requires_grad
    assert (Model.run.__name__, Model.run.__doc__) == ("run", "Scaled.")
    check_modes()


ENDLESS: dict[str, Callable[[Any], Any]] = {
    "while": lambda x: pb.while_loop(lambda c: c > 0.0, lambda c: c * 1.0, x),
    "fori": lambda x: pb.fori_loop(0, 10**15, lambda i, c: c * 1.0, x),
    "scan": lambda x: pb.scan(lambda c, _: (c * 1.0, None), x, None, 10**15)[0],
    "nested": lambda x: pb.while_loop(
        lambda c: c > 0.0, lambda c: pb.fori_loop(0, 5, lambda i, d: d * 1.0, c), x
    ),
    "inner": lambda x: pb.while_loop(
        lambda c: c > 0.0, lambda c: pb.while_loop(lambda d: d > 0.0, lambda d: d * 1.0, c), x
    ),
    "branches": lambda x: pb.while_loop(
        lambda c: c > 0.0, lambda c: pb.cond(c > 2.0, lambda d: d * 0.5, lambda d: d * 2.0, c), x
    ),
    "two": lambda x: (ENDLESS["while"](x), ENDLESS["while"](x + 1.0)),
}


def soonest(f: Any, x: Any) -> float:
    """Seconds from a signal to the end of an endless function: the least, as a machine is busy."""
    f.lower(x)
    found = []
    gc.collect()
    gc.disable()  # an interrupt that comes while others watch a collection is lost
    try:
        for _ in range(3):
            began = time.perf_counter()
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.03)
                f(x)
            found.append(time.perf_counter() - began - 0.03)
    finally:
        gc.enable()
    return min(found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_loop_ends_in_time(name: str, threads: int) -> None:
    before = native.get_threads()
    native.set_threads(threads)
    try:
        assert soonest(pb.jit(ENDLESS[name]), pb.tensor(1.0)) < 0.15
    finally:
        native.set_threads(before)
    check_modes()


def test_an_interrupt_of_large_rounds_comes_in_time() -> None:
    f = pb.jit(lambda x: pb.while_loop(lambda c: c[0, 0] > -2.0, lambda c: pb.tanh(c @ x), x))
    assert soonest(f, pb.ones((900, 900))) < 0.2


@pytest.mark.parametrize("where", ["rule", "hook"])
def test_backward_ends_recording_with_its_traceback_alive(where: str) -> None:
    """The traceback of an interrupt holds the frames, as `sys.last_traceback` does."""

    def interrupt(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)

    def rule(residual: Any, g: Any) -> Any:
        interrupt()

    x = pb.tensor(2.0, requires_grad=True)
    f = pb.custom_vjp(lambda v: v * 2.0)
    f.defvjp(lambda v: (v * 2.0, None), rule)
    y = f(x) if where == "rule" else x * 2.0
    if where == "hook":
        y.register_hook(interrupt)
    kept = []
    for run in (y.backward, partial(pb.grad(f), x), partial(pb.jit(pb.grad(f)), x)):
        try:
            run()
        except KeyboardInterrupt as error:
            kept.append(error)
        check_modes()
    (x * x).backward()
    assert x.grad is not None and kept
