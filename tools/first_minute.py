"""What a new user waits for: import, the first operation, gradient, compiled function and training
step of a process, without a cache of compiled code and with the one that the first process left.

python tools/first_minute.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PROGRAM = """
from time import perf_counter
at = perf_counter()
def lap(what):
    global at
    now = perf_counter()
    print(what, round(1e3 * (now - at)), sep="\\t")
    at = perf_counter()
import numpy
lap("import numpy")
import pullback as pb
lap("import pullback")
repr(pb.tensor([1.0, 2.0, 3.0]) ** 2 + 1)
lap("first operation, printed")
x = pb.tensor([1.0, 2.0, 3.0])
repr(pb.grad(lambda x: pb.sum(x**3))(x))
lap("first gradient")
repr(pb.jit(lambda x: pb.sum(pb.tanh(x) * x))(x))
lap("first compiled function")
k1, k2, k3 = pb.random.split(pb.random.key(0), 3)
net = pb.nn.Sequential(
    pb.nn.Linear(2, 16, key=k1), pb.nn.Tanh(), pb.nn.Linear(16, 1, key=k2)
)
lap("first network")
x = pb.random.normal(k3, (64, 2))
y = pb.prod(x, axis=1, keepdims=True)
opt = pb.optim.Adam(lr=0.05)
@pb.jit
def step(net, state):
    value, gradient = pb.value_and_grad(lambda net: pb.nn.mse_loss(net(x), y))(net)
    net, state = opt.step(net, gradient, state)
    return net, state, value
net, state, value = step(net, opt.init(net))
value.item()
lap("first training step")
for _ in range(200):
    net, state, value = step(net, state)
value.item()
lap("200 more steps")
"""


def laps(cache: str) -> dict[str, int]:
    """Milliseconds of each part, in a process of its own."""
    environment = {**os.environ, "PULLBACK_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {what: int(ms) for what, ms in rows}


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        cold = laps(cache)
        warm = laps(cache)
    print("| | no cache, ms | with one, ms |\n|---|---|---|")
    for what, ms in cold.items():
        print(f"| {what} | {ms} | {warm[what]} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
