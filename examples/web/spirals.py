"""A small classifier that is trained in a web page: `python examples/web/spirals.py FOLDER`.

Two functions are exported: some steps of training, and what the classifier says of every pixel of a
picture. The page that runs them is docs/web/index.html.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb

WIDTHS = (2, 24, 24, 1)
POINTS = 240  # of a data set
STEPS = 10  # of training in a call: the page has time to draw in between
SIDE = 72  # of the picture, in pixels
PIXELS = np.stack(np.meshgrid(*[np.linspace(-1, 1, SIDE, dtype=np.float32)] * 2), -1)
PIXELS = pb.tensor(PIXELS.reshape(-1, 2))
Params = list[dict[str, Any]]


def initial(key: Any) -> Params:
    """Weights that keep the scale of what passes through."""
    found = []
    for k, n, m in zip(pb.random.split(key, 3), WIDTHS[:-1], WIDTHS[1:], strict=True):
        found.append({"w": pb.random.normal(k, (n, m)) * (2.0 / n) ** 0.5, "b": pb.zeros((m,))})
    return found


def product(x: Any, w: Any) -> Any:
    """x @ w as a fold for each element: the tiles of a product want larger matrices than these."""
    return (x[:, :, None] * w).sum(axis=1)


def logits(params: Params, x: Any) -> Any:
    x = x * 3.0
    for layer in params[:-1]:
        x = pb.tanh(product(x, layer["w"]) + layer["b"])
    return (product(x, params[-1]["w"]) + params[-1]["b"])[:, 0]


def loss(params: Params, x: Any, y: Any) -> Any:
    """The cross entropy of labels 0 and 1."""
    z = logits(params, x)
    return (pb.nn.softplus(z) - y * z).mean()


def train(params: Params, state: dict[str, Any], x: Any, y: Any, lr: Any) -> Any:
    """Parameters and state of the optimiser after some steps, and the loss before the last."""
    optimiser = pb.optim.SGD(lr=lr, momentum=0.95)

    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        value, grads = pb.value_and_grad(loss)(params, x, y)
        return optimiser.step(params, grads, state), value

    (params, state), losses = pb.scan(step, (params, state), None, length=STEPS)
    return params, state, losses[-1]


def picture(params: Params) -> Any:
    """The probability of label 1 at every pixel."""
    return pb.sigmoid(logits(params, PIXELS))


def spirals(rng: np.random.Generator) -> tuple[Any, Any]:
    """Points on two spirals, and which one it is."""
    label = np.arange(POINTS) % 2
    way = np.sqrt(rng.uniform(0.01, 1, POINTS))
    angle = 4 * np.pi * way + np.pi * label
    x = 0.9 * way[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    x += rng.normal(0, 0.015, x.shape)
    return pb.tensor(x.astype(np.float32)), pb.tensor(label.astype(np.float32))


def arguments() -> tuple[Any, ...]:
    """What `train` begins with."""
    params = initial(pb.random.key(5))
    state = pb.optim.SGD(lr=0.1, momentum=0.95).init(params)
    return params, state, *spirals(np.random.default_rng(1)), pb.tensor(0.05)


def export(folder: str | Path) -> None:
    """Write both functions."""
    args = arguments()
    pb.jit(train).export_web(folder, *args)
    pb.jit(picture).export_web(folder, args[0])


if __name__ == "__main__":
    export(sys.argv[1])
