"""Recurrent layers against torch's modules: every option, values and derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")
rnn_utils = pytest.importorskip("torch.nn.utils.rnn")

RTOL = {"float32": 2e-5, "float64": 1e-11}
MODULES = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "bidirectional": {"bidirectional": True},
    "two bidirectional layers": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
}
CASES = [(kind, name, options) for kind in MODULES for name, options in OPTIONS.items()]
CASES.append(("rnn", "relu", {"nonlinearity": "relu"}))
CASES += [
    ("lstm", "projection", {"proj_size": 2}),
    ("lstm", "deep projection", {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
]
IDS = [f"{kind}, {name}" for kind, name, _ in CASES]


def module(kind: str, options: dict[str, Any], dtype: str) -> Any:
    torch.manual_seed(0)
    return MODULES[kind](3, 4, **options).to(getattr(torch, dtype))


def ours(kind: str, options: dict[str, Any], **more: Any) -> Callable[..., Any]:
    known = ("bidirectional", "batch_first", "nonlinearity")
    given = {k: v for k, v in options.items() if k in known}
    return lambda x, weights, hx=None: getattr(pb.nn, kind)(x, weights, hx, **given, **more)


def arrays(tree: Any) -> list[Any]:
    return [y for x in tree for y in arrays(x)] if isinstance(tree, (tuple, list)) else [tree]


def close(xs: Any, ts: Any, dtype: str) -> None:
    xs, ts = arrays(xs), arrays(ts)
    assert len(xs) == len(ts)
    for x, t in zip(xs, ts, strict=True):
        y = t.detach().numpy()
        atol = RTOL[dtype] * np.abs(y).max(initial=1.0)
        np.testing.assert_allclose(x.numpy(), y, rtol=RTOL[dtype], atol=atol)


def state(kind: str, options: dict[str, Any], batch: tuple[int, ...], dtype: str) -> list[Any]:
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    rng = np.random.default_rng(5)
    h = rng.normal(size=(count, *batch, options.get("proj_size") or 4)).astype(dtype)
    return [h, rng.normal(size=(count, *batch, 4)).astype(dtype)] if kind == "lstm" else [h]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of torch, about its speed
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "name", "options"), CASES, ids=IDS)
def test_values_and_first_derivatives(kind: str, name: str, options: dict, dtype: str):
    layers = module(kind, options, dtype)
    x = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(dtype)
    batch = 5 if options.get("batch_first") else 2
    first = state(kind, options, (batch,), dtype)
    tx, th = (
        torch.tensor(x, requires_grad=True),
        [torch.tensor(h, requires_grad=True) for h in first],
    )
    t = layers(tx, tuple(th) if kind == "lstm" else th[0])
    weights = {k: pb.tensor(w.detach().numpy()) for k, w in layers.state_dict().items()}
    f = ours(kind, options)
    hx = tuple(map(pb.tensor, first))

    def call(x: Any, weights: Any, hx: Any) -> Any:
        return f(x, weights, hx if kind == "lstm" else hx[0])

    close(call(pb.tensor(x), weights, hx), t, dtype)

    def loss(*args: Any) -> Any:
        return sum((y * y).sum() for y in arrays(call(*args)))

    dx, dw, dh = pb.grad(loss, (0, 1, 2))(pb.tensor(x), weights, hx)
    total = sum((y * y).sum() for y in arrays(t))
    g = torch.autograd.grad(total, [tx, *layers.parameters(), *th])
    names = [n for n, _ in layers.named_parameters()]
    close([dx, *[dw[n] for n in names], *dh], list(g), dtype)


@pytest.mark.parametrize("kind", MODULES)
def test_second_derivatives(kind: str):
    layers = module(kind, {"num_layers": 2}, "float64")
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    weights = [pb.tensor(w.detach().numpy()) for w in layers._flat_weights]
    f = ours(kind, {})

    def gradients(x: Any, weights: Any) -> Any:
        return pb.grad(lambda a, b: (f(a, b)[0] ** 2).sum(), (0, 1))(x, weights)

    def loss(x: Any, weights: Any) -> Any:
        return sum((g * g).sum() for g in arrays(gradients(x, weights)))

    dx, dw = pb.grad(loss, (0, 1))(pb.tensor(x), weights)
    tx = torch.tensor(x, requires_grad=True)
    params = [tx, *layers._flat_weights]
    g = torch.autograd.grad((layers(tx)[0] ** 2).sum(), params, create_graph=True)
    h = torch.autograd.grad(sum((a * a).sum() for a in g), params)
    close([dx, *dw], list(h), "float64")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", MODULES)
def test_sequences_of_different_lengths(kind: str, bidirectional: bool):
    options = {"num_layers": 2, "bidirectional": bidirectional}
    layers = module(kind, options, "float64")
    lengths = [3, 5, 1]
    x = np.random.default_rng(1).normal(size=(5, 3, 3))
    first = state(kind, options, (3,), "float64")
    weights = {k: pb.tensor(w.detach().numpy()) for k, w in layers.state_dict().items()}
    f = ours(kind, options, lengths=np.array(lengths))
    tx = torch.tensor(x, requires_grad=True)
    th = tuple(map(torch.tensor, first))
    packed = rnn_utils.pack_padded_sequence(tx, lengths, enforce_sorted=False)
    out, last = layers(packed, th if kind == "lstm" else th[0])
    padded, _ = rnn_utils.pad_packed_sequence(out)
    hx = tuple(map(pb.tensor, first))
    given = hx if kind == "lstm" else hx[0]
    close(f(pb.tensor(x), weights, given), (padded, last), "float64")
    gradient = pb.grad(lambda a: sum((y * y).sum() for y in arrays(f(a, weights, given))))
    total = sum((y * y).sum() for y in arrays((padded, last)))
    close(gradient(pb.tensor(x)), torch.autograd.grad(total, tx)[0], "float64")


@pytest.mark.parametrize("kind", MODULES)
def test_without_a_batch(kind: str):
    layers = module(kind, {}, "float64")
    x = np.random.default_rng(1).normal(size=(5, 3))
    weights = [pb.tensor(w.detach().numpy()) for w in layers._flat_weights]
    close(ours(kind, {})(pb.tensor(x), weights), layers(torch.tensor(x)), "float64")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MODULES)
def test_cells(kind: str, bias: bool):
    torch.manual_seed(0)
    cell = {"rnn": torch.nn.RNNCell, "lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[kind]
    layer = cell(3, 4, bias=bias).double()
    rng = np.random.default_rng(1)
    x, h = rng.normal(size=(2, 3)), rng.normal(size=(2, 2, 4))
    hx = tuple(h) if kind == "lstm" else h[0]
    weights = [pb.tensor(p.detach().numpy()) for p in layer.parameters()]
    given = tuple(map(pb.tensor, h)) if kind == "lstm" else pb.tensor(h[0])
    theirs = tuple(map(torch.tensor, hx)) if kind == "lstm" else torch.tensor(hx)
    f = getattr(pb.nn, f"{kind}_cell")
    close(f(pb.tensor(x), given, *weights), layer(torch.tensor(x), theirs), "float64")
    close(f(pb.tensor(x), None, *weights), layer(torch.tensor(x)), "float64")


def test_dropout_between_layers_is_that_of_its_key():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers = module("lstm", {"num_layers": 3}, "float64")
    weights = [pb.tensor(w.detach().numpy()) for w in layers._flat_weights]
    x = pb.tensor(np.random.default_rng(1).normal(size=(5, 2, 3)))
    key = pb.random.key(1)
    one = pb.nn.lstm(x, weights, dropout=0.5, key=key)[0].numpy()
    again = pb.nn.lstm(x, weights, dropout=0.5, key=key)[0].numpy()
    other = pb.nn.lstm(x, weights, dropout=0.5, key=pb.random.key(2))[0].numpy()
    assert (one == again).all()
    assert not np.allclose(one, other)
    off = pb.nn.lstm(x, weights, dropout=0.5, key=key, training=False)
    close(off, layers(torch.tensor(x.numpy())), "float64")
