"""A network learns a law of motion from one path; derivatives go through the solver."""

import pullback as pb
from pullback.display import drawing

STEP = 0.02


class Field(pb.Module):
    def __init__(self, key, width=32):
        k1, k2 = pb.random.split(key)
        self.hidden = pb.nn.Linear(2, width, key=k1)
        self.out = pb.nn.Linear(width, 2, key=k2)

    def __call__(self, x):
        return self.out(pb.tanh(self.hidden(x**3)))


def spiral(x):
    """The true law."""
    return x**3 @ pb.tensor([[-0.1, -2.0], [2.0, -0.1]])


def path(field, start, steps):
    """States after each step of the Runge-Kutta method of order 4, as one scan."""

    def step(x, _):
        a = field(x)
        b = field(x + STEP / 2 * a)
        c = field(x + STEP / 2 * b)
        d = field(x + STEP * c)
        x = x + STEP / 6 * (a + 2 * b + 2 * c + d)
        return x, x

    return pb.scan(step, start, None, length=steps)[1]


def main(quick=False):
    start, n = pb.tensor([2.0, 0.0]), 600
    true = path(spiral, start, n)
    # Pieces of ten steps that begin all along the path are solved side by side.
    pieces = pb.stack([true[i : n - 10 + i] for i in range(11)])

    def loss(field):
        return pb.mean((path(field, pieces[0], 10) - pieces[1:]) ** 2)

    opt = pb.optim.LBFGS(max_iter=60 if quick else 500)
    field, state = pb.jit(lambda f: opt.minimize(loss, f))(Field(pb.random.key(0)))
    found = path(field, start, n)
    error = pb.max(pb.abs(found - true)).item()
    print(f"{state['step'].item()} steps, largest error over {n * STEP:.0f} s: {error:.2f}")
    assert loss(field) < (0.01 if quick else 1e-4)

    names = [("true", true[::5], "b points"), ("learned", found, "a")]
    series = [drawing.Series(s, x[:, 0].tolist(), x[:, 1].tolist(), k) for s, x, k in names]
    return drawing.curves(series, "x", "y")


if __name__ == "__main__":
    main()
