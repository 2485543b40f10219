"""Waves in shallow water by a spectral method; where they came from is found by its derivative.

The equation of Korteweg and de Vries, u_t + 6 u u_x + u_xxx = 0, is solved in Fourier space: the
linear part exactly, the rest by the Runge-Kutta method of order 4. Then only the end is given, and
the heights and places of the two waves at the beginning are recovered from it.
"""

import pullback as pb
from pullback.display import drawing

WIDTH, STEP = 40.0, 0.002


def waves(p, n):
    """The sum of solitary waves with the given heights and places."""
    x = pb.arange(n, dtype="float64") * (WIDTH / n)
    height, place = p["height"][:, None], p["place"][:, None]
    return pb.sum(height / pb.cosh(pb.sqrt(height / 2) * (x - place)) ** 2, axis=0)


def solve(u, steps):
    """The waves after every 40 steps, as rows."""
    n = len(u)
    k = 2 * pb.pi * pb.fft.rfftfreq(n, d=WIDTH / n, dtype="float64")
    half = pb.exp(0.5j * STEP * k**3)  # what half a step does to a wave of small height
    kept = k < k.max() * 2 / 3  # products of the others would come back as false waves

    def slope(v):
        return -3j * STEP * k * pb.fft.rfft(pb.fft.irfft(pb.where(kept, v, 0.0), n=n) ** 2)

    def step(_, v):
        a = slope(v)
        b = slope(half * (v + a / 2))
        c = slope(half * v + b / 2)
        d = slope(half * (half * v + c))
        return half * (half * (v + a / 6) + (b + c) / 3) + d / 6

    def row(v, _):
        v = pb.fori_loop(0, 40, step, v)
        return v, pb.fft.irfft(v, n=n)

    return pb.scan(row, pb.fft.rfft(u), None, length=steps // 40)[1]


def main(quick=False):
    n, steps = (64, 400) if quick else (256, 4000)
    true = {"height": pb.tensor([2.0, 0.7]), "place": pb.tensor([8.0, 16.0])}
    true = {name: value.astype("float64") for name, value in true.items()}
    seen = solve(waves(true, n), steps)

    opt = pb.optim.LBFGS(max_iter=60, tolerance_grad=1e-9)
    start = pb.map_tree(lambda v: v + pb.tensor([0.2, -0.1], dtype="float64"), true)
    loss = lambda p: pb.mean((solve(waves(p, n), steps)[-1] - seen[-1]) ** 2)  # noqa: E731
    p, state = pb.jit(lambda p: opt.minimize(loss, p))(start)
    print(f"{state['step'].item()} steps of L-BFGS")
    for name, value in p.items():
        print(f"{name}s", ", ".join(f"{v:.6f}" for v in value.tolist()))
    assert all(pb.allclose(p[name], true[name], atol=1e-3) for name in true)

    return drawing.heat_map(seen.numpy()[::-1], "height of the waves over place and time")


if __name__ == "__main__":
    main()
