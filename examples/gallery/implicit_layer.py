"""A layer that is an equation: its output is the z with z = tanh(W z + U x + b).

`pb.fixed_point` iterates until nothing changes, and differentiates the solution instead of the
steps: training needs the memory of one step, however many there were. The layer tells two spirals
apart. W is kept so small that the steps always lead to a solution.
"""

import pullback as pb
from pullback.display import drawing


class Equilibrium(pb.Module):
    def __init__(self, key, width=24):
        k1, k2, k3 = pb.random.split(key, 3)
        self.inner = pb.nn.Linear(width, width, bias=False, key=k1)
        self.outer = pb.nn.Linear(2, width, key=k2)
        self.last = pb.nn.Linear(width, 1, key=k3)

    def state(self, x):
        w, u = self.inner.weight, self.outer(x)
        w = 0.9 * w / pb.maximum(1.0, pb.linalg.matrix_norm(w, ord=2))
        return pb.fixed_point(lambda z: pb.tanh(z @ w.T + u), pb.zeros(u.shape), tol=1e-5)

    def __call__(self, x):
        return self.last(self.state(x))[..., 0]


def spirals(key, n):
    """Points of two spirals, one after the other, and which one each belongs to."""
    k1, k2 = pb.random.split(key)
    turn = pb.sqrt(pb.random.uniform(k1, (n,))) * 2.2 * pb.pi
    side = pb.where(pb.arange(n) < n // 2, 0.0, pb.pi)
    place = pb.stack([pb.cos(turn + side), pb.sin(turn + side)], axis=1) * turn[:, None] / 7
    return place + pb.random.normal(k2, (n, 2), scale=0.015), side > 0


def loss(net, x, y):
    return pb.nn.binary_cross_entropy_with_logits(net(x), y.astype("float32"))


def main(quick=False):
    x, y = spirals(pb.random.key(0), 400)
    net, opt = Equilibrium(pb.random.key(1)), pb.optim.Adam(lr=0.01)

    @pb.jit
    def step(net, state):
        value, gradient = pb.value_and_grad(loss)(net, 3 * x, y)
        net, state = opt.step(net, gradient, state)
        return net, state, value

    state = opt.init(net)
    for _ in range(150 if quick else 1500):
        net, state, value = step(net, state)
    right = pb.mean(((net(3 * x) > 0) == y).astype("float32")).item()
    print(f"loss {value.item():.4f}, {100 * right:.1f}% of the points on the right side")
    assert right > (0.6 if quick else 0.98)

    side = pb.linspace(-1.1, 1.1, 120)
    places = 3 * pb.stack(pb.meshgrid(side, side), axis=-1)
    found = 2 * pb.sigmoid(net(places)) - 1
    column, row = ((x + 1.1) / 2.2 * 119).round().astype("int64").T
    found[row, column] = pb.where(y, 2.0, -2.0)  # the points themselves, in full colour
    shown = {"which spiral": found, "one number of the state": net.state(places)[..., 0]}
    pictures = [drawing.heat_map(values.numpy()[::-1], name) for name, values in shown.items()]
    return drawing.tiles(pictures, list(shown), size="pair")


if __name__ == "__main__":
    main()
