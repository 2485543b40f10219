"""The 27 nonlinear regressions of NIST's reference datasets, by Newton's method with Hessians.

Models, data and certified parameters are in regression.json.
"""

import json
from pathlib import Path

import pullback as pb
from pullback.display import drawing


def newton(rest, b, damping=1e-3):
    """Parameters with the least sum of squares; steps are damped until they make it smaller."""
    loss = lambda b: pb.sum(rest(b) ** 2)  # noqa: E731
    slopes = pb.jit(lambda b: (pb.grad(loss)(b), pb.hessian(loss)(b), pb.jacfwd(rest)(b)))
    g, h, j = slopes(b)
    while damping < 1e16:
        scale, ones = pb.sqrt(pb.sum(j**2, axis=0)), pb.eye(len(b), dtype=b.dtype)
        try:
            root = pb.linalg.cholesky(h / scale / scale[:, None] + damping * ones)
        except pb.LinAlgError:  # the Hessian is not positive yet
            damping *= 10
            continue
        further = b - pb.linalg.cholesky_solve(g / scale, root) / scale
        if loss(further) < loss(b):
            b, damping = further, damping / 10
            g, h, j = slopes(b)
        else:
            damping *= 4
    return b


def rest(name, problem):
    """What a model leaves, as a function of its parameters."""
    model = eval("lambda b, x: " + problem["model"], vars(pb))
    x, y = (pb.tensor(problem[k], dtype="float64") for k in "xy")
    if name == "Nelson":  # whose values have errors in proportion
        return lambda b: pb.log(model(b, x)) - pb.log(y)
    return lambda b: model(b, x) - y


def main(quick=False):
    path = Path(__file__).with_suffix(".json")
    problems = list(json.loads(path.read_text("utf-8"))["problems"].items())
    right = [[], []]  # digits, from each start
    for name, problem in problems[::4] if quick else problems:
        true = pb.tensor(problem["certified"], dtype="float64")
        for digits, start in zip(right, problem["starts"], strict=True):
            b = newton(rest(name, problem), pb.tensor(start, dtype="float64"))
            digits.append(-pb.log10(pb.max(abs(b / true - 1))).item())
    far, near = right
    print(f"{len(far)} problems, each from two starts: {min(far + near):.1f} digits right at least")
    assert min(far + near) > 8
    s, at = drawing.Series, list(range(1, len(far) + 1))
    series = [s("far start", at, far, "b points"), s("near start", at, near, "a points")]
    return drawing.curves(series, "problem", "digits right")


if __name__ == "__main__":
    main()
