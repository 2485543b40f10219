"""Handwritten digits and a small network that reads them, written in plain operations.

The data is the "Optical Recognition of Handwritten Digits" test set (Alpaydin and Kaynak, UCI,
1998; 1797 images of 8 x 8 pixels) in the copy that comes with scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from pullback.display.progress import Progress

__all__ = ["LAYERS", "Data", "Fit", "load", "loss", "network", "scores", "train"]

LAYERS = (64, 64, 10)  # widths: the pixels of an image, what is hidden, the digits
BATCH, RATE, MOMENTUM = 128, 0.3, 0.9
SPREAD = 0.3  # of the first weights: small, so that what is learned can be seen in them
TESTED = 360  # images kept for the test
WATCH = 20  # steps between two looks at the test images


class Data(NamedTuple):
    """Images as rows of 64 values from 0 to 1, and what they show."""

    x: Any
    y: Any
    test_x: Any
    test_y: Any


def load() -> Data:
    """The digits, always split in the same way; raises ImportError without scikit-learn."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    order = pb.random.permutation(pb.random.key(0), len(labels))
    x = pb.tensor(values / 16, dtype="float32")[order]
    y = pb.tensor(np.asarray(labels, np.int64))[order]
    return Data(x[TESTED:], y[TESTED:], x[:TESTED], y[:TESTED])


def network(key: Any) -> list[tuple[Any, Any]]:
    """Random weights and zero biases, one pair per layer."""
    layers = []
    for i, (n, m) in enumerate(pairwise(LAYERS)):
        w = pb.random.normal(pb.random.fold_in(key, i), (n, m), scale=SPREAD * n**-0.5)
        layers.append((w, pb.zeros(m)))
    return layers


def scores(params: Any, x: Any) -> Any:
    """One row per image, one score per digit; the softmax of a row are its probabilities."""
    *hidden, (w, b) = params
    for v, c in hidden:
        x = pb.tanh(x @ v + c)
    return x @ w + b


def loss(params: Any, x: Any, y: Any) -> Any:
    """The mean cross-entropy of the right digits."""
    s = scores(params, x)
    right = pb.take_along_axis(s, y[:, None], axis=1)[:, 0]
    return pb.mean(pb.logsumexp(s, axis=1) - right)


def accuracy(params: Any, x: Any, y: Any) -> float:
    """The share of images whose highest score is the right digit."""
    return int(pb.count_nonzero(scores(params, x).argmax(axis=1) == y)) / len(y)


@dataclass
class Fit:
    """The parameters that a run ended with, and what it saw on its way."""

    params: Any
    losses: list[float] = field(default_factory=list)  # of each step's batch
    watched: list[int] = field(default_factory=list)  # the steps of the two lists below
    test_losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


def train(data: Data, steps: int, key: Any, label: str) -> Fit:
    """Gradient descent with momentum on random batches; the key decides everything."""
    first, batches = pb.random.split(key)
    fit = Fit(network(first))
    slope = pb.value_and_grad(loss)
    velocity = pb.map_tree(pb.zeros_like, fit.params)
    with Progress(steps, label) as progress:
        for step in range(steps):
            rows = pb.random.randint(pb.random.fold_in(batches, step), (BATCH,), 0, len(data.y))
            value, gradient = slope(fit.params, data.x[rows], data.y[rows])
            velocity = pb.map_tree(lambda v, g: MOMENTUM * v + g, velocity, gradient)
            fit.params = pb.map_tree(lambda p, v: p - RATE * v, fit.params, velocity)
            fit.losses.append(value.item())
            if step % WATCH == 0 or step == steps - 1:
                _watch(fit, data, step + 1)
            progress.advance(f"loss {fit.losses[-1]:.4f}, accuracy {fit.accuracies[-1]:.3f}")
    return fit


def _watch(fit: Fit, data: Data, step: int) -> None:
    fit.watched.append(step)
    fit.test_losses.append(loss(fit.params, data.test_x, data.test_y).item())
    fit.accuracies.append(accuracy(fit.params, data.test_x, data.test_y))
