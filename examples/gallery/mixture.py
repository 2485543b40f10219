"""A mixture of Gaussians is fitted by the gradient of its likelihood, and says how sure it is.

The parameters are free of constraints: logarithms of weights, and Cholesky factors whose diagonal
is exponentiated. The Hessian by the means gives their standard errors, the rest held fixed.
"""

import pullback as pb
from pullback.display import drawing

TRUE = {"mean": [[-2.0, 0.0], [1.5, 1.5], [1.0, -2.0]], "share": [0.5, 0.3, 0.2]}


def factors(p):
    """Lower triangles L; the covariance of a component is L L^T."""
    return pb.tril(p["factor"], k=-1) + pb.diag_embed(pb.exp(pb.linalg.diagonal(p["factor"])))


def likelihood(p, x):
    """The mean logarithm of the density at the points."""
    root = factors(p)
    off = (x[:, None] - p["mean"])[..., None]
    z = pb.linalg.solve_triangular(root, off, lower=True)[..., 0]
    size = pb.sum(pb.linalg.diagonal(p["factor"]), axis=-1) + pb.log(2 * pb.pi)
    log_share = pb.nn.log_softmax(p["weight"], dim=0)
    return pb.mean(pb.logsumexp(log_share - 0.5 * pb.sum(z**2, axis=-1) - size, axis=1))


def sample(key, n):
    k1, k2 = pb.random.split(key)
    which = pb.random.choice(k1, 3, (n,), p=pb.tensor(TRUE["share"]))
    spread = pb.tensor(
        [[[0.9, 0.0], [0.5, 0.4]], [[0.5, 0.0], [-0.3, 0.6]], [[0.7, 0.0], [0, 0.3]]]
    )
    noise = pb.random.normal(k2, (n, 2, 1))
    return pb.tensor(TRUE["mean"])[which] + (spread[which] @ noise)[..., 0]


def main(quick=False):
    x = sample(pb.random.key(4), 300 if quick else 2000)
    p = {"mean": x[:3], "weight": pb.zeros(3), "factor": pb.zeros((3, 2, 2))}
    opt = pb.optim.LBFGS(max_iter=300)
    p, state = pb.jit(lambda p: opt.minimize(lambda p: -likelihood(p, x), p))(p)

    order = pb.argsort(-p["weight"])
    mean, share = p["mean"][order], pb.nn.softmax(p["weight"], dim=0)[order]
    curvature = pb.hessian(lambda m: -len(x) * likelihood({**p, "mean": m}, x))(p["mean"])
    error = pb.sqrt(pb.linalg.diagonal(pb.linalg.inv(curvature.reshape(6, 6)))).reshape(3, 2)[order]
    print(f"{state['step'].item()} steps of L-BFGS, log-likelihood {likelihood(p, x).item():.4f}")
    for m, e, s in zip(mean.tolist(), error.tolist(), share.tolist(), strict=True):
        print(f"share {s:.2f}, mean {m[0]:5.2f} ± {e[0]:.2f}, {m[1]:5.2f} ± {e[1]:.2f}")
    assert pb.abs(mean - pb.tensor(TRUE["mean"])).max() < (0.5 if quick else 0.1)

    turn = pb.linspace(0, 2 * pb.pi, 80)
    circle = 2 * pb.stack([pb.cos(turn), pb.sin(turn)])
    series = [drawing.Series("points", *x[:400].T.tolist(), "b points faint")]
    for i, (m, root) in enumerate(zip(p["mean"], factors(p), strict=True)):
        ring = (m[:, None] + root @ circle).tolist()
        series.append(drawing.Series("" if i else "two standard deviations", *ring, "a"))
    return drawing.curves(series, "first coordinate", "second")


if __name__ == "__main__":
    main()
