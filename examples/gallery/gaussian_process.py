"""A Gaussian process chooses its own length scale, amplitude and noise by marginal likelihood.

Gradient and Hessian go through a Cholesky factor and a solution of triangular systems. The inverse
of the Hessian says how well each is known.
"""

import pullback as pb
from pullback.display import drawing

NAMES = ("length", "amplitude", "noise")  # whose logarithms are the parameters


def kernel(p, a, b):
    """The covariance of the function's values at a and at b."""
    return pb.exp(2 * p[1] - 0.5 * ((a[:, None] - b) / pb.exp(p[0])) ** 2)


def factor(p, x):
    noise = pb.exp(2 * p[2]) + 1e-10
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
    return mean[:, 0], pb.sqrt(pb.exp(2 * p[1]) - pb.sum(z**2, axis=0))


def main(quick=False):
    n = 100 if quick else 2000
    k1, k2 = pb.random.split(pb.random.key(3))
    x = pb.random.uniform(k1, (n,), 0.0, 6.0, dtype="float64")
    true = lambda x: pb.sin(2 * x) + 0.4 * x  # noqa: E731
    y = true(x) + pb.random.normal(k2, x.shape, scale=0.2, dtype="float64")

    opt, few = pb.optim.LBFGS(), slice(0, 50)  # a start, found with some of the points
    zero = pb.zeros(3, dtype="float64")
    p = pb.jit(lambda p: opt.minimize(lambda p: surprise(p, x[few], y[few]), p))(zero)[0]
    slopes = pb.jit(lambda p: (pb.grad(surprise)(p, x, y), pb.hessian(surprise)(p, x, y)))
    steps, step = 0, pb.ones_like(p)
    while pb.max(abs(step)) > 1e-6:
        gradient, hessian = slopes(p)
        step, steps = pb.linalg.solve(hessian, gradient), steps + 1
        p = p - step
    doubt = pb.sqrt(pb.linalg.diagonal(pb.linalg.inv(hessian)))
    rows = zip(NAMES, pb.exp(p).tolist(), doubt.tolist(), strict=True)
    report = ", ".join(f"{name} {v:.3f} (within {100 * d:.0f} %)" for name, v, d in rows)
    print(f"{n} points, {steps} steps of Newton's method: {report}")
    assert 0.15 < pb.exp(p[2]) < 0.25 and pb.max(abs(gradient)) < 1e-3 * n

    places = pb.linspace(-0.5, 7.0, 150, dtype="float64")
    mean, deviation = predict(p, x, y, places)
    s, at = drawing.Series, places.tolist()
    series = [
        s("true", at, true(places).tolist(), "c dashed"),
        s("mean", at, mean.tolist(), "a"),
        s("two standard deviations", at, (mean + 2 * deviation).tolist(), "a faint"),
        s("", at, (mean - 2 * deviation).tolist(), "a faint"),
        s("measured", x[:200].tolist(), y[:200].tolist(), "b points"),
    ]
    return drawing.curves(series, "x", "f(x)")


if __name__ == "__main__":
    main()
