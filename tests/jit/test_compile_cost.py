"""What compiling costs: work that grows with a function and no faster, code that kernels share."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from pullback.compile.graph.passes.rewriter import Rewriter
from pullback.compile.schedule import memory
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.memory import Life, MemoryPlan, Place, aligned
from pullback.compile.schedule.memory_gaps import Placed
from pullback.compile.schedule.memory_scan import Gaps, scanned
from pullback.core.avals import aval, default_device
from pullback.runtime.cpu.llvm import jit, printer

X = np.linspace(0.1, 1, 8, dtype=np.float32)


def chain(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for _ in range(n):
            x = x * 1.0001 + 0.5
        return x

    return f


def unrolled(n: int) -> Callable[[Any], Any]:
    w = pb.tensor(np.eye(8, dtype=np.float32))

    def loss(x: Any) -> Any:
        h = x
        for _ in range(n):
            h = pb.tanh(h @ w + x)
        return h.sum()

    return pb.grad(loss)


def folds(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for _ in range(n):
            x = x + (x * 0.5).sum()
        return x

    return f


def outputs(n: int) -> Callable[[Any], Any]:
    return lambda x: [x * float(k) + 1 for k in range(n)]


def large_folds(n: int) -> Callable[[Any], Any]:
    big = pb.tensor(np.ones((5000, 8), np.float32))

    def f(x: Any) -> Any:
        for _ in range(n):
            x = x + (big * x).sum() * 1e-6
        return x

    return f


def calls(make: Callable[[int], Any], n: int, x: np.ndarray = X) -> int:
    """Calls of Python functions while a function of size n is traced and compiled."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += 1

    f = pb.jit(make(n))
    given = pb.tensor(x)
    sys.setprofile(note)
    try:
        f.lower(given).executable  # noqa: B018
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [chain, unrolled, folds, outputs, large_folds])
def test_work_grows_with_the_function_and_no_faster(make, monkeypatch):
    monkeypatch.setattr(memory, "MANY", 64)  # functions of a moderate size count as large ones
    size = 128
    calls(make, 10)  # what only the first time does
    small, large = calls(make, size), calls(make, 3 * size)
    assert large < 4 * small


def small_products(n: int) -> Callable[[Any], Any]:
    """Products that make no chain, since each has rows in another layout than the one before."""
    w = pb.tensor(np.eye(16, dtype=np.float32))

    def f(x: Any) -> Any:
        for _ in range(n):
            x = pb.nn.softmax(x @ w, 0) + x
        return x

    return f


def test_looking_for_chains_of_products_takes_linear_time():
    x = np.ones((16, 16), np.float32)
    calls(small_products, 10, x)
    small, large = (calls(small_products, n, x) for n in (128, 384))
    assert large < 3.3 * small


def test_no_search_for_garbage_while_a_graph_is_compiled():
    found = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and compiling:
            found.append(info["generation"])

    f, x = pb.jit(unrolled(60)), pb.tensor(X)
    lowered = f.lower(x)
    gc.callbacks.append(note)
    try:
        compiling = True
        lowered.executable  # noqa: B018
        compiling = False
    finally:
        gc.callbacks.remove(note)
    assert len(found) < 5 and gc.isenabled()  # between the steps, that is


def value(k: int, nbytes: int) -> Stored:
    return Stored(f"v{k}", aval((nbytes // 4,), pb.float32, default_device()))


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 40), st.booleans()),
        max_size=60,
    ),
    st.booleans(),
)
def test_values_that_are_needed_together_never_meet(drawn, by_time):
    """Also those that are lent the place of an output, or written over an operand."""
    lives = [
        Life(value(k, 16 * size), start, start + length, 16 * size)
        for k, (start, length, size, _) in enumerate(drawn)
    ]
    for new in lives:
        new.over = [o for o in lives if o.stop == new.start and o is not new and o.start < o.stop]
    chosen = zip(lives, drawn, strict=True)
    outs = [life for life, (*_, is_output) in chosen if is_output]
    outs = [o for o in outs if not any(o in other.over for other in lives)][:8]
    places, end = {}, 0
    for life in outs:
        life.stop = 99
        life.over = []
        places[life.value] = Place("out", end)
        end += aligned(life.nbytes)
    rest = [life for life in lives if life not in outs]
    if by_time:
        found, arena = scanned(rest, [(o, places[o.value].offset) for o in outs], 64)
    else:
        rest.sort(key=lambda life: -life.nbytes)
        placed = Placed([*outs, *rest], [places[o.value].offset for o in outs], 64)
        found = [placed.place(life, end) for life in rest]
        arena = placed.arena_nbytes
    places |= {life.value: Place(*where) for life, where in zip(rest, found, strict=True)}
    for life in rest:
        place = places[life.value]
        assert place.offset + life.nbytes <= (arena if place.area == "arena" else end)
    MemoryPlan(places, arena, end, lives).verify()


def test_places_are_used_again():
    """A chain of values of one size takes the memory of two."""
    lives = [Life(value(k, 640), k, k + 1, 640) for k in range(100)]
    assert scanned(lives, [], 64)[1] == 2 * 640


def test_the_largest_values_first_leave_no_gap_that_a_smaller_one_needs():
    sizes = [(6400, 0, 9), (640, 0, 4), (640, 5, 9), (1280, 3, 6), (64, 0, 9)]
    lives = [Life(value(k, n), a, b, n) for k, (n, a, b) in enumerate(sizes)]
    lives.sort(key=lambda life: -life.nbytes)
    placed = Placed(lives, [], 64)
    offsets = {life.value.name: placed.place(life, 0)[1] for life in lives}
    assert offsets == {"v0": 0, "v3": 6400, "v1": 7680, "v2": 7680, "v4": 8320}
    assert placed.arena_nbytes == 8384


def test_gaps_are_joined():
    gaps = Gaps()
    a, b, c = (gaps.take(64) for _ in range(3))
    gaps.give(a, 64)
    gaps.give(c, 64)
    gaps.give(b, 64)
    assert gaps.take(192) == 0 and gaps.end == 192


def test_slow_sides_of_functions_are_compiled_once(monkeypatch):
    texts = []
    compile_ir = jit.compile_ir
    monkeypatch.setattr(printer, "_slow", {})
    monkeypatch.setattr(
        jit, "compile_ir", lambda text, *a, **k: texts.append(text) or compile_ir(text, *a, **k)
    )

    def sines(x: Any) -> Any:
        return sum(pb.sin(x + float(k)) for k in range(6))

    x = pb.tensor(np.array([1e6, 0.5, 3e7], np.float32))
    got, eager = pb.jit(sines)(x), sines(x)
    np.testing.assert_array_equal(got.numpy(), eager.numpy())
    assert len([t for t in texts if "@slow(" in t.split("{")[0]]) == 1


def test_slices_of_joined_parts_do_not_repeat_the_parts():
    x, ids = pb.tensor(np.linspace(1, 2, 200)), pb.tensor(np.zeros(200, np.int64))
    lowered = pb.jit(pb.grad(lambda x: pb.segment_prod(x, ids, 1)[0])).lower(x)
    assert len(lowered.optimised.equations) <= len(lowered.graph.equations)


@pytest.mark.parametrize("inner", [lambda x: x + 1, pb.erfc], ids=["cheap", "dear"])
def test_what_is_read_at_two_places_is_not_computed_ever_more_often(inner):
    def differences(n: int) -> Callable[[Any], Any]:
        return lambda x: pb.diff(inner(x), n=n)

    x = np.linspace(0, 1, 300)
    calls(differences, 4, x)
    small, large = calls(differences, 5, x), calls(differences, 10, x)
    assert large < 4 * small
    expected = differences(10)(pb.tensor(x))
    np.testing.assert_array_equal(pb.jit(differences(10))(x).numpy(), expected.numpy())


def test_parts_of_what_is_read_elsewhere_are_cut_and_not_computed_again(monkeypatch):
    """Each step of a running product reads two parts of the one before."""
    counts = []
    emit = Rewriter.emit

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[-1] += 1
        return emit(*args, **kwargs)

    monkeypatch.setattr(Rewriter, "emit", counted)

    def loss(x: Any, u: Any, index: Any) -> Any:
        return pb.sum(pb.sin(pb.primitive.scatter_mul(x, u, index)))

    for n in (8, 32):  # six doublings, and ten
        x, index = pb.ones((n, n)), pb.tensor(np.resize([2, 0, 1], (n, n)))
        counts.append(0)
        pb.jit(pb.grad(loss, argnums=(0, 1)))(x, x, index)
    assert counts[1] < 2 * counts[0]
