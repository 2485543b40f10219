"""What is alike in a graph is made once: stages but for their slots, types, places in memory."""

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from pullback.compile.program.stages import Loop, Stage
from pullback.compile.program.templates import Templates
from pullback.compile.schedule import memory_gaps
from pullback.core.collector import RARE, rare_collector
from pullback.core.errors import PullbackError
from pullback.ir.graph import Equation, trace
from pullback.runtime.cpu.target import CpuTarget


class Areas:
    """Scratch memory, whose slots begin with 100."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, nbytes: int) -> int:
        self.sizes.append(nbytes)
        return 99 + len(self.sizes)


def copying(slots: Sequence[Any], scratch: Any) -> list[Stage]:
    first, second = scratch(64), scratch(32)
    return [Stage(1, 5, 5, (7, *slots, first)), Stage(2, 5, 5, (second, slots[0], 8))]


def test_stages_are_made_once_and_differ_by_their_slots():
    templates, made = Templates(True), []

    def make(slots: Sequence[Any], scratch: Any) -> list[Stage]:
        made.append(slots)
        return copying(slots, scratch)

    for slots in ((3, 4), (9, 9)):
        ours, theirs = Areas(), Areas()
        assert templates.stages("key", slots, ours, make) == copying(slots, theirs)
        assert ours.sizes == theirs.sizes
    assert len(made) == 1
    templates.stages("another key", (3, 4), Areas(), make)
    assert len(made) == 2


@pytest.mark.parametrize(
    "look",
    [
        lambda a, b: int(a == b),
        lambda a, b: int(a != b),
        lambda a, b: a + 1,
        lambda a, b: len({a, b}),
        lambda a, b: int(bool(a)),
        lambda a, b: range(20)[a],
        lambda a, b: int(a < b),
        lambda a, b: max(a, b),
        lambda a, b: int(f"{a}{b}"),
        lambda a, b: int(str(a)),
    ],
)
def test_who_looks_at_slots_is_asked_each_time(look: Callable[[Any, Any], int]):
    templates = Templates(True)

    def make(slots: Sequence[Any], scratch: Any) -> list[Stage]:
        return [Stage(1, 1, 1, (*slots, look(*slots)))]

    for slots in ((3, 4), (5, 5), (7, 2)):
        assert templates.stages("key", slots, Areas(), make) == make(slots, Areas())


def test_stages_made_of_stages_are_made_each_time():
    templates = Templates(True)

    def make(slots: Sequence[Any], scratch: Any) -> list[Any]:
        return [Loop([Stage(1, 1, 1, tuple(slots))], 3, [], [])]

    for slots in ((3,), (4,)):
        assert templates.stages("key", slots, Areas(), make) == make(slots, Areas())


class Code(tuple[Any, ...]):
    """What stages of GPUs have for code, and slots in it."""

    def __index__(self) -> int:
        return id(self)


def test_a_target_that_has_slots_elsewhere_makes_all_stages():
    templates = Templates(False)
    for slot in (3, 4):
        found = templates.stages("key", (slot,), Areas(), lambda s, _: [Stage(Code(s), 1, 1, ())])
        assert found == [Stage(Code((slot,)), 1, 1, ())]


def test_a_target_without_such_a_kernel_says_so_each_time():
    templates = Templates(True)
    for _ in range(2):
        assert templates.stages("key", (1,), Areas(), lambda slots, scratch: None) is None


def layers(n: int) -> Callable[[Any], Any]:
    w = pb.tensor(np.eye(40, dtype=np.float32))

    def loss(x: Any) -> Any:
        for _ in range(n):
            x = pb.tanh(pb.sort(x, axis=0) @ w + x) - x.mean(0)
        return x.sum()

    return pb.grad(loss)


@pytest.mark.parametrize("name", ["map", "reduce"])
def test_a_target_makes_stages_of_layers_that_are_alike_once(name, monkeypatch):
    asked = []
    real = getattr(CpuTarget, name)
    monkeypatch.setattr(
        CpuTarget, name, staticmethod(lambda *a, **k: asked.append(0) or real(*a, **k))
    )
    x = pb.tensor(np.linspace(-1, 1, 1600, dtype=np.float32).reshape(40, 40))
    counts = []
    for n in (4, 12):
        pb.jit(layers(n)).lower(x).executable  # noqa: B018
        counts.append(len(asked))
        asked.clear()
    assert counts[0] == counts[1] > 0
    got, expected = pb.jit(layers(3))(x), layers(3)(x)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-5)


def test_the_types_of_an_equation_are_checked_once(monkeypatch):
    graph = trace(lambda x: pb.sin(x) + 1.0)(pb.ones(3))
    checked = []
    check = Equation.check
    monkeypatch.setattr(Equation, "check", lambda eq: checked.append(eq) or check(eq))
    graph.verify()
    assert not checked  # it was when the graph was traced
    eq = graph.equations[0]
    eq.become(eq.inputs, {}, eq.outs)
    graph.verify()
    assert checked == [eq]
    (wrong,) = trace(lambda x: x + x)(pb.ones(4)).inputs
    eq.become((wrong,), {}, eq.outs)
    graph.inputs.append(wrong)
    with pytest.raises(PullbackError, match="does not have the type that sin infers"):
        graph.verify()


def test_few_searches_for_garbage_while_a_function_is_traced():
    thresholds = []

    def f(x: Any) -> Any:
        thresholds.append(gc.get_threshold())
        return pb.sin(x)

    before = gc.get_threshold()
    pb.jit(f)(pb.ones(3))
    assert thresholds == [(RARE, *before[1:])]
    assert gc.get_threshold() == before


def test_searches_are_as_before_when_the_last_thread_is_done():
    before = gc.get_threshold()
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with rare_collector():
            inside.set()
            done.wait(10)

    worker = threading.Thread(target=work)
    with rare_collector():
        worker.start()
        assert inside.wait(10)
    assert gc.get_threshold()[0] == RARE
    done.set()
    worker.join()
    assert gc.get_threshold() == before


def test_who_wants_no_search_gets_none():
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with rare_collector():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12),
    st.integers(0, 9),
    st.none() | st.integers(0, 40),
)
def test_a_gap_among_few_is_the_one_that_is_found_among_many(spans, size, limit):
    start = np.array([a for a, _ in spans], np.int64)
    end = np.array([a + n for a, n in spans], np.int64)
    found = memory_gaps.gap_of_few(size, start, end, limit)
    assert found == memory_gaps.gap_of_many(size, start, end, limit)
