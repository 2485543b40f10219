"""A Gaussian process chooses its own length scale, amplitude and noise by marginal likelihood.

The gradient goes through a Cholesky factor and a solution of triangular systems.
"""

import pullback as pb
from pullback.display import drawing


def kernel(p, a, b):
    """The covariance of the function's values at a and at b."""
    return pb.exp(2 * p["amplitude"] - 0.5 * ((a[:, None] - b) / pb.exp(p["length"])) ** 2)


def factor(p, x):
    noise = pb.exp(2 * p["noise"]) + 1e-10
    return pb.linalg.cholesky(kernel(p, x, x) + noise * pb.eye(len(x), dtype=x.dtype))


def surprise(p, x, y):
    """Minus the logarithm of the likelihood of y, but for a constant."""
    root = factor(p, x)
    z = pb.linalg.solve_triangular(root, y[:, None], lower=True)
    return 0.5 * pb.sum(z**2) + pb.sum(pb.log(pb.linalg.diagonal(root)))


def predict(p, x, y, places):
    """Mean and standard deviation of the function at other places."""
    root, across = factor(p, x), kernel(p, x, places)
    mean = across.T @ pb.linalg.cholesky_solve(y[:, None], root)
    z = pb.linalg.solve_triangular(root, across, lower=True)
    return mean[:, 0], pb.sqrt(pb.exp(2 * p["amplitude"]) - pb.sum(z**2, axis=0))


def main(quick=False):
    k1, k2 = pb.random.split(pb.random.key(3))
    x = pb.sort(pb.random.uniform(k1, (20 if quick else 40,), 0.0, 6.0, dtype="float64"))
    true = lambda x: pb.sin(2 * x) + 0.4 * x  # noqa: E731
    y = true(x) + pb.random.normal(k2, x.shape, scale=0.2, dtype="float64")

    start = {name: pb.tensor(0.0, dtype="float64") for name in ("length", "amplitude", "noise")}
    opt = pb.optim.LBFGS()
    p, state = pb.jit(lambda p: opt.minimize(lambda p: surprise(p, x, y), p))(start)
    report = ", ".join(f"{name} {pb.exp(v).item():.2f}" for name, v in p.items())
    print(f"{state['step'].item()} steps of L-BFGS: {report}")
    assert 0.1 < pb.exp(p["noise"]) < 0.3

    places = pb.linspace(-0.5, 7.0, 150, dtype="float64")
    mean, deviation = predict(p, x, y, places)
    s, at = drawing.Series, places.tolist()
    series = [
        s("true", at, true(places).tolist(), "c dashed"),
        s("mean", at, mean.tolist(), "a"),
        s("two standard deviations", at, (mean + 2 * deviation).tolist(), "a faint"),
        s("", at, (mean - 2 * deviation).tolist(), "a faint"),
        s("measured", x.tolist(), y.tolist(), "b points"),
    ]
    return drawing.curves(series, "x", "f(x)")


if __name__ == "__main__":
    main()
