"""A derivative rule of one's own: through the solution of an equation, not through its solver.

Kepler's equation E - e sin E = M gives the place of a planet on its ellipse. Newton's method finds
E; to differentiate its iterations would be wasteful. The implicit function theorem gives

    dE = (dM + sin E de) / (1 - e cos E),

which `custom_vjp` attaches to the solver. The rule is made of operations and calls the solver
itself, so that second derivatives come from the same two lines.
"""

import pullback as pb


@pb.custom_vjp
def eccentric_anomaly(mean, eccentricity):
    """The E with E - e sin E = M, by Newton's method."""
    angle = mean + eccentricity * pb.sin(mean)
    for _ in range(8):
        error = angle - eccentricity * pb.sin(angle) - mean
        angle = angle - error / (1 - eccentricity * pb.cos(angle))
    return angle


def forward(mean, eccentricity):
    angle = eccentric_anomaly(mean, eccentricity)
    return angle, (angle, eccentricity)


def backward(residuals, g):
    angle, eccentricity = residuals
    by_mean = g / (1 - eccentricity * pb.cos(angle))
    return by_mean, by_mean * pb.sin(angle)


eccentric_anomaly.defvjp(forward, backward)


def main():
    mean = pb.tensor([0.5, 1.5, 2.5], dtype="float64")
    eccentricity = pb.tensor([0.2, 0.2, 0.2], dtype="float64")
    angle = eccentric_anomaly(mean, eccentricity)
    print("E        ", angle.numpy())

    def total(m, e):
        return pb.sum(eccentric_anomaly(m, e))

    by_mean, by_eccentricity = pb.grad(total, argnums=(0, 1))(mean, eccentricity)
    print("dE / dM  ", by_mean.numpy())
    print("dE / de  ", by_eccentricity.numpy())

    # Orders 1 and 2 against finite differences; an error would name the entry that is wrong.
    report = pb.check_grad(eccentric_anomaly, mean, eccentricity, order=2)
    print(f"worst relative error up to order 2: {report.error:.1e}")
    assert report.passed


if __name__ == "__main__":
    main()
