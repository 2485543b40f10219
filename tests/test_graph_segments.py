"""`pb.Graph` in segments: boundaries are kept, the rest is run again, with the same bits."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.runtime.cpu import native

LAYERS, WIDE = 24, 1 << 15


def drawn(*shape: int, seed: int = 0) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape))


def deep(layers: int = LAYERS, wide: int = WIDE) -> tuple[pb.Graph, Any, list[Any], Any]:
    """A chain in which each layer has several values that its derivative reads."""
    g = pb.Graph()
    x = g.input(wide, "float64", name="x")
    scales = [g.parameter(pb.tensor(1.0 + 0.01 * k), name=f"s{k}") for k in range(layers)]
    y = x
    for s in scales:
        y = pb.sin(pb.exp(pb.cos(pb.tanh(y * s) * 0.9)))
    return g, x, scales, y.sum()


def skipping() -> tuple[pb.Graph, list[Any], Any]:
    """Values that are read far behind, several times, by control flow and with random numbers."""
    g = pb.Graph()
    x, w = g.input((6, 4), "float64"), g.parameter(drawn(4, 4, seed=2))
    first = pb.tanh(x @ w)
    y = first
    for k in range(5):
        y = pb.nn.dropout(pb.sin(y @ w), 0.2, key=pb.random.key(k)) + first
    y = pb.cond(y.sum() > 0, lambda y: y * first, lambda y: y - first, y)
    y = pb.scan(lambda c, r: (pb.tanh(c + r), c * r), y[0], y)[1]
    return g, [x, w], (y * first).mean() + (x * 1.0).sum()


def bits(g: pb.Graph, values: list[Any]) -> list[bytes]:
    return [g.grad(v).numpy().tobytes() for v in values]


@pytest.mark.parametrize("ahead", [False, True], ids=["backward only", "forward too"])
@pytest.mark.parametrize("segments", [1, 2, 5, 12])
def test_gradients_have_the_same_bits(segments: int, ahead: bool):
    g, inputs, loss = skipping()
    x = drawn(6, 4)
    g.forward({inputs[0]: x}).backward(loss)
    expected, value = bits(g, inputs), g[loss].item()
    g.zero_grad()
    g.forward({inputs[0]: x}, segments=segments if ahead else None)
    assert g[loss].item() == value
    g.backward(loss, segments=None if ahead else segments)
    assert bits(g, inputs) == expected
    g.backward(loss)  # the boundaries are still there, and gradients are added up
    twice = [(2 * np.frombuffer(b)).tobytes() for b in expected]
    assert bits(g, inputs) == twice


def test_every_value_can_still_be_asked_for():
    g, inputs, _ = skipping()
    x = drawn(6, 4)
    g.forward({inputs[0]: x})
    expected = [g[n.number].numpy().tobytes() for n in g.nodes]
    g.forward({inputs[0]: x}, segments=4)
    assert [g[n.number].numpy().tobytes() for n in g.nodes] == expected


def test_targets_inside_of_a_segment_and_with_cotangents():
    g, x, scales, _ = deep(6, 8)
    value, cotangent = drawn(8), drawn(8, seed=3)
    for node in [n for n in g.nodes if n.kind == "tanh"]:
        g.forward({x: value}).backward(node.number, cotangent)
        expected = bits(g, [x, *scales])
        g.zero_grad()
        g.forward({x: value}, segments=3).backward(node.number, cotangent, segments=5)
        assert bits(g, [x, *scales]) == expected
        g.zero_grad()


def taken(run: Any) -> int:
    """The bytes that were allocated at most meanwhile."""
    before = native.memory()["live"]
    native.reset_peak()
    run()
    return native.memory()["peak"] - before


def test_less_memory_is_taken():
    value = drawn(WIDE)
    peaks = []

    def step(g: pb.Graph, x: Any, loss: Any, segments: int | None) -> None:
        g.forward({x: value}, segments=segments).backward(loss)

    for segments in (None, 6):
        g, x, _, loss = deep()
        peaks.append(taken(partial(step, g, x, loss, segments)))
    # the root of 24 layers, of some 6 values each, twice: 6 boundaries and 4 layers
    assert peaks[1] < 0.35 * peaks[0]


def test_what_forward_has_kept_is_given_back():
    gc.collect()  # what other tests have left is not ours
    others = native.memory()["live"]
    g, x, scales, loss = deep()
    g.forward({x: drawn(WIDE)})
    before = native.memory()["live"] - others
    peak = taken(lambda: g.backward(loss, segments=6))
    after = native.memory()["live"] - others
    assert after < 0.2 * before
    assert peak < 0.1 * before
    assert all(g.grad(s) is not None for s in scales)


def test_what_acts_on_the_world_runs_once(capsys: pytest.CaptureFixture[str]):
    g = pb.Graph()
    x = g.input(3)
    y = pb.sin(x)
    pb.debug.print("here {}", y)
    loss = (pb.exp(y) * y).sum()
    g.forward({x: pb.ones(3)}, segments=2).backward(loss)
    g.backward(loss, segments=3)
    assert capsys.readouterr().out.count("here") == 1
    np.testing.assert_allclose(
        g.grad(x).numpy(), 2 * pb.grad(lambda x: (pb.exp(pb.sin(x)) * pb.sin(x)).sum())(pb.ones(3))
    )


def test_a_tape_that_is_cut_back_or_grows_meanwhile():
    g, inputs, loss = skipping()
    x = drawn(6, 4)
    g.forward({inputs[0]: x}, segments=3)
    first = next(n.number for n in g.nodes if n.kind == "tanh")
    more = loss * 2.0
    with pytest.raises(pb.TraceError, match="no value yet"):
        g.backward(more, segments=2)
    g.truncate(first + 1)
    g.backward(first, pb.ones((6, 4), dtype="float64"))
    w = inputs[1]
    expected = pb.grad(lambda w: pb.tanh(x @ w).sum())(g[w])
    np.testing.assert_allclose(g.grad(w).numpy(), expected.numpy(), rtol=1e-13)


def test_bad_input():
    g, x, _, loss = deep(2, 4)
    g.forward({x: drawn(4)})
    with pytest.raises(pb.ShapeError, match=r"Graph.backward: segments must be from 1 to \d+, the"):
        g.backward(loss, segments=0)
    with pytest.raises(pb.ShapeError, match="number of operations, got 1000"):
        g.forward({x: drawn(4)}, segments=1000)
    wrong: Any = 2.0
    with pytest.raises(pb.DTypeError, match="must be a number of segments, got float"):
        g.backward(loss, segments=wrong)
    lone = pb.Graph()
    x, i = lone.input(3), lone.input(3, "int64")
    y = i * 2
    (x * 1.0).sum()
    lone.forward({x: pb.ones(3), i: pb.ones(3, dtype="int64")}, segments=2)
    with pytest.raises(pb.GradientError):
        lone.backward(y, segments=2)
    fixed = pb.sin(i.astype("float64")).sum()
    lone.forward({x: pb.ones(3), i: pb.ones(3, dtype="int64")}, segments=2)
    with pytest.raises(pb.GradientError, match="does not depend on a floating input"):
        lone.backward(fixed)
