"""A force field is learned from forces alone, and keeps energy when it moves the atoms.

The network is the energy of a pair of atoms as a function of their distance; forces are its
gradient, and the training step differentiates through them. What it should find is a Lennard-Jones
potential, which it only knows by the forces on clusters of five atoms.
"""

import pullback as pb
from pullback.display import drawing

LEFT, RIGHT = pb.nonzero(pb.triu(pb.ones((5, 5)), k=1))


class Pair(pb.Module):
    def __init__(self, key, width=32):
        k1, k2, k3 = pb.random.split(key, 3)
        self.first = pb.nn.Linear(1, width, key=k1)
        self.second = pb.nn.Linear(width, width, key=k2)
        self.last = pb.nn.Linear(width, 1, bias=False, key=k3)

    def __call__(self, r):
        h = pb.tanh(self.first(r[..., None] ** -3))
        return self.last(pb.tanh(self.second(h)))[..., 0]


def lennard_jones(r):
    return r**-12 - 2 * r**-6


def energy(pair, x):
    return pair(pb.linalg.vector_norm(x[LEFT] - x[RIGHT], axis=-1)).sum()


def forces(pair, x):
    return pb.vmap(lambda x: -pb.grad(energy, argnums=1)(pair, x))(x)


def loss(pair, x, f):
    return pb.mean((forces(pair, x) - f) ** 2)


def main(quick=False):
    ring = pb.arange(5) * (2 * pb.pi / 5)
    shape = pb.stack([pb.cos(ring), pb.sin(ring), 0.3 * pb.sin(2 * ring)], axis=-1)
    x = 0.95 * shape + pb.random.normal(pb.random.key(0), (256, 5, 3), scale=0.1)
    f = forces(lennard_jones, x)

    opt = pb.optim.LBFGS(max_iter=80 if quick else 600)
    pair, state = pb.jit(lambda p: opt.minimize(lambda p: loss(p, x, f), p))(Pair(pb.random.key(1)))
    error = pb.sqrt(loss(pair, x, f) / pb.mean(f**2)).item()
    print(f"{state['step'].item()} steps, relative error of the forces {100 * error:.2f}%")
    assert error < (0.2 if quick else 0.03)

    r = pb.linspace(0.85, 2.0, 120)
    shift = pair(pb.tensor(2.0)) - lennard_jones(pb.tensor(2.0))  # forces don't tell the zero
    curves = [
        ("Lennard-Jones", lennard_jones(r), "a"),
        ("learned from forces", pair(r) - shift, "b dashed"),
    ]
    series = [drawing.Series(name, r.tolist(), y.tolist(), kind) for name, y, kind in curves]
    return drawing.curves(series, "distance", "energy of a pair")


if __name__ == "__main__":
    main()
