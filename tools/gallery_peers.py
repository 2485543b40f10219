"""Four models of the gallery beside the same in PyTorch: time of a training step, and the outcome.

    python tools/gallery_peers.py            a few minutes; needs PyTorch
    python tools/gallery_peers.py pinn       one of them

The libraries take turns step by step, on one thread each, begin with the same weights and see the
same batches; medians of processor time are compared, which other programs disturb less than they do
the clock. PyTorch runs eagerly.
"""

from __future__ import annotations

import runpy
import statistics
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import pullback as pb
from pullback.runtime.cpu import native

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"


class Peer(NamedTuple):
    """A training step of either library, and what is said of the outcome."""

    step: Callable[[int], Any]
    outcome: Callable[[], str]


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(GALLERY / f"{name}.py"))


def ours(net: Any, opt: Any, loss: Callable[..., Any], batch: Any, outcome: Any) -> Peer:
    @pb.jit
    def update(net, state, *arrays):
        value, gradient = pb.value_and_grad(loss)(net, *arrays)
        net, state = opt.step(net, gradient, state)
        return net, state, value

    held = [net, opt.init(net)]

    def step(i):
        *held[:], value = update(*held, *(pb.tensor(a) for a in batch(i)))
        return value.item()

    return Peer(step, lambda: outcome(held[0]))


def begun(net: nn.Module, like: Any) -> nn.Module:
    """A model of PyTorch's with the weights of ours, by names or in their order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        pb.save(path, like)
        weights = load_file(path)
    names = net.state_dict().keys()
    if weights.keys() != names:
        order = [line.split()[0] for line in like.summary().splitlines()[1:-1]]
        weights = {new: weights[old] for new, old in zip(names, order, strict=True)}
    net.load_state_dict(weights)
    return net


def theirs(net: Any, opt: Any, loss: Callable[..., Any], batch: Any, outcome: Any) -> Peer:
    def step(i):
        opt.zero_grad()
        value = loss(net, *(torch.tensor(a) for a in batch(i)))
        value.backward()
        opt.step()
        return value.item()

    return Peer(step, lambda: outcome(net))


def digits() -> tuple[Peer, Peer]:
    from sklearn.datasets import load_digits

    module = example("digits")
    values, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(values))
    x = (values.reshape(-1, 1, 8, 8) / 16).astype(np.float32)[order]
    y = labels.astype(np.int64)[order]
    rows = rng.permuted(np.tile(np.arange(360, len(x)), (20, 1)), axis=1)[:, :1408].reshape(-1, 64)

    def batch(i):
        return x[rows[i % len(rows)]], y[rows[i % len(rows)]]

    def right(scores):
        return f"{int((np.asarray(scores).argmax(1) == y[:360]).sum())} of 360 right"

    torch_net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    net = module["Net"](pb.random.key(1))
    torch_net = begun(torch_net, net)
    return (
        ours(net, pb.optim.Adam(lr=0.003), module["loss"], batch,
             lambda net: right(net(pb.tensor(x[:360])))),
        theirs(torch_net, torch.optim.Adam(torch_net.parameters(), lr=0.003),
               lambda net, x, y: nn.functional.cross_entropy(net(x), y), batch,
               lambda net: right(net(torch.tensor(x[:360])).detach())),
    )  # fmt: skip


class Characters(nn.Module):
    def __init__(self, symbols: int, length: int, width: int = 64):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(2)
        )
        self.out = nn.Linear(width, symbols)

    def forward(self, ids):
        n = ids.shape[-1]
        x = self.symbols(ids) + self.places(torch.arange(n))
        later = nn.Transformer.generate_square_subsequent_mask(n)
        for layer in self.layers:
            x = layer(x, src_mask=later, is_causal=True)
        return self.out(x)


def characters() -> tuple[Peer, Peer]:
    module = example("characters")
    symbols, length = module["SYMBOLS"], module["LENGTH"]
    ids = np.array([symbols.index(c) for c in module["TEXT"]])
    starts = np.random.default_rng(0).integers(0, len(ids) - length, (1000, 16))

    def batch(i):
        return (ids[starts[i][:, None] + np.arange(length + 1)],)

    def loss(net, rows):
        scores = net(rows[:, :-1]).reshape(-1, len(symbols))
        return nn.functional.cross_entropy(scores, rows[:, 1:].reshape(-1))

    every = ids[np.arange(0, len(ids) - length, 7)[:, None] + np.arange(length + 1)]
    net = module["Model"](pb.random.key(0))
    torch_net = begun(Characters(len(symbols), length), net)
    return (
        ours(net, pb.optim.AdamW(lr=0.003), module["loss"], batch,
             lambda net: f"loss {module['loss'](net, pb.tensor(every)).item():.3f}"),
        theirs(torch_net, torch.optim.AdamW(torch_net.parameters(), lr=0.003), loss, batch,
               lambda net: f"loss {loss(net, torch.tensor(every)).item():.3f}"),
    )  # fmt: skip


def mlp(*widths: int, last_bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (n, m) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        layers += [nn.Linear(n, m, bias=last_bias or not last)] + ([] if last else [nn.Tanh()])
    return nn.Sequential(*layers)


def pinn() -> tuple[Peer, Peer]:
    module = example("pinn")
    points = module["grid"](24)[1:-1, 1:-1].reshape(-1, 2).numpy()
    places = module["grid"](64).reshape(-1, 2).numpy()
    exact = np.sin(np.pi * places).prod(-1)

    def torch_u(net, x):
        return (1 - x**2).prod(-1) * net(x)[:, 0]

    def loss(net, x):
        x = x.requires_grad_()
        slope = torch.autograd.grad(torch_u(net, x).sum(), x, create_graph=True)[0]
        bend = sum(
            torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in (0, 1)
        )
        return ((bend + 2 * np.pi**2 * torch.sin(np.pi * x).prod(-1)) ** 2).mean()

    def worst(u):
        return f"largest error {np.abs(np.asarray(u) - exact).max():.1e}"

    def batch(i):
        return (points,)

    net = module["Solution"](pb.random.key(0))
    torch_net = begun(mlp(2, 24, 24, 1), net)
    return (
        ours(net, pb.optim.Adam(lr=0.003), module["loss"], batch,
             lambda u: worst(pb.vmap(u)(pb.tensor(places)))),
        theirs(torch_net, torch.optim.Adam(torch_net.parameters(), lr=0.003), loss, batch,
               lambda net: worst(torch_u(net, torch.tensor(places)).detach())),
    )  # fmt: skip


def force_field() -> tuple[Peer, Peer]:
    module = example("force_field")
    ring = pb.arange(5) * (2 * pb.pi / 5)
    shape = pb.stack([pb.cos(ring), pb.sin(ring), 0.3 * pb.sin(2 * ring)], axis=-1)
    x = 0.95 * shape + pb.random.normal(pb.random.key(0), (256, 5, 3), scale=0.1)
    f = module["forces"](module["lennard_jones"], x)
    x, f = x.numpy(), f.numpy()
    left, right = torch.triu_indices(5, 5, offset=1)

    def loss(net, x, f):
        x = x.requires_grad_()
        r = torch.linalg.vector_norm(x[:, left] - x[:, right], dim=-1)
        energy = net(r[..., None] ** -3).sum()
        forces = -torch.autograd.grad(energy, x, create_graph=True)[0]
        return ((forces - f) ** 2).mean()

    def batch(i):
        return x, f

    def error(value):
        return f"error of forces {100 * (value / (f**2).mean()) ** 0.5:.1f}%"

    net = module["Pair"](pb.random.key(1))
    torch_net = begun(mlp(1, 32, 32, 1, last_bias=False), net)
    return (
        ours(net, pb.optim.Adam(lr=0.003), module["loss"], batch,
             lambda net: error(module["loss"](net, pb.tensor(x), pb.tensor(f)).item())),
        theirs(torch_net, torch.optim.Adam(torch_net.parameters(), lr=0.003), loss, batch,
               lambda net: error(loss(net, torch.tensor(x), torch.tensor(f)).item())),
    )  # fmt: skip


PROGRAMS = {"digits": digits, "characters": characters, "force_field": force_field, "pinn": pinn}
STEPS = {"digits": 440, "characters": 550, "force_field": 1000, "pinn": 1000}


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> int:
    names = sys.argv[1:] or list(PROGRAMS)
    torch.set_num_threads(1)
    native.set_threads(1)
    row("example", "steps", "ours, ms", "torch, ms", "ratio", "first, s", "ours", "torch")
    row(*["---"] * 8)
    for name in names:
        pair = PROGRAMS[name]()
        seconds: tuple[list[float], list[float]] = [], []
        begun_at = [peer.outcome() for peer in pair]
        if begun_at[0] != begun_at[1]:
            raise AssertionError(f"{name}: not the same model, got {begun_at}")
        for i in range(STEPS[name]):
            for times, peer in zip(seconds, pair, strict=True):
                start = process_time()
                peer.step(i)
                times.append(process_time() - start)
        a, b = (1e3 * statistics.median(times) for times in seconds)
        first = ", ".join(f"{times[0]:.1f}" for times in seconds)
        numbers = (STEPS[name], f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}", first)
        row(name, *numbers, *(peer.outcome() for peer in pair))
    return 0


if __name__ == "__main__":
    sys.exit(main())
