"""Programs of other sizes are word for word those that planning anew gives."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.program import resized
from pullback.compile.program.single import plan_single
from pullback.compile.program.sizes import Tape
from pullback.core.avals import Aval, aval, default_device, dense_strides
from pullback.core.dtypes import as_dtype
from pullback.ir.op import REGISTRY
from pullback.ir.plans import forget_plans
from pullback.runtime.cpu import native
from pullback.runtime.cpu.native import stages
from pullback.runtime.cpu.target import TARGET

Case = tuple[tuple[Aval, ...], dict[str, Any]]

# Around what schedules and orders ask for: short folds, vectors, lines, tiles, blocks, groups.
EDGES = (1, 1, 2, 3, 4, 7, 8, 12, 15, 16, 24, 31, 32, 48, 63, 64, 96, 127, 128, 256, 512, 513, 1024)
FAR = (*EDGES, 1 << 12, 1 << 14, 1 << 16, 1 << 18)


class Draw(random.Random):
    """Sizes near edges, and operands of all layouts."""

    def size(self, among: tuple[int, ...] = EDGES) -> int:
        return max(1, self.choice(among) + self.choice((-1, 0, 0, 0, 1, 2)))

    def shape(self, least: int = 1, most: int = 4) -> tuple[int, ...]:
        ndim = self.randint(least, most)
        far = self.randrange(8)  # the others are small: their product is what is asked for
        return tuple(self.size(FAR if d == far else EDGES[: self.choice((6, 12, 20))])
                     for d in range(ndim))  # fmt: skip

    def operand(self, shape: tuple[int, ...], dtype: str) -> Aval:
        """Dense, its axes in another order, a part of a larger array, backwards, or repeated."""
        order = sorted(range(len(shape)), key=lambda _: self.random())
        if self.random() < 0.5:
            order.sort()
        kind = self.choice(("dense", "dense", "part", "repeated"))
        whole = [shape[d] + (self.randrange(3) if kind == "part" else 0) for d in order]
        strides = [0] * len(shape)
        for d, s in zip(order, dense_strides(whole), strict=True):
            part = self.choice((1, 1, 2, -1)) if kind == "part" else 1
            strides[d] = 0 if kind == "repeated" and self.random() < 0.5 else s * part
        return aval(shape, as_dtype(dtype), default_device(), tuple(strides))


def _axes(d: Draw, ndim: int) -> tuple[int, ...]:
    return tuple(sorted(d.sample(range(ndim), d.randint(1, ndim))))


def _fold(d: Draw, dtype: str) -> Case:
    shape = d.shape()
    axes = _axes(d, len(shape))
    return (d.operand(shape, dtype),), {"axes": axes, "keepdims": d.random() < 0.5}


def _running(d: Draw, dtype: str) -> Case:
    shape = d.shape()
    return (d.operand(shape, dtype),), {
        "axis": d.randrange(len(shape)), "reverse": d.random() < 0.5,
    }  # fmt: skip


def _split(d: Draw, n: int) -> list[int]:
    """Factors of a size."""
    factor = d.choice([k for k in (1, 2, 3, 4, 5, n) if n % k == 0])
    return [factor, n // factor] if d.random() < 0.5 else [n]


def _reshape(d: Draw, dtype: str) -> Case:
    shape = d.shape()
    new = [k for n in shape for k in _split(d, n)]
    if len(new) > 1 and d.random() < 0.5:
        at = d.randrange(len(new) - 1)
        new[at : at + 2] = [new[at] * new[at + 1]]
    return (d.operand(shape, dtype),), {"shape": tuple(new)}


def _permuted(d: Draw, dtype: str) -> Case:
    shape = d.shape()
    axes = tuple(d.sample(range(len(shape)), len(shape)))
    return (d.operand(shape, dtype),), {"axes": axes}


def _cut(d: Draw, dtype: str) -> Case:
    shape = d.shape()
    sizes = tuple(d.choice((n, 1, -(-n // 2), d.choice((0, n)))) for n in shape)
    starts = tuple(d.randint(0, n - m) for n, m in zip(shape, sizes, strict=True))
    steps = (1,) * len(shape)
    static = {"starts": starts, "shape": sizes, "steps": steps, "to": sizes}
    return (d.operand(shape, dtype),), static


def _broadcast(d: Draw, dtype: str) -> Case:
    whole = d.shape(1, 3)
    own = [n if d.random() < 0.5 else 1 for n in whole][d.randrange(len(whole)) :]
    return (d.operand(tuple(own), dtype),), {"shape": whole}


def _joined(d: Draw, dtype: str) -> Case:
    shape, count = d.shape(), d.randint(1, 3)
    axis = d.randrange(len(shape))
    shapes = [(*shape[:axis], d.size(), *shape[axis + 1 :]) for _ in range(count)]
    return tuple(d.operand(s, dtype) for s in shapes), {"axis": axis}


def _pair(d: Draw, dtype: str) -> Case:
    whole = d.shape()
    shapes = [
        tuple(n if d.random() < 0.8 else 1 for n in whole)[d.choice((0, 0, len(whole) - 1)) :]
        for _ in range(2)
    ]
    return tuple(d.operand(s, dtype) for s in shapes), {}


def _product(d: Draw, dtype: str) -> Case:
    m, k, n = (d.size() for _ in range(3))
    batch = d.shape(0, 2) if d.random() < 0.5 else ()
    own, other = (tuple(s if d.random() < 0.7 else 1 for s in batch) for _ in range(2))
    return (d.operand((*own, m, k), dtype), d.operand((*other, k, n), dtype)), {}


CASES: dict[str, tuple[Callable[[Draw, str], Case], tuple[str, ...]]] = {
    "sum": (_fold, ("float32", "float16", "int32", "complex64")),
    "max": (_fold, ("float32", "int64")),
    "argmax": (_fold, ("float32",)),
    "cumsum": (_running, ("float64",)),
    "reshape": (_reshape, ("float32", "int8")),
    "permute_dims": (_permuted, ("float32",)),
    "primitive.slice": (_cut, ("float32",)),
    "broadcast_to": (_broadcast, ("float64",)),
    "concat": (_joined, ("float32",)),
    "add": (_pair, ("float32", "bool")),
    "matmul": (_product, ("float32", "float64", "float16", "complex64")),
}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs are the lists of their words; a way is written for every case that has none."""
    forget_plans()
    assert default_device().runtime  # which keeps what programs are made by
    monkeypatch.setattr(resized, "WORTH", 0)
    monkeypatch.setattr(resized, "LINES", 1 << 20)
    monkeypatch.setattr(native, "run_array", lambda kept, _: lambda *bufs: [*kept])
    yield
    monkeypatch.undo()
    forget_plans()


def _ran(run: Callable[..., Any], avals: tuple[Aval, ...]) -> Any:
    """The words of a program, or where a view of some memory begins."""
    bufs = [native.wrap(1 << 20, 1 << 45, None) for _ in avals]
    found = run(*bufs)
    return found if isinstance(found, list) else found.address


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, (_, dtypes) in CASES.items() for dtype in dtypes]
)
@pytest.mark.usefixtures("words")
def test_programs_of_other_sizes_are_those_of_planning_anew(name: str, dtype: str) -> None:
    op, draw = REGISTRY[name], Draw(name + dtype)
    encoding = resized.Encoding(stages.words, native.run_array, native.get_threads)
    kinds = resized.Resizing(TARGET, encoding)
    for _ in range(600):
        avals, static = CASES[name][0](draw, dtype)
        shape, kind = op.infer(*avals, **static)
        expected = plan_single(TARGET, op, avals, static, aval(shape, kind, avals[0].device))
        found = kinds.plan(op, avals, static)
        assert found is not None, (avals, static)
        plan, _ = found
        assert plan.aval is expected.aval, (avals, static)
        assert _ran(plan.run, avals) == _ran(expected.run, avals), (avals, static)
    assert max(kind.ways for kind in kinds._kinds.values()) < resized.MOST_WAYS


@pytest.mark.usefixtures("words")
def test_what_decides_is_asked_again() -> None:
    """Sums of ever new shapes on both sides of each size that a schedule asks for."""
    encoding = resized.Encoding(stages.words, native.run_array, native.get_threads)
    kinds, op = resized.Resizing(TARGET, encoding), REGISTRY["sum"]
    asked = 0
    for n in [n + k for n in (*EDGES[2:], 1 << 13, 1 << 15, 1 << 16, 1 << 17) for k in (-1, 0, 1)]:
        for shape in ((n, 40), (40, n)):
            for axes in ((0,), (1,), (0, 1)):
                avals = (aval(shape, as_dtype("float32"), default_device()),)
                static = {"axes": axes, "keepdims": False}
                out, dtype = op.infer(*avals, **static)
                plan = plan_single(TARGET, op, avals, static, aval(out, dtype, avals[0].device))
                found = kinds.plan(op, avals, static)
                assert found is not None
                assert _ran(found[0].run, avals) == _ran(plan.run, avals), (shape, axes)
                asked += 1
    assert sum(kind.ways for kind in kinds._kinds.values()) < 0.7 * asked


def test_results_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of programs of other sizes, of layouts of all kinds, are those of planning anew."""
    rng, draw = np.random.default_rng(0), Draw(0)
    calls: list[Callable[[Any], Any]] = [
        lambda x: x.sum(), lambda x: x.sum(axis=0), lambda x: x.mean(axis=-1),
        lambda x: x.max(axis=-1), lambda x: x.argmax(axis=0), lambda x: x @ x.mT,
        lambda x: pb.nn.softmax(x, -1), lambda x: x.reshape(-1) * 2.0, lambda x: x[::-1, 1:],
        lambda x: pb.concat([x, x], axis=1), lambda x: pb.cumulative_sum(x, axis=0),
        lambda x: x.mT + 1.0, lambda x: x - x[:, :1],
    ]  # fmt: skip
    arrays = []
    for _ in range(40):
        whole = rng.standard_normal((draw.size(), draw.size())).astype(np.float32)
        arrays += [whole, whole.T, whole[::2, ::-1]]

    def results() -> list[bytes]:
        forget_plans()
        xs = [pb.tensor(a) for a in arrays]
        return [call(x).numpy().tobytes() for call in calls for x in xs]

    monkeypatch.setattr(resized, "MOST_WAYS", 0)
    expected = results()
    monkeypatch.setattr(resized, "MOST_WAYS", 256)
    monkeypatch.setattr(resized, "WORTH", 0)
    monkeypatch.setattr(resized, "LINES", 1 << 20)
    assert results() == expected


def test_a_size_notes_what_is_decided_by_it() -> None:
    tape = Tape()
    n, m = tape.given(7, 1), tape.given(3, None)
    assert not n < 1 and bool(n) and tape.events == []  # true whatever is given
    assert n * m == m * n and 0 * n == 0 and (n - 0) is n and tape.events == []
    assert -(-n // 4) == 2 and n > m and list(range(m)) == [0, 1, 2] and f"{n + m}" == "10"
    found = [(e.text, e.outcome) for e in tape.events]
    assert [outcome for _, outcome in found] == [True, True, 3, 10]
    assert found[1:3] == [("n0 > n1", True), ("n1", 3)]
    with pytest.raises(TypeError):
        hash(n)
    assert math.ceil(n / 2) == 4 and divmod(n, 2)[1] == 1 and max(n, 100) == 100
    assert len([0] * m) == 3 and math.prod((n, m)) == 21


def test_what_can_not_be_written_is_planned_anew() -> None:
    x, indices = pb.tensor(np.arange(200.0)), pb.tensor([3, 1])
    for n in range(3, 150):
        np.testing.assert_array_equal(pb.take(x[:n], indices % n).numpy(), [0 if n == 3 else 3, 1])
        with pytest.raises(pb.ShapeError, match="inner sizes"):
            _ = pb.ones((2, n)) @ pb.ones((n + 1, 2))
    with pytest.raises(pb.ShapeError, match="elements"):
        x.reshape((7, 30))
