"""Fit a curve by Newton's method: the Hessian is only ever multiplied with vectors.

Conjugate gradients solve H step = -gradient with one Hessian-vector product per iteration, so
that n parameters never cost an n x n matrix. Close to the optimum the error squares at each step.
"""

import pullback as pb

t = pb.linspace(0.0, 4.0, 200, dtype="float64")
TRUE = pb.tensor([2.5, 1.3, 0.4], dtype="float64")  # height, decay and drift


def curve(p):
    height, decay, drift = p
    return height * pb.exp(-decay * t) + drift * pb.sqrt(1 + t)


measured = curve(TRUE)


def loss(p):
    return pb.mean((curve(p) - measured) ** 2)


def error(p):
    return pb.max(pb.abs(p - TRUE)).item()


def conjugate_gradients(multiply, b, tolerance=1e-24):
    """Solve multiply(x) = b for a positive definite linear map."""
    x, r = pb.zeros_like(b), b
    d, rr = r, pb.vecdot(r, r)
    for _ in range(4 * len(b)):
        if rr.item() < tolerance:
            break
        image = multiply(d)
        step = rr / pb.vecdot(d, image)
        x, r = x + step * d, r - step * image
        d, rr = r + pb.vecdot(r, r) / rr * d, pb.vecdot(r, r)
    return x


def main():
    p = pb.tensor([2.0, 1.0, 0.5], dtype="float64")
    slope = pb.value_and_grad(loss)
    for iteration in range(6):
        value, gradient = slope(p)
        print(f"{iteration}  loss {value.item():.3e}  error {error(p):.3e}")

        def multiply(v, p=p):
            return pb.hvp(loss, (p,), (v,))

        p = p + conjugate_gradients(multiply, -gradient)
    assert error(p) < 1e-12


if __name__ == "__main__":
    main()
