"""Loops on the emulator: one kernel for all rounds, with the bits of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from cuda_registry import same_bits
from pullback.core import pytrees
from pullback.core.errors import IndexOutOfRange
from pullback.runtime.cuda import loop_kernels, nvrtc

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
ROWS, WIDTH = 5, 12
Body = Callable[[Any, Any, Any], tuple[Any, Any]]


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


@pytest.fixture(autouse=True)
def short_loops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_kernels, "LEAST_LAUNCHES", 1)
    monkeypatch.setattr(loop_kernels, "TURNS", 100)
    monkeypatch.setitem(cuda_fake.PROPERTIES, "multiProcessorCount", 3)


def gated(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    """Two carries, one of which goes into a product together with x."""
    h, s = c
    g = pb.concat([x, h], axis=1) @ pb.concat([w, w + 1.0], axis=0)
    f = pb.nn.sigmoid(g[:, ::2])
    s = f * s[:, ::2] + (1.0 - f) * pb.tanh(g[:, 1::2])
    s = pb.concat([s, s * 0.5], axis=1)
    return (pb.tanh(s), s), h[0]


def looked_up(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    k = pb.argsort(c[0])[:3]
    return c + x * w[k].sum(axis=0), k


def called(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    """A function of the host, which no kernel can call."""
    return pb.pure_callback(np.sin, c, c) + x, None


def written(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    c = c * 0.5
    c[1] = c[2] + x[1]
    c[:, 3] = w[: len(x), 3]
    return c, c.max()


def added(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    k = pb.argmax(c, axis=1) % ROWS
    return pb.scatter_add(c * 0.5, k, x), k


def inside(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    """A loop in the loop: three rounds, whose carry is copied in the end."""
    c, ys = pb.scan(lambda c, y: (pb.sin(c) + y, c[0, 0]), c, pb.stack([x, x * 2.0, w[: len(x)]]))
    return c, ys.sum()


def either(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    c = pb.cond(c.sum() > 0.0, lambda c: pb.tanh(c @ w), lambda c: c + x, c)
    return c, c.sum(axis=1)


def while_large(w: Any, c: Any, x: Any) -> tuple[Any, Any]:
    c = c + x
    c = pb.while_loop(lambda c: (c * c).sum() > 3.0, lambda c: c * 0.7, c)
    return c, c[0]


BODIES: dict[str, Body] = {
    "product": lambda w, c, x: (pb.tanh(c @ w) + x, c),
    "gates": gated,
    "rows": lambda w, c, x: (pb.nn.softmax(c @ w, -1) + x, None),
    "layer_norm": lambda w, c, x: (pb.nn.layer_norm(c + x, (WIDTH,), w[0], w[1]), x.mean(axis=0)),
    "folds": lambda w, c, x: (c / (1.0 + (c * c).sum()) + x.mean(axis=0), (c * x).sum(axis=1)),
    "across": lambda w, c, x: (pb.cos(c) + (w @ c.T).T * x, c.T),
    "running": lambda w, c, x: (pb.cumulative_sum(c, axis=1) * 0.1 + x, None),
    "looked up": looked_up,
    "written": written,
    "added": added,
    "inside": inside,
    "either": either,
    "while": while_large,
    "called": called,
}
LEFT = ("called",)
FORWARD = ("while", "called")  # loops of an unknown number of rounds have no gradient


def drawn(rounds: int, dtype: str = "float32") -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    w = rng.standard_normal((WIDTH, WIDTH)) * 0.3
    c = rng.standard_normal((ROWS, WIDTH))
    xs = rng.standard_normal((rounds, ROWS, WIDTH))
    return tuple(a.astype(dtype) for a in (w, c, xs))


def looped(name: str, reverse: bool = False) -> Callable[..., Any]:
    body = BODIES[name]

    def run(w: Any, c: Any, xs: Any) -> Any:
        init = (c, c) if name == "gates" else c
        return pb.scan(lambda c, x: body(w, c, x), init, xs, reverse=reverse)

    return run


def loss_of(run: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        found = [x for x in pytrees.flatten(run(*args))[0] if x.dtype.is_inexact]
        return sum(((x * x).sum() for x in found[1:]), start=(found[0] * found[0]).sum())

    return pb.value_and_grad(loss, argnums=(0, 1, 2))


def check(function: Callable[..., Any], arrays: tuple[Any, ...], cuda: Any) -> list[str]:
    """Compare with the CPU, launched and as a graph; what was launched."""
    expected = pytrees.flatten(pb.jit(function)(*map(pb.tensor, arrays)))[0]
    compiled = pb.jit(function)
    given = [pb.tensor(a, device=cuda) for a in arrays]
    cuda_fake.launched.clear()
    for _ in range(3):
        found = pytrees.flatten(compiled(*given))[0]
        for a, b in zip(expected, found, strict=True):
            assert same_bits(a.numpy(), b.to_device("cpu").numpy())
    return cuda_fake.launched


def kernels(launched: list[str]) -> int:
    return sum(name.startswith("loop_") for name in launched)


@pytest.mark.parametrize(("name", "rounds"), [(n, 4 + k % 2) for k, n in enumerate(BODIES)])
def test_a_scan_is_one_kernel(name: str, rounds: int, cuda: Any):
    launched = check(looped(name, reverse=rounds == 5), drawn(rounds), cuda)
    assert kernels(launched) == (0 if name in LEFT else 3)


@pytest.mark.parametrize("name", [n for n in BODIES if n not in FORWARD])
def test_gradients(name: str, cuda: Any):
    launched = check(loss_of(looped(name)), drawn(5), cuda)
    assert kernels(launched) >= (0 if name in LEFT else 6)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("block", "gates"),
        ("cluster", "gates"),
        ("cluster", "across"),
        ("grid", "gates"),
        ("grid", "inside"),
    ],
)
def test_blocks_wait_for_each_other(
    kind: str, name: str, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    costs = {k: 0 if k == kind else 10**6 for k in loop_kernels.BARRIERS}
    monkeypatch.setattr(loop_kernels, "BARRIERS", costs)
    monkeypatch.setattr(loop_kernels, "CLUSTER", 2)
    w, c, xs = drawn(5)
    large = np.tile(w, (8, 8)), np.tile(c, (8, 8)), np.tile(xs, (1, 8, 8))
    found: list[str] = []
    monkeypatch.setattr(loop_kernels._Replaced, "grid", _noted(found))
    launched = check(looped(name), large, cuda)
    assert kernels(launched) == 3
    assert set(found) == {kind}
    assert ("pb_loop_begin" in launched) == (kind == "grid")


@pytest.mark.parametrize("width", [512, 600])
def test_products_of_several_chains(width: int, cuda: Any):
    """A chain has 256 elements of k; alone, they are made by the blocks of a cluster."""
    rng = np.random.default_rng(5)
    w, c = rng.standard_normal((width, width)) / width, rng.standard_normal((2, width))
    arrays = tuple(a.astype("float32") for a in (w, c, np.zeros((2, 2, width))))
    assert kernels(check(looped("product"), arrays, cuda)) == 3


def _noted(found: list[str]) -> Callable[..., Any]:
    grid = loop_kernels._Replaced.grid

    def noted(self: Any, writer: Any) -> tuple[int, str]:
        found.append(grid(self, writer)[1])
        return grid(self, writer)

    return noted


def test_arrays_that_start_anywhere(cuda: Any):
    run = looped("product")
    w, c, xs = drawn(4)
    expected = pb.jit(run)(*map(pb.tensor, (w, c, xs)))
    shifted = [np.concatenate([np.zeros(1, a.dtype), a.ravel()]) for a in (w, c, xs)]
    given = [
        pb.tensor(a, device=cuda)[1:].reshape(b.shape)
        for a, b in zip(shifted, (w, c, xs), strict=True)
    ]
    found = pb.jit(run)(*given)
    for a, b in zip(pytrees.flatten(expected)[0], pytrees.flatten(found)[0], strict=True):
        assert same_bits(a.numpy(), b.to_device("cpu").numpy())


def halved(x: Any) -> Any:
    return pb.while_loop(lambda c: (c * c).sum() > 1e-3, lambda c: c @ pb.cos(c).T * 0.03, x)


def counted(x: Any) -> Any:
    """A test that is computed together with the step."""
    start = pb.zeros((), dtype="int64", device=x.device)
    return pb.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, pb.sin(c[1])), (start, x))


@pytest.mark.parametrize("most", [2, 1024])
@pytest.mark.parametrize("function", [halved, counted])
def test_loops_of_any_number_of_rounds(
    function: Any, most: int, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_kernels, "MOST_ROUNDS", most)
    x = np.random.default_rng(1).standard_normal((9, 9)).astype(np.float32)

    launched = check(function, (x,), cuda)
    assert 3 <= kernels(launched) <= 18
    if most == 1024:
        assert kernels(launched) == 3


def test_bad_indices_in_a_round(cuda: Any):
    def run(x: Any, k: Any) -> Any:
        return pb.scan(lambda c, i: (c + x[i], None), x[0], k)[0]

    x, good, bad = np.eye(3, dtype=np.float32), np.array([0, 1, 2]), np.array([0, 7, 2])
    compiled = pb.jit(run)
    given = pb.tensor(x, device=cuda)
    for _ in range(3):
        compiled(given, pb.tensor(good, device=cuda)).numpy()
        with pytest.raises(IndexOutOfRange, match="index 7"):
            compiled(given, pb.tensor(bad, device=cuda)).numpy()


@pytest.mark.parametrize(("limit", "value"), [("LEAST_LAUNCHES", 100), ("TURNS", 0)])
def test_short_and_large_loops_are_launched(
    limit: str, value: int, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_kernels, limit, value)
    assert kernels(check(looped("product"), drawn(4), cuda)) == 0


@pytest.mark.skipif(not nvrtc.is_available(), reason="there is no NVRTC")
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_nvrtc_compiles_them(target: str, cuda: Any):
    for name in ("gates", "layer_norm", "inside", "either"):
        check(loss_of(looped(name)), drawn(3), cuda)
    check(looped("while"), drawn(3), cuda)
    check(counted, (np.ones((9, 9), np.float32),), cuda)
    sources = [s for s in cuda_fake.printed if "loop_" in s and "namespace" in s]
    assert sources
    for source in sources:  # those of other tests too, which may be for tensor cores
        if target != "sm_75" or "from sm_80 on" not in source:
            nvrtc.compile_source(source, target, nvrtc.QUICK)
