"""Trains a small network on several devices and prints the sha256 of all parameters on each.

    PYTHONPATH=src python tools/cuda_training.py [--devices cpu cuda] [--steps 1000] [--eager]

An embedding of tokens, layer_norm, two hidden layers, cross entropy, Adam: a step is one compiled
function, or with `--eager` single operations. The exit status is 1 if the devices disagree.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from typing import Any

import numpy as np

import pullback as pb
from pullback.core import pytrees

TOKENS, WORDS, WIDTH, HIDDEN, CLASSES = 64, 8, 16, 48, 10
BATCH, RATE = 64, 3e-3
SHOWN = 250  # steps between two printed losses


class Net(pb.Module):
    """The classes of sentences of WORDS tokens."""

    def __init__(self, key: Any):
        keys = pb.random.split(key, 4)
        self.embedding = pb.nn.Embedding(TOKENS, WIDTH, key=keys[0])
        self.norm = pb.nn.LayerNorm(WIDTH)
        self.hidden = pb.nn.Linear(WORDS * WIDTH, HIDDEN, key=keys[1])
        self.second = pb.nn.Linear(HIDDEN, HIDDEN, key=keys[2])
        self.out = pb.nn.Linear(HIDDEN, CLASSES, key=keys[3])

    def __call__(self, words: Any) -> Any:
        x = self.norm(self.embedding(words))
        x = pb.nn.gelu(self.hidden(pb.reshape(x, (-1, WORDS * WIDTH))))
        return self.out(pb.tanh(self.second(x)))


def loss(net: Net, words: Any, classes: Any) -> Any:
    """The mean cross entropy."""
    return pb.nn.cross_entropy(net(words), classes)


def trained(steps: int, compiled: bool, label: str) -> Net:
    """The network after so many steps on the default device; the keys decide everything."""
    first, batches = pb.random.split(pb.random.key(0))
    net, opt = Net(first), pb.optim.Adam(lr=RATE)
    state = opt.init(net)

    def step(net: Net, state: Any, key: Any) -> Any:
        words = pb.random.randint(key, (BATCH, WORDS), 0, TOKENS)
        classes = words[:, 0] % CLASSES
        value, gradient = pb.value_and_grad(loss)(net, words, classes)
        return *opt.step(net, gradient, state), value

    run = pb.jit(step) if compiled else step
    for n in range(steps):
        net, state, value = run(net, state, pb.random.fold_in(batches, n))
        if n % SHOWN == 0 or n == steps - 1:
            print(f"  {label} step {n + 1:5}  loss {value.item().hex()}", flush=True)
    return net


def digest(tree: Any) -> str:
    """The sha256 of the bytes of all arrays of a tree."""
    total = hashlib.sha256()
    for leaf in pytrees.leaves(tree):
        total.update(np.ascontiguousarray(leaf.numpy()).tobytes())
    return total.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--eager", action="store_true", help="without pb.jit")
    options = parser.parse_args()
    digests = []
    for name in options.devices:
        started = time.perf_counter()
        with pb.device(name):
            net = trained(options.steps, not options.eager, name)
        digests.append(digest(net))
        print(f"{digests[-1]}  {name}  {time.perf_counter() - started:.1f} s", flush=True)
    same = len(set(digests)) == 1
    print("the same bits on all devices" if same else "the devices disagree")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
