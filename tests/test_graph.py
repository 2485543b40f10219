"""The explicit tape: built, run, differentiated, cut back, drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import pullback as pb

RNG = np.random.default_rng(1)
X, W, B = (pb.tensor(RNG.normal(size=s)) for s in [(5, 3), (3, 2), (2,)])


def build() -> tuple[pb.Graph, pb.Tensor, pb.Tensor, pb.Tensor, pb.Tensor]:
    g = pb.Graph("model")
    x = g.input((5, 3), "float64", name="x")
    w, b = g.parameter(W, name="w"), g.parameter(B, name="b")
    loss = (pb.tanh(x @ w + b) ** 2).sum()
    return g, x, w, b, loss


def plain(w: pb.Tensor, b: pb.Tensor) -> pb.Tensor:
    return (pb.tanh(X @ w + b) ** 2).sum()


def test_forward_gives_every_node_a_value():
    g, x, w, _, loss = build()
    g.forward({x: X})
    assert g[loss].numpy() == plain(W, B).numpy()
    assert g[w].tolist() == W.tolist()
    assert all(g[n.number].shape == n.shape for n in g.nodes)


def test_backward_gives_and_accumulates_gradients():
    g, x, w, b, loss = build()
    g.forward({x: X}).backward(loss)
    expected = pb.grad(plain, (0, 1))(W, B)
    np.testing.assert_array_equal(g.grad(w).numpy(), expected[0].numpy())
    np.testing.assert_array_equal(g.grad(b).numpy(), expected[1].numpy())
    g.backward(loss)
    np.testing.assert_array_equal(g.grad(w).numpy(), 2 * expected[0].numpy())
    g.zero_grad()
    assert g.grad(w) is None


def test_backward_of_an_array_takes_a_cotangent():
    g = pb.Graph()
    x = g.input(3, "float64")
    y = x * x
    g.forward({x: pb.tensor([1.0, 2.0, 3.0], dtype="float64")})
    with pytest.raises(pb.GradientError, match="needs a cotangent"):
        g.backward(y)
    g.backward(y, pb.tensor([1.0, 10.0, 100.0], dtype="float64"))
    assert g.grad(x).tolist() == [2.0, 40.0, 600.0]


def test_gradients_are_nodes_and_can_be_differentiated_again():
    g, x, w, _, loss = build()
    dw = g.gradient(loss, w)
    twice = g.gradient((dw * dw).sum(), w)
    g.forward({x: X})
    np.testing.assert_allclose(g[dw].numpy(), pb.grad(plain)(W, B).numpy(), rtol=1e-12)
    expected = pb.grad(lambda w: (pb.grad(plain)(w, B) ** 2).sum())(W)
    np.testing.assert_allclose(g[twice].numpy(), expected.numpy(), rtol=1e-12)


def test_what_a_target_does_not_depend_on_has_zero_gradient():
    g, x, w, b, _ = build()
    only = (x @ w).sum()
    g.forward({x: X}).backward(only)
    assert g.grad(b).tolist() == [0.0, 0.0]
    db = g.gradient(only, b)
    assert g.forward({x: X})[db].tolist() == [0.0, 0.0]


def test_a_training_loop_reuses_the_tape():
    """Nodes of a step are cut off after it; parameters stay, with new values."""
    g = pb.Graph()
    w = g.parameter(pb.tensor([0.0, 0.0], dtype="float64"))
    mark = len(g)
    rows = RNG.normal(size=(40, 2))
    for row in rows:
        y = ((w * pb.tensor(row)).sum() - float(row @ [1.0, -2.0])) ** 2
        g.zero_grad()
        g.forward().backward(y)
        g[w] = g[w] - 0.2 * g.grad(w)
        g.truncate(mark)
        assert len(g) == mark
    np.testing.assert_allclose(g[w].numpy(), [1.0, -2.0], atol=0.05)


def test_values_that_were_cut_off_are_refused():
    g, x, w, _, loss = build()
    g.truncate(3)
    for use in (lambda: g[loss], lambda: loss + 1.0, lambda: g.gradient(loss, w)):
        with pytest.raises(pb.TraceError, match="was cut off by truncate"):
            use()
    again = (x @ w).sum()
    assert g.forward({x: X})[again].item() == pytest.approx((X @ W).sum().item())


def test_truncate_keeps_constants_that_come_again():
    g = pb.Graph()
    x = g.input((), "float64")
    c = pb.tensor(3.0, dtype="float64")
    mark = len(g)
    y = x * c
    g.truncate(mark)
    z = x * c
    assert g.forward({x: pb.tensor(2.0, dtype="float64")})[z].item() == 6.0
    with pytest.raises(pb.TraceError):
        g[y]


def test_nodes_say_what_they_are():
    g, *_ = build()
    kinds = [n.kind for n in g.nodes]
    assert kinds[:4] == ["input", "parameter", "parameter", "matmul"]
    assert [n.name for n in g.nodes[:3]] == ["x", "w", "b"]
    product = g.nodes[3]
    assert (product.inputs, product.shape, product.dtype) == ((0, 1), (5, 2), pb.float64)
    g.verify()


def test_the_picture_shows_every_node_and_edge(tmp_path):
    g, *_ = build()
    file = tmp_path / "graph.svg"
    assert g.draw(file) == file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(g.draw())
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}g")) == len(g)
    assert len(root.findall(f"{space}path")) == sum(len(set(n.inputs)) for n in g.nodes)
    labels = {t.text for t in root.iter(f"{space}text")}
    assert {"input x", "parameter w", "tanh", "%0 float64[5,3]"} <= labels
    boxes = [r.attrib for r in root.iter(f"{space}rect")]
    places = {(b["x"], b["y"]) for b in boxes}
    assert len(places) == len(boxes), "no box lies on another"


def test_function_runs_as_one_compiled_unit():
    g, _, w, _, loss = build()
    dw = g.gradient(loss, w)
    value, slope = pb.jit(g.function(loss, dw))(X)
    assert value.item() == pytest.approx(plain(W, B).item(), rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), pb.grad(plain)(W, B).numpy(), rtol=1e-10)
    with pytest.raises(pb.TraceError, match="takes 1 inputs, got 2"):
        g.function(loss)(X, X)


def test_control_flow_stands_on_the_tape():
    g = pb.Graph()
    x = g.input((), "float64")
    last, all_of_them = pb.scan(lambda c, _: (c * x, c), x, None, length=3)
    g.forward({x: pb.tensor(2.0, dtype="float64")})
    assert g[last].item() == 16.0
    assert g[all_of_them].tolist() == [2.0, 4.0, 8.0]
    g.backward(last)
    assert g.grad(x).item() == pytest.approx(32.0)
    first = next(n.number for n in g.nodes if n.kind == "scan")
    with pytest.raises(pb.ShapeError, match="in the middle of `scan`"):
        g.truncate(first + 1)


def test_a_traced_function_is_such_a_graph():
    g = pb.trace(lambda x: pb.sin(x).sum())(X)
    assert isinstance(g, pb.Graph)
    assert [n.kind for n in g.nodes] == ["input", "sin", "sum"]
    assert g.run(X)[0].numpy() == pb.sin(X).sum().numpy()
    g.forward({0: X}).backward(2)
    np.testing.assert_array_equal(g.grad(0).numpy(), pb.cos(X).numpy())


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (lambda g, x, y: g.forward(), "the input x, float64.5,3., was given no value"),
        (lambda g, x, y: g.forward({x: W}), "the input x must be float64"),
        (lambda g, x, y: g.forward({y: X}), "is no input"),
        (lambda g, x, y: g[y], "has no value yet"),
        (lambda g, x, y: g.backward(y), "has no value yet"),
        (lambda g, x, y: g[X], "expected a value of this graph"),
        (lambda g, x, y: g.truncate(99), "the length must be from 0 to"),
        (lambda g, x, y: g.__setitem__(x, X), "only parameters can be set"),
        (lambda g, x, y: g.gradient(y, 1), "takes values of the tape"),
    ],
)
def test_misuse_is_explained(use, match):
    g, x, _, _, loss = build()
    with pytest.raises(pb.PullbackError, match=match):
        use(g, x, loss)
